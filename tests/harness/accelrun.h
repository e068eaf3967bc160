/*
 * accelrun.h - what back ends made of the CPU reference share, for tests.
 */
#ifndef LACUNA_ACCELRUN_H
#define LACUNA_ACCELRUN_H

#include "core/accel.h"
#include "tests/harness/suite.h"

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

#endif
