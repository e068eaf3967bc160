/*
 * arrayfile.c - see arrayfile.h.
 */
#include "core/arrayfile.h"

#include "core/fileio.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { NPY, NPZ, SAFETENSORS };

struct array_file {
    enum kind kind;
    char *path;
    struct npy **npy; /* [n], owned: NPY, NPZ, else NULL */
    struct st_file *st;
    struct array_at *at;
    char **name; /* [n], owned; NULL where at[].name belongs to the file */
    int64_t n, cap;
};

/* ---- opening -------------------------------------------------------------------------------- */

static int file_kind(const char *path, enum kind *kind, struct err *err)
{
    unsigned char b[8] = {0};
    int64_t size;
    OWN(io_close_at) int fd = -1;
    PASS_ON(io_open(path, &fd, &size, err));
    if (size < 8)
        return err_set(err, ERR_INPUT, "%s: %lld bytes are no .npy, .npz or .safetensors file",
                       path, (long long)size);
    PASS_ON(io_read_at(fd, path, size, 0, b, sizeof b, err));
    *kind = memcmp(b, "\x93NUMPY", 6) == 0 ? NPY : memcmp(b, "PK", 2) == 0 ? NPZ : SAFETENSORS;
    return 0;
}

static int room(struct array_file *f, int64_t n, struct err *err)
{
    PASS_ON(mem_zalloc(&f->at, n, sizeof *f->at, f->path, err));
    PASS_ON(mem_zalloc(&f->name, n, sizeof *f->name, f->path, err));
    PASS_ON(mem_zalloc(&f->npy, n, sizeof *f->npy, f->path, err));
    f->cap = n;
    return 0;
}

/* Enter the array that is being added; its name is copied. */
static int enter(struct array_file *f, const char *name, size_t len, enum dtype dtype, int ndim,
                 const int64_t *shape, struct err *err)
{
    struct array_at *a = f->at + f->n;
    if (!(f->name[f->n] = strndup(name, len)))
        return err_set(err, ERR_NOMEM, "%s: out of memory", f->path);
    *a = (struct array_at){
        .name = f->name[f->n], .dtype = dtype, .ndim = ndim, .count = 1, .index = f->n};
    for (int i = 0; i < ndim; i++) {
        a->shape[i] = shape[i];
        if (!mul_ok(a->count, shape[i], &a->count))
            return err_set(err, ERR_INPUT, "%s: array '%s' is too large", f->path, a->name);
    }
    f->n++;
    return 0;
}

static int enter_npy(struct array_file *f, const char *name, size_t len, struct err *err)
{
    const struct npy *a = f->npy[f->n];
    return enter(f, name, len, a->dtype, a->ndim, a->shape, err);
}

static int open_npy(struct array_file *f, struct err *err)
{
    const char *slash = strrchr(f->path, '/'), *base = slash ? slash + 1 : f->path;
    const char *dot = strrchr(base, '.');
    PASS_ON(room(f, 1, err));
    PASS_ON(npy_open(f->path, false, &f->npy[0], err));
    return enter_npy(f, base, dot ? (size_t)(dot - base) : strlen(base), err);
}

static int open_npz(struct array_file *f, struct err *err)
{
    OWN(npz_close) struct npz *z = NULL;
    PASS_ON(npz_open(f->path, &z, err));
    PASS_ON(room(f, npz_count(z), err));
    for (int64_t i = 0; i < npz_count(z); i++) {
        PASS_ON(npz_array(z, i, &f->npy[f->n], err));
        PASS_ON(enter_npy(f, npz_name(z, i), strlen(npz_name(z, i)), err));
    }
    return 0;
}

static int open_safetensors(struct array_file *f, struct err *err)
{
    PASS_ON(st_open(f->path, &f->st, err));
    PASS_ON(room(f, st_count(f->st), err));
    for (int64_t i = 0; i < st_count(f->st); i++) {
        const struct st_tensor *t = st_at(f->st, i);
        PASS_ON(enter(f, t->name, strlen(t->name), t->dtype, t->ndim, t->shape, err));
    }
    return 0;
}

/* ---- all ------------------------------------------------------------------------------------ */

int array_file_open(const char *path, struct array_file **out, struct err *err)
{
    static int (*const open_kind[])(struct array_file *, struct err *) = {
        [NPY] = open_npy, [NPZ] = open_npz, [SAFETENSORS] = open_safetensors};
    OWN(array_file_close) struct array_file *f = NULL;

    PASS_ON(mem_zalloc(&f, 1, sizeof *f, path, err));
    PASS_ON(mem_dup(&f->path, path, path, err));
    PASS_ON(file_kind(path, &f->kind, err));
    PASS_ON(open_kind[f->kind](f, err));
    *out = HAND_OVER(f);
    return 0;
}

void array_file_close(struct array_file **pf)
{
    struct array_file *f = *pf;
    if (!f)
        return;
    for (int64_t i = 0; i < f->cap; i++) {
        npy_close(&f->npy[i]);
        free(f->name[i]);
    }
    st_close(&f->st);
    free(f->npy);
    free(f->name);
    free(f->at);
    free(f->path);
    free(f);
    *pf = NULL;
}

int64_t array_file_count(const struct array_file *f)
{
    return f->n;
}

const struct array_at *array_file_at(const struct array_file *f, int64_t i)
{
    return f->at + i;
}

void array_shape_text(const struct array_at *a, char text[160])
{
    size_t used = 0;
    snprintf(text, 160, "a single number");
    for (int i = 0; i < a->ndim && used < 160; i++)
        used += (size_t)snprintf(text + used, 160 - used, "[%lld]", (long long)a->shape[i]);
}

/* ---- elements ------------------------------------------------------------------------------- */

static int read_raw(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                    void *dst, struct err *err)
{
    if (!dtype_is_integer(a->dtype))
        return err_set(err, ERR_INPUT,
                       "%s: array '%s' has elements of type %s; booleans or integers are expected",
                       f->path, a->name, a->dtype == DT_NONE ? "unknown" : dtype_name(a->dtype));
    if (first < 0 || n < 0 || first > a->count - n)
        return err_set(err, ERR_RUN, "%s: array '%s': elements %lld..%lld of %lld", f->path,
                       a->name, (long long)first, (long long)(first + n), (long long)a->count);
    if (n == 0)
        return 0;
    return f->kind == SAFETENSORS ? st_read_raw(f->st, st_at(f->st, a->index), first, n, dst, err)
                                  : npy_read_range(f->npy[a->index], first, n, dst, err);
}

int array_read_i64(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                   int64_t *dst, struct err *err)
{
    enum { STEP = 1 << 15 };
    size_t size = dtype_size(a->dtype);
    OWN(free_at) unsigned char *raw = NULL;
    PASS_ON(mem_alloc(&raw, STEP, 8, a->name, err));
    for (int64_t i = 0; i < n || i == 0; i += STEP) {
        int64_t m = n - i < STEP ? n - i : STEP;
        PASS_ON(read_raw(f, a, first + i, m, raw, err));
        for (int64_t k = 0; k < m; k++)
            dst[i + k] = dtype_i64(a->dtype, raw + (size_t)k * size);
    }
    return 0;
}

int array_read_bool(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                    uint8_t *dst, struct err *err)
{
    enum { STEP = 1 << 13 };
    int64_t x[STEP];
    bool bytes = dtype_size(a->dtype) == 1;
    if (bytes)
        PASS_ON(read_raw(f, a, first, n, dst, err));
    for (int64_t i = 0; i < n; i += STEP) {
        int64_t m = n - i < STEP ? n - i : STEP;
        if (!bytes)
            PASS_ON(array_read_i64(f, a, first + i, m, x, err));
        for (int64_t k = 0; k < m; k++) {
            int64_t v = bytes ? dst[i + k] : x[k];
            if (v != 0 && v != 1)
                return err_set(err, ERR_INPUT,
                               "%s: array '%s': element %lld is %lld, expected 0 or 1", f->path,
                               a->name, (long long)(first + i + k), (long long)v);
            dst[i + k] = (uint8_t)v;
        }
    }
    return 0;
}
