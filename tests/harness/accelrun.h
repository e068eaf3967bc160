/*
 * accelrun.h - what back ends made of the CPU reference share, for tests.
 */
#pragma once

#include "core/accel.h"
#include "core/attention.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/blocks/exact.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Blocks of the 128 x 128 kind, or whole blocks of 64: as kernels have them. */
static inline bool accel_supports_all(const struct accel_session *s, const struct attn_in *x,
                                      int64_t *bq, int64_t *bk, char why[160])
{
    bool fine = *bq % 64 || *bk % 64;
    (void)s;
    (void)x;
    (void)why;
    *bq = *bk = fine ? ACCEL_TILE : 64;
    return true;
}

/* Rows of head h of the call in the lists. */
static inline const int64_t *accel_rows_of(const struct accel_call *c, const struct accel_lists *l,
                                           int h)
{
    return l->ptr ? l->ptr + (h - l->first) * ceil_div(c->heads[h].x->nq, l->bq) : NULL;
}

/* Whole blocks as a mask. */
static inline void accel_blocks_mask(const struct attn_in *x, const struct accel_lists *l,
                                     const int64_t *ptr, struct mask *m, struct err *err)
{
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, l->bq, l->bk, err), err);
    for (int64_t g = 0; g < m->ngroups; g++)
        for (int64_t i = ptr[g]; i < ptr[g + 1]; i++)
            assert_ok(mask_lists_add(m, g, l->col[i], err), err);
    mask_lists_finish(m);
}

/* Tiles with bits as lists of keys, row by row. */
static inline void accel_bits_mask(const struct attn_in *x, const struct accel_lists *l,
                                   const int64_t *ptr, struct mask *m, struct err *err)
{
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, 1, 1, err), err);
    for (int64_t r = 0; r < x->nq; r++)
        for (int64_t i = ptr[r / ACCEL_TILE]; i < ptr[r / ACCEL_TILE + 1]; i++)
            for (int k = 0; k < ACCEL_TILE; k++) {
                int row = (int)(r % ACCEL_TILE);
                int64_t key = l->keys ? l->keys[i * ACCEL_TILE + k] : l->col[i] * ACCEL_TILE + k;
                bool whole = l->bits[i] < 0;
                const uint64_t *w = whole ? NULL : l->words + l->bits[i] * ACCEL_TILE_WORDS;
                bool kept = whole || w[accel_word(row, k)] >> accel_bit(row, k) & 1;
                if (kept && key >= 0 && key < mask_limit(m, r))
                    assert_ok(mask_lists_add(m, r, (int32_t)key, err), err);
            }
    mask_lists_finish(m);
}

/* What head h of the call keeps by the lists. */
static inline void accel_head_mask(const struct accel_call *c, const struct accel_lists *l, int h,
                                   struct mask *m, struct err *err)
{
    const struct attn_in *x = c->heads[h].x;
    const int64_t *ptr = accel_rows_of(c, l, h);
    if (!ptr)
        mask_full(m, x->nq, x->nk, 0, x->nq, x->causal);
    else if (l->bits)
        accel_bits_mask(x, l, ptr, m, err);
    else
        accel_blocks_mask(x, l, ptr, m, err);
}

/* Outputs of a head over a mask, and those of dense attention; all owned by the caller. */
struct accel_outs {
    double *out, *lse, *ref, *ref_lse;
};

static inline void accel_compute(const struct attn_in *x, const struct mask *m, enum precision prec,
                                 struct accel_outs *o, struct err *err)
{
    OWN(attn_release) struct attn_ops ops = {0};
    struct mask full;
    o->out = calloc((size_t)(x->nq * x->dv), sizeof(double));
    o->ref = calloc((size_t)(x->nq * x->dv), sizeof(double));
    o->lse = calloc((size_t)x->nq, sizeof(double));
    o->ref_lse = calloc((size_t)x->nq, sizeof(double));
    mask_full(&full, x->nq, x->nk, 0, x->nq, x->causal);
    assert_ok(attn_prepare(&ops, x, prec, err), err);
    assert_ok(attn_rows(&ops, m, o->out, o->lse, err), err);
    assert_ok(attn_rows(&ops, &full, o->ref, o->ref_lse, err), err);
}

static inline void accel_outs_free(struct accel_outs *o)
{
    free(o->out);
    free(o->lse);
    free(o->ref);
    free(o->ref_lse);
}

static inline void accel_add_row(struct accel_sums *s, const double *out, const double *ref, int d)
{
    double unit = ldexp(1, -s->exp), sq_out = 0, sq_ref = 0, dot = 0;
    for (int c = 0; c < d; c++) {
        double x = unit * out[c], y = unit * ref[c], delta = fabs(x - y);
        s->abs_delta += delta;
        s->sq_delta += delta * delta;
        s->abs_ref += fabs(y);
        s->max_delta = fmax(s->max_delta, delta);
        sq_out += x * x;
        sq_ref += y * y;
        dot += x * y;
    }
    s->sq_out += sq_out;
    s->sq_ref += sq_ref;
    s->dot += dot;
    s->min_row_cos =
        fmin(s->min_row_cos,
             sq_out == 0 || sq_ref == 0 ? sq_out == sq_ref : dot / (sqrt(sq_out) * sqrt(sq_ref)));
}

/* The head's metrics; sums are of outputs divided by 2^by. */
static inline void accel_measure(struct accel_head *h, const struct accel_outs *o, int by)
{
    const struct attn_in *x = h->x;
    h->sums = (struct accel_sums){.min_row_cos = INFINITY, .exp = by};
    for (int64_t i = 0; i < x->nq; i++) {
        bool empty = o->lse[i] == -INFINITY;
        double apart = empty ? 0 : fabs(o->lse[i] - o->ref_lse[i]);
        accel_add_row(&h->sums, o->out + i * x->dv, o->ref + i * x->dv, x->dv);
        h->sums.sum_lse += apart;
        h->sums.max_lse = fmax(h->sums.max_lse, apart);
        h->sums.rows_lse += !empty;
        h->sums.rows_empty += empty;
        h->mass[i] = empty ? 0 : exp(o->lse[i] - o->ref_lse[i]);
    }
}

/* Outputs to where the caller wants them. Where they stay "on the device", nobody may want them
 * here. */
static inline void accel_deliver(struct accel_head *h, const struct accel_outs *o)
{
    const struct attn_in *x = h->x;
    int64_t n = x->nq * x->dv;
    ck_assert(!(accel_keeps_output(x) && h->out));
    if (h->out)
        memcpy(h->out, o->out, (size_t)n * sizeof *o->out);
    if (h->lse)
        memcpy(h->lse, o->lse, (size_t)x->nq * sizeof *o->lse);
    for (int64_t i = 0; accel_keeps_output(x) && i < n; i++)
        x->on_device->out[i / x->dv * x->on_device->stride + i % x->dv] = (float)o->out[i];
}

/* Exact attention of head h over whatever the lists say, as a kernel would do it. */
static inline void accel_attend_head(const struct accel_call *c, const struct accel_lists *l, int h,
                                     enum precision prec, struct err *err)
{
    OWN(accel_outs_free) struct accel_outs o;
    OWN(mask_free) struct mask m = {0};
    accel_head_mask(c, l, h, &m, err);
    accel_compute(c->heads[h].x, &m, prec, &o, err);
    accel_deliver(c->heads + h, &o);
    if (c->heads[h].mass)
        accel_measure(c->heads + h, &o, 0);
    c->heads[h].pairs_exec = 1;
}

/* Units and pairs below each threshold of the map; the largest probability. */
static inline double accel_map_below(const struct attn_in *x, struct accel_map *m, struct err *err)
{
    OWN(exact_free) struct exact exact;
    OWN(free_at) struct map_below *b = calloc(1, sizeof *b);
    exact_init(&exact, x, PREC_F64);
    b->n_c = m->n_c;
    memcpy(b->c, m->c, (size_t)m->n_c * sizeof *m->c);
    assert_ok(map_below_run(&exact, b, err), err);
    for (int u = 0; u < ACCEL_UNITS; u++)
        for (int i = 0; i < m->n_c; i++) {
            m->units[u * m->n_c + i] = b->below[u][i];
            m->pairs[u * m->n_c + i] = b->below_pairs[u][i];
        }
    return b->p_max;
}

/* Numbers of a launch that nobody timed. */
static inline void accel_untimed(const struct accel_call *c, struct accel_result *r)
{
    static const struct accel_time none = {NAN, NAN, NAN, 0};
    *r = (struct accel_result){.select = none,
                               .build = none,
                               .attend = none,
                               .dense = none,
                               .plan = none,
                               .quant = none,
                               .total = none,
                               .balance = 1,
                               .launches = 1,
                               .sections = r->sections,
                               .kv = c->n / c->group,
                               .counters = {NAN, NAN, NAN, NAN, ""}};
}
