/*
 * trace_chunks.c - writing the chunks of packed traces.
 *
 * With zstd the chunks of a slice are compressed side by side and then written in order, so that
 * the file does not depend on the number of threads. Deflate is left to HDF5.
 */
#include "core/trace_internal.h"

#include "core/h5util.h"
#include "core/mem.h"
#include "core/pool.h"

#include <stdlib.h>
#include <string.h>

#define LEVEL 1 /* of zstd and of deflate: packing is as fast as it gets */

hid_t trace_packed_props(const struct trace_array *a)
{
    int64_t chunk[3] = {1, a->chunk_rows, a->dims[2]};
    unsigned level = LEVEL;
    hid_t props = h5_dataset_props(a->ndim, chunk);

    H5Pset_shuffle(props);
    if (a->storage == TRACE_ZSTD)
        H5Pset_filter(props, H5_FILTER_ZSTD, H5Z_FLAG_MANDATORY, 1, &level);
    else
        H5Pset_deflate(props, level);
    return props;
}

struct packer {
    const struct trace_array *a;
    const char *data;
    size_t chunk, bound, elem;
    char *packed; /* [chunks][bound] */
    size_t *size; /* [chunks] */
};

static int pack_chunk(void *ctx, int64_t i, int worker, struct err *err)
{
    struct packer *p = ctx;
    const struct trace_array *a = p->a;
    int64_t row = i * a->chunk_rows;
    int64_t rows = a->rows - row < a->chunk_rows ? a->rows - row : a->chunk_rows;
    char *plain = NULL, *scratch = NULL;
    int rc = 0;

    (void)worker;
    TRY(mem_zalloc(&plain, (int64_t)p->chunk, 1, "chunk", err)); /* the last chunk is padded */
    TRY(mem_alloc(&scratch, (int64_t)p->chunk, 1, "chunk", err));
    memcpy(plain, p->data + row * a->row_bytes, (size_t)(rows * a->row_bytes));
    TRY(chunk_pack(plain, p->chunk, p->elem, LEVEL, scratch, p->packed + (size_t)i * p->bound,
                   &p->size[i], err));
out:
    free(scratch);
    free(plain);
    return rc;
}

static int put_zstd(hid_t dset, const struct trace_array *a, int jobs, int64_t slice,
                    const void *data, struct err *err)
{
    struct packer p = {.a = a, .data = data, .elem = dtype_size(a->type)};
    int64_t n = (a->rows + a->chunk_rows - 1) / a->chunk_rows;
    int rc = 0;

    p.chunk = (size_t)(a->chunk_rows * a->row_bytes);
    p.bound = chunk_bound(p.chunk);
    TRY(mem_alloc(&p.packed, n, p.bound, "packed chunks", err));
    TRY(mem_alloc(&p.size, n, sizeof *p.size, "packed chunks", err));
    TRY(pool_run(jobs, n, pack_chunk, &p, err));
    h5_lock();
    for (int64_t i = 0; i < n && rc == 0; i++) {
        hsize_t at[3] = {(hsize_t)slice, (hsize_t)(i * a->chunk_rows), 0};
        if (H5Dwrite_chunk(dset, H5P_DEFAULT, 0, at, p.size[i], p.packed + (size_t)i * p.bound) < 0)
            rc = h5_fail(err, ERR_IO, "writing a chunk of '%s'", a->name);
    }
    h5_unlock();
out:
    free(p.size);
    free(p.packed);
    return rc;
}

static int put_hdf5(hid_t dset, const struct trace_array *a, int64_t slice, const void *data,
                    struct err *err)
{
    hsize_t start[3] = {(hsize_t)slice, 0, 0};
    hsize_t count[3] = {1, (hsize_t)a->rows, (hsize_t)a->dims[2]};
    int rc = 0;

    h5_lock();
    hid_t space = H5Dget_space(dset), mem = H5Screate_simple(a->ndim, count, NULL);
    hid_t type = H5Dget_type(dset);
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(dset, type, mem, space, H5P_DEFAULT, data) < 0)
        rc = h5_fail(err, ERR_IO, "writing '%s'", a->name);
    h5_close(type);
    h5_close(mem);
    h5_close(space);
    h5_unlock();
    return rc;
}

int trace_write_chunks(hid_t dset, const struct trace_array *a, int jobs, int64_t slice,
                       const void *data, struct err *err)
{
    return a->storage == TRACE_ZSTD ? put_zstd(dset, a, jobs, slice, data, err)
                                    : put_hdf5(dset, a, slice, data, err);
}
