/*
 * arrayfile.c - see arrayfile.h.
 */
#include "core/arrayfile.h"

#include "core/fileio.h"
#include "core/h5util.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum kind { NPY, NPZ, SAFETENSORS, HDF5 };

/* A dataset of an HDF5 file. */
struct stored {
    hid_t dset;
    struct h5_info info;
    int plain; /* of a chunked one: its elements in memory once it was asked for, else -1 */
};

struct array_file {
    enum kind kind;
    char *path;
    struct npy **npy; /* [n], owned: NPY, NPZ */
    struct st_file *st;
    hid_t file;            /* HDF5 */
    struct stored *stored; /* [n], owned: HDF5 */
    int fd;                /* HDF5: of the file, for datasets in one piece */
    struct array_at *at;
    char **name; /* [n], owned; NULL where at[].name belongs to the file */
    int64_t n, cap;
};

/* ---- opening -------------------------------------------------------------------------------- */

static int file_kind(const char *path, enum kind *kind, struct err *err)
{
    unsigned char b[8] = {0};
    int64_t size;
    int fd = -1, rc = 0;

    TRY(io_open(path, &fd, &size, err));
    if (size < 8)
        FAIL(err, ERR_INPUT, "%s: %lld bytes are no .npy, .npz, .safetensors or HDF5 file", path,
             (long long)size);
    TRY(io_read_at(fd, path, size, 0, b, sizeof b, err));
    *kind = memcmp(b, "\x93NUMPY", 6) == 0           ? NPY
            : memcmp(b, "PK", 2) == 0                ? NPZ
            : memcmp(b, "\x89HDF\r\n\x1a\n", 8) == 0 ? HDF5
                                                     : SAFETENSORS;
out:
    if (fd >= 0)
        close(fd);
    return rc;
}

static int room(struct array_file *f, int64_t n, struct err *err)
{
    int rc = 0;
    TRY(mem_zalloc(&f->at, n, sizeof *f->at, f->path, err));
    TRY(mem_zalloc(&f->name, n, sizeof *f->name, f->path, err));
    if (f->kind == NPY || f->kind == NPZ)
        TRY(mem_zalloc(&f->npy, n, sizeof *f->npy, f->path, err));
    if (f->kind == HDF5)
        TRY(mem_zalloc(&f->stored, n, sizeof *f->stored, f->path, err));
    f->cap = n;
out:
    return rc;
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
    int rc = 0;
    TRY(room(f, 1, err));
    TRY(npy_open(f->path, false, &f->npy[0], err));
    TRY(enter_npy(f, base, dot ? (size_t)(dot - base) : strlen(base), err));
out:
    return rc;
}

static int open_npz(struct array_file *f, struct err *err)
{
    struct npz *z = NULL;
    int rc = 0;
    TRY(npz_open(f->path, &z, err));
    TRY(room(f, npz_count(z), err));
    for (int64_t i = 0; i < npz_count(z); i++) {
        TRY(npz_array(z, i, &f->npy[f->n], err));
        TRY(enter_npy(f, npz_name(z, i), strlen(npz_name(z, i)), err));
    }
out:
    npz_close(&z);
    return rc;
}

static int open_safetensors(struct array_file *f, struct err *err)
{
    int rc = 0;
    TRY(st_open(f->path, &f->st, err));
    TRY(room(f, st_count(f->st), err));
    for (int64_t i = 0; i < st_count(f->st); i++) {
        const struct st_tensor *t = st_at(f->st, i);
        TRY(enter(f, t->name, strlen(t->name), t->dtype, t->ndim, t->shape, err));
    }
out:
    return rc;
}

/* ---- HDF5 ----------------------------------------------------------------------------------- */

/* Integers, and what h5py makes of a boolean: an enumeration of one byte. */
static enum dtype element_type(hid_t dset)
{
    static const enum dtype types[2][4] = {{DT_U8, DT_U16, DT_U32, DT_U64},
                                           {DT_I8, DT_I16, DT_I32, DT_I64}};
    hid_t t = H5Dget_type(dset);
    H5T_class_t class = H5Tget_class(t);
    size_t size = H5Tget_size(t);
    int log = size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : size == 8 ? 3 : -1;
    bool plain = class == H5T_INTEGER && log >= 0 && (size == 1 || H5Tget_order(t) == H5T_ORDER_LE);
    bool is_signed = plain && H5Tget_sign(t) == H5T_SGN_2;
    h5_close(t);
    return class == H5T_ENUM && size == 1 ? DT_BOOL : plain ? types[is_signed][log] : DT_NONE;
}

/* A dataset that is stored in a way that is not read is of no known type: other data in the file
 * must not forbid the masks. */
static int enter_dataset(struct array_file *f, const char *name, struct err *err)
{
    struct stored *s = f->stored + f->n;
    struct err ignored = {0};
    bool readable = h5_dataset_shape(s->dset, &s->info, &ignored) == 0;
    enum dtype type = readable ? element_type(s->dset) : DT_NONE;
    s->plain = -1;
    return enter(f, name, strlen(name), type, readable ? s->info.ndim : 0, s->info.dims, err);
}

/* A link of the root group: a dataset becomes an array, a group is passed over. */
static int enter_link(struct array_file *f, const char *name, struct err *err)
{
    struct err why = {0}, other = {0};
    hid_t group = H5I_INVALID_HID, dset = H5I_INVALID_HID;
    int rc = h5_open_dataset(f->file, name, &dset, &why);
    if (rc == 0) {
        f->stored[f->n].dset = dset;
        if ((rc = enter_dataset(f, name, err)) != 0)
            h5_close(dset);
        return rc;
    }
    if (h5_open_group(f->file, name, &group, &other) == 0) {
        h5_close(group);
        return 0;
    }
    return err_set(err, rc, "%s", why.msg);
}

static int open_hdf5(struct array_file *f, struct err *err)
{
    char **names = NULL, format[64];
    int64_t n = 0;
    int rc = 0;

    h5_lock();
    TRY(h5_open_foreign(f->path, &f->file, err));
    if (h5_has_attr(f->file, "format") &&
        h5_get_str(f->file, "format", format, sizeof format, NULL) == 0)
        FAIL(err, ERR_INPUT, "%s is a file of kind %s, not one of arrays", f->path, format);
    TRY(h5_file_descriptor(f->file, &f->fd, err));
    TRY(h5_names(f->file, &names, &n, err));
    TRY(room(f, n, err));
    for (int64_t i = 0; i < n; i++)
        TRY(enter_link(f, names[i], err));
out:
    h5_names_free(names, n);
    h5_unlock();
    if (rc && err && !strstr(err->msg, f->path))
        err_prefix(err, "%s", f->path);
    return rc;
}

/* ---- chunked datasets ------------------------------------------------------------------------
 *
 * Chunks are unpacked here and not by libhdf5, for the reason that chunk_unpack gives. */

#define CHUNKS_MOST (1 << 20)

struct unpack {
    hid_t dset;
    const struct h5_info *info;
    size_t elem, bytes; /* of an element, of a chunk */
    enum chunk_codec codec;
    bool shuffled, packed;
    char *out; /* the whole array */
    void *stored, *scratch, *plain;
    int64_t cap;
};

static int check_pipeline(struct unpack *u, struct err *err)
{
    const struct h5_info *f = u->info;
    int last = f->nfilters ? f->filter[f->nfilters - 1] : 0;
    u->shuffled = f->nfilters > 0 && f->filter[0] == H5Z_FILTER_SHUFFLE;
    u->packed = f->nfilters > 0 && last != H5Z_FILTER_SHUFFLE;
    u->codec = last == H5Z_FILTER_DEFLATE ? CHUNK_DEFLATE : CHUNK_ZSTD;
    if (f->nfilters > u->shuffled + u->packed)
        return err_set(err, ERR_INPUT,
                       "a dataset is packed by %d filters in an order that is not read; write it "
                       "with gzip, or without compression",
                       f->nfilters);
    return 0;
}

/* Sizes of a chunk and of the array; the number of chunks is bounded, for each is looked up. */
static int check_size(struct unpack *u, int64_t *total, struct err *err)
{
    const struct h5_info *f = u->info;
    int64_t bytes = (int64_t)u->elem, chunks = 1;
    bool ok = true;

    *total = (int64_t)u->elem;
    for (int i = 0; i < f->ndim; i++) {
        ok = ok && f->chunk[i] > 0 && mul_ok(bytes, f->chunk[i], &bytes) &&
             mul_ok(*total, f->dims[i], total) &&
             mul_ok(chunks, (f->dims[i] + f->chunk[i] - 1) / f->chunk[i], &chunks);
    }
    if (!ok || bytes > UINT32_MAX || chunks > CHUNKS_MOST)
        return err_set(err, ERR_INPUT, "a dataset has too many chunks or too large ones");
    u->bytes = (size_t)bytes;
    return 0;
}

/* The chunk at `at` into u->plain; *there = false when it was never written. */
static int fetch(struct unpack *u, const hsize_t *at, bool *there, struct err *err)
{
    size_t size;
    uint32_t mask = 0, skip = 0;
    int rc = h5_fetch_chunk(u->dset, at, u->bytes, &u->stored, &u->cap, &size, &mask, err);

    *there = size > 0;
    if (rc || !*there)
        return rc;
    /* chunk_unpack has shuffle as bit 0, codec as bit 1. */
    if (!u->shuffled || mask & 1)
        skip |= 1;
    if (!u->packed || mask >> u->shuffled & 1)
        skip |= 2;
    return chunk_unpack(u->stored, size, u->codec, skip, u->elem, u->scratch, u->plain, u->bytes,
                        err);
}

/* Copy what of the chunk lies inside of the array, a run of its last dimension at a time. */
static void scatter(const struct unpack *u, const hsize_t *at)
{
    const struct h5_info *f = u->info;
    int last = f->ndim - 1;
    int64_t in[H5_MAX_DIMS] = {0}, left = f->dims[last] - (int64_t)at[last];
    size_t run = (size_t)(left < f->chunk[last] ? left : f->chunk[last]) * u->elem;

    for (const char *from = u->plain;; from += (size_t)f->chunk[last] * u->elem) {
        int64_t to = 0;
        bool inside = true;
        for (int i = 0; i < f->ndim; i++) {
            inside = inside && (int64_t)at[i] + in[i] < f->dims[i];
            to = to * f->dims[i] + (int64_t)at[i] + in[i];
        }
        if (inside)
            memcpy(u->out + to * (int64_t)u->elem, from, run);
        int i = last - 1;
        while (i >= 0 && ++in[i] == f->chunk[i])
            in[i--] = 0;
        if (i < 0)
            return;
    }
}

static int unpack_all(struct unpack *u, struct err *err)
{
    const struct h5_info *f = u->info;
    hsize_t at[H5_MAX_DIMS] = {0};
    for (;;) {
        bool there;
        int rc = fetch(u, at, &there, err), i = f->ndim - 1;
        if (rc)
            return rc;
        if (there)
            scatter(u, at);
        for (; i >= 0 && (int64_t)(at[i] += (hsize_t)f->chunk[i]) >= f->dims[i]; i--)
            at[i] = 0;
        if (i < 0)
            return 0;
    }
}

/* Write the elements of a chunked dataset in row-major order to the empty file fd; elem: bytes of
 * an element. Pipelines: none, deflate or zstd, either behind shuffle. Chunks that were never
 * written are zeros. ERR_INPUT for anything else, and for more than CHUNKS_MOST chunks. */
static int unpack_dataset(hid_t dset, const struct h5_info *info, size_t elem, int fd,
                          struct err *err)
{
    struct unpack u = {.dset = dset, .info = info, .elem = elem};
    int64_t total = 0;
    int rc = 0;

    TRY(check_pipeline(&u, err));
    TRY(check_size(&u, &total, err));
    if (total == 0)
        goto out;
    if (ftruncate(fd, total) != 0) {
        rc = err_sys(err, ERR_MACHINE, "%lld bytes of memory for a dataset", (long long)total);
        goto out;
    }
    void *map = mmap(NULL, (size_t)total, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        rc = err_sys(err, ERR_MACHINE, "%lld bytes of memory for a dataset", (long long)total);
        goto out;
    }
    u.out = map;
    TRY(mem_alloc(&u.scratch, (int64_t)u.bytes, 1, "chunk", err));
    TRY(mem_alloc(&u.plain, (int64_t)u.bytes, 1, "chunk", err));
    rc = unpack_all(&u, err);
out:
    if (u.out)
        munmap(u.out, (size_t)total);
    free(u.stored);
    free(u.scratch);
    free(u.plain);
    return rc;
}

/* ---- all ------------------------------------------------------------------------------------ */

int array_file_open(const char *path, struct array_file **out, struct err *err)
{
    static int (*const open_kind[])(struct array_file *, struct err *) = {
        [NPY] = open_npy, [NPZ] = open_npz, [SAFETENSORS] = open_safetensors, [HDF5] = open_hdf5};
    struct array_file *f = NULL;
    int rc = 0;

    TRY(mem_zalloc(&f, 1, sizeof *f, path, err));
    f->file = H5I_INVALID_HID;
    f->fd = -1;
    if (!(f->path = strdup(path)))
        FAIL(err, ERR_NOMEM, "%s: out of memory", path);
    TRY(file_kind(path, &f->kind, err));
    TRY(open_kind[f->kind](f, err));
    *out = f;
    f = NULL;
out:
    array_file_close(&f);
    return rc;
}

void array_file_close(struct array_file **pf)
{
    struct array_file *f = *pf;
    if (!f)
        return;
    if (f->kind == HDF5)
        h5_lock();
    for (int64_t i = 0; i < f->cap; i++) {
        if (f->npy)
            npy_close(&f->npy[i]);
        if (f->stored && i < f->n) {
            h5_close(f->stored[i].dset);
            if (f->stored[i].plain >= 0)
                close(f->stored[i].plain);
        }
        free(f->name[i]);
    }
    if (f->kind == HDF5) {
        h5_close(f->file);
        h5_unlock();
    }
    if (f->fd >= 0)
        close(f->fd);
    st_close(&f->st);
    free(f->npy);
    free(f->stored);
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

/* The elements of a chunked dataset in memory, unpacked at the first question. */
static int unpacked(const struct array_file *f, struct stored *s, size_t elem, struct err *err)
{
    int rc = 0;
    h5_lock();
    if (s->plain < 0) {
        int fd = memfd_create("lacuna-dataset", MFD_CLOEXEC);
        rc = fd < 0 ? err_sys(err, ERR_MACHINE, "%s: memory to unpack it", f->path)
                    : unpack_dataset(s->dset, &s->info, elem, fd, err);
        if (rc && fd >= 0)
            close(fd);
        else
            s->plain = fd;
    }
    h5_unlock();
    return rc;
}

static int read_hdf5(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                     void *dst, struct err *err)
{
    struct stored *s = f->stored + a->index;
    int64_t elem = (int64_t)dtype_size(a->dtype), base = s->info.offset;
    int rc = 0;

    if (s->info.chunked) {
        rc = unpacked(f, s, (size_t)elem, err);
        base = 0;
    } else if (base < 0) { /* never written */
        memset(dst, 0, (size_t)(n * elem));
        return 0;
    }
    if (!rc)
        rc = io_read_at(s->info.chunked ? s->plain : f->fd, f->path, INT64_MAX, base + first * elem,
                        dst, n * elem, err);
    return rc ? err_prefix(err, "%s: '%s'", f->path, a->name) : 0;
}

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
    return f->kind == HDF5          ? read_hdf5(f, a, first, n, dst, err)
           : f->kind == SAFETENSORS ? st_read_raw(f->st, st_at(f->st, a->index), first, n, dst, err)
                                    : npy_read_range(f->npy[a->index], first, n, dst, err);
}

int array_read_i64(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                   int64_t *dst, struct err *err)
{
    enum { STEP = 1 << 15 };
    size_t size = dtype_size(a->dtype);
    unsigned char *raw = NULL;
    int rc = 0;

    TRY(mem_alloc(&raw, STEP, 8, a->name, err));
    for (int64_t i = 0; i < n || i == 0; i += STEP) {
        int64_t m = n - i < STEP ? n - i : STEP;
        TRY(read_raw(f, a, first + i, m, raw, err));
        for (int64_t k = 0; k < m; k++)
            dst[i + k] = dtype_i64(a->dtype, raw + (size_t)k * size);
    }
out:
    free(raw);
    return rc;
}

int array_read_bool(const struct array_file *f, const struct array_at *a, int64_t first, int64_t n,
                    uint8_t *dst, struct err *err)
{
    enum { STEP = 1 << 13 };
    int64_t x[STEP];
    bool bytes = dtype_size(a->dtype) == 1;
    int rc = 0;

    if (bytes)
        TRY(read_raw(f, a, first, n, dst, err));
    for (int64_t i = 0; i < n; i += STEP) {
        int64_t m = n - i < STEP ? n - i : STEP;
        if (!bytes)
            TRY(array_read_i64(f, a, first + i, m, x, err));
        for (int64_t k = 0; k < m; k++) {
            int64_t v = bytes ? dst[i + k] : x[k];
            if (v != 0 && v != 1)
                FAIL(err, ERR_INPUT, "%s: array '%s': element %lld is %lld, expected 0 or 1",
                     f->path, a->name, (long long)(first + i + k), (long long)v);
            dst[i + k] = (uint8_t)v;
        }
    }
out:
    return rc;
}
