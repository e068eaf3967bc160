/*
 * flips.c - every byte of a trace, a packed trace, a mask dump and an output dump is changed once:
 * the reader refuses the file, or everything that it reads is what it was.
 *
 * The readers run in this process, thousands of times a second. Records, calibrations and manifests
 * are in tests/unit/test_flips.c, bit by bit.
 */
#include "tests/fault/fault.h"

#include "core/h5util.h"
#include "core/hash.h"
#include "core/maskfile.h"
#include "core/mem.h"
#include "core/trace.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a reader makes of a file, as text. Returns its code. */
typedef int read_fn(const char *path, struct buf *text, struct err *err);

static void put_sum(struct buf *text, const void *data, size_t n)
{
    char sum[HASH_TEXT_MAX];
    hash_text(hash_bytes(data, n), sum);
    buf_puts(text, sum);
}

/* ---- traces ---------------------------------------------------------------------------------- */

static int read_tensors(const struct trace *t, int64_t call, struct buf *text, struct err *err)
{
    const struct trace_call *c = trace_call(t, call);
    float *x = NULL;
    int rc = 0;
    buf_printf(text, "%d %d %s %d %s", c->step, c->layer, c->branch, c->order, c->block);
    for (int w = 0; w < TRACE_WHAT_COUNT; w++) {
        struct trace_shape s = trace_shape(trace_meta(t), (enum trace_what)w);
        if ((w == TRACE_OUT && !c->has_out) || (w == TRACE_LSE && !c->has_lse))
            continue;
        for (int h = 0; h < s.heads; h++) {
            TRY(mem_alloc(&x, s.tokens * s.dim, sizeof *x, "head", err));
            TRY(trace_read(t, call, (enum trace_what)w, h, 0, s.tokens, x, err));
            put_sum(text, x, (size_t)(s.tokens * s.dim) * sizeof *x);
            free(x);
            x = NULL;
        }
    }
    int64_t cells = c->has_map ? trace_map_cells(t, false) * trace_map_cells(t, true) : 0;
    for (int h = 0; cells && h < trace_meta(t)->heads; h++) {
        TRY(mem_alloc(&x, 2 * cells, sizeof *x, "map", err));
        TRY(trace_read_map(t, call, h, x, x + cells, err));
        put_sum(text, x, 2 * (size_t)cells * sizeof *x);
        free(x);
        x = NULL;
    }
out:
    free(x);
    return rc;
}

static int read_run_arrays(const struct trace *t, struct buf *text, struct err *err)
{
    int32_t *ids = NULL;
    float *nll = NULL;
    int64_t n = 0;
    int rc = 0;
    TRY(trace_read_run(t, TRACE_TOKENS, &ids, &n, err));
    put_sum(text, ids, (size_t)n * sizeof *ids);
    TRY(trace_read_run(t, TRACE_NLL, &nll, &n, err));
    put_sum(text, nll, (size_t)n * sizeof *nll);
out:
    free(ids);
    free(nll);
    return rc;
}

static int read_trace(const char *path, struct buf *text, struct err *err)
{
    struct trace *t = NULL;
    struct jw w;
    int rc = 0;
    TRY(trace_open(path, &t, err));
    jw_init(&w, text, 0);
    jw_obj(&w);
    trace_meta_json(trace_meta(t), &w);
    jw_obj_end(&w);
    buf_puts(text, trace_id(t));
    for (int64_t i = 0; i < trace_calls(t); i++)
        TRY(read_tensors(t, i, text, err));
    TRY(read_run_arrays(t, text, err));
out:
    trace_close(&t);
    return rc;
}

/* ---- dumps ----------------------------------------------------------------------------------- */

static int read_masks(const char *path, struct buf *text, struct err *err)
{
    struct maskfile *f = NULL;
    int rc = maskfile_open(path, &f, err);
    for (int64_t i = 0; !rc && i < maskfile_cells(f); i++) {
        struct record r = {0};
        struct mask m = {0};
        char order[MASKFILE_ORDER];
        rc = maskfile_cell(f, i, &r, err);
        rc = rc ? rc : maskfile_read(f, i, &m, err);
        rc = rc ? rc : maskfile_order(f, i, order, err);
        if (!rc) {
            record_json(&r, text);
            buf_printf(text, "%s %d %lld %lld %d %lld %lld %lld %lld %lld %d %lld %lld ", order,
                       m.form, (long long)m.nq, (long long)m.nk, m.causal, (long long)m.bq,
                       (long long)m.bk, (long long)m.sink, (long long)m.window,
                       (long long)m.dense_from, m.exec, (long long)m.exec_bq, (long long)m.exec_bk);
            if (m.form == MASK_LISTS) {
                put_sum(text, m.ptr, (size_t)(m.ngroups + 1) * sizeof *m.ptr);
                put_sum(text, m.col, (size_t)m.ptr[m.ngroups] * sizeof *m.col);
            }
        }
        record_free(&r);
        mask_free(&m);
    }
    maskfile_close(&f);
    return rc;
}

/* A dataset and its checksum, as doc/trace-format.md tells a reader to use it. */
static int read_checked(hid_t cell, const char *name, enum dtype type, struct buf *text,
                        struct err *err)
{
    char attr[32], want[HASH_TEXT_MAX], have[HASH_TEXT_MAX];
    hid_t dset = H5I_INVALID_HID;
    struct h5_info info;
    void *data = NULL;
    int64_t n = 1;
    int rc = 0;
    TRY(h5_open_dataset(cell, name, &dset, err));
    TRY(h5_dataset_info(dset, type, &info, err));
    for (int i = 0; i < info.ndim; i++)
        if (!mul_ok(n, info.dims[i], &n))
            FAIL(err, ERR_INPUT, "%s: its size overflows", name);
    TRY(mem_alloc(&data, n, dtype_size(type), name, err));
    TRY(h5_get_array(cell, name, type, info.ndim, info.dims, data, err));
    snprintf(attr, sizeof attr, "%s_xxh3", name);
    TRY(h5_get_str(cell, attr, want, sizeof want, err));
    hash_text(hash_bytes(data, (size_t)n * dtype_size(type)), have);
    if (strcmp(want, have) != 0)
        FAIL(err, ERR_INPUT, "%s: does not match its checksum", name);
    buf_puts(text, have);
out:
    h5_close(dset);
    free(data);
    return rc;
}

static int read_outputs(const char *path, struct buf *text, struct err *err)
{
    static const char *const texts[] = {"trace", "branch", "method", "params", "permute"};
    static const char *const numbers[] = {"run", "step", "layer", "head", "seed"};
    hid_t file = H5I_INVALID_HID, cells = H5I_INVALID_HID, cell = H5I_INVALID_HID;
    int rc = 0;
    h5_lock();
    TRY(h5_open_file(path, "lacuna-outputs", 1, &file, err));
    TRY(h5_open_group(file, "cells", &cells, err));
    for (int64_t i = 0; i < 6; i++) { /* two heads, three methods */
        TRY(h5_open_numbered(cells, i, &cell, err));
        for (int k = 0; k < 5; k++) {
            char value[256];
            int64_t number;
            TRY(h5_get_str(cell, texts[k], value, sizeof value, err));
            TRY(h5_get_i64(cell, numbers[k], &number, err));
            buf_printf(text, "%s %lld ", value, (long long)number);
        }
        TRY(read_checked(cell, "out", DT_F32, text, err));
        TRY(read_checked(cell, "lse", DT_F64, text, err));
        h5_close(cell);
        cell = H5I_INVALID_HID;
    }
out:
    h5_close(cell);
    h5_close(cells);
    h5_close(file);
    h5_unlock();
    return rc;
}

/* ---- cases ----------------------------------------------------------------------------------- */

static const struct subject {
    const char *step, *file;
    read_fn *read;
} subjects[] = {
    {"capture", "t.h5", read_trace},
    {"pack", "pk.h5", read_trace},
    {"dump", "m.h5", read_masks},
    {"dump", "o.h5", read_outputs},
};

static void flip(const struct subject *f, int fd, long at, struct buf *file, struct buf *want,
                 struct tally *t)
{
    struct buf got = {0};
    struct err err = {0};
    char what[64];
    uint64_t random = driver.seed ^ (uint64_t)at << 16;
    char byte = (char)(file->data[at] ^ (int)(1 + random_below(&random, 255)));
    const char *path = trial_path("trial", f->file);
    if (pwrite(fd, &byte, 1, at) != 1)
        give_up("%s: cannot write", path);
    int rc = f->read(path, &got, &err);
    if (pwrite(fd, file->data + at, 1, at) != 1)
        give_up("%s: cannot write", path);
    t->tried++;
    t->refused += rc == ERR_INPUT;
    snprintf(what, sizeof what, "--how flip --at %ld", at);
    if (rc == 0 && strcmp(buf_str(&got), buf_str(want)) != 0)
        tally_fail(t, "trial", what, "silent: something else is read");
    else if (rc != 0 && (rc != ERR_INPUT || !err.msg[0]))
        tally_fail(t, "trial", what, err.msg);
    else
        t->completed += rc == 0;
    buf_free(&got);
}

static void flip_file(const struct step *s, const struct subject *f, struct tally *t)
{
    struct buf file = {0}, want = {0};
    struct err err = {0};
    make_empty("trial");
    copy_tree(trial_path("chain", f->file), trial_path("trial", f->file));
    read_whole(trial_path("trial", f->file), &file);
    if (f->read(trial_path("trial", f->file), &want, &err) != 0)
        give_up("%s: %s", f->file, err.msg);
    int fd = open(trial_path("trial", f->file), O_WRONLY | O_CLOEXEC);
    struct sample a = sample_of(s, (long)file.len);
    for (long i = 0; i < a.take && !driver.how; i++)
        flip(f, fd, sample_at(&a, i), &file, &want, t);
    if (driver.how && driver.at < (long)file.len)
        flip(f, fd, driver.at, &file, &want, t);
    close(fd);
    buf_free(&file);
    buf_free(&want);
}

void flips(const struct step *s, struct tally *t)
{
    for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++) {
        struct tally one = {.kind = t->kind, .step = subjects[i].file};
        if (strcmp(subjects[i].step, s->name) != 0)
            continue;
        flip_file(s, &subjects[i], &one);
        tally_print(&one);
        t->failures += one.failures;
    }
}
