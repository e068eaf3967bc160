/*
 * trace_payload.c - rows of a trace. Contiguous files are read with pread. Chunks of packed files
 * are fetched under the HDF5 lock and unpacked outside of it, so that threads overlap in the
 * expensive part.
 */
#include "core/trace_internal.h"

#include "core/fileio.h"
#include "core/h5util.h"
#include "core/mem.h"
#include "core/pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BLOCK (1 << 20)

void trace_dataset_path(const struct trace *t, int64_t i, const struct trace_array *a,
                        char path[DATASET_PATH_MAX])
{
    char call[CALL_PATH_MAX] = "/run";
    if (i >= 0)
        trace_call_path(&t->calls[i].call, call);
    snprintf(path, DATASET_PATH_MAX, "%s/%s", call, a->name);
}

/* ---- stored bytes ---------------------------------------------------------------------------- */

/* Rows of a slice through chunks of shuffle + zstd or deflate. */
static int read_chunks(const struct trace *t, const char *path, const struct trace_array *a,
                       int64_t slice, int64_t row0, int64_t n, char *dst, struct err *err)
{
    size_t chunk = (size_t)(a->chunk_rows * a->row_bytes), size = 0, elem = dtype_size(a->type);
    void *packed = NULL, *scratch = NULL, *plain = NULL;
    int64_t cap = 0;
    uint32_t skip = 0;
    enum chunk_codec codec = a->storage == TRACE_ZSTD ? CHUNK_ZSTD : CHUNK_DEFLATE;
    hid_t dset = H5I_INVALID_HID;
    int rc = 0;

    TRY(mem_alloc(&scratch, (int64_t)chunk, 1, "chunk", err));
    TRY(mem_alloc(&plain, (int64_t)chunk, 1, "chunk", err));
    h5_lock();
    rc = h5_open_dataset(t->file, path, &dset, err);
    h5_unlock();
    if (rc)
        goto out;
    for (int64_t row = row0; row < row0 + n;) {
        int64_t first = row - row % a->chunk_rows;
        int64_t end = first + a->chunk_rows < row0 + n ? first + a->chunk_rows : row0 + n;
        hsize_t at[3] = {(hsize_t)slice, (hsize_t)first, 0};
        h5_lock();
        rc = h5_fetch_chunk(dset, at, chunk, &packed, &cap, &size, &skip, err);
        h5_unlock();
        if (!rc && size == 0)
            rc = err_set(err, ERR_INPUT, "its chunk is not in the file");
        if (rc) {
            err_prefix(err, "row %lld", (long long)row);
            goto out;
        }
        TRY(chunk_unpack(packed, size, codec, skip, elem, scratch, plain, chunk, err));
        memcpy(dst + (row - row0) * a->row_bytes, (char *)plain + (row - first) * a->row_bytes,
               (size_t)((end - row) * a->row_bytes));
        row = end;
    }
out:
    h5_lock();
    h5_close(dset);
    h5_unlock();
    free(packed);
    free(scratch);
    free(plain);
    return rc;
}

int trace_read_rows(const struct trace *t, int64_t call, const struct trace_array *a, int64_t slice,
                    int64_t row0, int64_t n, void *dst, struct err *err)
{
    char path[DATASET_PATH_MAX];
    int rc;

    trace_dataset_path(t, call, a, path);
    if (!a->present)
        return err_set(err, ERR_INPUT, "%s: %s is not in this trace", t->path, path);
    if (slice < 0 || slice >= a->slices || row0 < 0 || n < 0 || row0 > a->rows - n)
        return err_set(err, ERR_RUN, "%s: %s: head %lld, rows %lld..%lld do not exist", t->path,
                       path, (long long)slice, (long long)row0, (long long)(row0 + n - 1));
    if (n == 0)
        return 0;
    if (a->storage != TRACE_CONTIGUOUS) {
        rc = read_chunks(t, path, a, slice, row0, n, dst, err);
        return rc ? err_prefix(err, "%s: %s head %lld", t->path, path, (long long)slice), rc : 0;
    }
    rc = io_read_at(t->fd, path, t->file_size, a->offset + (slice * a->rows + row0) * a->row_bytes,
                    dst, n * a->row_bytes, err);
    return rc ? err_prefix(err, "%s", t->path), rc : 0;
}

static int check_sum(const struct trace *t, int64_t call, const struct trace_array *a,
                     int64_t slice, struct hash128 have, struct err *err)
{
    char path[DATASET_PATH_MAX];
    if (hash_equal(have, a->sums[slice]))
        return 0;
    trace_dataset_path(t, call, a, path);
    return err_set(err, ERR_INPUT,
                   "%s: %s head %lld does not match its checksum: the file was changed or damaged "
                   "after writing (lacuna trace verify lists all that differs)",
                   t->path, path, (long long)slice);
}

int trace_read_slice(const struct trace *t, int64_t call, const struct trace_array *a,
                     int64_t slice, void *dst, struct err *err)
{
    int rc = trace_read_rows(t, call, a, slice, 0, a->rows, dst, err);
    if (rc || a->rows == 0)
        return rc;
    return check_sum(t, call, a, slice, hash_bytes(dst, (size_t)(a->rows * a->row_bytes)), err);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const struct trace_array *tensor_of(const struct trace *t, int64_t call,
                                           enum trace_what what)
{
    return &t->calls[call].arr[what];
}

int trace_read_raw(const struct trace *t, int64_t call, enum trace_what what, int head,
                   int64_t tok0, int64_t n, void *dst, struct err *err)
{
    return trace_read_rows(t, call, tensor_of(t, call, what), head, tok0, n, dst, err);
}

/* Rows as float32, in blocks, which `sum` takes in as they are stored (NULL: nothing does). Packed
 * chunks are unpacked once only when a read covers whole ones. */
static int read_floats(const struct trace *t, int64_t call, const struct trace_array *a, int head,
                       int64_t tok0, int64_t n, float *dst, struct hash_state *sum, struct err *err)
{
    int64_t dim = a->row_bytes / (int64_t)dtype_size(a->type);
    int64_t step = a->storage == TRACE_CONTIGUOUS ? READ_BLOCK / a->row_bytes + 1 : a->chunk_rows;
    bool plain = a->type == DT_F32;
    void *buf = NULL;
    int rc = 0;

    if (!plain)
        TRY(mem_alloc(&buf, step < n ? step : n, (size_t)a->row_bytes, "rows of a trace", err));
    for (int64_t at = 0; at < n;) {
        int64_t end = (tok0 + at) / step * step + step - tok0;
        int64_t rows = (end < n ? end : n) - at;
        void *to = plain ? dst + at * dim : buf;
        TRY(trace_read_rows(t, call, a, head, tok0 + at, rows, to, err));
        if (sum)
            hash_update(sum, to, (size_t)(rows * a->row_bytes));
        if (!plain)
            dtype_to_f32(a->type, buf, dst + at * dim, rows * dim);
        at += rows;
    }
out:
    free(buf);
    return rc;
}

int trace_read(const struct trace *t, int64_t call, enum trace_what what, int head, int64_t tok0,
               int64_t n, float *dst, struct err *err)
{
    const struct trace_array *a = tensor_of(t, call, what);
    bool whole = tok0 == 0 && n == a->rows && head >= 0 && head < a->slices;
    struct hash_state *sum = NULL;
    int rc = 0;

    if (!a->present || n <= 0) /* says what is wrong */
        return trace_read_rows(t, call, a, head, tok0, n, dst, err);
    if (whole)
        TRY(hash_new(&sum, err));
    TRY(read_floats(t, call, a, head, tok0, n, dst, sum, err));
    if (whole)
        rc = check_sum(t, call, a, head, hash_digest(sum), err);
out:
    hash_free(sum);
    return rc;
}

int trace_nonfinite(const struct trace *t, int64_t call, enum trace_what what, int head,
                    int64_t *count, int64_t first[2], struct err *err)
{
    const struct trace_array *a = tensor_of(t, call, what);
    int64_t dim = a->row_bytes / (int64_t)dtype_size(a->type), bad = 0;
    float *x = NULL;
    int rc = 0;

    first[0] = first[1] = -1;
    TRY(mem_alloc(&x, CHUNK_TOKENS * dim, sizeof *x, "rows of a trace", err));
    for (int64_t row = 0; row < a->rows; row += CHUNK_TOKENS) {
        int64_t n = a->rows - row < CHUNK_TOKENS ? a->rows - row : CHUNK_TOKENS;
        TRY(trace_read(t, call, what, head, row, n, x, err));
        for (int64_t i = 0; i < n * dim; i++) {
            if (isfinite(x[i]))
                continue;
            if (bad++ == 0) {
                first[0] = row + i / dim;
                first[1] = i % dim;
            }
        }
    }
    *count = bad;
out:
    free(x);
    return rc;
}

int trace_locate(const struct trace *t, int64_t call, enum trace_what what, int head,
                 int64_t *offset, int64_t *bytes, struct err *err)
{
    const struct trace_array *a = tensor_of(t, call, what);
    char path[DATASET_PATH_MAX];

    trace_dataset_path(t, call, a, path);
    if (!a->present)
        return err_set(err, ERR_INPUT, "%s: %s is not in this trace", t->path, path);
    if (a->storage != TRACE_CONTIGUOUS)
        return err_set(err, ERR_INPUT,
                       "%s: %s is packed (%s); lacuna trace pack --unpack makes it "
                       "contiguous",
                       t->path, path, trace_storage_name(a->storage));
    if (head < 0 || head >= a->slices)
        return err_set(err, ERR_RUN, "%s: %s: head %d does not exist", t->path, path, head);
    *bytes = a->rows * a->row_bytes;
    *offset = a->offset + head * *bytes;
    return 0;
}

/* ---- what a call does to its scores ---------------------------------------------------------- */

double trace_call_scale(const struct trace *t, int64_t call)
{
    double own = t->calls[call].call.score.scale;
    return own != 0 ? own : t->meta.scale;
}

/* A value of a head; 0 where the call has none. */
static int read_value(const struct trace *t, int64_t call, int i, int head, double *out,
                      struct err *err)
{
    const struct trace_array *a = &t->calls[call].arr[i];
    float x = 0;
    int rc = a->present ? trace_read_slice(t, call, a, head, &x, err) : 0;

    if (rc == 0 && !isfinite(x))
        rc = err_set(err, ERR_INPUT, "%s: '%s' of head %d is not finite", t->path, a->name, head);
    *out = x;
    return rc;
}

int trace_sink(const struct trace *t, int64_t call, int head, double *z, struct err *err)
{
    return read_value(t, call, ARR_SINKS, head, z, err);
}

int trace_alibi(const struct trace *t, int64_t call, int head, double *m, struct err *err)
{
    return read_value(t, call, ARR_ALIBI, head, m, err);
}

int trace_rel_bias(const struct trace *t, int64_t call, int head, float *bias, struct err *err)
{
    const struct trace_array *a = &t->calls[call].arr[ARR_REL_BIAS];
    int rc = trace_read_slice(t, call, a, a->slices == 1 ? 0 : head, bias, err);

    for (int64_t i = 0; rc == 0 && i < a->rows; i++)
        if (!isfinite(bias[i]))
            rc = err_set(err, ERR_INPUT, "%s: 'rel_bias' of head %d is not finite at distance %lld",
                         t->path, head, (long long)(i - (t->meta.n_k - 1)));
    return rc;
}

int trace_bias(const struct trace *t, int64_t call, int head, float *bias, struct err *err)
{
    const struct trace_array *a = &t->calls[call].arr[ARR_BIAS];
    int64_t n_k = t->meta.n_k;
    int rc = trace_read_slice(t, call, a, a->slices == 1 ? 0 : head, bias, err);

    for (int64_t i = 0; rc == 0 && i < a->rows * n_k; i++)
        if (!isfinite(bias[i]))
            rc =
                err_set(err, ERR_INPUT, "%s: 'bias' of head %d is not finite at row %lld, key %lld",
                        t->path, head, (long long)(i / n_k), (long long)(i % n_k));
    return rc;
}

/* ---- maps and arrays of the run -------------------------------------------------------------- */

int64_t trace_map_cells(const struct trace *t, bool keys)
{
    const struct trace_meta *m = &t->meta;
    return m->pool > 0 ? ((keys ? m->n_k : m->n_q) + m->pool - 1) / m->pool : 0;
}

int trace_read_map(const struct trace *t, int64_t call, int head, float *sum, float *max,
                   struct err *err)
{
    const struct trace_array *arr = t->calls[call].arr;
    int rc = 0;

    if (sum)
        rc = trace_read_slice(t, call, &arr[ARR_MAP_SUM], head, sum, err);
    if (rc == 0 && max)
        rc = trace_read_slice(t, call, &arr[ARR_MAP_MAX], head, max, err);
    return rc;
}

static int read_run_array(const struct trace *t, int i, void *out, int64_t *n, struct err *err)
{
    const struct trace_array *a = &t->run[i];
    void *data = NULL;
    int rc = 0;

    if (!a->present) {
        memset(out, 0, sizeof(void *));
        *n = 0;
        return 0;
    }
    TRY(mem_alloc(&data, a->rows, (size_t)a->row_bytes, a->name, err));
    TRY(trace_read_slice(t, -1, a, 0, data, err));
    memcpy(out, &data, sizeof data);
    *n = a->rows;
    data = NULL;
out:
    free(data);
    return rc;
}

int trace_tokens(const struct trace *t, int32_t **ids, int64_t *n, struct err *err)
{
    return read_run_array(t, ARR_TOKENS, ids, n, err);
}

int trace_nll(const struct trace *t, float **nll, int64_t *n, struct err *err)
{
    return read_run_array(t, ARR_NLL, nll, n, err);
}

int trace_timesteps(const struct trace *t, double **timesteps, int64_t *n, struct err *err)
{
    return read_run_array(t, ARR_TIMESTEPS, timesteps, n, err);
}

int trace_sigmas(const struct trace *t, double **sigmas, int64_t *n, struct err *err)
{
    return read_run_array(t, ARR_SIGMAS, sigmas, n, err);
}

/* ---- writing chunks -----------------------------------------------------------------------------
 *
 * With zstd the chunks of a slice are compressed side by side and then written in order, so that
 * the file does not depend on the number of threads. Deflate is left to HDF5. */

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
