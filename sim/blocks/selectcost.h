/*
 * selectcost.h - how the `cost` hooks of methods count (core/method.h; doc/records.md).
 *
 * Operations: 2 per multiply-add of a product, 1 per number that enters a sum, a difference or a
 * scaling, 3 per number of a softmax (exponential, sum, quotient). Comparisons, sorting, random
 * numbers and index arithmetic are not counted.
 *
 * Bytes: a pass over rows of q, k or v reads them once, in the trace's type. A number that is kept
 * between two phases is written and read once, in 4 bytes unless it has a type of its own. The
 * lists that come out are not counted.
 */
#pragma once

#include "core/method.h"

/* Products of m rows with n rows of dimension d. */
static inline void cost_products(struct select_cost *c, double pairs, int d)
{
    c->flops += 2 * pairs * d;
}

static inline void cost_sums(struct select_cost *c, double numbers)
{
    c->flops += numbers;
}

static inline void cost_softmax(struct select_cost *c, double numbers)
{
    c->flops += 3 * numbers;
}

/* One pass over so many rows of q, k or v. */
static inline void cost_rows(struct select_cost *c, const struct head_in *in, double rows, int d)
{
    c->bytes += rows * d * (double)dtype_size(in->src_dtype);
}

/* Numbers that are written by one phase and read by the next. */
static inline void cost_kept(struct select_cost *c, double numbers)
{
    c->bytes += 8 * numbers;
}

/* Allowed pairs of the query rows [row0, row1), with a row of every `step`. */
static inline double cost_pairs(const struct attn_in *x, int64_t row0, int64_t row1, int64_t step)
{
    double pairs = 0;
    for (int64_t i = row0; i < row1; i += step)
        pairs += (double)(attn_limit(x, i) - attn_first(x, i));
    return pairs;
}

/* Exact probabilities of `rows` query rows with `pairs` allowed pairs in all, and `sums` sums into
 * which each of them enters. */
static inline void cost_exact_rows(struct select_cost *c, const struct head_in *in, double rows,
                                   double pairs, int sums)
{
    cost_products(c, pairs, in->x.d);
    cost_softmax(c, pairs);
    cost_sums(c, sums * pairs);
    cost_rows(c, in, rows, in->x.d);
    cost_kept(c, pairs);
}
