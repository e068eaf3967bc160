/*
 * npy_read.c - elements of .npy arrays.
 */
#include "core/npy.h"

#include "core/fileio.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 16 }; /* elements converted at a time */

static void swap_bytes(unsigned char *p, int64_t n, size_t size)
{
    for (int64_t i = 0; i < n; i++, p += size)
        for (size_t a = 0, b = size - 1; a < b; a++, b--) {
            unsigned char t = p[a];
            p[a] = p[b];
            p[b] = t;
        }
}

/* Position of a walk through an array in column-major order, with its place in row-major order. */
struct walk {
    int64_t index[NPY_MAX_DIMS], stride[NPY_MAX_DIMS], at;
};

static void walk_begin(struct walk *w, const struct npy *a)
{
    int64_t stride = 1;
    memset(w, 0, sizeof *w);
    /* Without a zero among them all products are at most a->count. */
    for (int i = a->ndim - 1; i >= 0 && a->count > 0; i--) {
        w->stride[i] = stride;
        stride *= a->shape[i];
    }
}

static void walk_next(struct walk *w, const struct npy *a)
{
    for (int i = 0; i < a->ndim; i++) {
        w->at += w->stride[i];
        if (++w->index[i] < a->shape[i])
            return;
        w->at -= w->stride[i] * a->shape[i];
        w->index[i] = 0;
    }
}

int npy_read_f32(const struct npy *a, float *dst, struct err *err)
{
    int rc = 0;
    unsigned char *raw = NULL;
    float *x = NULL;
    size_t size = dtype_size(a->dtype);
    int64_t chunk = a->count < CHUNK ? a->count : CHUNK;
    struct walk w;

    if (dtype_to_f32(a->dtype, NULL, dst, 0) != 0)
        FAIL(err, ERR_INPUT, "%s: npy elements of type %s cannot be read as float32", a->path,
             dtype_name(a->dtype));
    TRY(mem_alloc(&raw, chunk, size, a->path, err));
    TRY(mem_alloc(&x, a->fortran ? chunk : 0, sizeof *x, a->path, err));
    walk_begin(&w, a);
    for (int64_t i = 0; i < a->count; i += CHUNK) {
        int64_t n = a->count - i < CHUNK ? a->count - i : CHUNK;
        TRY(io_read_at(a->fd, a->path, a->file_size, a->data_offset + i * (int64_t)size, raw,
                       n * (int64_t)size, err));
        if (a->swap)
            swap_bytes(raw, n, size);
        dtype_to_f32(a->dtype, raw, a->fortran ? x : dst + i, n);
        for (int64_t k = 0; a->fortran && k < n; k++) {
            dst[w.at] = x[k];
            walk_next(&w, a);
        }
    }
out:
    free(raw);
    free(x);
    return rc;
}

int npy_read_range(const struct npy *a, int64_t first, int64_t count, void *dst, struct err *err)
{
    int64_t size = (int64_t)dtype_size(a->dtype);

    if (a->fortran)
        return err_set(err, ERR_INPUT,
                       "%s: the array is stored in column-major (Fortran) order; save "
                       "np.ascontiguousarray of it",
                       a->path);
    if (first < 0 || count < 0 || first > a->count - count)
        return err_set(err, ERR_RUN, "%s: elements %lld..%lld of %lld", a->path, (long long)first,
                       (long long)(first + count), (long long)a->count);
    int rc = io_read_at(a->fd, a->path, a->file_size, a->data_offset + first * size, dst,
                        count * size, err);
    if (!rc && a->swap)
        swap_bytes(dst, count, (size_t)size);
    return rc;
}

int npy_read_range_f32(const struct npy *a, int64_t first, int64_t count, float *dst,
                       struct err *err)
{
    int rc = 0;
    unsigned char *raw = NULL;
    int64_t size = (int64_t)dtype_size(a->dtype);

    if (a->fortran || first < 0 || count < 0 || first > a->count - count)
        return err_set(err, ERR_RUN, "%s: elements %lld..%lld of %lld%s", a->path, (long long)first,
                       (long long)(first + count), (long long)a->count,
                       a->fortran ? " in column-major order" : "");
    if (dtype_to_f32(a->dtype, NULL, dst, 0) != 0)
        FAIL(err, ERR_INPUT, "%s: npy elements of type %s cannot be read as float32", a->path,
             dtype_name(a->dtype));
    TRY(mem_alloc(&raw, count < CHUNK ? count : CHUNK, (size_t)size, a->path, err));
    for (int64_t i = 0; i < count; i += CHUNK) {
        int64_t n = count - i < CHUNK ? count - i : CHUNK;
        TRY(io_read_at(a->fd, a->path, a->file_size, a->data_offset + (first + i) * size, raw,
                       n * size, err));
        if (a->swap)
            swap_bytes(raw, n, (size_t)size);
        dtype_to_f32(a->dtype, raw, dst + i, n);
    }
out:
    free(raw);
    return rc;
}
