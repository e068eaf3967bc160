/*
 * simulate_call.c - see simulate_call.h. What is done head by head runs on threads, between the
 * steps in which the GPU has the call.
 */
#include "sim/simulate_call.h"

#include "core/buf.h"
#include "core/intmath.h"
#include "core/stopwatch.h"
#include "core/mem.h"
#include "core/pool.h"
#include "sim/accelattend.h"
#include "sim/accelrecord.h"
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
    bool skipped; /* the method does not apply */
    struct call_outcome *outcome;
};

/* The call while it runs. */
struct calling {
    const struct sim_call *c;
    const struct sim_device *device;
    enum sim_measure measure;
    struct head *heads;     /* [c->n], owned */
    struct accel_call call; /* of the heads that are still in it, or of copies; heads owned */
    int *at;                /* [call.n], owned: the heads' indices */
    struct stopwatch watch;
};

static bool alive(const struct head *h)
{
    return !h->skipped && h->outcome->err.code == 0;
}

static struct head *head_of(const struct calling *k, int i)
{
    return k->heads + k->at[i];
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
    int rc = run_start(&h->run, err);
    if (rc)
        return rc;
    if (h->cell.measure != MEASURE_MASK && h->run.arith.kind == ARITH_CPU)
        return method_skip(h->cell.ctx, "%s", h->run.why_cpu);
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
    if (!k->device->metrics && k->measure == MEASURE_ALL)
        exact_expect_out(h->cell.in->exact);
    device_map_attach(&h->run.map, k->device, h->cell.in, h->data);
    settle(h, start(h, &own), &own);
    return 0;
}

/* The device's answer, for head number i of those in the call that are no copies. */
static int answer_head(void *calling, int64_t i, int worker, struct err *err)
{
    struct calling *k = calling;
    struct accel_head *asked = k->call.heads + k->call.copies + i;
    struct head *h = head_of(k, k->call.copies + (int)i);
    bool chosen = asked->choice.method && asked->answer == 0;
    struct err own = {0};
    (void)worker;
    (void)err;
    settle(h, choice_end(&h->run, &h->choice, chosen ? &asked->mask : NULL, asked->why, &own),
           &own);
    mask_free(&asked->mask);
    return 0;
}

/* Does the method want to know the log-sum-exps? */
static bool hears_lse(const struct head *h)
{
    return h->run.arith.kind == ARITH_KERNEL && run_hears(&h->run);
}

static int finish(const struct calling *k, const struct accel_head *r, struct head *h,
                  struct err *err)
{
    bool attends = k->measure != MEASURE_MASK, measured = k->measure == MEASURE_ALL;
    bool filter = attends && h->run.arith.kind == ARITH_FILTER;
    struct accel_outputs o = {r->out, r->lse, filter ? r->tiles_pv : -1};
    int64_t step = h->choice.step, nq = h->run.in->x.nq;
    int rc = 0;

    if (attends && run_hears(&h->run))
        TRY(h->run.method->arith.done(h->run.state, r->tiles_pv, r->lse, err));
    if (measured && !k->device->metrics)
        TRY(mem_alloc(&h->run.lse_mask, step < nq ? step : nq, sizeof(double), "mask log-sum-exp",
                      err));
    TRY(accel_add_masks(&h->run, &h->choice, &o, err));
    if (r->mass)
        metrics_add_sums(&h->run.acc, &r->sums, r->mass);
    TRY(run_record(&h->run, h->outcome->record, err));
out:
    return rc;
}

static int finish_head(void *calling, int64_t i, int worker, struct err *err)
{
    struct calling *k = calling;
    int at = k->call.copies + (int)i;
    struct err own = {0};
    (void)worker;
    (void)err;
    settle(head_of(k, at), finish(k, k->call.heads + at, head_of(k, at), &own), &own);
    return 0;
}

/* ---- the call ------------------------------------------------------------------------------- */

/* Do something for every head in the call that is no copy. */
static int for_heads(struct calling *k, pool_fn *fn, struct err *err)
{
    return pool_run(k->c->jobs, k->call.n - k->call.copies, fn, k, err);
}

static int alloc_call(struct calling *k, struct err *err)
{
    int64_t n = k->c->n, most = k->c->copies ? k->c->copies : n;
    int rc = 0;
    TRY(mem_zalloc(&k->heads, n, sizeof *k->heads, "heads of a call", err));
    TRY(mem_zalloc(&k->call.heads, most, sizeof *k->call.heads, "heads of a call", err));
    TRY(mem_zalloc(&k->at, most, sizeof *k->at, "heads of a call", err));
    for (int i = 0; i < most; i++)
        k->at[i] = k->c->copies ? 0 : i;
    k->call.n = (int)most;
    k->call.unmeasured = !k->device->metrics || k->measure == MEASURE_MASK;
out:
    return rc;
}

static void free_results(struct calling *k)
{
    for (int i = 0; k->call.heads && i < k->call.n; i++) {
        free(k->call.heads[i].out);
        free(k->call.heads[i].lse);
        free(k->call.heads[i].mass);
        mask_free(&k->call.heads[i].mask);
    }
}

static void free_call(struct calling *k)
{
    free_results(k);
    for (int i = 0; k->heads && i < k->c->n; i++) {
        struct head *h = k->heads + i;
        if (h->run.method)
            run_end(&h->run);
        choice_free(&h->choice);
        sim_head_free(&h->moved);
    }
    free(k->heads);
    free(k->call.heads);
    free(k->at);
}

/* The call of the heads that are still in it, or of the copies of the only one. The operands keep
 * their number as long as all of them are, in the trace's order. Query heads that lost others of
 * their group have keys of their own. */
static void gather_call(struct calling *k)
{
    int before = k->call.n, n = 0;
    bool in_order = true;
    for (int i = 0; i < before; i++) {
        const struct head *h = head_of(k, i);
        if (!alive(h))
            continue;
        in_order &= h->in_order;
        k->call.heads[n] = k->call.heads[i];
        k->call.heads[n].x = &h->cell.in->x;
        k->at[n++] = k->at[i];
    }
    if (n == before && k->call.data)
        return;
    bool all = n == (k->c->copies ? k->c->copies : k->c->n);
    k->call.n = n;
    k->call.group = all ? k->c->group : 1;
    k->call.copies = k->c->copies && n ? n - 1 : 0;
    k->call.data = all && in_order ? k->c->data : device_numbers(n + 1);
    for (int i = 0; i < n; i++)
        head_of(k, i)->data = head_of(k, i)->run.map.data = k->call.data + (uint64_t)i;
}

static bool same_shape(const struct attn_in *a, const struct attn_in *b)
{
    return a->nq == b->nq && a->nk == b->nk && a->d == b->d && a->dv == b->dv &&
           a->causal == b->causal && a->scale == b->scale;
}

static int check_shapes(const struct calling *k, struct err *err)
{
    for (int i = 1; i < k->call.n; i++)
        if (!same_shape(k->call.heads[0].x, k->call.heads[i].x))
            return err_set(err, ERR_INPUT,
                           "heads of one call differ in shape or scale: --copies replays them one "
                           "by one");
    return 0;
}

/* Ask the device for what the heads' methods compare their masks with. */
static int choose_fresh(struct calling *k, struct err *err)
{
    struct run **runs = NULL;
    int rc = mem_alloc(&runs, k->call.n, sizeof *runs, "heads of a call", err);
    if (rc)
        return rc;
    for (int i = 0; i < k->call.n; i++)
        runs[i] = &head_of(k, i)->run;
    rc = fresh_masks(&k->call, runs, k->c->jobs, err);
    free(runs);
    stopwatch_lap(&k->watch, "masks to compare with");
    return rc;
}

/* Ask the device for the masks. Those of a head that is timed by copies come here. */
static int choose(struct calling *k, struct err *err)
{
    const struct accel *a = k->device->accel;
    enum keep keep = k->c->copies ? KEEP_NOT : KEEP_ALONE;
    int rc = 0;
    bool any = false;

    for (int i = 0; i < k->call.n; i++) {
        const struct head *h = head_of(k, i); /* what is added needs lists, or metrics there */
        bool added = h->run.arith.kind == ARITH_ADDED;
        keep = MIN(keep, added ? KEEP_NOT : choice_may_keep(&h->run, &h->choice));
    }
    for (int i = k->call.copies; i < k->call.n; i++) {
        struct accel_head *asked = k->call.heads + i;
        struct head *h = head_of(k, i);
        h->choice.keep = keep;
        asked->choice = choice_question(&h->run, &h->choice);
        asked->answer = ACCEL_NO_SELECT;
        snprintf(asked->why, sizeof asked->why, "the back end does not select");
        any |= asked->choice.method != NULL;
    }
    if (any && a->select_call)
        TRY(a->select_call(k->device->session, &k->call, err));
    stopwatch_lap(&k->watch, "choice");
    TRY(for_heads(k, answer_head, err));
    stopwatch_lap(&k->watch, "masks");
out:
    return rc;
}

/* The number of the heads' masks, if all are static ones. */
static int number_masks(const struct calling *k, uint64_t *number, struct err *err)
{
    uint64_t *ids = NULL;
    bool all = k->device->statics != NULL;
    int rc = mem_alloc(&ids, k->call.n, sizeof *ids, "static masks of a call", err);
    *number = 0;
    for (int i = 0; i < k->call.n && all && !rc; i++) {
        const struct choice *c = &head_of(k, i)->choice;
        all = c->shared != NULL;
        ids[i] = all ? c->shared->id : 0;
    }
    if (all && !rc)
        rc = static_masks_number(k->device->statics, ids, k->call.n, number, err);
    free(ids);
    return rc;
}

/* Exact softmax over a mask is a filter that skips nothing: a head that a calibration left dense
 * attends so beside others of its call that have one. */
static bool joins_filters(const struct arithmetic *a)
{
    return a->kind == ARITH_SOFTMAX && a->filter.bq && a->filter.pv == INFINITY;
}

/* How all heads of the call attend. */
static int common_arithmetic(struct calling *k, enum arith_kind *kind, struct err *err)
{
    const struct accel_filter *first = &head_of(k, 0)->run.arith.filter;
    bool same = true;
    *kind = head_of(k, 0)->run.arith.kind;
    for (int i = 1; i < k->call.n && *kind == ARITH_SOFTMAX; i++)
        if (head_of(k, i)->run.arith.kind == ARITH_FILTER)
            *kind = ARITH_FILTER;
    for (int i = 0; i < k->call.n; i++) {
        const struct arithmetic *a = &head_of(k, i)->run.arith;
        bool filter = *kind == ARITH_FILTER;
        same &= a->kind == *kind || (filter && joins_filters(a));
        same &= !filter || (a->filter.bq == first->bq && a->filter.bk == first->bk);
    }
    return same ? 0
                : err_set(err, ERR_RUN,
                          "heads of one call that attend in different ways: --copies replays them "
                          "one by one");
}

/* What the attention is over, and what is timed beside it. */
static int describe_heads(struct calling *k, struct err *err)
{
    enum arith_kind kind;
    bool keep = true;
    int rc = common_arithmetic(k, &kind, err);
    if (rc)
        return rc;
    for (int i = 0; i < k->call.n; i++)
        keep &= head_of(k, i)->choice.units.on_device;
    for (int i = k->call.n - 1; i >= 0; i--) {
        struct accel_head *a = k->call.heads + i;
        struct head *h = head_of(k, i);
        h->choice.units.on_device = keep; /* if a mask is here: all from here */
        a->masks = h->choice.masks;
        a->n_masks = h->choice.n;
        a->filter = kind == ARITH_FILTER ? &h->run.arith.filter : NULL;
        a->own_kernel = kind == ARITH_KERNEL ? &h->run.arith.own : NULL;
        a->added = kind == ARITH_ADDED ? h->run.arith.added : NULL;
        a->built = h->choice.origin.source == SOURCE_STATIC;
        if (i < k->call.copies)
            a->choice = a[1].choice;
        if (!h->choice.gpu)
            a->choice.method = NULL;
    }
    return 0;
}

static int alloc_results(struct calling *k, struct err *err)
{
    bool measured = k->device->metrics || k->measure != MEASURE_ALL;
    int rc = 0;
    for (int i = k->call.copies; i < k->call.n; i++) {
        const struct head *h = head_of(k, i);
        struct accel_head *r = k->call.heads + i;
        const struct attn_in *x = r->x;
        bool outputs = (h->cell.sink || !measured) && !accel_keeps_output(x);
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

/* Kernels and pairs of every head; the times of the call, or of a head by its copies. */
static int record_launch(struct calling *k, const struct accel_result *res, struct err *err)
{
    struct call_record r = {.call = &k->call, .res = res, .choose_ns = k->c->choose_ns};
    int rc = 0;
    for (int i = k->call.copies; i < k->call.n; i++) {
        struct head *h = head_of(k, i);
        TRY(record_accel(&h->run, &h->choice, res->kernel, res->dense_kernel,
                         k->call.heads[i].pairs_exec, h->outcome->record, err));
    }
    r.record = k->c->copies ? head_of(k, 0)->outcome->record : k->c->record;
    if (!r.record || (!k->c->copies && k->call.n < k->c->n))
        goto out;
    TRY(mem_alloc(&r.choices, k->call.n, sizeof *r.choices, "heads of a call", err));
    for (int i = 0; i < k->call.n; i++)
        r.choices[i] = &head_of(k, i)->choice;
    TRY(k->c->copies ? record_copies(&r, err) : record_call(&r, err));
out:
    free(r.choices);
    return rc;
}

/* All heads that are left are skipped for a reason of the launch. */
static void skip_all(struct calling *k, const char *why)
{
    struct err none = {0};
    for (int i = k->call.copies; i < k->call.n; i++)
        settle(head_of(k, i), method_skip(head_of(k, i)->cell.ctx, "%s", why), &none);
}

static int attend(struct calling *k, struct err *err)
{
    struct attend_how how = {.jobs = k->c->jobs, .section_bytes = k->device->section_bytes};
    struct accel_result res = {0};
    char why[160] = "";
    int rc = 0;

    TRY(describe_heads(k, err));
    if (!k->c->copies)
        TRY(number_masks(k, &how.static_id, err));
    TRY(alloc_results(k, err));
    rc = accel_attend_masks(k->device->accel, k->device->session, &how, &k->call, &res, why, err);
    if (rc == METHOD_SKIP) {
        skip_all(k, why);
        return 0;
    }
    if (rc)
        goto out;
    stopwatch_lap(&k->watch, "attention");
    TRY(record_launch(k, &res, err));
    TRY(for_heads(k, finish_head, err));
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
        TRY(opt_canonical(cells[i].method->params.table, cells[i].params, &text, err));
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
    struct calling k = {.c = c,
                        .device = c->cells->device,
                        .measure = c->cells->measure,
                        .watch = {.since = clock_ns()}};
    int rc = 0;

    TRY(alloc_call(&k, err));
    TRY(pool_run(c->jobs, c->n, reorder_head, &k, err));
    gather_call(&k);
    if (k.call.n)
        TRY(check_shapes(&k, err));
    if (k.call.data == c->data && k.device->accel->put_call) /* methods ask for the exact map */
        TRY(k.device->accel->put_call(k.device->session, &k.call, err));
    stopwatch_lap(&k.watch, "operands");
    TRY(pool_run(c->jobs, c->n, start_head, &k, err));
    stopwatch_lap(&k.watch, "prepare");
    gather_call(&k);
    if (k.call.n && head_of(&k, 0)->run.method->device.compares)
        TRY(choose_fresh(&k, err));
    if (k.call.n)
        TRY(choose(&k, err));
    gather_call(&k);
    if (k.call.n)
        TRY(k.measure == MEASURE_MASK ? for_heads(&k, finish_head, err) : attend(&k, err));
    if (c->record)
        TRY(conclude(&k, err));
    stopwatch_lap(&k.watch, "records");
out:
    free_call(&k);
    stopwatch_lap(&k.watch, "release");
    stopwatch_log(&k.watch, c->cells->method->name);
    if (rc == ERR_NOMEM && c->copies > 1)
        err_prefix(err, "%d copies of a head (fewer with --copies)", c->copies);
    return rc < 0 ? err_prefix(err, "%s", c->cells->method->name) : rc;
}

int sim_run_head(const struct sim_cell *cell, struct record *r, struct err *err)
{
    const struct sim_device *d = cell->device;
    const struct accel_heads of_call = {cell->in->n_heads, cell->in->n_kv_heads};
    struct carry *carry = cell->ctx->carry;
    struct accel_heads n = {1, 1};
    struct call_outcome out = {.record = r};

    if (cell->measure != MEASURE_MASK && d->accel->copies)
        n = d->accel->copies(d->session, &cell->in->x, of_call);
    struct sim_call c = {.cells = cell,
                         .heads = &out,
                         .n = 1,
                         .group = n.q / n.kv,
                         .copies = n.q,
                         .data = device_numbers(n.q),
                         .jobs = 1,
                         .choose_ns = carry ? &carry->choose_ns : NULL};
    int rc = sim_run_call(&c, err);
    if (rc || !out.err.code)
        return rc;
    *err = out.err;
    return out.err.code;
}
