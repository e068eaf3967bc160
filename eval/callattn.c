/*
 * callattn.c - see callattn.h.
 */
#include "eval/callattn.h"

#include "core/mem.h"
#include "core/pool.h"
#include "eval/headwork.h"
#include "sim/simulate.h"

#include <math.h>
#include <stdlib.h>

struct layer_call {
    struct layer_job *j;
    struct sim_device device;
    int *at; /* [n]: heads whose method runs */
    int n;
    struct head_work *heads;   /* [n] */
    struct sim_cell *cells;    /* [n] */
    struct call_outcome *outs; /* [n] */
    struct record of_call;
};

bool layer_is_call(const struct layer_job *j)
{
    const struct sim_device *d = j->a->how->device;
    return d && !j->a->decoding;
}

/* ---- before and after the call -------------------------------------------------------------- */

static int begin_head(void *call, int64_t i, int worker, struct err *err)
{
    struct layer_call *c = call;
    struct head_work *w = c->heads + i;
    int rc = 0;
    (void)worker;
    TRY(head_open(w, c->j, c->at[i], err));
    TRY(method_begin(w, err));
    c->cells[i] = method_cell(w, &c->device);
    c->outs[i] = (struct call_outcome){.record = &w->rec};
out:
    return rc;
}

/* The call's times belong to its heads in equal parts. */
static int take_times(const struct layer_call *c, struct record *r, struct err *err)
{
    static const char *const names[] = {"time_total_ns", "time_dense_ns", "host_plan_ns"};
    int rc = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && r->status == RECORD_OK; i++)
        if (!isnan(record_get(&c->of_call, names[i])))
            TRY(record_metric(r, names[i], record_get(&c->of_call, names[i]) / c->n, err));
out:
    return rc;
}

static int end_head(void *call, int64_t i, int worker, struct err *err)
{
    struct layer_call *c = call;
    struct head_work *w = c->heads + i;
    int rc = 0;
    (void)worker;
    if (c->outs[i].err.code) {
        *err = c->outs[i].err;
        return err->code;
    }
    TRY(take_times(c, &w->rec, err));
    TRY(method_end(w, false, err));
out:
    return rc;
}

static int dense_head(void *job, int64_t head, int worker, struct err *err)
{
    const struct layer_job *j = job;
    return head_is_dense(j, (int)head) ? head_attend(job, head, worker, err) : 0;
}

/* ---- the call ------------------------------------------------------------------------------- */

static int run_call(struct layer_call *c, struct err *err)
{
    const struct attn_shape *shape = &c->j->a->shape;
    int rc = 0;
    struct sim_call call = {.cells = c->cells,
                            .heads = c->outs,
                            .n = c->n,
                            .group = c->n == shape->heads ? shape->heads / shape->kv_heads : 1,
                            .data = device_numbers(c->n),
                            .jobs = c->j->a->jobs,
                            .record = c->device.timed ? &c->of_call : NULL};
    TRY(pool_run(c->j->a->jobs, c->n, begin_head, c, err));
    TRY(sim_share_params(c->cells, c->outs, c->n, err));
    TRY(sim_run_call(&call, err));
    TRY(pool_run(c->j->a->jobs, c->n, end_head, c, err));
out:
    return rc;
}

static int find_heads(struct layer_call *c, struct err *err)
{
    int heads = c->j->a->shape.heads, rc = 0;
    TRY(mem_alloc(&c->at, heads, sizeof *c->at, "heads of a layer", err));
    for (int h = 0; h < heads; h++)
        if (!head_is_dense(c->j, h))
            c->at[c->n++] = h;
    TRY(mem_zalloc(&c->heads, c->n, sizeof *c->heads, "heads of a layer", err));
    TRY(mem_zalloc(&c->cells, c->n, sizeof *c->cells, "heads of a layer", err));
    TRY(mem_zalloc(&c->outs, c->n, sizeof *c->outs, "heads of a layer", err));
out:
    return rc;
}

int call_attend(struct layer_job *j, struct err *err)
{
    struct layer_call c = {.j = j, .device = *j->a->how->device};
    int rc = 0;

    c.device.calls = true;
    record_init(&c.of_call);
    TRY(find_heads(&c, err));
    if (c.n)
        TRY(run_call(&c, err));
    if (c.n < j->a->shape.heads)
        TRY(pool_run(j->a->jobs, j->a->shape.heads, dense_head, j, err));
out:
    for (int i = 0; c.heads && i < c.n; i++)
        if (c.heads[i].j)
            head_close(c.heads + i);
    record_free(&c.of_call);
    free(c.at);
    free(c.heads);
    free(c.cells);
    free(c.outs);
    return rc;
}
