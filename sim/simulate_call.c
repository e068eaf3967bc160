/*
 * simulate_call.c - see simulate.h. What is done head by head runs on threads, between the
 * steps in which the GPU has the call: put, prepare, choose, attend, records.
 */
#include "sim/simulate.h"

#include "core/buf.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method_run.h"
#include "core/pool.h"
#include "core/clock.h"
#include "sim/accelattend.h"
#include "sim/staticmasks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* May the mask stay on the device: not, beside a copy on the host, or alone? */
enum keep { KEEP_NOT, KEEP_COPY, KEEP_ALONE };

/* The mask of a head: the GPU chooses it by the method's rule, or the method itself. */
struct choice {
    bool none;  /* nothing to choose: dense attention of all heads */
    bool asked; /* the GPU is asked, by `rule` */
    bool gpu;   /* chosen, or built, on the GPU */
    struct mask_origin origin;
    struct mask *masks; /* [n]: chunks of `step` rows; owned unless `shared` has them */
    int64_t n, step;
    const struct static_mask *shared; /* taken from the device's store; NULL: the head's own */
    struct rule rule;
    struct accel_own own; /* what the GPU gave beside the mask, owned */
    enum keep keep;
    struct accel_units units; /* what is known of a mask that is on the device */
    struct mask lists;        /* with units: their unit and no entries */
    char why[160];            /* the GPU does not choose */
};

/* A head while the call runs. */
struct head {
    struct sim_cell cell;  /* in its token order */
    struct sim_head moved; /* empty where that is the trace's */
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

/* A step on one head: `at` is its place in the call. 0, METHOD_SKIP or a failure of this head. */
typedef int step_fn(struct calling *k, struct head *h, struct accel_head *at, struct err *err);

struct step {
    struct calling *k;
    step_fn *fn;
};

static int do_head(void *step, int64_t i, int worker, struct err *err)
{
    const struct step *s = step;
    int at = s->k->call.copies + (int)i;
    struct head *h = head_of(s->k, at);
    struct err own = {0};
    if (alive(h))
        settle(h, s->fn(s->k, h, s->k->call.heads + at, &own), &own);
    return 0;
}

/* A step on every head in the call that is no copy. */
static int for_heads(struct calling *k, step_fn *fn, struct err *err)
{
    return pool_run(k->c->jobs, k->call.n - k->call.copies, do_head, &(struct step){k, fn}, err);
}

/* ---- the heads of the call ------------------------------------------------------------------ */

static int alloc_call(struct calling *k, struct err *err)
{
    const struct sim_call *c = k->c;
    int64_t most = c->copies ? c->copies : c->n;
    PASS_ON(mem_zalloc(&k->heads, c->n, sizeof *k->heads, "heads of a call", err));
    PASS_ON(mem_zalloc(&k->call.heads, most, sizeof *k->call.heads, "heads of a call", err));
    PASS_ON(mem_zalloc(&k->at, most, sizeof *k->at, "heads of a call", err));
    for (int i = 0; i < most; i++)
        k->at[i] = c->copies ? 0 : i;
    for (int i = 0; i < c->n; i++) {
        k->heads[i].cell = c->cells[i];
        k->heads[i].outcome = c->heads + i;
    }
    k->call.n = (int)most;
    k->call.copies = c->copies ? (int)most - 1 : 0;
    k->call.unmeasured = !k->device->metrics || k->measure == MEASURE_MASK;
    return 0;
}

static void free_choice(struct head *h)
{
    struct choice *c = &h->choice;
    for (int64_t i = 0; c->masks && !c->shared && i < c->n; i++)
        mask_free(c->masks + i);
    if (c->shared)
        static_masks_return(h->cell.device->statics, c->shared);
    else
        free(c->masks);
    free(c->units.count);
    free(c->units.map);
    free(c->units.tile_rows);
    mask_free(&c->lists);
    free(c->own.data);
}

static void free_call(struct calling *k)
{
    for (int i = 0; k->call.heads && i < k->call.n; i++) {
        free(k->call.heads[i].out);
        free(k->call.heads[i].lse);
        free(k->call.heads[i].mass);
        mask_free(&k->call.heads[i].mask);
    }
    for (int i = 0; k->heads && i < k->c->n; i++) {
        struct head *h = k->heads + i;
        if (h->run.method)
            run_end(&h->run);
        free_choice(h);
        sim_head_free(&h->moved);
    }
    free(k->heads);
    free(k->call.heads);
    free(k->at);
}

/* The head in the token order that its method wants. */
static int reorder(struct calling *k, struct head *h, struct accel_head *at, struct err *err)
{
    bool moved = false;
    int rc = run_reorder(&h->cell, &h->moved, &moved, h->outcome->record, err);
    if (moved)
        h->cell.in = &h->moved.in;
    h->run = (struct run){.cell = &h->cell, .method = h->cell.method, .in = h->cell.in};
    return rc;
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
        in_order &= h->cell.in != &h->moved.in;
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
        head_of(k, i)->run.map.data = k->call.data + (uint64_t)i;
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

/* ---- the method's masks --------------------------------------------------------------------- */

/* The masks that the method itself hands out. */
static int select_all(struct head *h, struct err *err)
{
    struct run *run = &h->run;
    struct choice *c = &h->choice;
    int64_t nq = run->in->x.nq, n = 0;
    double t = run_clock(run);
    for (int64_t r = 0; r < nq; r += c->step, n++) {
        PASS_ON(run->method->select(run->state, r, MIN(r + c->step, nq), c->masks + n, err));
        PASS_ON(mask_check(c->masks + n, err));
    }
    run->ns_select = run_clock(run) - t;
    return 0;
}

static int make_static(void *head, int64_t i, struct mask *m, struct err *err)
{
    const struct head *h = head;
    int64_t step = h->choice.step, nq = h->run.in->x.nq;
    return h->run.method->select(h->run.state, i * step, MIN((i + 1) * step, nq), m, err);
}

/* All that the mask follows from. */
static int static_key(const struct head *h, const struct mask_origin *o, struct buf *key,
                      struct err *err)
{
    const struct run *run = &h->run;
    const struct head_in *in = run->in;
    const struct geometry *g = &in->geom;
    buf_printf(key, "%s:", run->method->name);
    int rc = opt_canonical(run->method->params.table, run->cell->params, key, err);
    buf_printf(key, "|%lld %lld %d|%lld %lld %lld %lld %d %lld|%s|%llu %d %d %d|%lld %llu",
               (long long)in->x.nq, (long long)in->x.nk, in->x.causal, (long long)g->t,
               (long long)g->h, (long long)g->w, (long long)g->text, g->text_place,
               (long long)in->n_padding, in->order ? in->order : "",
               (unsigned long long)run->cell->ctx->seed, in->n_heads, in->n_kv_heads, in->x.d,
               (long long)h->choice.step, (unsigned long long)o->which);
    return rc ? rc : buf_check(key, "static mask", err);
}

/* The masks from the store. */
static int take_static(struct head *h, const struct mask_origin *o, struct err *err)
{
    struct choice *c = &h->choice;
    OWN(buf_free) struct buf key = {0};
    double t = run_clock(&h->run);
    const struct static_maker maker = {make_static, h, c->n, o->any_order, o->counted, o->bytes};
    PASS_ON(static_key(h, o, &key, err));
    PASS_ON(static_masks_take(h->cell.device->statics, buf_str(&key), &maker, &c->shared, err));
    if (o->counted)
        memcpy(o->counted, c->shared->counted, o->bytes);
    free(c->masks);
    c->masks = c->shared->masks;
    h->run.ns_select = run_clock(&h->run) - t;
    return 0;
}

/* The method's own masks: from the store, where there is one, those that are static, or one of a
 * few by what the device has answered. */
static int choose_here(struct head *h, struct err *err)
{
    struct mask_origin now = method_origin(h->run.method, h->run.state);
    bool known = h->choice.origin.source == SOURCE_STATIC || h->choice.gpu;
    bool shared = known && now.same_mask && h->cell.device->statics;
    return shared ? take_static(h, &now, err) : select_all(h, err);
}

/* ---- prepare -------------------------------------------------------------------------------- */

/* Is it worth while that the device builds a static mask? Only where it stays there: on the host it
 * is made once for all calls. */
static bool builds(const struct head *h)
{
    const struct sim_device *device = h->cell.device;
    return h->choice.origin.source == SOURCE_STATIC && h->run.method->device.keep_on_device &&
           device->calls && device->metrics && h->cell.measure == MEASURE_ALL && !h->cell.sink;
}

static bool chooses_own(const struct choice *c)
{
    return c->origin.source == SOURCE_OWN && !c->none;
}

/* Does the device choose? Where it does not, `why` says the reason. */
static bool asks(struct head *h)
{
    const struct method *me = h->run.method;
    struct choice *c = &h->choice;
    if (h->cell.device->select == SELECT_CPU || !(chooses_own(c) || builds(h)))
        return false;
    if (me->device.rule)
        return me->device.rule(h->run.state, &c->rule, c->why);
    snprintf(c->why, sizeof c->why, "method %s has no GPU side", me->name);
    return false;
}

/* Prepare, and choose as far as the method itself does. */
static int start(struct calling *k, struct head *h, struct accel_head *at, struct err *err)
{
    struct run *run = &h->run;
    struct choice *c = &h->choice;
    if (!k->device->metrics && k->measure == MEASURE_ALL)
        exact_expect_out(run->in->exact);
    device_map_attach(&run->map, k->device, run->in, run->map.data);
    PASS_ON(run_start(run, err));
    if (k->measure != MEASURE_MASK && run->arith.kind == ARITH_CPU)
        return method_skip(h->cell.ctx, "%s", run->why_cpu);
    c->none = run->method->flags & METHOD_KEEPS_ALL;
    c->step = run_chunk_rows(run);
    c->n = ceil_div(run->in->x.nq, c->step);
    PASS_ON(mem_zalloc(&c->masks, c->n, sizeof *c->masks, "masks", err));
    c->origin = method_origin(run->method, run->state);
    c->asked = asks(h);
    if (!c->asked)
        return choose_here(h, err);
    return 0;
}

/* ---- choose --------------------------------------------------------------------------------- */

/* The masks that a call would make now where it reuses older ones, for methods that compare the two
 * (core/method.h). No choice of the call: it is not timed, and nothing attends to these masks.
 * Heads that want none and those that the device does not choose for make theirs themselves. */
static int take_fresh(struct calling *k, struct head *h, struct accel_head *at, struct err *err)
{
    const struct device_choice chosen = {.lists = &at->mask};
    int rc = at->choice.method && at->answer == 0
                 ? h->run.method->device.take(h->run.state, &chosen, err)
                 : 0;
    mask_free(&at->mask);
    return rc;
}

static int choose_fresh(struct calling *k, struct err *err)
{
    const struct accel *a = k->device->accel;
    bool any = false;

    for (int i = k->call.copies; i < k->call.n; i++) {
        struct head *h = head_of(k, i);
        struct choice *c = &h->choice; /* a mask that is reused needs no rule for itself */
        struct accel_head *asked = k->call.heads + i;
        bool ask = h->run.source == SOURCE_REUSED && k->device->select != SELECT_CPU &&
                   h->run.method->device.rule(h->run.state, &c->rule, c->why);
        asked->choice = (struct accel_choice){
            .method = ask ? h->run.method->name : NULL, .rule = &c->rule.of, .given = c->rule.data};
        asked->answer = ACCEL_NO_SELECT;
        any |= ask;
    }
    if (any && a->select_call) {
        PASS_ON(a->select_call(k->device->session, &k->call, err));
        PASS_ON(for_heads(k, take_fresh, err));
    }
    stopwatch_lap(&k->watch, "masks to compare with");
    return 0;
}

/* May the device, in a call, attend to the mask that it chose? KEEP_ALONE: counts are all that
 * anybody else needs of it. */
static enum keep may_keep(const struct head *h)
{
    const struct method *me = h->run.method;
    const struct sim_cell *cell = &h->cell;
    bool measured =
        cell->measure == MEASURE_COUNTS || (cell->measure == MEASURE_ALL && cell->device->metrics);
    if (!h->choice.asked || !measured || h->run.arith.kind == ARITH_ADDED)
        return KEEP_NOT; /* what is added needs lists, or metrics there */
    bool counts = me->device.keep_on_device && !sim_reads_masks(cell);
    return counts && me->device.keep_on_device(h->run.state) ? KEEP_ALONE : KEEP_COPY;
}

/* The question, whose pointers lead into *h; method NULL: none. */
static struct accel_choice question(struct head *h)
{
    struct choice *c = &h->choice;
    if (!c->asked)
        return (struct accel_choice){0};
    return (struct accel_choice){.method = h->run.method->name,
                                 .rule = &c->rule.of,
                                 .given = c->rule.data,
                                 .own = &c->own,
                                 .keep_on_device = c->keep ? &c->units : NULL,
                                 .fetch = c->keep == KEEP_COPY};
}

/* The lists of a map that came. */
static int lists_of(const struct attn_in *x, const struct accel_units *u, struct mask *m,
                    struct err *err)
{
    int64_t words = ceil_div(u->words, 2);
    OWN(free_at) uint64_t *row = NULL;
    PASS_ON(mem_alloc(&row, words, sizeof *row, "row of a map", err));
    PASS_ON(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, u->bq, u->bk, err));
    PASS_ON(mem_grow(&m->col, &m->col_cap, u->units, sizeof *m->col, "lists of a map", err));
    for (int64_t g = 0; g < u->groups; g++) {
        const uint32_t *from = u->map + g * u->words;
        for (int64_t w = 0; w < words; w++)
            row[w] = from[2 * w] | (2 * w + 1 < u->words ? (uint64_t)from[2 * w + 1] << 32 : 0);
        PASS_ON(mask_lists_add_bits(m, g, row, words, err));
    }
    mask_lists_finish(m);
    return mask_check(m, err);
}

/* What is known of a mask that stays on the device: its units where the kernels take them as block
 * lists. */
static int describe_units(struct head *h, struct err *err)
{
    const struct attn_in *x = &h->run.in->x;
    struct choice *c = &h->choice;
    const struct accel_units *u = &c->units;
    if (!u->tile_rows)
        return lists_of(x, u, &c->lists, err);
    int rc = mask_lists_init(&c->lists, x->nq, x->nk, 0, x->nq, x->causal, u->bq, u->bk, err);
    mask_lists_finish(&c->lists);
    return rc;
}

/* Do the masks here keep what the device's has? By number: they are made of it, if anything was
 * taken over. */
static bool same_as_on_device(const struct choice *c)
{
    int64_t units = 0;
    for (int64_t i = 0; i < c->n; i++) {
        const struct mask *m = c->masks + i;
        if (m->form != MASK_LISTS || m->bq != c->units.bq || m->bk != c->units.bk)
            return false;
        units += m->ptr[m->ngroups];
    }
    return units == c->units.units;
}

/* Take the answer, lists over the whole head or, where the mask stays on the device, what is in
 * c->units, of whose map *whole becomes the lists; NULL: the GPU does not choose, because of `why`.
 * Then c->masks are those to attend to. METHOD_SKIP where the user wants the GPU's alone. */
static int take(struct head *h, struct mask *whole, const char *why, struct err *err)
{
    struct choice *c = &h->choice;
    const struct method *me = h->run.method;
    struct device_choice chosen = {.lists = whole, .own = &c->own};

    c->gpu = whole != NULL;
    if (c->asked && !whole)
        snprintf(c->why, sizeof c->why, "%s", why);
    if (chooses_own(c) && !whole && h->cell.device->select == SELECT_GPU)
        return method_skip(h->cell.ctx, "%s", c->why);
    if (whole && c->units.on_device && c->keep == KEEP_ALONE) { /* only the counts came */
        chosen = (struct device_choice){.counts = &c->units, .exec = &c->lists, .own = &c->own};
        PASS_ON(describe_units(h, err));
        return me->device.take(h->run.state, &chosen, err);
    }
    if (whole && c->units.map)
        PASS_ON(lists_of(&h->run.in->x, &c->units, whole, err));
    if (whole)
        PASS_ON(me->device.take(h->run.state, &chosen, err));
    if (c->asked)
        PASS_ON(choose_here(h, err));
    c->units.on_device = c->units.on_device && same_as_on_device(c);
    if (c->units.on_device) { /* the method's own masks say what its kernel multiplies */
        PASS_ON(describe_units(h, err));
        c->lists.exec = c->masks->exec;
        c->lists.exec_bq = c->masks->exec_bq;
        c->lists.exec_bk = c->masks->exec_bk;
    }
    return 0;
}

/* The device's answer. */
static int answer(struct calling *k, struct head *h, struct accel_head *at, struct err *err)
{
    bool chosen = at->choice.method && at->answer == 0;
    int rc = take(h, chosen ? &at->mask : NULL, at->why, err);
    mask_free(&at->mask);
    return rc;
}

/* Ask the device for the masks. Those of a head that is timed by copies come here. */
static int choose(struct calling *k, struct err *err)
{
    const struct accel *a = k->device->accel;
    enum keep keep = k->c->copies ? KEEP_NOT : KEEP_ALONE;
    bool any = false;

    for (int i = 0; i < k->call.n; i++)
        keep = MIN(keep, may_keep(head_of(k, i)));
    for (int i = k->call.copies; i < k->call.n; i++) {
        struct accel_head *asked = k->call.heads + i;
        struct head *h = head_of(k, i);
        h->choice.keep = keep;
        asked->choice = question(h);
        asked->answer = ACCEL_NO_SELECT;
        snprintf(asked->why, sizeof asked->why, "the back end does not select");
        any |= asked->choice.method != NULL;
    }
    if (any && a->select_call)
        PASS_ON(a->select_call(k->device->session, &k->call, err));
    stopwatch_lap(&k->watch, "choice");
    PASS_ON(for_heads(k, answer, err));
    stopwatch_lap(&k->watch, "masks");
    return 0;
}

/* ---- attend --------------------------------------------------------------------------------- */

/* The number of the heads' masks, if all are static ones. */
static int number_masks(const struct calling *k, uint64_t *number, struct err *err)
{
    OWN(free_at) uint64_t *ids = NULL;
    bool all = k->device->statics != NULL;
    *number = 0;
    PASS_ON(mem_alloc(&ids, k->call.n, sizeof *ids, "static masks of a call", err));
    for (int i = 0; i < k->call.n && all; i++) {
        const struct choice *c = &head_of(k, i)->choice;
        all = c->shared != NULL;
        ids[i] = all ? c->shared->id : 0;
    }
    return all ? static_masks_number(k->device->statics, ids, k->call.n, number, err) : 0;
}

/* How the heads of the call attend, in one way; beside heads with a filter others may have none. */
static int common_arithmetic(struct calling *k, enum arith_kind *kind, struct err *err)
{
    const struct arithmetic *by = &head_of(k, 0)->run.arith;
    bool same = true;
    for (int i = 1; i < k->call.n && by->kind == ARITH_SOFTMAX; i++)
        by = &head_of(k, i)->run.arith;
    for (int i = 0; i < k->call.n; i++) {
        const struct arithmetic *a = &head_of(k, i)->run.arith;
        bool filter = by->kind == ARITH_FILTER;
        same &= a->kind == by->kind || (filter && a->kind == ARITH_SOFTMAX);
        same &= !filter || (a->filter.bq == by->filter.bq && a->filter.bk == by->filter.bk);
    }
    *kind = by->kind;
    return same ? 0
                : err_set(err, ERR_RUN,
                          "heads of one call that attend in different ways: --copies replays them "
                          "one by one");
}

/* What the attention is over, and what is timed beside it. */
static int describe_heads(struct calling *k, struct err *err)
{
    enum arith_kind kind;
    bool keep = true, whole = true;
    PASS_ON(common_arithmetic(k, &kind, err));
    for (int i = 0; i < k->call.n; i++) {
        keep &= head_of(k, i)->choice.units.on_device;
        whole &= head_of(k, i)->run.arith.whole;
    }
    for (int i = k->call.n - 1; i >= 0; i--) {
        struct accel_head *a = k->call.heads + i;
        struct head *h = head_of(k, i);
        h->choice.units.on_device = keep; /* if a mask is here: all from here */
        h->choice.none |= whole;
        a->masks = h->choice.masks;
        a->n_masks = h->choice.n;
        a->filter = h->run.arith.kind == ARITH_FILTER ? &h->run.arith.filter : NULL;
        a->whole = h->run.arith.whole;
        a->own_kernel = kind == ARITH_KERNEL ? &h->run.arith.own : NULL;
        a->added = kind == ARITH_ADDED ? h->run.arith.added : NULL;
        a->is_static = h->choice.origin.source == SOURCE_STATIC;
        if (i < k->call.copies)
            a->choice = a[1].choice;
        if (!h->choice.gpu || h->choice.none)
            a->choice.method = NULL;
    }
    return 0;
}

static int alloc_results(struct calling *k, struct err *err)
{
    bool measured = k->device->metrics || k->measure != MEASURE_ALL;
    for (int i = k->call.copies; i < k->call.n; i++) {
        const struct head *h = head_of(k, i);
        struct accel_head *r = k->call.heads + i;
        const struct attn_in *x = r->x;
        bool outputs = (h->cell.sink || !measured) && !accel_keeps_output(x);
        if (outputs)
            PASS_ON(mem_alloc(&r->out, x->nq * x->dv, sizeof(double), "method output", err));
        if (outputs || (h->run.arith.kind == ARITH_KERNEL && run_hears(&h->run)))
            PASS_ON(mem_alloc(&r->lse, x->nq, sizeof(double), "method log-sum-exp", err));
        if (k->device->metrics)
            PASS_ON(mem_alloc(&r->mass, x->nq, sizeof(double), "kept mass of rows", err));
    }
    return 0;
}

/* ---- results of a head ---------------------------------------------------------------------- */

/* Errors are those of the output as the GPU delivers it; recall is the mask's, by the reference,
 * unless the device measured both. */
static int add_chunk(struct run *run, const struct mask *m, const struct accel_head *o,
                     double tiles_pv, struct err *err)
{
    struct exact *exact = run->in->exact;
    const double *ref, *ref_lse;
    int64_t dv = run->in->x.dv;
    if (!run->cell->device->metrics && run->cell->measure == MEASURE_ALL) {
        PASS_ON(exact_attend(exact, m, NULL, run->lse_mask, err));
        PASS_ON(exact_out(exact, m->row0, m->row1, &ref, err));
        PASS_ON(exact_lse(exact, m->row0, m->row1, &ref_lse, err));
        metrics_add_rows(&run->acc, m->row0, m->row1 - m->row0, o->out + m->row0 * dv, ref,
                         run->lse_mask, o->lse + m->row0, ref_lse);
    }
    PASS_ON(metrics_add_mask(&run->acc, m, tiles_pv, err));
    if (run->cell->sink)
        return run->cell->sink(run->cell->sink_ctx, m, o->out ? o->out + m->row0 * dv : NULL,
                               o->lse ? o->lse + m->row0 : NULL, err);
    return 0;
}

/* Counts of the head's masks, errors and recall unless the GPU measured them, and the sink. What
 * stays on the device and what heads share is not gone through. tiles_pv < 0: no filter. */
static int add_masks(struct head *h, const struct accel_head *at, double tiles_pv, struct err *err)
{
    const struct sim_cell *cell = &h->cell;
    const struct choice *c = &h->choice;
    const struct attn_in *x = &h->run.in->x;
    bool there = cell->device->metrics || cell->measure != MEASURE_ALL;
    bool counted = c->units.on_device || (c->shared && tiles_pv < 0 && there);
    if (counted && !sim_reads_masks(cell)) {
        struct mask rows;
        mask_full(&rows, x->nq, x->nk, 0, x->nq, x->causal);
        if (c->units.on_device)
            PASS_ON(metrics_add_units(&h->run.acc, &c->lists, &c->units, tiles_pv, err));
        else
            metrics_add_tally(&h->run.acc, &c->shared->tally);
        return cell->sink ? cell->sink(cell->sink_ctx, &rows, at->out, at->lse, err) : 0;
    }
    for (int64_t i = 0; i < c->n; i++)
        PASS_ON(add_chunk(&h->run, c->masks + i, at, tiles_pv < 0 || i == 0 ? tiles_pv : 0, err));
    return 0;
}

static int finish(struct calling *k, struct head *h, struct accel_head *at, struct err *err)
{
    bool attends = k->measure != MEASURE_MASK, measured = k->measure == MEASURE_ALL;
    bool filter = attends && h->run.arith.kind == ARITH_FILTER;
    int64_t rows = MIN(h->choice.step, h->run.in->x.nq);

    if (attends && run_hears(&h->run))
        PASS_ON(h->run.method->arith.done(h->run.state, at->tiles_pv, at->lse, err));
    if (measured && !k->device->metrics)
        PASS_ON(mem_alloc(&h->run.lse_mask, rows, sizeof(double), "mask log-sum-exp", err));
    PASS_ON(add_masks(h, at, filter ? at->tiles_pv : -1, err));
    if (at->mass)
        metrics_add_sums(&h->run.acc, &at->sums, at->mass);
    return run_record(&h->run, h->outcome->record, err);
}

/* ---- records -------------------------------------------------------------------------------- */

static const char *kind_of(const struct choice *c)
{
    static const char *const kinds[] = {"own", "static", "reused"};
    return c->none ? "none" : kinds[c->origin.source];
}

static const char *where_of(const struct choice *c)
{
    return c->none ? "none" : c->gpu ? "cuda" : "cpu";
}

/* Where the mask was chosen, the kernels, who measured: notes, density_kernel. */
static int record_kernel(const struct calling *k, int i, const struct accel_result *res,
                         struct err *err)
{
    const struct head *h = head_of(k, i);
    const struct choice *c = &h->choice;
    const struct attn_in *x = &h->run.in->x;
    struct record *r = h->outcome->record;

    record_note(r, "select_backend=%s;kernel=%s;dense_kernel=%s;operands=bf16", where_of(c),
                k->call.heads[i].kernel, res->dense_kernel);
    if (!c->none)
        record_note(r, "select_kind=%s", kind_of(c));
    record_note(r, k->device->metrics ? "metrics_backend=cuda;reference=dense-fp32"
                                      : "metrics_backend=cpu");
    return record_metric(
        r, "density_kernel",
        (double)k->call.heads[i].pairs_exec / (double)pairs_allowed(x->nq, x->nk, x->causal), err);
}

static int record_time(struct record *r, const char *name, const struct accel_time *t,
                       struct err *err)
{
    char key[48];
    PASS_ON(record_metric(r, name, t->median, err));
    snprintf(key, sizeof key, "%s_q1", name);
    PASS_ON(record_metric(r, key, t->q1, err));
    snprintf(key, sizeof key, "%s_q3", name);
    return record_metric(r, key, t->q3, err);
}

static int record_counters(const struct accel_counters *c, struct record *r, struct err *err)
{
    if (*c->why)
        record_note(r, "counters=%s", c->why);
    if (isnan(c->tensor_pipe_pct))
        return 0;
    return RECORD_ALL(r, err, {"tensor_pipe_pct", c->tensor_pipe_pct},
                      {"dram_read_bytes", c->dram_read_bytes},
                      {"dram_write_bytes", c->dram_write_bytes}, {"counter_cycles", c->cycles});
}

/* A total from q, k, v to the outputs, of all of `heads` heads. select NULL: nothing to choose;
 * where choosing costs the call nothing it is zeros. */
static int record_total(const struct accel_result *res, const struct attn_in *x, int heads,
                        const struct accel_time *select, struct record *r, struct err *err)
{
    const struct accel_time *quant =
        res->quant.samples && res->quant.median > 0 ? &res->quant : NULL;
    double before = (quant ? quant->median : 0) + (select ? select->median : 0);
    double total = res->total.samples ? res->total.median : res->attend.median + before;
    double pairs = heads * (double)pairs_allowed(x->nq, x->nk, x->causal);
    if (res->total.samples)
        PASS_ON(record_time(r, "time_total_ns", &res->total, err));
    else if (!select && !quant)
        PASS_ON(record_time(r, "time_total_ns", &res->attend, err));
    else
        PASS_ON(record_metric(r, "time_total_ns", total, err));
    if (quant)
        PASS_ON(record_time(r, "time_quant_ns", quant, err));
    if (select)
        PASS_ON(record_time(r, "time_select_ns", select, err));
    if (select || quant)
        PASS_ON(record_metric(r, "select_share", before / total, err));
    return RECORD_ALL(r, err, {"speedup", res->dense.median / total},
                      {"speed_dense_eq", 4e-3 * x->d * pairs / total});
}

/* Where the masks of the heads come from, as far as they agree. */
struct sources {
    bool none;    /* nothing to choose in any head */
    bool on_gpu;  /* every choice that this call makes is made on the GPU */
    bool any_own; /* some head's is made by this call */
    const char *kind, *where;
    int64_t calls; /* that share one choice, if all heads say the same; else 0 */
};

static struct sources sources_of(const struct calling *k)
{
    const struct choice *first = &head_of(k, 0)->choice;
    struct sources s = {true, true, false, kind_of(first), where_of(first), first->origin.calls};
    for (int i = 0; i < k->call.n; i++) {
        const struct choice *c = &head_of(k, i)->choice;
        bool own = chooses_own(c);
        s.none &= c->none;
        s.on_gpu &= c->gpu || !own; /* else it was made before, or there is none */
        s.any_own |= own;
        s.kind = kind_of(c) == s.kind ? s.kind : "mixed";
        s.where = where_of(c) == s.where ? s.where : "mixed";
        s.calls = c->origin.calls == s.calls ? s.calls : 0;
    }
    return s;
}

/* The choice of masks that several calls use, as a share of one call; the call that chose bears its
 * share too. */
static int record_amortised(const struct calling *k, const struct accel_result *res,
                            const struct sources *s, struct record *r, struct err *err)
{
    double *ns = k->c->choose_ns;
    if (!ns || s->calls <= 1)
        return 0;
    if (s->any_own)
        *ns = s->on_gpu && res->select.samples ? res->select.median : 0;
    return *ns > 0 ? record_metric(r, "time_select_amortised_ns", *ns / (double)s->calls, err) : 0;
}

/* The phases of the launches, of so many heads. */
static int record_phases(const struct calling *k, const struct accel_result *res,
                         const struct sources *s, int heads, struct record *r, struct err *err)
{
    static const struct accel_time nothing = {0};
    const struct accel_time *chosen = res->select.samples ? &res->select : &nothing;
    const struct attn_in *x = k->call.heads->x;
    double pairs = 0;

    for (int i = k->call.copies; i < k->call.n; i++)
        pairs += (double)k->call.heads[i].pairs_exec;
    PASS_ON(record_time(r, "time_attend_ns", &res->attend, err));
    PASS_ON(record_time(r, "time_dense_ns", &res->dense, err));
    PASS_ON(record_metric(r, "samples", (double)res->attend.samples, err));
    PASS_ON(record_metric(r, "speed_exec", 4e-3 * x->d * pairs / res->attend.median, err));
    if (res->plan.samples)
        PASS_ON(record_time(r, "time_plan_ns", &res->plan, err));
    if (res->build.samples)
        PASS_ON(record_time(r, "time_build_ns", &res->build, err));
    if (s->on_gpu)
        PASS_ON(record_total(res, x, heads, s->none ? NULL : chosen, r, err));
    return record_amortised(k, res, s, r, err);
}

/* Notes, times and counters of the whole call, of one launch over all heads or of the launches that
 * chose all their masks; none is divided by anything. */
static int record_call(const struct calling *k, const struct accel_result *res, struct err *err)
{
    struct sources s = sources_of(k);
    struct record *r = k->c->record;

    r->status = RECORD_OK;
    record_note(r, "time=call;select_backend=%s;select_kind=%s;kernel=%s;dense_kernel=%s", s.where,
                s.kind, res->kernel, res->dense_kernel);
    if (res->sections > 1)
        record_note(r, "sections=%d", res->sections);
    PASS_ON(RECORD_ALL(r, err, {"call_heads", k->call.n}, {"call_heads_kv", res->kv},
                       {"call_launches", res->launches}));
    if (res->selections)
        PASS_ON(record_metric(r, "call_selections", (double)res->selections, err));
    PASS_ON(
        RECORD_ALL(r, err, {"plan_balance", res->balance}, {"host_plan_ns", res->host_plan_ns}));
    PASS_ON(record_counters(&res->counters, r, err));
    if (res->attend.samples)
        return record_phases(k, res, &s, k->call.n, r, err);
    return 0;
}

/* What one of n copies has of the launches. */
static struct accel_result share_of_one(const struct accel_result *all, int n)
{
    struct accel_result r = *all;
    struct accel_time *times[] = {&r.select, &r.build, &r.plan, &r.quant, &r.attend, &r.dense};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        times[i]->median /= n;
        times[i]->q1 /= n;
        times[i]->q3 /= n;
    }
    r.total.samples = 0;
    r.host_plan_ns /= n;
    r.counters.dram_read_bytes /= n;
    r.counters.dram_write_bytes /= n;
    return r;
}

/* Those of one copy, into the record of the head that the call's heads are copies of. */
static int record_copies(const struct calling *k, const struct accel_result *all, struct err *err)
{
    struct accel_result one = share_of_one(all, k->call.n);
    struct sources s = sources_of(k);
    struct record *r = head_of(k, 0)->outcome->record;

    PASS_ON(record_metric(r, "host_plan_ns", one.host_plan_ns, err));
    PASS_ON(record_counters(&one.counters, r, err));
    if (!isnan(one.counters.tensor_pipe_pct))
        PASS_ON(RECORD_ALL(r, err, {"counter_copies", k->call.n}, {"counter_copies_kv", one.kv}));
    if (!one.attend.samples)
        return 0;
    record_note(r, "time=copies");
    PASS_ON(RECORD_ALL(r, err, {"copies", k->call.n}, {"copies_kv", one.kv}));
    return record_phases(k, &one, &s, 1, r, err);
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
    for (int i = k->call.copies; i < k->call.n; i++)
        TRY(record_kernel(k, i, &res, err));
    if (k->c->copies)
        TRY(record_copies(k, &res, err));
    else if (k->c->record && k->call.n == k->c->n)
        TRY(record_call(k, &res, err));
    TRY(for_heads(k, finish, err));
out:
    return rc;
}

/* The facts of the heads that are the call's as well, or why there is no time of the call. */
static int conclude(struct calling *k, struct err *err)
{
    const struct record *first = k->c->heads[0].record;
    struct record *r = k->c->record;
    static const char *const facts[] = {"dense_call", "refresh", "mask_age"};
    struct mask_work work = {0};

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
    for (int i = 0; i < k->c->n; i++)
        work_join(&work, &k->heads[i].run.acc.tally.work);
    if (r->status == RECORD_OK)
        PASS_ON(work_record(&work, k->c->cells->in->x.dv, r, err));
    for (size_t f = 0; f < sizeof facts / sizeof *facts && r->status == RECORD_OK; f++) {
        double value = record_get(first, facts[f]);
        bool same = value == value;
        for (int i = 1; i < k->c->n; i++)
            same &= record_get(k->c->heads[i].record, facts[f]) == value;
        if (same)
            PASS_ON(record_metric(r, facts[f], value, err));
    }
    return 0;
}

/* ---- the call ------------------------------------------------------------------------------- */

int sim_share_params(struct sim_cell *cells, const struct call_outcome *heads, int64_t n,
                     struct err *err)
{
    OWN(buf_free) struct buf before = {0}, text = {0};
    const void *shared = NULL;
    for (int64_t i = 0; i < n; i++) {
        if (heads[i].err.code)
            continue;
        buf_reset(&text);
        PASS_ON(opt_canonical(cells[i].method->params.table, cells[i].params, &text, err));
        if (shared && strcmp(buf_str(&before), buf_str(&text)) == 0)
            cells[i].params = shared;
        shared = cells[i].params;
        struct buf swap = before;
        before = text;
        text = swap;
    }
    return buf_check(&before, "parameters", err);
}

int sim_run_call(const struct sim_call *c, struct err *err)
{
    struct calling k = {.c = c,
                        .device = c->cells->device,
                        .measure = c->cells->measure,
                        .watch = {.since = clock_ns()}};
    int rc = 0;

    TRY(alloc_call(&k, err));
    TRY(for_heads(&k, reorder, err));
    gather_call(&k);
    if (k.call.n)
        TRY(check_shapes(&k, err));
    if (k.call.data == c->data && k.device->accel->put_call) /* methods ask for the exact map */
        TRY(k.device->accel->put_call(k.device->session, &k.call, err));
    stopwatch_lap(&k.watch, "operands");
    TRY(for_heads(&k, start, err));
    stopwatch_lap(&k.watch, "prepare");
    gather_call(&k);
    if (k.call.n && head_of(&k, 0)->run.method->device.compares)
        TRY(choose_fresh(&k, err));
    gather_call(&k);
    if (k.call.n)
        TRY(choose(&k, err));
    gather_call(&k);
    if (k.call.n)
        TRY(k.measure == MEASURE_MASK ? for_heads(&k, finish, err) : attend(&k, err));
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
