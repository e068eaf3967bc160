/*
 * fgattn.h - slice selection of FG-Attn (arXiv 2509.16518v1), shared by the method and its
 * calibration.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/slicemask.h"

#include <stdbool.h>
#include <stdint.h>

enum fg_mode { FG_CACHED, FG_POOLED };
enum fg_norm { FG_NORM_EXACT, FG_NORM_PREVIOUS };
enum fg_pool { FG_POOL_NORM, FG_POOL_LITERAL, FG_POOL_TOPK };

struct fg_params {
    int mode, norm, pool, normaliser_n;
    int64_t M, refresh, width, dense_layers, dense_steps;
    double tau, c1, tau1, kappa;
    char *permute;
    bool compare;
};

/* How close the values of the cached rule came to its threshold. */
struct fg_stats {
    int64_t ties;     /* units with |ln(a N / c)| < 1e-3: float arithmetic may decide otherwise */
    double margin;    /* smallest |ln(a N / c)| */
    int64_t keys_min; /* fewest kept keys of a group */
};

/* Mask of the slices whose largest p exceeds c/N, and of the forced slices. lse [nq] is the
 * normaliser of p; NULL = this head's. Initialises *out. */
int fg_cached_mask(const struct fg_params *p, const struct head_in *in, double c, const double *lse,
                   struct slice_mask *out, struct fg_stats *stats, struct err *err);
