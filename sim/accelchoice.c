/*
 * accelchoice.c - see accelchoice.h.
 */
#include "sim/accelchoice.h"

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

/* Lists that are the head's own, in the place of shared ones: they are to be changed. */
static int own_lists(struct choice *c, struct err *err)
{
    const struct static_mask *from = c->shared;
    int rc = 0;
    if (!from || from->masks->form != MASK_LISTS)
        return 0;
    c->masks = NULL;
    c->shared = NULL;
    TRY(mem_zalloc(&c->masks, c->n, sizeof *c->masks, "masks", err));
    for (int64_t i = 0; i < c->n; i++) {
        const struct mask *m = from->masks + i;
        TRY(mask_lists_rows(m, m->row0, m->row1, c->masks + i, err));
        c->masks[i].exec = m->exec;
        c->masks[i].exec_bq = m->exec_bq;
        c->masks[i].exec_bk = m->exec_bk;
    }
out:
    static_masks_return(c->store, from);
    return rc;
}

/* ---- what the device chose ------------------------------------------------------------------- */

/* The rows of chunk *m, as the lists of the whole head have them, in the place of *m. Counts what
 * differs. */
static int take_rows(const struct mask *whole, struct mask *m, int64_t *differs, struct err *err)
{
    struct mask part = {0};
    int rc = 0;

    TRY(mask_lists_rows(whole, m->row0, m->row1, &part, err));
    part.exec = m->exec;
    part.exec_bq = m->exec_bq;
    part.exec_bk = m->exec_bk;
    *differs += mask_lists_differ(&part, m);
    mask_free(m);
    *m = part;
    part = (struct mask){0};
out:
    mask_free(&part);
    return rc;
}

/* Tiles of the whole head's lists that a band does not touch, and the other way round. */
static int compare_tiles(const struct mask *whole, const struct mask *m, int64_t *differs,
                         struct err *err)
{
    int32_t *col = NULL;
    int rc = 0;

    TRY(mem_alloc(&col, ceil_div(m->nk, whole->bk), sizeof *col, "tiles of a band", err));
    for (int64_t r = m->row0; r < m->row1; r += whole->bq) {
        int64_t from = whole->ptr[r / whole->bq], to = whole->ptr[r / whole->bq + 1];
        int64_t last = r + whole->bq < m->row1 ? r + whole->bq : m->row1;
        int64_t n = mask_union_tiles(m, r, last, whole->bk, col, err);
        if (n < 0) {
            rc = (int)n;
            goto out;
        }
        *differs += list_differ(whole->col + from, to - from, col, n);
    }
out:
    free(col);
    return rc;
}

/* One chunk's mask as the GPU chose it. */
static int take_mask(const struct mask *whole, struct mask *m, int64_t *differs, struct err *err)
{
    if (whole->form == MASK_FULL && m->form == MASK_FULL)
        return 0;
    if (whole->form == MASK_LISTS && m->form == MASK_BAND)
        return compare_tiles(whole, m, differs, err);
    if (whole->form == m->form && whole->bq == m->bq && whole->bk == m->bk)
        return take_rows(whole, m, differs, err);
    return err_set(err, ERR_RUN, "the GPU selects units of %lld x %lld, the reference does not",
                   (long long)whole->bq, (long long)whole->bk);
}

/* Is the mask of the head one band? */
static bool whole_band(const struct mask *masks, int64_t n, struct mask *band)
{
    *band = masks[0];
    band->row1 = masks[n - 1].row1;
    for (int64_t i = 0; i < n; i++)
        if (masks[i].form != MASK_BAND || masks[i].sink != band->sink ||
            masks[i].window != band->window || masks[i].dense_from != band->dense_from)
            return false;
    return true;
}

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

/* Does the device choose from the parameters, without the method? Where counts are all that is
 * recorded nobody asks in what the two differ. */
static bool asks_alone(const struct run *run, bool own)
{
    const struct method *me = run->method;
    const struct sim_device *device = run->cell->device;
    bool unasked = device->calls || run->cell->measure != MEASURE_ALL;
    return own && me->device.take && !me->device.rule && unasked && device->select != SELECT_CPU;
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

/* Does the device choose by the method's rule? */
static bool asks_by_rule(struct run *run, struct choice *c, bool own)
{
    if (!(own || builds(run, c)) || !run->method->device.rule ||
        run->cell->device->select == SELECT_CPU)
        return false;
    if (run->method->device.rule(run->state, &c->rule, c->why))
        return true;
    c->refused = true;
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
    const struct method *me = run->method;
    bool cpu = run->cell->device->select == SELECT_CPU;
    int rc = 0;

    c->origin = method_origin(me, run->state);
    bool own = c->origin.source == SOURCE_OWN && !c->none;
    if (asks_by_rule(run, c, own)) {
        c->ask = ASK_BY_RULE;
        return 0;
    }
    if (asks_alone(run, own)) {
        c->ask = ASK_ALONE;
        return 0;
    }
    TRY(choose_here(run, c, err));
    if (!me->device.rule && !c->none && !cpu && c->origin.source != SOURCE_REUSED) {
        c->ask = ASK_BY_PARAMS;
        c->is_band = whole_band(c->masks, c->n, &c->band);
    }
out:
    return rc;
}

/* Does the device have what is measured of a mask that stays there? */
static bool measured_there(const struct sim_cell *cell)
{
    return cell->measure == MEASURE_COUNTS ||
           (cell->measure == MEASURE_ALL && cell->device->metrics);
}

int choice_may_stay(const struct run *run, const struct choice *c)
{
    const struct method *me = run->method;
    const struct sim_cell *cell = run->cell;
    if (c->ask == ASK_NOBODY || c->is_band || !measured_there(cell))
        return STAYS_NOT;
    bool counts = c->ask != ASK_BY_PARAMS && me->device.keep_on_device && !sim_reads_masks(cell);
    return counts && me->device.keep_on_device(run->state) ? STAYS_ALONE : STAYS_TOO;
}

struct accel_choice choice_of_head(const struct run *run)
{
    const struct head_in *in = run->in;
    return (struct accel_choice){.options = run->method->params.table,
                                 .params = run->cell->params,
                                 .seed = run->cell->ctx->seed,
                                 .x = &in->x,
                                 .data = run->map.data,
                                 .call = {in->n_heads, in->n_kv_heads}};
}

struct accel_choice choice_question(const struct run *run, struct choice *c)
{
    const struct method *me = run->method;
    struct accel_choice q = choice_of_head(run);
    bool by_rule = c->ask == ASK_BY_RULE, alone = by_rule || c->ask == ASK_ALONE;
    q.method = c->ask == ASK_NOBODY ? NULL : me->name;
    q.shape = c->is_band ? &c->band : NULL;
    q.rule = by_rule ? &c->rule.of : NULL;
    q.given = by_rule ? c->rule.data : NULL;
    q.own = alone ? &c->own : NULL;
    q.once = run->cell->measure == MEASURE_MASK;
    q.stays = c->stays ? &c->units : NULL;
    q.fetch = c->stays == STAYS_TOO;
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

/* Units that only one of a map and the method's own masks has. */
static int64_t differs_from_map(const struct choice *c)
{
    const struct accel_units *u = &c->units;
    int64_t differs = u->units;
    for (int64_t i = 0; i < c->n; i++) {
        const struct mask *m = c->masks + i;
        for (int64_t g = 0; g < m->ngroups; g++) {
            const uint32_t *row = u->map + (m->row0 / m->bq + g) * u->words;
            int64_t both = 0, end = m->ptr[g + 1];
            for (int64_t e = m->ptr[g]; e < end; e++)
                both += row[m->col[e] / 32] >> m->col[e] % 32 & 1;
            differs += end - m->ptr[g] - 2 * both;
        }
    }
    return differs;
}

/* Are all masks lists in the unit of the device's? */
static bool lists_like_there(const struct choice *c)
{
    for (int64_t i = 0; i < c->n; i++)
        if (c->masks[i].form != MASK_LISTS || c->masks[i].bq != c->units.bq ||
            c->masks[i].bk != c->units.bk)
            return false;
    return true;
}

/* The device's mask in place of the reference's, or as what the method hands out. */
static int take_answer(struct run *run, struct choice *c, const struct mask *whole, struct err *err)
{
    const struct device_choice chosen = {.lists = whole, .own = &c->own};
    int rc = 0;
    if (c->ask != ASK_BY_PARAMS)
        TRY(run->method->device.take(run->state, &chosen, err));
    else if (whole->form == MASK_LISTS)
        TRY(own_lists(c, err));
    for (int64_t i = 0; i < c->n && c->ask == ASK_BY_PARAMS; i++)
        TRY(take_mask(whole, c->masks + i, &c->differs, err));
    c->compared = c->ask == ASK_BY_PARAMS;
    c->gpu = true;
out:
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
static bool as_there(const struct choice *c)
{
    int64_t units = 0;
    if (!lists_like_there(c))
        return false;
    for (int64_t i = 0; i < c->n; i++)
        units += c->masks[i].ptr[c->masks[i].ngroups];
    return units == c->units.units;
}

/* Only the counts came. */
static int take_counts(struct run *run, struct choice *c, struct err *err)
{
    const struct device_choice chosen = {.counts = &c->units, .exec = &c->lists, .own = &c->own};
    int rc = take_units(run, c, err);
    c->gpu = true;
    return rc ? rc : run->method->device.take(run->state, &chosen, err);
}

/* The masks are here as well. */
static int compare_units(struct run *run, struct choice *c, struct err *err)
{
    c->units.there = c->units.there && as_there(c);
    if (!c->units.there)
        return 0;
    return describe_units(run, c, err);
}

int choice_end(struct run *run, struct choice *c, struct mask *whole, const char *why,
               struct err *err)
{
    bool own = c->origin.source == SOURCE_OWN && !c->none;
    int rc = 0;

    if (whole && c->units.there && c->stays == STAYS_ALONE)
        return take_counts(run, c, err);
    if (whole && c->units.map && c->ask == ASK_BY_PARAMS && !sim_reads_masks(run->cell) &&
        lists_like_there(c)) { /* nobody reads the masks here any more */
        c->differs = differs_from_map(c);
        c->compared = c->gpu = true;
        return describe_units(run, c, err);
    }
    if (whole && c->units.map)
        TRY(lists_of(&run->in->x, &c->units, whole, err));
    if (whole)
        TRY(take_answer(run, c, whole, err));
    if (c->ask != ASK_NOBODY && !whole) {
        c->refused = true;
        snprintf(c->why, sizeof c->why, "%s", why);
    }
    if (c->refused && own && run->cell->device->select == SELECT_GPU)
        return method_skip(run->cell->ctx, "%s", c->why);
    if (c->ask == ASK_BY_RULE || c->ask == ASK_ALONE)
        TRY(choose_here(run, c, err));
    TRY(compare_units(run, c, err));
out:
    return rc;
}
