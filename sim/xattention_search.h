/*
 * xattention_search.h - offline thresholds of XAttention for one head.
 */
#ifndef LACUNA_XATTENTION_SEARCH_H
#define LACUNA_XATTENTION_SEARCH_H

#include "core/method.h"
#include "sim/xattention.h"

/* The repository's rule: per row block take the fewest blocks that hold 0.9 of the exact mass; the
 * threshold is the share of the estimated mass in blocks whose estimate is at least the smallest of
 * theirs. The largest threshold over the samples. base gives everything but shapes, scale and tau.
 */
int xattn_search_repo(const struct xattn_config *base, const struct head_in *samples, int n,
                      double *tau, struct err *err);

/* Thresholds 0.9 * 0.9^m, m = 0..10: the sparsest with relative output error <= target on every
 * sample; 0.9 and *met = false if none is. */
int xattn_search_steps(const struct xattn_config *base, const struct head_in *samples, int n,
                       double target, double *tau, bool *met, struct err *err);

/* The configuration of one head: shapes, scale, causality and the automatic chunk filled in. */
struct xattn_config xattn_config_of(const struct xattn_config *base, const struct attn_in *x);

#endif
