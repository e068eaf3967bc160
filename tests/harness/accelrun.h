/*
 * accelrun.h - what back ends made of the CPU reference share, for tests.
 */
#ifndef LACUNA_ACCELRUN_H
#define LACUNA_ACCELRUN_H

#include "core/accel.h"
#include "core/attention.h"
#include "core/mem.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>

/* Whole blocks of a head's lists as a mask; without lists everything. */
static inline void accel_lists_mask(const struct accel_head *h, struct mask *m, struct err *err)
{
    const struct attn_in *x = h->x;
    if (!h->ptr) {
        mask_full(m, x->nq, x->nk, 0, x->nq, x->causal);
        return;
    }
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, h->bq, h->bk, err), err);
    for (int64_t g = 0; g < m->ngroups; g++)
        for (int64_t i = h->ptr[g]; i < h->ptr[g + 1]; i++)
            assert_ok(mask_lists_add(m, g, h->col[i], err), err);
    mask_lists_finish(m);
}

/* Tiles with bits as lists of keys, row by row. */
static inline void accel_bits_mask(const struct accel_head *h, struct mask *m, struct err *err)
{
    const struct attn_in *x = h->x;
    ck_assert_ptr_nonnull(h->ptr);
    assert_ok(mask_lists_init(m, x->nq, x->nk, 0, x->nq, x->causal, 1, 1, err), err);
    for (int64_t r = 0; r < x->nq; r++)
        for (int64_t i = h->ptr[r / ACCEL_TILE]; i < h->ptr[r / ACCEL_TILE + 1]; i++)
            for (int k = 0; k < ACCEL_TILE; k++) {
                int row = (int)(r % ACCEL_TILE);
                int64_t key = h->keys ? h->keys[i * ACCEL_TILE + k] : h->col[i] * ACCEL_TILE + k;
                bool whole = h->bits[i] < 0;
                const uint64_t *w = whole ? NULL : h->words + h->bits[i] * ACCEL_TILE_WORDS;
                bool kept = whole || w[accel_word(row, k)] >> accel_bit(row, k) & 1;
                if (kept && key >= 0 && key < mask_limit(m, r))
                    assert_ok(mask_lists_add(m, r, (int32_t)key, err), err);
            }
    mask_lists_finish(m);
}

/* Whatever the head has. */
static inline void accel_head_mask(const struct accel_head *h, struct mask *m, struct err *err)
{
    if (h->bits)
        accel_bits_mask(h, m, err);
    else
        accel_lists_mask(h, m, err);
}

/* Exact attention in float32 over whatever the head has, as a kernel would do it. Where the head's
 * outputs stay "on the device", nobody may want them here. */
static inline void accel_attend_lists(const struct accel_head *h, struct accel_result *r,
                                      struct err *err)
{
    const struct attn_in *x = h->x;
    struct attn_ops ops = {0};
    struct mask m;
    double *own = NULL, *lse = NULL;
    accel_head_mask(h, &m, err);
    ck_assert(!(accel_stays(x) && r->out));
    if (accel_stays(x))
        assert_ok(mem_alloc(&own, x->nq * x->dv, sizeof *own, "outputs", err), err);
    assert_ok(mem_alloc(&lse, x->nq, sizeof *lse, "log-sum-exp", err), err);
    assert_ok(attn_prepare(&ops, x, PREC_F32, err), err);
    assert_ok(attn_rows(&ops, &m, own ? own : r->out, r->lse ? r->lse : lse, err), err);
    for (int64_t i = 0; own && i < x->nq * x->dv; i++)
        x->there->out[i / x->dv * x->there->stride + i % x->dv] = (float)own[i];
    free(own);
    free(lse);
    attn_release(&ops);
    mask_free(&m);
}

/* Errors of a row. */
static inline struct accel_row accel_row_of(const double *out, const double *ref, int d)
{
    struct accel_row e = {0};
    for (int c = 0; c < d; c++) {
        double delta = out[c] - ref[c];
        e.abs_delta += (float)fabs(delta);
        e.sq_delta += (float)(delta * delta);
        e.abs_ref += (float)fabs(ref[c]);
        e.sq_ref += (float)(ref[c] * ref[c]);
        e.sq_out += (float)(out[c] * out[c]);
        e.dot += (float)(out[c] * ref[c]);
        e.max_delta = fmaxf(e.max_delta, (float)fabs(delta));
    }
    return e;
}

#endif
