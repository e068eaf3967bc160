/*
 * slicemask.h - one bit per slice: a group of `height` consecutive query rows against a unit of
 * `width` consecutive keys. N_q/height x N_k/width bits. That is 64 times smaller than an index
 * list of a half-dense mask, so a replay can keep the masks of all heads from step to step.
 */
#pragma once

#include "core/method.h"

#include <stdbool.h>
#include <stdint.h>

struct slice_mask {
    int64_t nq, nk, height, width;
    bool causal;
    int64_t groups, units, words; /* words: 64-bit words per group */
    uint64_t *bits;               /* [groups][words], owned */
    int64_t exec_bq, exec_bk;     /* rows and keys that a kernel gathers at once; exec_bq 0: what
                                   * it multiplies is not described (EXEC_NONE), -1: the units */
};

int slice_mask_init(struct slice_mask *m, int64_t nq, int64_t nk, bool causal, int64_t height,
                    int64_t width, struct err *err);
void slice_mask_free(struct slice_mask *m); /* also of a zeroed one; leaves it zeroed */

static inline void slice_mask_set(struct slice_mask *m, int64_t g, int64_t u)
{
    m->bits[g * m->words + u / 64] |= 1ull << (u % 64);
}

static inline bool slice_mask_has(const struct slice_mask *m, int64_t g, int64_t u)
{
    return m->bits[g * m->words + u / 64] >> (u % 64) & 1;
}

/* Take the choice of a device over (struct method_device): the mask of its lists, whose kernel
 * gathers the keys of `exec_bq` rows one by one, or 0 or -1. If the mask stays there,
 * only `exec_bq` is taken over. ERR_RUN if it has another unit. */
int slice_mask_take(struct slice_mask *m, const struct device_choice *c, int64_t height,
                    int64_t width, int64_t exec_bq, struct err *err);

/* A ready-made `take` for masks of single pairs that a device makes and nobody needs here. */
int pairs_take(void *state, const struct device_choice *c, struct err *err);

/* Units of group g that some row of the group may see: [0, slice_mask_visible). */
int64_t slice_mask_visible(const struct slice_mask *m, int64_t g);

int64_t slice_mask_count(const struct slice_mask *m, int64_t g); /* kept units of a group */
int64_t slice_mask_total(const struct slice_mask *m);

/* Units kept by both; both masks have the same shape. */
int64_t slice_mask_common(const struct slice_mask *a, const struct slice_mask *b);

/* The mask of rows [row0, row1) as lists; row0 is a multiple of height. pairs_exec counts kept keys
 * gathered into 128-key tiles (EXEC_GATHER), unless exec_bq says otherwise. */
int slice_mask_lists(const struct slice_mask *m, int64_t row0, int64_t row1, struct mask *out,
                     struct err *err);

/* Kept pairs / allowed pairs. */
int slice_mask_density(const struct slice_mask *m, double *density, struct err *err);
