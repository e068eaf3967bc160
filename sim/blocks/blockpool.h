/*
 * blockpool.h - means of token blocks, and how similar the tokens of a block are.
 *
 * The mean pairwise cosine of a block X of n rows, pairs a = b included, needs no Gram matrix:
 *
 *   s(X) = (1/n^2) sum_{a,b} x^_a . x^_b = || (1/n) sum_a x^_a ||^2,   x^ = x/|x|,   0 <= s <= 1
 *
 * (SpargeAttn, arXiv 2502.18137, compares it with theta.) O(n d), in double.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Mean over all n tokens of x [n][d]: mean [d], summed in double, then rounded to `t`. */
void token_mean(const float *x, int64_t n, int d, enum dtype t, float *mean);

/* x [n][d] minus mean [d], each element rounded to `t`; out [n][d] may be x. */
void token_centre(const float *x, int64_t n, int d, const float *mean, enum dtype t, float *out);

/* Mean of the rows of one block x [n][d], summed in double, rounded to `t`. */
void block_mean(const float *x, int64_t n, int d, enum dtype t, float *mean);

/* a . b of d numbers, in double and in a fixed order. */
double row_product(const float *a, const float *b, int d);

/* out_j = a . row j of b [][d], or a . row at[j], as row_product. */
void row_products(const float *a, const float *b, int d, const int32_t *at, int64_t n, double *out);

/* s(X) clamped to [0, 1]. A row of zeros has no direction: it sets *zero_row (which may be NULL)
 * and adds nothing to the sum, but counts in n. d <= BLOCKPOOL_MAX_D. */
double block_cosine(const float *x, int64_t n, int d, bool *zero_row);

/* |mean|^2 / max_a |x_a|^2: the similarity as the SpargeAttn paper prints it, mean(X X^T) /
 * |max(X X^T)|, the largest Gram entry being on the diagonal. 1 for a block of zeros: its mean
 * stands for every row. */
double block_mean_share(const float *x, int64_t n, int d);

#define BLOCKPOOL_MAX_D 4096
