/*
 * fgattn.h - slice selection of FG-Attn (arXiv 2509.16518v1), shared by the method and its
 * calibration.
 */
#ifndef LACUNA_FGATTN_H
#define LACUNA_FGATTN_H

#include "core/method.h"
#include "sim/slicemask.h"

#include <stdbool.h>
#include <stdint.h>

enum fg_mode { FG_CACHED, FG_POOLED };
enum fg_norm { FG_NORM_EXACT, FG_NORM_PREVIOUS };
enum fg_pool { FG_POOL_NORM, FG_POOL_LITERAL, FG_POOL_TOPK };
enum fg_metric { FG_CRA_P1, FG_ERR_L1 };

struct fg_params {
    int mode, norm, pool, normaliser_n;
    int64_t M, refresh, width, dense_layers, dense_steps;
    double tau, c1, tau1, kappa;
    char *permute;
    bool compare;
    /* calibration */
    char *cal_list;
    int cal_metric;
    double cal_bound;
};

/* What the threshold of the cached rule met. */
struct fg_stats {
    int64_t ties;      /* units with |ln(a N / c)| < 1e-3: float arithmetic may decide otherwise */
    double margin;     /* smallest |ln(a N / c)| */
    int64_t keys_min;  /* fewest kept keys of a group */
};

/* N of c/N. */
double fg_n(const struct fg_params *p, const struct head_in *in);

/* Slices whose largest p exceeds c/N, and the forced ones. lse [nq]: normaliser of p; own: it is
 * this head's. *out is initialised here. */
int fg_cached_mask(const struct fg_params *p, const struct head_in *in, double c, const double *lse,
                   bool own, struct slice_mask *out, struct fg_stats *stats, struct err *err);

/* Decision values of the pooled rule for the units of group g: the largest over the unit's visible
 * keys of pi_gj N (norm) or t_gj = scale k_j . qbar_g (literal, topk).
 * keys [nk] is scratch, value [units]; *n = number of visible units. */
int fg_pooled_values(const struct fg_params *p, const struct head_in *in,
                     const struct slice_mask *shape, int64_t g, double *keys, double *value,
                     int64_t *n, struct err *err);

/* Slices chosen by the pooled rule. *out is initialised here. */
int fg_pooled_mask(const struct fg_params *p, const struct head_in *in, struct slice_mask *out,
                   struct err *err);

/* Calibration, see method_fg_attn. */
int fg_calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples, int n,
                 struct jw *w, struct err *err);

#endif
