/*
 * planitems.h - rows of tiles to work items in the order of the rows: the first step of the plans
 * of plan.c, which alone includes this header.
 */
#ifndef LACUNA_PLANITEMS_H
#define LACUNA_PLANITEMS_H

#include "cuda/attn/plan.h"

/* An item of a row, or an empty row. `plan` has room for one of each row. */
void plan_add_item(struct attn_plan *plan, int32_t row, int64_t beg, int64_t end);

/* Units of a block. */
int32_t plan_units_per_block(const struct attn_problem *p, const struct attn_tile *t);

/* Units, from the end of a row's list, that may hold keys which some row of the tile does not see:
 * the ragged last one; causal, those of the blocks that the diagonal crosses. */
int32_t plan_masked_units(const struct attn_problem *p, const struct attn_plan *plan);

/* The items of all rows, with the entries of block lists in plan->cols. csr NULL: dense. */
int plan_items(const struct attn_problem *p, const struct attn_csr *csr, struct attn_plan *plan,
               struct err *err);

/* The same with the entries that kernels with a filter read (attn_plan_filtered). */
int plan_filtered_items(const struct attn_problem *p, const struct attn_csr *csr, int tail,
                        struct attn_plan *plan, struct err *err);

#endif
