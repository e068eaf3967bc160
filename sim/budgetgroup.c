/*
 * budgetgroup.c - what a setting is worth on a group of cells, and the search over settings
 * (budgetrun_impl.h).
 */
#include "sim/budgetrun_impl.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/utf8.h"
#include "sim/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups --------------------------------------------------------------------------------- */

struct group {
    struct replay *r;
    const struct method_run *run;
    int trace;
    struct sim_device device;  /* chooses the masks; accel NULL: the method itself */
    struct budget_item *items; /* owned */
    int64_t n, cap;
    int jobs;
};

static int add_item(struct group *g, const struct budget_item *i, struct err *err)
{
    for (int64_t k = g->n - 1; k >= 0; k--)
        if (g->items[k].layer == i->layer && g->items[k].head == i->head &&
            strcmp(g->items[k].branch, i->branch) == 0)
            return 0;
    int rc = mem_grow(&g->items, &g->cap, g->n + 1, sizeof *g->items, "heads of a search", err);
    if (!rc)
        g->items[g->n++] = *i;
    return rc;
}

/* The heads of the group that `name` stands for. */
static int fill_group(struct group *g, const struct budget_item *name, struct err *err)
{
    const struct trace *t = g->r->traces[g->trace];
    bool joins = g->run->method->reuse.shares_branches;
    int rc = 0;
    for (int64_t c = 0; c < trace_calls(t); c++) {
        const struct trace_call *call = trace_call(t, c);
        if ((name->layer >= 0 && call->layer != name->layer) ||
            (name->branch[0] && strcmp(name->branch, call->branch) != 0))
            continue;
        for (int h = 0; h < trace_meta(t)->heads; h++) {
            struct budget_item i = {.layer = call->layer, .head = h};
            if (name->head >= 0 && name->head != h)
                continue;
            if (!joins)
                snprintf(i.branch, sizeof i.branch, "%s", call->branch);
            TRY(add_item(g, &i, err));
        }
    }
out:
    return rc;
}

/* ---- what a setting is worth ---------------------------------------------------------------- */

struct sum {
    double value, cost;
    int64_t cells;
    char why[160]; /* a head is skipped, "": none is */
};

/* The metric of one head with given parameters; but its reason nothing is added where the method
 * skips it. A device (or NULL) chooses masks where their counts are enough. */
static int measure(const struct method_run *run, const struct head_in *in,
                   const struct sim_device *device, struct method_ctx *ctx, const void *params,
                   struct sum *sum, struct err *err)
{
    const char *metric = run->target->metric;
    bool counts = budget_needs_counts_only(metric);
    struct sim_cell cell = {.method = run->method,
                            .params = params,
                            .ctx = ctx,
                            .in = in,
                            .device = counts ? device : NULL,
                            .measure = counts ? MEASURE_MASK : MEASURE_ALL};
    struct record rec;
    int rc;

    record_init(&rec);
    TRY(sim_run(&cell, &rec, err));
    if (rec.status != RECORD_OK) {
        utf8_copy(sum->why, sizeof sum->why, rec.reason);
        goto out;
    }
    double x = record_get(&rec, metric), cost = record_get(&rec, "density_exec");
    if (isnan(x))
        FAIL(err, ERR_RUN, "method %s gives no %s here, which @%s asks for", run->method->name,
             metric, metric);
    sum->value += x;
    sum->cost += isnan(cost) ? record_get(&rec, "density_elem") : cost;
    sum->cells++;
out:
    record_free(&rec);
    return rc;
}

/* A setting on a group. */
struct trial {
    struct group *g;
    const struct budget_range *range;
    int64_t at;
    struct sum *sums; /* [items] */
};

static void carry_free(struct carry *c)
{
    if (c->free)
        c->free(c->data);
}

static int trial_call(struct trial *t, const struct budget_item *i, int64_t call, struct carry *own,
                      struct carry *shared, struct sum *sum, struct err *err)
{
    const struct method_run *run = t->g->run;
    const struct method *m = run->method;
    const struct trace *trace = t->g->r->traces[t->g->trace];
    struct method_ctx ctx = {.seed = t->g->r->seed,
                             .session = run->session,
                             .carry = m->flags & METHOD_NEEDS_STEPS ? own : NULL,
                             .shared = m->reuse.shares_branches ? shared : NULL};
    struct sim_head h = {0};
    void *params = NULL;
    int rc = 0;

    TRY(head_load(trace, call, i->head, &t->g->r->load, &h, err));
    TRY(method_params_for_head(run, i->layer, h.in.head, h.in.x.nk, &params, err));
    TRY(budget_set(t->range, run->target, m, t->at, params, NULL, err));
    TRY(measure(run, &h.in, t->g->device.accel ? &t->g->device : NULL, &ctx, params, sum, err));
out:
    if (params)
        opt_free(m->params.table, params);
    free(params);
    sim_head_free(&h);
    return rc;
}

/* The states of the branches of a head. */
struct branch_carry {
    char name[16];
    struct carry carry;
};

static int trial_item(void *ctx, int64_t item, int worker, struct err *err)
{
    enum { BRANCHES = 16 };
    struct trial *t = ctx;
    const struct budget_item *i = t->g->items + item;
    const struct trace *trace = t->g->r->traces[t->g->trace];
    struct branch_carry own[BRANCHES] = {0};
    struct carry shared = {0};
    int n = 0, rc = 0;

    for (int64_t c = 0; c < trace_calls(trace); c++) {
        const struct trace_call *call = trace_call(trace, c);
        int b = 0;
        if (call->layer != i->layer || (i->branch[0] && strcmp(i->branch, call->branch) != 0))
            continue;
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED, "interrupted while searching; the same command continues");
        while (b < n && strcmp(own[b].name, call->branch) != 0)
            b++;
        if (b == BRANCHES)
            FAIL(err, ERR_INPUT, "%s: more than %d branches", trace_path(trace), BRANCHES);
        if (b == n)
            snprintf(own[n++].name, sizeof own[b].name, "%s", call->branch);
        TRY(trial_call(t, i, c, &own[b].carry, &shared, t->sums + item, err));
    }
out:
    for (int b = 0; b < n; b++)
        carry_free(&own[b].carry);
    carry_free(&shared);
    return rc;
}

/* Plain mean over the cells of the group. */
static int trial_run(struct group *g, const struct budget_range *range, int64_t at,
                     struct sum *mean, struct err *err)
{
    struct trial t = {.g = g, .range = range, .at = at};
    int rc = 0;
    *mean = (struct sum){0};
    TRY(mem_zalloc(&t.sums, g->n, sizeof *t.sums, "sums of a search", err));
    TRY(pool_run(g->jobs, g->n, trial_item, &t, err));
    for (int64_t i = 0; i < g->n; i++) {
        mean->value += t.sums[i].value;
        mean->cost += t.sums[i].cost;
        mean->cells += t.sums[i].cells;
        if (!mean->why[0])
            memcpy(mean->why, t.sums[i].why, sizeof mean->why);
    }
    if (mean->cells) {
        mean->value /= (double)mean->cells;
        mean->cost /= (double)mean->cells;
    }
out:
    free(t.sums);
    return rc;
}

/* ---- searches ------------------------------------------------------------------------------- */

/* Of a group, or of one loaded head. */
struct hunt {
    struct group *g;
    const struct budget_range *range;
    const struct method_run *run;
    const struct head_in *in;        /* NULL: the group */
    const struct sim_device *device; /* of `in`, or NULL */
    void *params;                    /* of the head */
    uint64_t seed;
    char why[160]; /* all cells are skipped, "": one is not */
};

static int evaluate(void *ctx, int64_t at, double *value, double *cost, struct err *err)
{
    struct hunt *h = ctx;
    struct sum sum = {0};
    int rc = 0;
    if (h->in) {
        struct method_ctx mc = {.seed = h->seed, .session = h->run->session};
        TRY(budget_set(h->range, h->run->target, h->run->method, at, h->params, NULL, err));
        TRY(measure(h->run, h->in, h->device, &mc, h->params, &sum, err));
    } else {
        TRY(trial_run(h->g, h->range, at, &sum, err));
    }
    if (sum.cells == 0) /* zeros then: they end the search soon */
        memcpy(h->why, sum.why, sizeof h->why);
    *value = sum.value;
    *cost = sum.cost;
out:
    return rc;
}

static int seek(struct hunt *h, const void *params, int64_t nk, struct budget_found *f,
                struct err *err)
{
    const struct method *m = h->run->method;
    const struct budget_target *t = h->run->target;
    struct budget_range range;
    struct buf text = {0};
    void *scratch = NULL;
    int rc = 0;

    TRY(budget_range(t, m, nk, &range, err));
    h->range = &range;
    struct budget_question q = {.count = range.count,
                                .start = budget_start(&range, t, m, params, nk),
                                .whole = range.of->scale == BUDGET_COUNT,
                                .kind = t->kind,
                                .target = t->value,
                                .direction = budget_direction(t->metric),
                                .eval = evaluate,
                                .ctx = h};
    TRY(budget_search(&q, &f->answer, err));
    memcpy(f->why, h->why, sizeof f->why);
    if (h->why[0])
        goto out;
    TRY(mem_zalloc(&scratch, 1, m->params.size, "method parameters", err));
    TRY(opt_copy(m->params.table, params, scratch, err));
    TRY(budget_set(&range, t, m, f->answer.at, scratch, &text, err));
    if (!(f->params = strdup(buf_str(&text))))
        rc = err_set(err, ERR_NOMEM, "parameters that were found: out of memory");
out:
    if (scratch)
        opt_free(m->params.table, scratch);
    free(scratch);
    buf_free(&text);
    return rc;
}

void budget_device(const struct replay *r, struct sim_device *out)
{
    *out = r->device;
    out->calls = out->timed = false;
    if (out->select == SELECT_CPU)
        out->accel = NULL;
}

int budget_seek_group(struct replay *r, int64_t k, int trace, const struct budget_item *name,
                      int jobs, struct budget_found *f, struct err *err)
{
    struct group g = {.r = r, .run = r->runs + k, .trace = trace, .jobs = jobs};
    budget_device(r, &g.device);
    struct hunt h = {.g = &g, .run = g.run};
    int rc = 0;
    TRY(fill_group(&g, name, err));
    TRY(seek(&h, g.run->params, trace_meta(r->traces[trace])->n_k, f, err));
out:
    free(g.items);
    return rc;
}

int budget_resolve_head(const struct method_run *run, const struct head_in *in,
                        const struct sim_device *device, uint64_t seed, void *params,
                        struct budget_found *f, struct err *err)
{
    struct hunt h = {.run = run, .in = in, .device = device, .seed = seed};
    int rc = 0;

    memset(f, 0, sizeof *f);
    TRY(mem_zalloc(&h.params, 1, run->method->params.size, "method parameters", err));
    TRY(opt_copy(run->method->params.table, params, h.params, err));
    TRY(seek(&h, params, in->x.nk, f, err));
    if (f->params)
        TRY(budget_apply(run->target, run->method, f->params, params, err));
out:
    if (h.params)
        opt_free(run->method->params.table, h.params);
    free(h.params);
    return rc;
}
