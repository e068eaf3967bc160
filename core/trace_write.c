/*
 * trace_write.c - write a trace: HDF5 lays out the datasets, pwrite stores the payload.
 *
 * Rows of all heads arrive together, [token][head][dim], and are stored [head][token][dim]; so each
 * put is one pwrite per head, and each head's checksum grows with its rows, which come in order.
 * Metadata are flushed after every call: a killed writer leaves a readable file that says complete
 * = 0.
 */
#include "core/trace_internal.h"

#include "core/mem.h"
#include "core/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define MAP_CHUNK_BYTES (256 << 10)

struct array_writer {
    struct trace_array a;
    hid_t dset;
    int64_t *next;            /* [slices], rows already there */
    struct hash_state **hash; /* [slices] */
};

struct trace_writer {
    struct h5_part part;
    struct trace_meta meta;
    struct trace_form form;
    hid_t type, calls, run; /* element type of q, k, v; groups */
    bool in_call, failed;
    int minor; /* version of the format that the content needs */
    int last_order;
    int64_t n_calls;
    struct trace_call call;
    hid_t group; /* of the current call */
    struct array_writer out[CALL_ARRAYS];
    struct trace_array run_arrays[RUN_ARRAYS];
    struct buf content;
};

/* ---- what a full disk needs, the beginning of a file ---------------------------------------- */

void trace_write_advice(const struct trace_meta *m, bool copy, int sys, char text[TRACE_ADVICE_MAX])
{
    const char *smaller = copy                               ? ""
                          : strcmp(m->source, "import") == 0 ? ", or import fewer calls"
                          : m->grid_t > 0 ? ", or store fewer layers, heads or steps"
                                          : ", or store fewer layers, heads or tokens";
    text[0] = '\0';
    if (sys == ENOSPC || sys == EDQUOT)
        snprintf(text, TRACE_ADVICE_MAX, "make room there, write elsewhere%s", smaller);
    else if (sys == EFBIG)
        snprintf(text, TRACE_ADVICE_MAX,
                 "the file system there or ulimit -f allows no larger file: write elsewhere%s",
                 smaller);
}

/* Put the advice, if there is any, behind the message of a failed write. */
static void advise(const struct trace_writer *w, struct err *err)
{
    char text[TRACE_ADVICE_MAX];
    size_t len = err ? strlen(err->msg) : 0;
    if (!err || !err->code)
        return;
    trace_write_advice(&w->meta, w->form.copy, err->sys, text);
    if (text[0] && !strstr(err->msg, text))
        snprintf(err->msg + len, sizeof err->msg - len, "; %s", text);
}

static int check_space(const char *path, const struct trace_meta *m, const struct trace_form *form,
                       struct err *err)
{
    struct statvfs fs;
    char advice[TRACE_ADVICE_MAX], *copy = strdup(path);
    int64_t have, need = form->need_bytes;
    int rc = 0;
    if (!copy)
        return err_set(err, ERR_NOMEM, "%s: out of memory", path);
    const char *dir = dirname(copy);
    if (statvfs(dir, &fs) != 0)
        rc = err_sys(err, ERR_IO, "%s: its directory %s", path, dir);
    free(copy);
    if (rc)
        return rc;
    if (!mul_ok((int64_t)fs.f_bavail, (int64_t)fs.f_frsize, &have))
        have = INT64_MAX;
    trace_write_advice(m, form->copy, ENOSPC, advice);
    if (need > have)
        return err_set(err, ERR_MACHINE,
                       "%s needs %.3f GB (%lld bytes) of disk space, %.3f GB (%lld "
                       "bytes) are free there; %s",
                       path, (double)need / 1e9, (long long)need, (double)have / 1e9,
                       (long long)have, advice);
    return 0;
}

/* bfloat16 is a type of its own in the file, so that viewers show its name. */
static int commit_type(struct trace_writer *w, struct err *err)
{
    OWN(h5_close_at) hid_t group = H5I_INVALID_HID, props = H5I_INVALID_HID;
    w->type = h5_type(w->meta.dtype);
    if (w->meta.dtype != DT_BF16)
        return 0;
    PASS_ON(h5_create_group(w->part.file, "types", &group, err));
    props = H5Pcreate(H5P_DATATYPE_CREATE);
    H5Pset_obj_track_times(props, 0);
    if (H5Tcommit2(group, "bfloat16", w->type, H5P_DEFAULT, props, H5P_DEFAULT) < 0)
        return h5_fail(err, ERR_IO, "type bfloat16");
    return 0;
}

static int start_file(struct trace_writer *w, struct err *err)
{
    int rc = 0;
    TRY(commit_type(w, err));
    TRY(trace_meta_put(w->part.file, &w->meta, err));
    TRY(h5_open_group(w->part.file, "run", &w->run, err));
    TRY(h5_create_group(w->part.file, "calls", &w->calls, err));
    if (H5Fflush(w->part.file, H5F_SCOPE_GLOBAL) < 0)
        rc = h5_fail(err, ERR_IO, "flush");
out:
    if (rc)
        err_prefix(err, "%s", w->part.path);
    return rc;
}

int trace_create_as(const char *path, const struct trace_meta *m, const struct trace_form *form,
                    struct trace_writer **out, struct err *err)
{
    struct trace_writer *w = NULL;
    int rc = 0;
    TRY(mem_zalloc(&w, 1, sizeof *w, "trace writer", err));
    w->meta = *m;
    w->form = *form;
    w->last_order = -1;
    w->type = w->calls = w->run = w->group = H5I_INVALID_HID;
    for (int i = 0; i < CALL_ARRAYS; i++)
        w->out[i].dset = H5I_INVALID_HID;
    TRY(trace_meta_check(&w->meta, err));
    TRY(check_space(path, &w->meta, form, err));
    /* 1.0 until something needs more: older programs read what they can. */
    w->minor = m->decode_from != 0 ? TRACE_VERSION_MINOR : m->row_group != 0;
    TRY(h5_part_create(&w->part, path, TRACE_FORMAT, TRACE_VERSION_MAJOR, w->minor, form->force,
                       err));
    h5_lock();
    rc = start_file(w, err);
    h5_unlock();
    if (rc)
        goto out;
    content_meta(&w->meta, &w->content);
    *out = HAND_OVER(w);
out:
    if (w)
        advise(w, err);
    trace_abort(&w);
    return rc;
}

int trace_create(const char *path, const struct trace_meta *m, int64_t n_calls, bool force,
                 struct trace_writer **out, struct err *err)
{
    struct trace_form form = {.jobs = 1, .need_bytes = trace_size(m, n_calls), .force = force};
    return trace_create_as(path, m, &form, out, err);
}

/* ---- writing chunks -----------------------------------------------------------------------------
 *
 * With zstd the chunks of a slice are compressed side by side and then written in order, so that
 * the file does not depend on the number of threads. Deflate is left to HDF5. */

#define LEVEL 1 /* of zstd and of deflate: packing is as fast as it gets */

static hid_t packed_props(const struct trace_array *a)
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
    OWN(free_at) char *plain = NULL, *scratch = NULL;
    (void)worker;
    PASS_ON(mem_zalloc(&plain, (int64_t)p->chunk, 1, "chunk", err)); /* the last chunk is padded */
    PASS_ON(mem_alloc(&scratch, (int64_t)p->chunk, 1, "chunk", err));
    memcpy(plain, p->data + row * a->row_bytes, (size_t)(rows * a->row_bytes));
    return chunk_pack(plain, p->chunk, p->elem, LEVEL, scratch, p->packed + (size_t)i * p->bound,
                      &p->size[i], err);
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
    H5_LOCKED;
    OWN(h5_close_at) hid_t space = H5Dget_space(dset), type = H5Dget_type(dset);
    OWN(h5_close_at) hid_t mem = H5Screate_simple(a->ndim, count, NULL);
    if (H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) < 0 ||
        H5Dwrite(dset, type, mem, space, H5P_DEFAULT, data) < 0)
        return h5_fail(err, ERR_IO, "writing '%s'", a->name);
    return 0;
}

static int write_chunks(hid_t dset, const struct trace_array *a, int jobs, int64_t slice,
                        const void *data, struct err *err)
{
    return a->storage == TRACE_ZSTD ? put_zstd(dset, a, jobs, slice, data, err)
                                    : put_hdf5(dset, a, slice, data, err);
}

/* ---- a call ---------------------------------------------------------------------------------- */

static void choose_chunk(struct trace_array *a, int i)
{
    int64_t rows = i < TRACE_WHAT_COUNT ? CHUNK_TOKENS : MAP_CHUNK_BYTES / a->row_bytes + 1;
    a->chunk_rows = rows < a->rows ? rows : a->rows;
}

/* Ask for the disk blocks now: a disk that is too full says so before the work, not after it. */
static int reserve(struct trace_writer *w, const struct trace_array *a, struct err *err)
{
    int rc;
    do
        rc = fallocate(w->part.out.fd, 0, a->offset, a->bytes);
    while (rc != 0 && errno == EINTR);
    if (rc == 0 || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
        return 0;
    return err_sys(err, ERR_IO, "reserving %lld bytes", (long long)a->bytes);
}

static int begin_array(struct trace_writer *w, int i, struct err *err)
{
    struct array_writer *aw = &w->out[i];
    struct trace_array *a = &aw->a;
    hid_t props = H5I_INVALID_HID, type = H5I_INVALID_HID;
    int rc = 0;
    if (!trace_call_array(&w->meta, &w->call, i, a))
        return err_set(err, ERR_RUN, "size of '%s' overflows", a->name);
    a->storage = i < TRACE_SINKS ? w->form.storage : TRACE_CONTIGUOUS;
    choose_chunk(a, i);
    TRY(mem_zalloc(&aw->next, a->slices, sizeof *aw->next, "rows written", err));
    TRY(mem_zalloc(&aw->hash, a->slices, sizeof *aw->hash, "hash states", err));
    TRY(mem_alloc(&a->sums, a->slices, sizeof *a->sums, "checksums", err));
    for (int64_t s = 0; s < a->slices; s++)
        TRY(hash_new(&aw->hash[s], err));
    type = a->type == w->meta.dtype ? w->type : h5_type(a->type);
    props = a->storage == TRACE_CONTIGUOUS ? h5_dataset_props(a->ndim, NULL) : packed_props(a);
    TRY(h5_create_dataset(w->group, a->name, type, a->ndim, a->dims, props, &aw->dset, err));
    if (a->storage == TRACE_CONTIGUOUS) {
        haddr_t at = H5Dget_offset(aw->dset);
        if (at == HADDR_UNDEF) {
            rc = h5_fail(err, ERR_IO, "'%s' has no place in the file", a->name);
            goto out;
        }
        a->offset = (int64_t)at;
        TRY(reserve(w, a, err));
    }
    a->present = true;
out:
    h5_close(props);
    if (type != w->type)
        h5_close(type);
    return rc;
}

static int create_call_group(struct trace_writer *w, const struct trace_call *c, struct err *err)
{
    char name[32];
    OWN(h5_close_at) hid_t step = H5I_INVALID_HID, branch = H5I_INVALID_HID, aux = H5I_INVALID_HID;
    snprintf(name, sizeof name, "step-%03d", c->step);
    PASS_ON(h5_enter_group(w->calls, name, &step, err));
    PASS_ON(h5_enter_group(step, c->branch, &branch, err));
    snprintf(name, sizeof name, "layer-%02d", c->layer);
    if (h5_has_link(branch, name))
        return err_set(err, ERR_USAGE,
                       "step %d, branch %s, layer %d: the trace has this call already", c->step,
                       c->branch, c->layer);
    PASS_ON(h5_create_group(branch, name, &w->group, err));
    PASS_ON(h5_put_fields(w->group, trace_call_fields, c, err));
    PASS_ON(trace_score_put(w->group, &c->score, err));
    for (int i = 0; i < AUX_COUNT; i++)
        if (c->aux[i].heads && aux < 0)
            PASS_ON(h5_create_group(w->group, "aux", &aux, err));
    int minor = aux >= 0 ? TRACE_VERSION_MINOR : trace_score_any(&c->score);
    if (minor > w->minor)
        return h5_set_i64(w->part.file, "version_minor", w->minor = minor, err);
    return 0;
}

/* Release the datasets and the group of the current call. */
static void end_arrays(struct trace_writer *w)
{
    for (int i = 0; i < CALL_ARRAYS; i++) {
        struct array_writer *aw = &w->out[i];
        for (int64_t s = 0; aw->hash && s < aw->a.slices; s++)
            hash_free(aw->hash[s]);
        free(aw->hash);
        free(aw->next);
        free(aw->a.sums);
        h5_close(aw->dset);
        memset(aw, 0, sizeof *aw);
        aw->dset = H5I_INVALID_HID;
    }
    h5_close(w->group);
    w->group = H5I_INVALID_HID;
}

/* A failure inside a call: the file is lost, and the message says where it happened. */
static int call_failed(struct trace_writer *w, int rc, struct err *err)
{
    char path[CALL_PATH_MAX];
    if (rc) {
        trace_call_path(&w->call, path);
        if (err && !strstr(err->msg, path))
            err_prefix(err, "%s", path);
        err_prefix(err, "%s", w->part.path);
        advise(w, err);
        w->failed = true;
    }
    return rc;
}

int trace_begin_call(struct trace_writer *w, const struct trace_call *c, struct err *err)
{
    int rc = 0;
    if (w->failed || w->in_call)
        return err_set(err, ERR_RUN, "%s: a call begins %s", w->part.path,
                       w->failed ? "after a failure" : "inside another one");
    if ((rc = trace_call_check(&w->meta, c, ERR_USAGE, err)) != 0)
        return err_prefix(err, "%s", w->part.path), rc;
    w->call = *c;
    if (!w->call.block[0])
        strcpy(w->call.block, "self");
    if (c->order <= w->last_order)
        return err_set(err, ERR_RUN, "%s: call order %d after %d", w->part.path, c->order,
                       w->last_order);
    h5_lock();
    TRY(create_call_group(w, &w->call, err));
    for (int i = 0; i < CALL_ARRAYS; i++)
        if (trace_call_has(c, i))
            TRY(begin_array(w, i, err));
    w->in_call = true;
    w->last_order = c->order;
out:
    h5_unlock();
    return call_failed(w, rc, err);
}

/* ---- payload --------------------------------------------------------------------------------- */

/* Rows [row0, row0+n) of a slice of a contiguous dataset, in the stored dtype. */
static int put_rows(struct trace_writer *w, int i, int64_t slice, int64_t row0, int64_t n,
                    const void *data, struct err *err)
{
    struct array_writer *aw = &w->out[i];
    struct trace_array *a = &aw->a;
    if (!w->in_call || !a->present)
        return err_set(err, ERR_RUN, "'%s' is not announced for this call",
                       a->name ? a->name : "?");
    if (slice < 0 || slice >= a->slices || n < 0 || row0 != aw->next[slice] || n > a->rows - row0)
        return err_set(err, ERR_RUN, "'%s' head %lld: rows %lld..%lld come after row %lld of %lld",
                       a->name, (long long)slice, (long long)row0, (long long)(row0 + n - 1),
                       (long long)(slice >= 0 && slice < a->slices ? aw->next[slice] : -1),
                       (long long)a->rows);
    hash_update(aw->hash[slice], data, (size_t)(n * a->row_bytes));
    aw->next[slice] += n;
    if (a->storage != TRACE_CONTIGUOUS)
        return 0;
    return io_write_at(w->part.out.fd, w->part.path, data, n * a->row_bytes,
                       a->offset + (slice * a->rows + row0) * a->row_bytes, err);
}

int trace_put_head(struct trace_writer *w, enum trace_what what, int head, int64_t tok0, int64_t n,
                   const float *x, struct err *err)
{
    struct trace_shape s = trace_shape(&w->meta, what);
    void *buf = NULL;
    int rc = 0;
    if (n < 0 || w->form.storage != TRACE_CONTIGUOUS)
        FAIL(err, ERR_RUN, "'%s' head %d: %lld rows", trace_what_name(what), head, (long long)n);
    TRY(mem_alloc(&buf, n * s.dim, dtype_size(s.dtype), "rows to write", err));
    dtype_from_f32(s.dtype, x, buf, n * s.dim);
    TRY(put_rows(w, (int)what, head, tok0, n, buf, err));
out:
    free(buf);
    return call_failed(w, rc, err);
}

int trace_put(struct trace_writer *w, enum trace_what what, int64_t tok0, int64_t n, const float *x,
              int64_t ld, struct err *err)
{
    struct trace_shape s = trace_shape(&w->meta, what);
    int64_t elem = (int64_t)dtype_size(s.dtype);
    char *buf = NULL;
    int rc = 0;
    if (n < 0 || ld < s.heads * s.dim || w->form.storage != TRACE_CONTIGUOUS)
        FAIL(err, ERR_RUN, "'%s': %lld rows with stride %lld, expected at least %lld",
             trace_what_name(what), (long long)n, (long long)ld, (long long)(s.heads * s.dim));
    TRY(mem_alloc(&buf, n * s.dim, (size_t)elem, "rows to write", err));
    for (int64_t head = 0; head < s.heads; head++) {
        for (int64_t r = 0; r < n; r++)
            dtype_from_f32(s.dtype, x + r * ld + head * s.dim, buf + r * s.dim * elem, s.dim);
        TRY(put_rows(w, (int)what, head, tok0, n, buf, err));
    }
out:
    free(buf);
    return call_failed(w, rc, err);
}

int trace_put_map(struct trace_writer *w, int head, const float *sum, const float *max,
                  struct err *err)
{
    int64_t rows = w->out[TRACE_MAP_SUM].a.rows;
    int rc = put_rows(w, TRACE_MAP_SUM, head, 0, rows, sum, err);
    if (rc == 0)
        rc = put_rows(w, TRACE_MAP_MAX, head, 0, rows, max, err);
    return call_failed(w, rc, err);
}

int trace_put_values(struct trace_writer *w, int which, const float *x, struct err *err)
{
    const struct trace_array *a = &w->out[which].a;
    int rc = 0;
    for (int64_t s = 0; s < a->slices && rc == 0; s++)
        rc = put_rows(w, which, s, 0, a->rows,
                      x + s * a->rows * (a->row_bytes / (int64_t)sizeof *x), err);
    return call_failed(w, rc, err);
}

/* ---- whole slices --------------------------------------------------------------------------- */

int trace_put_slice(struct trace_writer *w, int i, int64_t slice, const void *data, struct err *err)
{
    struct array_writer *aw = &w->out[i];
    int rc = put_rows(w, i, slice, 0, aw->a.rows, data, err);
    if (rc == 0 && aw->a.storage != TRACE_CONTIGUOUS)
        rc = write_chunks(aw->dset, &aw->a, w->form.jobs, slice, data, err);
    return call_failed(w, rc, err);
}

/* ---- end of a call, arrays of the run -------------------------------------------------------- */

static int write_sums(hid_t group, const struct trace_array *a, struct err *err)
{
    char name[32];
    OWN(free_at) uint8_t *raw = NULL;
    int64_t dims[2] = {a->slices, 16};
    PASS_ON(mem_alloc(&raw, a->slices, 16, "checksums", err));
    for (int64_t s = 0; s < a->slices; s++)
        sum_to_bytes(a->sums[s], raw + 16 * s);
    snprintf(name, sizeof name, "%s_xxh3", a->name);
    return h5_put_array(group, name, DT_U8, 2, dims, raw, err);
}

static int finish_array(struct trace_writer *w, struct array_writer *aw, struct err *err)
{
    struct trace_array *a = &aw->a;
    for (int64_t s = 0; s < a->slices; s++) {
        if (aw->next[s] != a->rows)
            return err_set(err, ERR_RUN, "'%s' head %lld has %lld rows of %lld", a->name,
                           (long long)s, (long long)aw->next[s], (long long)a->rows);
        a->sums[s] = hash_digest(aw->hash[s]);
    }
    return write_sums(w->group, a, err);
}

int trace_end_call(struct trace_writer *w, struct err *err)
{
    int rc = 0;
    if (!w->in_call || w->failed)
        return err_set(err, ERR_RUN, "%s: a call ends that did not begin", w->part.path);
    h5_lock();
    for (int i = 0; i < CALL_ARRAYS; i++)
        if (w->out[i].a.present)
            TRY(finish_array(w, &w->out[i], err));
    content_call(&w->call, &w->content);
    for (int i = 0; i < CALL_ARRAYS; i++)
        content_array(&w->out[i].a, &w->content);
    end_arrays(w);
    if (H5Fflush(w->part.file, H5F_SCOPE_GLOBAL) < 0)
        rc = h5_fail(err, ERR_IO, "flush");
    w->in_call = false;
    w->n_calls++;
out:
    h5_unlock();
    return call_failed(w, rc, err);
}

int trace_put_run(struct trace_writer *w, enum trace_run which, int64_t n, const void *data,
                  struct err *err)
{
    struct trace_array *a = &w->run_arrays[which], fresh;
    struct row_sample rows = {.at = data, .n = n, .group = w->meta.row_group};
    int64_t want = trace_run_length(&w->meta, which);
    int rc = 0;
    trace_run_array(which, n, &fresh);
    if (n == 0)
        return 0;
    if (which == TRACE_ROWS && (rc = row_sample_check(&rows, w->meta.n_k, ERR_USAGE, err)) != 0)
        return rc;
    h5_lock();
    if (a->present)
        FAIL(err, ERR_RUN, "'%s' is written twice", fresh.name);
    if (n < 0 || (want >= 0 && n != want))
        FAIL(err, ERR_RUN, "'%s' has %lld elements, expected %lld", fresh.name, (long long)n,
             (long long)want);
    *a = fresh;
    TRY(mem_alloc(&a->sums, 1, sizeof *a->sums, "checksum", err));
    a->sums[0] = hash_bytes(data, (size_t)a->bytes);
    TRY(h5_put_array(w->run, a->name, a->type, 1, a->dims, data, err));
    TRY(write_sums(w->run, a, err));
    a->present = true;
out:
    h5_unlock();
    if (rc) {
        w->failed = true;
        err_prefix(err, "%s", w->part.path);
        advise(w, err);
    }
    return rc;
}

/* ---- commit ---------------------------------------------------------------------------------- */

static void release(struct trace_writer *w)
{
    h5_lock();
    end_arrays(w);
    h5_close(w->run);
    h5_close(w->calls);
    h5_close(w->type);
    h5_unlock();
    for (int i = 0; i < RUN_ARRAYS; i++)
        free(w->run_arrays[i].sums);
    buf_free(&w->content);
}

static int write_id(struct trace_writer *w, struct err *err)
{
    char id[HASH_TEXT_MAX];
    for (int i = 0; i < RUN_ARRAYS; i++)
        content_array(&w->run_arrays[i], &w->content);
    PASS_ON(buf_check(&w->content, "content id", err));
    hash_text(hash_bytes(buf_str(&w->content), w->content.len), id);
    return h5_put_str(w->part.file, "content_id", id, err);
}

int trace_commit(struct trace_writer **wp, struct err *err)
{
    struct trace_writer *w = *wp;
    int rc = 0;
    if (w->meta.row_group != 0 && !w->run_arrays[TRACE_ROWS].present)
        FAIL(err, ERR_RUN, "%s: the positions of its rows are missing", w->part.path);
    if (w->failed || w->in_call)
        FAIL(err, ERR_RUN, "%s: the file is not finished: %s", w->part.path,
             w->failed ? "writing failed before" : "the last call was not ended");
    h5_lock();
    rc = write_id(w, err);
    h5_unlock();
    if (rc)
        goto out;
    release(w);
    if ((rc = h5_part_commit(&w->part, err)) != 0)
        advise(w, err);
    free(w);
    *wp = NULL;
    return rc;
out:
    trace_abort(wp);
    return rc;
}

void trace_abort(struct trace_writer **wp)
{
    struct trace_writer *w = *wp;
    if (!w)
        return;
    release(w);
    h5_part_abort(&w->part);
    free(w);
    *wp = NULL;
}
