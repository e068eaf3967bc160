/*
 * trace_pack.c - copy a trace between storage forms, head by head.
 */
#include "core/trace_internal.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"

#include <stdlib.h>

struct copy {
    const struct trace *t;
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
    int rc = mem_grow(&c->buf, &c->cap, bytes, 1, "head to copy", err);

    if (rc == 0)
        rc = trace_read_slice(c->t, call, a, slice, c->buf, err);
    if (rc == 0)
        progress_add(c->progress, (double)bytes, 1, a->name);
    return rc;
}

static int copy_call(struct copy *c, int64_t i, struct err *err)
{
    const struct trace_entry *e = &c->t->calls[i];
    int rc = 0;

    TRY(trace_begin_call(c->w, &e->call, err));
    for (int j = 0; j < CALL_ARRAYS; j++)
        for (int64_t s = 0; e->arr[j].present && s < e->arr[j].slices; s++) {
            if (interrupted())
                FAIL(err, ERR_INTERRUPTED, "interrupted");
            TRY(read_slice(c, i, &e->arr[j], s, err));
            TRY(trace_put_slice(c->w, j, s, c->buf, err));
        }
    TRY(trace_end_call(c->w, err));
out:
    return rc;
}

int trace_pack(const struct trace *t, const char *path, enum trace_storage s, int jobs, bool force,
               struct err *err)
{
    struct copy c = {.t = t};
    struct trace_extent extent;
    struct trace_ignored lost = trace_ignored(t);
    int rc = 0;

    if (lost.n)
        log_warn("%s: not copied, as this lacuna does not know them: %lld names, %s%s", path,
                 (long long)lost.n, lost.first, lost.n > 1 ? ", ..." : "");
    TRY(trace_extent(t, &extent, err));
    const struct trace_form form = {
        .storage = s,
        .jobs = jobs,
        .need_bytes = s == TRACE_CONTIGUOUS ? extent.bytes + 65536 : extent.bytes / 2,
        .force = force,
        .copy = true,
    };
    TRY(trace_create_as(path, &t->meta, &form, &c.w, err));
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
