/*
 * maskchoice.c - see maskchoice.h.
 */
#include "sim/maskchoice.h"

#include "core/buf.h"
#include "core/intmath.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The masks that the method itself hands out. */
static int select_all(struct run *run, struct choice *c, struct err *err)
{
    int64_t nq = run->in->x.nq, n = 0, step = c->step;
    int rc = 0;
    double t = run_clock(run);
    for (int64_t r = 0; r < nq; r += step, n++) {
        TRY(run->method->select(run->state, r, r + step < nq ? r + step : nq, c->masks + n, err));
        TRY(mask_check(c->masks + n, err));
    }
    run->ns_select = run_clock(run) - t;
out:
    return rc;
}

/* ---- static masks of several heads ----------------------------------------------------------- */

static int make_static(void *ctx, int64_t i, struct mask *m, struct err *err)
{
    const struct run *run = ctx;
    int64_t step = run_chunk_rows(run);
    return run->method->select(run->state, i * step, MIN((i + 1) * step, run->in->x.nq), m, err);
}

/* All that the mask follows from. */
static int static_key(const struct run *run, const struct choice *c, const struct mask_origin *o,
                      struct buf *key, struct err *err)
{
    const struct head_in *in = run->in;
    const struct geometry *g = &in->geom;
    buf_printf(key, "%s:", run->method->name);
    int rc = opt_canonical(run->method->params.table, run->cell->params, key, err);
    buf_printf(key, "|%lld %lld %d|%lld %lld %lld %lld %d %lld|%s|%llu %d %d %d|%lld %llu",
               (long long)in->x.nq, (long long)in->x.nk, in->x.causal, (long long)g->t,
               (long long)g->h, (long long)g->w, (long long)g->text, g->text_place,
               (long long)in->n_padding, in->order ? in->order : "",
               (unsigned long long)run->cell->ctx->seed, in->n_heads, in->n_kv_heads, in->x.d,
               (long long)c->step, (unsigned long long)o->which);
    return rc ? rc : buf_check(key, "static mask", err);
}

/* The masks from the store. */
static int take_static(struct run *run, struct choice *c, const struct mask_origin *o,
                       struct err *err)
{
    struct buf key = {0};
    int rc = 0;
    double t = run_clock(run);
    const struct static_maker maker = {make_static, run, c->n, o->any_order, o->counted, o->bytes};
    TRY(static_key(run, c, o, &key, err));
    TRY(static_masks_take(c->store, buf_str(&key), &maker, &c->shared, err));
    if (o->counted)
        memcpy(o->counted, c->shared->counted, o->bytes);
    free(c->masks);
    c->masks = c->shared->masks;
    run->ns_select = run_clock(run) - t;
out:
    buf_free(&key);
    return rc;
}

/* ---- what the device chose ------------------------------------------------------------------- */

int choice_init(struct run *run, struct choice *c, struct err *err)
{
    *c = (struct choice){.none = run->method->flags & METHOD_KEEPS_ALL};
    c->step = run_chunk_rows(run);
    c->store = run->cell->device->statics;
    c->n = ceil_div(run->in->x.nq, c->step);
    return mem_zalloc(&c->masks, c->n, sizeof *c->masks, "masks", err);
}

void choice_free(struct choice *c)
{
    for (int64_t i = 0; c->masks && !c->shared && i < c->n; i++)
        mask_free(c->masks + i);
    if (c->shared)
        static_masks_return(c->store, c->shared);
    else
        free(c->masks);
    free(c->units.count);
    free(c->units.map);
    mask_free(&c->lists);
    free(c->own.data);
    memset(c, 0, sizeof *c);
}

/* Is it worth while that the device builds a static mask? Only where it stays there: on the host it
 * is made once for all calls. */
static bool builds(const struct run *run, const struct choice *c)
{
    const struct sim_device *device = run->cell->device;
    return c->origin.source == SOURCE_STATIC && run->method->device.keep_on_device &&
           device->calls && device->metrics && run->cell->measure == MEASURE_ALL &&
           !run->cell->sink;
}

/* Does the device choose? Where it does not, `why` says the reason. */
static bool asks(struct run *run, struct choice *c)
{
    const struct method *me = run->method;
    bool own = c->origin.source == SOURCE_OWN && !c->none;
    if (run->cell->device->select == SELECT_CPU || !(own || builds(run, c)))
        return false;
    if (me->device.rule)
        return me->device.rule(run->state, &c->rule, c->why);
    snprintf(c->why, sizeof c->why, "method %s has no GPU side", me->name);
    return false;
}

/* The method's own masks: from the store, where there is one, those that are static, or one of a
 * few by what the device has answered. */
static int choose_here(struct run *run, struct choice *c, struct err *err)
{
    struct mask_origin now = method_origin(run->method, run->state);
    bool known = c->origin.source == SOURCE_STATIC || c->gpu;
    bool shared = known && now.same_mask && c->store;
    return shared ? take_static(run, c, &now, err) : select_all(run, c, err);
}

int choice_begin(struct run *run, struct choice *c, struct err *err)
{
    c->origin = method_origin(run->method, run->state);
    c->asked = asks(run, c);
    return c->asked ? 0 : choose_here(run, c, err);
}

/* Does the device have what is measured of a mask that stays there? */
static bool measured_on_device(const struct sim_cell *cell)
{
    return cell->measure == MEASURE_COUNTS ||
           (cell->measure == MEASURE_ALL && cell->device->metrics);
}

enum keep choice_may_keep(const struct run *run, const struct choice *c)
{
    const struct method *me = run->method;
    if (!c->asked || !measured_on_device(run->cell))
        return KEEP_NOT;
    bool counts = me->device.keep_on_device && !sim_reads_masks(run->cell);
    return counts && me->device.keep_on_device(run->state) ? KEEP_ALONE : KEEP_COPY;
}

struct accel_choice choice_question(const struct run *run, struct choice *c)
{
    const struct method *me = run->method;
    struct accel_choice q = {0};
    if (!c->asked)
        return q;
    q.method = me->name;
    q.rule = &c->rule.of;
    q.given = c->rule.data;
    q.own = &c->own;
    q.keep_on_device = c->keep ? &c->units : NULL;
    q.fetch = c->keep == KEEP_COPY;
    return q;
}

/* The lists of a map that came. */
static int lists_of(const struct attn_in *x, const struct accel_units *u, struct mask *m,
                    struct err *err)
{
    int64_t words = ceil_div(u->words, 2);
    uint64_t *row = NULL;
    int rc = 0;
    TRY(mem_alloc(&row, words, sizeof *row, "row of a map", err));
    TRY(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, u->bq, u->bk, err));
    TRY(mem_grow(&m->col, &m->col_cap, u->units, sizeof *m->col, "lists of a map", err));
    for (int64_t g = 0; g < u->groups; g++) {
        const uint32_t *from = u->map + g * u->words;
        for (int64_t w = 0; w < words; w++)
            row[w] = from[2 * w] | (2 * w + 1 < u->words ? (uint64_t)from[2 * w + 1] << 32 : 0);
        TRY(mask_lists_add_bits(m, g, row, words, err));
    }
    mask_lists_finish(m);
    rc = mask_check(m, err);
out:
    free(row);
    return rc;
}

/* What is known of a mask that stays on the device. */
static int take_units(struct run *run, struct choice *c, struct err *err)
{
    const struct attn_in *x = &run->in->x;
    const struct accel_units *u = &c->units;
    int rc = mask_lists_init(&c->lists, x->nq, x->nk, 0, x->nq, x->causal, u->bq, u->bk, err);
    mask_lists_finish(&c->lists);
    return rc;
}

/* The same, where the method's own masks say what its kernel multiplies. */
static int describe_units(struct run *run, struct choice *c, struct err *err)
{
    int rc = take_units(run, c, err);
    c->lists.exec = c->masks->exec;
    c->lists.exec_bq = c->masks->exec_bq;
    c->lists.exec_bk = c->masks->exec_bk;
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

/* Only the counts came. */
static int take_counts(struct run *run, struct choice *c, struct err *err)
{
    const struct device_choice chosen = {.counts = &c->units, .exec = &c->lists, .own = &c->own};
    int rc = take_units(run, c, err);
    return rc ? rc : run->method->device.take(run->state, &chosen, err);
}

int choice_end(struct run *run, struct choice *c, struct mask *whole, const char *why,
               struct err *err)
{
    bool own = c->origin.source == SOURCE_OWN && !c->none;
    int rc = 0;

    c->gpu = whole != NULL;
    if (c->asked && !whole)
        snprintf(c->why, sizeof c->why, "%s", why);
    if (own && !whole && run->cell->device->select == SELECT_GPU)
        return method_skip(run->cell->ctx, "%s", c->why);
    if (whole && c->units.on_device && c->keep == KEEP_ALONE)
        return take_counts(run, c, err);
    if (whole && c->units.map)
        TRY(lists_of(&run->in->x, &c->units, whole, err));
    if (whole) {
        const struct device_choice chosen = {.lists = whole, .own = &c->own};
        TRY(run->method->device.take(run->state, &chosen, err));
    }
    if (c->asked)
        TRY(choose_here(run, c, err));
    c->units.on_device = c->units.on_device && same_as_on_device(c);
    if (c->units.on_device)
        TRY(describe_units(run, c, err));
out:
    return rc;
}
