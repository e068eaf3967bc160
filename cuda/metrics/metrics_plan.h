/*
 * metrics_plan.h - the work items of a metrics pass (metrics_pass.cuh). Plain C that needs no GPU.
 */
#ifndef LACUNA_CUDA_METRICS_PLAN_H
#define LACUNA_CUDA_METRICS_PLAN_H

#include "cuda/linkage.h"

BEGIN_C

#include "cuda/attn/plan.h"

#define METRICS_BM 256 /* queries and keys of a tile */
#define METRICS_BN 128

/* Work of a pass. An item is the key tiles [beg, end) of a row of tiles. */
struct metrics_plan {
    struct metrics_item {
        int32_t row, beg, end, pad;
    } * items;
    int32_t n_items;
};

/* Make a plan: every tile that holds an allowed pair is in one item, and items are in the order of
 * an attention plan (plan.h) for `sms` multiprocessors. Free with metrics_plan_free. ERR_RUN when
 * the problem is too large, ERR_NOMEM. */
int metrics_plan_make(const struct attn_problem *p, int sms, struct metrics_plan *plan,
                      struct err *err);
void metrics_plan_free(struct metrics_plan *plan);

END_C

#endif
