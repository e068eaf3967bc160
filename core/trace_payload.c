/*
 * trace_payload.c - rows of a trace. Contiguous files are read with pread. Chunks of packed files
 * are fetched under the HDF5 lock and unpacked outside of it, so that threads overlap in the
 * expensive part.
 */
#include "core/trace_internal.h"

#include "core/fileio.h"
#include "core/h5util.h"
#include "core/mem.h"

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
    OWN(free_at) void *buf = NULL;
    if (!plain)
        PASS_ON(mem_alloc(&buf, step < n ? step : n, (size_t)a->row_bytes, "rows of a trace", err));
    for (int64_t at = 0; at < n;) {
        int64_t end = (tok0 + at) / step * step + step - tok0;
        int64_t rows = (end < n ? end : n) - at;
        void *to = plain ? dst + at * dim : buf;
        PASS_ON(trace_read_rows(t, call, a, head, tok0 + at, rows, to, err));
        if (sum)
            hash_update(sum, to, (size_t)(rows * a->row_bytes));
        if (!plain)
            dtype_to_f32(a->type, buf, dst + at * dim, rows * dim);
        at += rows;
    }
    return 0;
}

int trace_read(const struct trace *t, int64_t call, enum trace_what what, int head, int64_t tok0,
               int64_t n, float *dst, struct err *err)
{
    const struct trace_array *a = tensor_of(t, call, what);
    bool whole = tok0 == 0 && n == a->rows && head >= 0 && head < a->slices;
    OWN(hash_free_at) struct hash_state *sum = NULL;
    if (!a->present || n <= 0) /* says what is wrong */
        return trace_read_rows(t, call, a, head, tok0, n, dst, err);
    if (whole)
        PASS_ON(hash_new(&sum, err));
    PASS_ON(read_floats(t, call, a, head, tok0, n, dst, sum, err));
    if (whole)
        return check_sum(t, call, a, head, hash_digest(sum), err);
    return 0;
}

/* ---- what a call does to its scores ---------------------------------------------------------- */

double trace_call_scale(const struct trace *t, int64_t call)
{
    double own = t->calls[call].call.score.scale;
    return own != 0 ? own : t->meta.scale;
}

int trace_read_values(const struct trace *t, int64_t call, int which, int head, float *x,
                      struct err *err)
{
    const struct trace_array *a = &t->calls[call].arr[which];
    int64_t n = a->rows * a->row_bytes / (int64_t)sizeof *x;
    if (!a->present && (which == TRACE_SINKS || which == TRACE_ALIBI)) {
        *x = 0;
        return 0;
    }
    PASS_ON(trace_read_slice(t, call, a, a->slices == 1 ? 0 : head, x, err));
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return err_set(err, ERR_INPUT, "%s: '%s' of head %d is not finite: element %lld",
                           t->path, a->name, head, (long long)i);
    return 0;
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
    if (sum)
        PASS_ON(trace_read_slice(t, call, &arr[TRACE_MAP_SUM], head, sum, err));
    if (max)
        return trace_read_slice(t, call, &arr[TRACE_MAP_MAX], head, max, err);
    return 0;
}

int trace_read_run(const struct trace *t, enum trace_run which, void *out, int64_t *n,
                   struct err *err)
{
    const struct trace_array *a = &t->run[which];
    OWN(free_at) void *data = NULL;
    if (!a->present) {
        memset(out, 0, sizeof(void *));
        *n = 0;
        return 0;
    }
    PASS_ON(mem_alloc(&data, a->rows, (size_t)a->row_bytes, a->name, err));
    PASS_ON(trace_read_slice(t, -1, a, 0, data, err));
    memcpy(out, &data, sizeof data);
    *n = a->rows;
    data = NULL;
    return 0;
}
