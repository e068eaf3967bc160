/*
 * trace_pack.c - copy a trace between storage forms, head by head.
 */
#include "core/trace_internal.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define E4M3_MOST 448.0f
#define FP8_MARK ", kv e4m3"

struct copy {
    const struct trace *t;
    bool fp8;
    struct trace_writer *w;
    void *buf; /* one slice, owned */
    int64_t cap;
    struct progress *progress;
};

/* Read a slice and refuse it when it is not what was written. */
static int read_slice(struct copy *c, int64_t call, const struct trace_array *a, int64_t slice,
                      struct err *err)
{
    int64_t bytes = a->rows * a->row_bytes;
    PASS_ON(mem_grow(&c->buf, &c->cap, bytes, 1, "head to copy", err));
    PASS_ON(trace_read_slice(c->t, call, a, slice, c->buf, err));
    progress_add(c->progress, (double)bytes, 1, a->name);
    return 0;
}

/* Keys or values of a head to those of e4m3 times the power of two that puts the largest below its
 * end: three bits of mantissa, which every dtype of a trace has. */
static int round_fp8(struct copy *c, const struct trace_array *a, int64_t slice, struct err *err)
{
    int64_t n = a->rows * a->row_bytes / (int64_t)dtype_size(a->type);
    OWN(free_at) float *x = NULL;
    float top = 0;
    int exponent;
    PASS_ON(mem_alloc(&x, n, sizeof *x, "values to round", err));
    dtype_to_f32(a->type, c->buf, x, n);
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i]))
            return err_set(err, ERR_INPUT, "%s: '%s' of head %lld has values that are not finite",
                           trace_path(c->t), a->name, (long long)slice);
        top = fmaxf(top, fabsf(x[i]));
    }
    frexpf(top / E4M3_MOST, &exponent);
    float scale = top > 0 ? ldexpf(1, exponent) : 1;
    for (int64_t i = 0; i < n; i++)
        x[i] = scale * e4m3_round(x[i] / scale);
    dtype_from_f32(a->type, x, c->buf, n);
    return 0;
}

static int copy_call(struct copy *c, int64_t i, struct err *err)
{
    const struct trace_entry *e = &c->t->calls[i];
    struct trace_call call = e->call;
    if (c->fp8)
        call.has_out = call.has_lse = call.has_map = call.has_col_sum = false;
    PASS_ON(trace_begin_call(c->w, &call, err));
    for (int j = 0; j < CALL_ARRAYS; j++)
        for (int64_t s = 0; trace_call_has(&call, j) && s < e->arr[j].slices; s++) {
            if (interrupted())
                return err_set(err, ERR_INTERRUPTED, "interrupted");
            PASS_ON(read_slice(c, i, &e->arr[j], s, err));
            if (c->fp8 && (j == TRACE_K || j == TRACE_V))
                PASS_ON(round_fp8(c, &e->arr[j], s, err));
            PASS_ON(trace_put_slice(c->w, j, s, c->buf, err));
        }
    return trace_end_call(c->w, err);
}

static int pack(const struct trace *t, const struct trace_meta *meta, const char *path,
                const struct trace_form *how, bool fp8, struct err *err)
{
    struct copy c = {.t = t, .fp8 = fp8};
    struct trace_extent extent;
    struct trace_ignored lost = trace_ignored(t);
    int rc = 0;
    if (lost.n)
        log_warn("%s: not copied, as this lacuna does not know them: %lld names, %s%s", path,
                 (long long)lost.n, lost.first, lost.n > 1 ? ", ..." : "");
    TRY(trace_extent(t, &extent, err));
    struct trace_form form = *how;
    form.copy = true;
    form.need_bytes =
        form.storage == TRACE_CONTIGUOUS ? extent.bytes + 65536 : extent.bytes / (fp8 ? 4 : 2);
    TRY(trace_create_as(path, meta, &form, &c.w, err));
    c.progress = progress_start("pack", (double)extent.bytes, extent.objects);
    for (int64_t i = 0; i < t->n_calls; i++)
        TRY(copy_call(&c, i, err));
    for (int i = 0; i < RUN_ARRAYS; i++) {
        const struct trace_array *a = &t->run[i];
        if (!a->present)
            continue;
        TRY(read_slice(&c, -1, a, 0, err));
        TRY(trace_put_run(c.w, i, a->rows, c.buf, err));
    }
    TRY(trace_commit(&c.w, err));
out:
    progress_end(&c.progress);
    trace_abort(&c.w);
    free(c.buf);
    return rc;
}

int trace_pack(const struct trace *t, const char *path, enum trace_storage s, int jobs, bool force,
               struct err *err)
{
    struct trace_form form = {.storage = s, .jobs = jobs, .force = force};
    return pack(t, &t->meta, path, &form, false, err);
}

int trace_pack_fp8(const struct trace *t, const char *path, enum trace_storage s, int jobs,
                   bool force, struct err *err)
{
    struct trace_form form = {.storage = s, .jobs = jobs, .force = force};
    struct trace_meta meta = t->meta;
    size_t n = strlen(meta.compute);
    if (strstr(meta.compute, FP8_MARK))
        return err_set(err, ERR_USAGE, "%s has keys and values of fp8 already", trace_path(t));
    if (n + sizeof FP8_MARK > sizeof meta.compute)
        return err_set(err, ERR_USAGE, "%s: compute '%s' is too long to add '" FP8_MARK "'",
                       trace_path(t), meta.compute);
    strcpy(meta.compute + n, FP8_MARK);
    meta.pool = 0;
    return pack(t, &meta, path, &form, true, err);
}
