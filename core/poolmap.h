/*
 * poolmap.h - pooled maps of exact attention, which a trace stores instead of N x N probabilities.
 */
#ifndef LACUNA_POOLMAP_H
#define LACUNA_POOLMAP_H

#include "core/attention.h"

/* Compute the sum and the maximum of p over each cell (a, b) of pool x pool query-key pairs. Pairs
 * outside of the matrix, and in a causal head pairs that are not allowed, do not count:
 *
 *   sum_ab = sum p_ij        max_ab = max p_ij        p_ij = exp(s_ij) / (exp(LSE_i) + exp(z))
 *
 * with s_ij of core/attention.h; without a sink there is no exp(z). sum and max are
 * [ceil(nq / pool)][ceil(nk / pool)]. A row of `sum` adds up to the number of its query rows minus
 * the sink's share. lse [nq] is the dense LSE (attn_rows over MASK_FULL). Time O(nq nk d), memory
 * a few rows of nk doubles. */
int pool_map(const struct attn_ops *ops, const double *lse, int64_t pool, float *sum, float *max,
             struct err *err);

#endif
