/*
 * simulate_call.c - see simulate_call.h. What is done head by head runs on threads, between the
 * steps in which the GPU has the call.
 */
#include "sim/simulate_call.h"

#include "core/buf.h"
#include "core/intmath.h"
#include "core/laps.h"
#include "core/mem.h"
#include "core/pool.h"
#include "sim/accelattend.h"
#include "sim/accelrecord.h"
#include "sim/callrecord.h"
#include "sim/freshmask.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A head while the call runs. */
struct head {
    struct sim_cell cell; /* in its token order */
    struct sim_head moved;
    bool in_order; /* the trace's: `moved` is empty */
    uint64_t data; /* number of its q, k, v on the device */
    struct run run;
    struct choice choice;
    enum own_way way;
    struct accel_filter filter; /* OWN_FILTER */
    struct own_rule own;        /* OWN_KERNELS */
    bool skipped;               /* the method does not apply */
    struct call_outcome *outcome;
};

/* The call while it runs. */
struct calling {
    const struct sim_call *c;
    const struct sim_device *device;
    struct head *heads; /* [c->n], owned */

    /* Of the heads that are still in it, owned, [c->n] each. */
    int *at; /* their indices */
    int n;
    const struct attn_in **x;
    struct accel_call call;
    struct accel_choice *choices;
    bool *built;
    struct accel_units *units; /* of the masks that stay on the device */
    struct mask *whole;        /* as the device chose */
    int *answers;
    char (*why)[160];
    struct laps laps;
    struct accel_filter *filters;
    struct own_rule *owns;
    const float **added;
    struct head_masks *masks;
    struct accel_call_head *results;
};

static bool alive(const struct head *h)
{
    return !h->skipped && h->outcome->err.code == 0;
}

/* Take the code of a step on one head: 0, METHOD_SKIP or a failure of this head. */
static void settle(struct head *h, int rc, struct err *err)
{
    if (rc == METHOD_SKIP) {
        h->skipped = true;
        if (h->outcome->record->status != RECORD_SKIP)
            run_skipped(&h->run, h->outcome->record);
    } else if (rc < 0) {
        err_prefix(err, "%s", h->cell.method->name);
        h->outcome->err = *err;
    }
}

/* ---- steps of a head ------------------------------------------------------------------------ */

static int reorder_head(void *calling, int64_t i, int worker, struct err *err)
{
    struct calling *k = calling;
    struct head *h = k->heads + i;
    struct err own = {0};
    bool moved = false;
    (void)worker;
    (void)err;
    h->cell = k->c->cells[i];
    h->outcome = k->c->heads + i;
    if (!alive(h))
        return 0;
    h->run = (struct run){.method = h->cell.method, .in = h->cell.in};
    h->run.cell = &h->cell;
    settle(h, run_reorder(k->c->cells + i, &h->moved, &moved, h->outcome->record, &own), &own);
    h->in_order = !moved;
    if (moved)
        h->run.in = h->cell.in = &h->moved.in;
    return 0;
}

static int start(struct head *h, struct err *err)
{
    char why[160] = "the method's own arithmetic has no CUDA kernel";
    int rc = run_start(&h->run, err);
    if (rc)
        return rc;
    if ((h->way = run_own_way(&h->run, &h->filter, &h->own, why)) == OWN_NOWHERE)
        return method_skip(h->cell.ctx, "%s", why);
    TRY(choice_init(&h->run, &h->choice, err));
    TRY(choice_begin(&h->run, &h->choice, err));
out:
    return rc;
}

/* Prepare, and choose as far as the method itself does. */
static int start_head(void *calling, int64_t i, int worker, struct err *err)
{
    struct calling *k = calling;
    struct head *h = k->heads + i;
    struct err own = {0};
    (void)worker;
    (void)err;
    if (!alive(h))
        return 0;
    if (!k->device->metrics && h->cell.measure == MEASURE_ALL)
        exact_expect_out(h->cell.in->exact);
    device_map_attach_as(&h->run.map, k->device, h->cell.in, h->data);
    settle(h, start(h, &own), &own);
    return 0;
}

/* The device's answer, for head number i of those in the call. */
static int answer_head(void *calling, int64_t i, int worker, struct err *err)
{
    struct calling *k = calling;
    struct head *h = k->heads + k->at[i];
    bool chosen = k->choices[i].method && k->answers[i] == 0;
    struct err own = {0};
    (void)worker;
    (void)err;
    settle(h, choice_end(&h->run, &h->choice, chosen ? k->whole + i : NULL, k->why[i], &own), &own);
    mask_free(k->whole + i);
    return 0;
}

/* Does the method want to know the log-sum-exps? */
static bool hears_lse(const struct head *h)
{
    return h->way == OWN_KERNELS && h->run.method->attended;
}

static int finish(struct calling *k, int64_t i, struct head *h, struct err *err)
{
    struct accel_call_head *r = k->results + i;
    struct accel_outputs o = {r->out, r->lse, h->way == OWN_FILTER ? r->tiles_pv : -1};
    int64_t step = h->choice.step, nq = h->run.in->x.nq;
    int rc = 0;

    if (h->way == OWN_FILTER)
        h->run.method->filtered(h->run.state, r->tiles_pv);
    if (hears_lse(h))
        TRY(h->run.method->attended(h->run.state, r->lse, err));
    if (!k->device->metrics)
        TRY(mem_alloc(&h->run.lse_mask, step < nq ? step : nq, sizeof(double), "mask log-sum-exp",
                      err));
    TRY(accel_add_masks(&h->run, &h->choice, &o, err));
    if (k->device->metrics)
        metrics_add_sums(&h->run.acc, &r->sums, r->mass);
    TRY(run_record(&h->run, h->outcome->record, err));
out:
    return rc;
}

static int finish_head(void *calling, int64_t i, int worker, struct err *err)
{
    struct calling *k = calling;
    struct head *h = k->heads + k->at[i];
    struct err own = {0};
    (void)worker;
    (void)err;
    settle(h, finish(k, i, h, &own), &own);
    return 0;
}

/* ---- the call ------------------------------------------------------------------------------- */

static int alloc_call(struct calling *k, struct err *err)
{
    int64_t n = k->c->n;
    int rc = 0;
    TRY(mem_zalloc(&k->heads, n, sizeof *k->heads, "heads of a call", err));
    TRY(mem_zalloc(&k->at, n, sizeof *k->at, "heads of a call", err));
    TRY(mem_zalloc(&k->x, n, sizeof *k->x, "heads of a call", err));
    TRY(mem_zalloc(&k->choices, n, sizeof *k->choices, "heads of a call", err));
    TRY(mem_zalloc(&k->built, n, sizeof *k->built, "heads of a call", err));
    TRY(mem_zalloc(&k->units, n, sizeof *k->units, "heads of a call", err));
    TRY(mem_zalloc(&k->whole, n, sizeof *k->whole, "heads of a call", err));
    TRY(mem_zalloc(&k->answers, n, sizeof *k->answers, "heads of a call", err));
    TRY(mem_zalloc(&k->why, n, sizeof *k->why, "heads of a call", err));
    TRY(mem_zalloc(&k->filters, n, sizeof *k->filters, "heads of a call", err));
    TRY(mem_zalloc(&k->owns, n, sizeof *k->owns, "heads of a call", err));
    TRY(mem_zalloc(&k->added, n, sizeof *k->added, "heads of a call", err));
    TRY(mem_zalloc(&k->masks, n, sizeof *k->masks, "heads of a call", err));
    TRY(mem_zalloc(&k->results, n, sizeof *k->results, "heads of a call", err));
out:
    return rc;
}

static void free_call(struct calling *k)
{
    for (int i = 0; k->heads && i < k->c->n; i++) {
        struct head *h = k->heads + i;
        if (h->run.method)
            run_end(&h->run);
        choice_free(&h->choice);
        sim_head_free(&h->moved);
    }
    for (int i = 0; k->results && i < k->c->n; i++) {
        free(k->results[i].out);
        free(k->results[i].lse);
        free(k->results[i].mass);
    }
    for (int i = 0; k->whole && i < k->c->n; i++)
        mask_free(k->whole + i);
    free(k->heads);
    free(k->at);
    free(k->x);
    free(k->choices);
    free(k->built);
    free(k->units); /* whose counts are the heads' */
    free(k->whole);
    free(k->answers);
    free(k->why);
    free(k->filters);
    free(k->owns);
    free(k->added);
    free(k->masks);
    free(k->results);
}

/* The call of the heads that are still in it. The operands keep their number as long as all of them
 * are, in the trace's order. Query heads that lost others of their group have keys of their own. */
static void gather_call(struct calling *k)
{
    bool in_order = true;
    int before = k->n;
    k->n = 0;
    for (int i = 0; i < k->c->n; i++)
        if (alive(k->heads + i)) {
            in_order &= k->heads[i].in_order;
            k->x[k->n] = &k->heads[i].cell.in->x;
            k->at[k->n++] = i;
        }
    if (k->n == before)
        return;
    bool all = k->n == k->c->n;
    uint64_t data = all && in_order ? k->c->data : device_numbers(k->n + 1);
    k->call = (struct accel_call){k->n, all ? k->c->group : 1, k->x, data, !k->device->metrics};
    for (int i = 0; i < k->n; i++) {
        struct head *h = k->heads + k->at[i];
        h->data = h->run.map.data = data + (uint64_t)i;
    }
}

static bool same_shape(const struct attn_in *a, const struct attn_in *b)
{
    return a->nq == b->nq && a->nk == b->nk && a->d == b->d && a->dv == b->dv &&
           a->causal == b->causal && a->scale == b->scale;
}

static int check_shapes(const struct calling *k, struct err *err)
{
    for (int i = 1; i < k->n; i++)
        if (!same_shape(k->x[0], k->x[i]))
            return err_set(err, ERR_INPUT,
                           "heads of one call differ in shape or scale: --copies replays them one "
                           "by one");
    return 0;
}

static int may_stay(const struct head *h)
{
    bool alone = h->way != OWN_ADDED; /* lists, or none but for metrics */
    return alone ? choice_may_stay(&h->run, &h->choice) : STAYS_NOT;
}

/* Ask the device for what the heads' methods compare their masks with. */
static int choose_fresh(struct calling *k, struct err *err)
{
    struct run **runs = NULL;
    int rc = mem_alloc(&runs, k->n, sizeof *runs, "heads of a call", err);
    if (rc)
        return rc;
    for (int i = 0; i < k->n; i++)
        runs[i] = &k->heads[k->at[i]].run;
    rc = fresh_masks_of_call(&k->call, runs, k->c->jobs, err);
    free(runs);
    lap(&k->laps, "masks to compare with");
    return rc;
}

/* Ask the device for the masks. */
static int choose(struct calling *k, struct err *err)
{
    const struct accel *a = k->device->accel;
    int stays = STAYS_ALONE, rc = 0;
    bool any = false;

    for (int i = 0; i < k->n; i++)
        stays = MIN(stays, may_stay(k->heads + k->at[i]));
    for (int i = 0; i < k->n; i++) {
        struct head *h = k->heads + k->at[i];
        h->choice.stays = stays;
        k->choices[i] = choice_question(&h->run, &h->choice);
        k->answers[i] = ACCEL_NO_SELECT;
        snprintf(k->why[i], sizeof k->why[i], "the back end does not select");
        any |= k->choices[i].method != NULL;
    }
    if (any && a->select_call)
        TRY(a->select_call(k->device->session, &k->call, k->choices, k->whole, k->answers, k->why,
                           err));
    lap(&k->laps, "choice");
    TRY(pool_run(k->c->jobs, k->n, answer_head, k, err));
    lap(&k->laps, "masks");
out:
    return rc;
}

/* The number of the heads' masks, if all are static ones. */
static int number_masks(const struct calling *k, uint64_t *number, struct err *err)
{
    uint64_t *ids = NULL;
    bool all = k->device->statics != NULL;
    int rc = mem_alloc(&ids, k->n, sizeof *ids, "static masks of a call", err);
    *number = 0;
    for (int i = 0; i < k->n && all && !rc; i++) {
        const struct choice *c = &k->heads[k->at[i]].choice;
        all = c->shared != NULL;
        ids[i] = all ? c->shared->id : 0;
    }
    if (all && !rc)
        rc = static_masks_number(k->device->statics, ids, k->n, number, err);
    free(ids);
    return rc;
}

/* Exact softmax over a mask is a filter that skips nothing: a head that a calibration left dense
 * attends so beside others of its call that have one. */
static bool joins_filters(const struct head *h, struct accel_filter *f)
{
    char why[160];
    const struct method *m = h->run.method;
    return h->way == OWN_NONE && m->filter && m->filter(h->run.state, f, why) && f->pv == INFINITY;
}

/* The way of all heads of the call; their filters, where they have some. */
static int common_way(struct calling *k, enum own_way *way, struct err *err)
{
    const struct accel_filter *first = k->filters;
    bool same = true;
    *way = k->heads[k->at[0]].way;
    for (int i = 1; i < k->n && *way == OWN_NONE; i++)
        *way = k->heads[k->at[i]].way == OWN_FILTER ? OWN_FILTER : OWN_NONE;
    for (int i = 0; i < k->n; i++) {
        const struct head *h = k->heads + k->at[i];
        k->filters[i] = h->filter;
        same &= h->way == *way || (*way == OWN_FILTER && joins_filters(h, k->filters + i));
        same &= k->filters[i].bq == first->bq && k->filters[i].bk == first->bk; /* 0 without */
    }
    return same ? 0
                : err_set(err, ERR_RUN,
                          "heads of one call that attend in different ways: --copies replays them "
                          "one by one");
}

/* What the attention is over, and what is timed beside it. */
static int describe_work(struct calling *k, struct accel_call_work *w, struct err *err)
{
    enum own_way way;
    bool any = false, stay = true;
    int rc = common_way(k, &way, err);
    if (rc)
        return rc;
    for (int i = 0; i < k->n; i++) {
        struct head *h = k->heads + k->at[i];
        k->owns[i] = h->own;
        k->added[i] = way == OWN_ADDED ? h->run.method->added(h->run.state) : NULL;
        k->masks[i] = (struct head_masks){h->choice.masks, h->choice.n};
        k->units[i] = h->choice.units;
        stay &= h->choice.units.there;
        k->built[i] = h->choice.origin.source == SOURCE_STATIC;
        if (!h->choice.gpu)
            k->choices[i].method = NULL;
        any |= h->choice.gpu;
    }
    for (int i = 0; i < k->n; i++) /* a mask that is here as well: all from here */
        k->heads[k->at[i]].choice.units.there = stay;
    *w = (struct accel_call_work){.call = &k->call,
                                  .section_bytes = k->device->section_bytes,
                                  .filters = way == OWN_FILTER ? k->filters : NULL,
                                  .owns = way == OWN_KERNELS ? k->owns : NULL,
                                  .added = way == OWN_ADDED ? k->added : NULL,
                                  .choices = any ? k->choices : NULL,
                                  .built = any ? k->built : NULL,
                                  .units = stay ? k->units : NULL};
    return number_masks(k, &w->static_id, err);
}

static int alloc_results(struct calling *k, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < k->n; i++) {
        const struct head *h = k->heads + k->at[i];
        const struct attn_in *x = k->x[i];
        struct accel_call_head *r = k->results + i;
        bool measured = k->device->metrics || h->cell.measure != MEASURE_ALL;
        bool outputs = (h->cell.sink || !measured) && !accel_stays(x);
        if (outputs)
            TRY(mem_alloc(&r->out, x->nq * x->dv, sizeof(double), "method output", err));
        if (outputs || hears_lse(h))
            TRY(mem_alloc(&r->lse, x->nq, sizeof(double), "method log-sum-exp", err));
        if (k->device->metrics)
            TRY(mem_alloc(&r->mass, x->nq, sizeof(double), "kept mass of rows", err));
    }
out:
    return rc;
}

static int record_heads(struct calling *k, const struct accel_call_result *res, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < k->n; i++) {
        struct head *h = k->heads + k->at[i];
        TRY(record_accel(&h->run, &h->choice, res->kernel, res->dense_kernel,
                         k->results[i].pairs_exec, h->outcome->record, err));
    }
out:
    return rc;
}

static int record_call(struct calling *k, const struct accel_call_result *res, struct err *err)
{
    struct call_record r = {
        .x = k->x[0], .res = res, .record = k->c->record, .choose_ns = k->c->choose_ns, .n = k->n};
    int rc = mem_alloc(&r.choices, k->n, sizeof *r.choices, "heads of a call", err);
    if (rc)
        return rc;
    for (int i = 0; i < k->n; i++)
        r.choices[i] = &k->heads[k->at[i]].choice;
    rc = call_record_times(&r, err);
    free(r.choices);
    return rc;
}

/* All heads that are left are skipped for a reason of the launch. */
static void skip_all(struct calling *k, const char *why)
{
    struct err none = {0};
    for (int i = 0; i < k->n; i++) {
        struct head *h = k->heads + k->at[i];
        settle(h, method_skip(h->cell.ctx, "%s", why), &none);
    }
}

static int attend(struct calling *k, struct err *err)
{
    struct accel_call_result res = {.heads = k->results};
    struct accel_call_work w;
    char why[160] = "";
    int rc = 0;

    TRY(describe_work(k, &w, err));
    TRY(alloc_results(k, err));
    rc = accel_attend_call(k->device->accel, k->device->session, k->c->jobs, &w, k->masks, &res,
                           why, err);
    if (rc == METHOD_SKIP) {
        skip_all(k, why);
        return 0;
    }
    if (rc)
        goto out;
    lap(&k->laps, "attention");
    TRY(record_heads(k, &res, err));
    TRY(pool_run(k->c->jobs, k->n, finish_head, k, err));
    if (k->c->record && k->n == k->c->n)
        TRY(record_call(k, &res, err));
out:
    return rc;
}

/* The facts of the heads that are the call's as well, or why there is no time of the call. */
static int conclude(struct calling *k, struct err *err)
{
    const struct record *first = k->c->heads[0].record;
    struct record *r = k->c->record;
    static const char *const facts[] = {"dense_call", "refresh", "mask_age"};
    int rc = 0;

    for (int i = 0; i < k->c->n; i++) {
        const struct head *h = k->heads + i;
        const struct record *own = h->outcome->record;
        if (h->outcome->err.code && r->status != RECORD_ERROR) {
            r->status = RECORD_ERROR;
            record_text(r, &r->reason, "head %d: %.400s", own->head, h->outcome->err.msg);
        } else if (h->skipped && r->status == RECORD_OK) {
            r->status = RECORD_SKIP;
            record_text(r, &r->reason, "head %d: %.400s", own->head, own->reason);
        }
    }
    for (size_t f = 0; f < sizeof facts / sizeof *facts && r->status == RECORD_OK; f++) {
        double value = record_get(first, facts[f]);
        bool same = value == value;
        for (int i = 1; i < k->c->n; i++)
            same &= record_get(k->c->heads[i].record, facts[f]) == value;
        if (same)
            TRY(record_metric(r, facts[f], value, err));
    }
out:
    return rc;
}

int sim_share_params(struct sim_cell *cells, const struct call_outcome *heads, int64_t n,
                     struct err *err)
{
    struct buf before = {0}, text = {0};
    const void *shared = NULL;
    int rc = 0;
    for (int64_t i = 0; i < n; i++) {
        if (heads[i].err.code)
            continue;
        buf_reset(&text);
        TRY(opt_canonical(cells[i].method->params, cells[i].params, &text, err));
        if (shared && strcmp(buf_str(&before), buf_str(&text)) == 0)
            cells[i].params = shared;
        shared = cells[i].params;
        struct buf swap = before;
        before = text;
        text = swap;
    }
    rc = buf_check(&before, "parameters", err);
out:
    buf_free(&before);
    buf_free(&text);
    return rc;
}

int sim_run_call(const struct sim_call *c, struct err *err)
{
    struct calling k = {.c = c, .device = c->cells->device, .laps = {.since = clock_ns()}};
    int rc = 0;

    TRY(alloc_call(&k, err));
    TRY(pool_run(c->jobs, c->n, reorder_head, &k, err));
    gather_call(&k);
    if (k.n)
        TRY(check_shapes(&k, err));
    if (k.n == c->n && k.device->accel->put_call) /* for what the methods ask of the exact map */
        TRY(k.device->accel->put_call(k.device->session, &k.call, err));
    lap(&k.laps, "operands");
    TRY(pool_run(c->jobs, c->n, start_head, &k, err));
    lap(&k.laps, "prepare");
    gather_call(&k);
    if (k.n && k.heads[k.at[0]].run.method->fresh_rule)
        TRY(choose_fresh(&k, err));
    if (k.n)
        TRY(choose(&k, err));
    gather_call(&k);
    if (k.n)
        TRY(attend(&k, err));
    if (c->record)
        TRY(conclude(&k, err));
    lap(&k.laps, "records");
out:
    free_call(&k);
    lap(&k.laps, "release");
    laps_log(&k.laps, c->cells->method->name);
    return rc < 0 ? err_prefix(err, "%s", c->cells->method->name) : rc;
}
