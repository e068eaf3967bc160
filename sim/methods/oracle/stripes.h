/*
 * stripes.h - whole key columns, the best by their mass in all rows or in sampled ones.
 *
 * Q. Zhu et al., SampleAttention, arXiv:2406.15486, table 5: how much is lost when columns are
 * ranked by sampled rows. The slices are those of the method, 128 rows at the end of each chunk.
 */
#ifndef LACUNA_STRIPES_H
#define LACUNA_STRIPES_H

#include "core/method.h"

#define STRIPE_ROWS 128

/* Rows [*row0, *row1) of slice i of `chunks` of n rows. */
void stripe_slice(int64_t n, int64_t chunks, int64_t i, int64_t *row0, int64_t *row1);

/* The `count` columns with the largest mass, of equal ones the lower, ascending into keys [count];
 * returned in *n. chunks = 0: all rows. *rows is how many rows were looked at. */
int stripes_choose(const struct head_in *in, int64_t chunks, int64_t count, int32_t *keys,
                   int64_t *n, int64_t *rows, struct err *err);

#endif
