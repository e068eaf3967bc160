/*
 * fgattn_calib.c - parameters of FG-Attn per head (the paper has none; both searches are ours).
 *
 *   mode=cached   the largest c of a list for which the mask of the same step meets a bound on
 *                 every sample: cra_p1 >= bound (falls with c: bisection) or err_l1_rel <= bound
 *                 (not monotone: tried from the largest c down). Written as "tau"; the smallest c
 *                 of the list when none meets the bound.
 *   mode=pooled   the c1, tau1 or kappa whose density, averaged over the samples, equals that of
 *                 the cached mask with c = tau on the same samples, so that both rules can be
 *                 compared at equal cost.
 */
#include "core/sort.h"
#include "sim/methods/fgattn/fgattn.h"

#include "core/mem.h"
#include "sim/blocks/exact.h"
#include "sim/metrics.h"
#include "sim/blocks/numlist.h"

#include <math.h>
#include <stdlib.h>

#define CHUNK 2048
#define LIST_MOST 256

/* ---- how good a mask is --------------------------------------------------------------------- */

/* cra_p1 or err_l1_rel of a mask on a head. */
static int mask_quality(const struct slice_mask *mask, const struct head_in *in,
                        enum fg_metric metric, double *out, struct err *err)
{
    const struct attn_in *x = &in->x;
    bool want_out = metric == FG_ERR_L1;
    const double *dense;
    double *o = NULL, *lse = NULL, delta = 0, ref = 0;
    int64_t step = (CHUNK + mask->height - 1) / mask->height * mask->height;
    struct mask m = {0};
    int rc = 0;

    TRY(mem_alloc(&lse, x->nq, sizeof *lse, "log-sum-exp", err));
    if (want_out)
        TRY(mem_alloc(&o, step * x->dv, sizeof *o, "output rows", err));
    for (int64_t r = 0; r < x->nq; r += step) {
        int64_t end = r + step < x->nq ? r + step : x->nq;
        TRY(slice_mask_lists(mask, r, end, &m, err));
        TRY(exact_attend(in->exact, &m, o, lse + r, err));
        mask_free(&m);
        if (want_out)
            TRY(exact_out(in->exact, r, end, &dense, err));
        for (int64_t k = 0; want_out && k < (end - r) * x->dv; k++) {
            delta += fabs(o[k] - dense[k]);
            ref += fabs(dense[k]);
        }
    }
    TRY(exact_lse(in->exact, 0, x->nq, &dense, err));
    for (int64_t i = 0; i < x->nq; i++)
        lse[i] = lse[i] == -INFINITY ? 0 : exp(lse[i] - dense[i]);
    sort_f64(lse, x->nq);
    *out = want_out ? ratio_or_inf(delta, ref) : percentile_sorted(lse, x->nq, 1);
out:
    mask_free(&m);
    free(o);
    free(lse);
    return rc;
}

/* Does the mask with threshold c meet the bound on every sample? */
static int meets(const struct fg_params *p, const struct head_in *samples, int n, double c,
                 double bound, bool *ok, struct err *err)
{
    int rc = 0;
    *ok = true;
    for (int k = 0; k < n && *ok && !rc; k++) {
        struct slice_mask m = {0};
        struct fg_stats stats;
        double q = 0;
        rc = fg_cached_mask(p, &samples[k], c, NULL, &m, &stats, err);
        if (!rc)
            rc = mask_quality(&m, &samples[k], (enum fg_metric)p->cal_metric, &q, err);
        *ok = p->cal_metric == FG_CRA_P1 ? q >= bound : q <= bound;
        slice_mask_free(&m);
    }
    return rc;
}

static int calibrate_cached(const struct fg_params *p, const struct head_in *samples, int n,
                            struct jw *w, struct err *err)
{
    double list[LIST_MOST];
    double bound = !isnan(p->cal_bound) ? p->cal_bound : p->cal_metric == FG_CRA_P1 ? 0.95 : 0.05;
    int count, best = 0, rc = 0;
    bool ok;

    for (int k = 0; k < n && p->cal_metric == FG_ERR_L1; k++)
        exact_expect_out(samples[k].exact);
    TRY(num_list_parse(p->cal_list, "cal_list", 0, list, LIST_MOST, &count, err));
    sort_f64(list, count);
    if (p->cal_metric == FG_CRA_P1) {
        for (int lo = 0, hi = count - 1; lo <= hi;) {
            int mid = (lo + hi) / 2;
            TRY(meets(p, samples, n, list[mid], bound, &ok, err));
            if (ok) {
                best = mid;
                lo = mid + 1;
            } else {
                hi = mid - 1;
            }
        }
    } else {
        for (int k = count - 1; k > 0; k--) {
            TRY(meets(p, samples, n, list[k], bound, &ok, err));
            if (ok) {
                best = k;
                break;
            }
        }
    }
    jw_knum(w, "tau", list[best]);
out:
    return rc;
}

/* ---- pooled at equal density ---------------------------------------------------------------- */

static int pooled_density(const struct fg_params *p, const struct head_in *samples, int n,
                          double *mean, struct err *err)
{
    int rc = 0;
    *mean = 0;
    for (int k = 0; k < n && !rc; k++) {
        struct slice_mask m = {0};
        double d = 0;
        rc = fg_pooled_mask(p, &samples[k], &m, err);
        if (!rc)
            rc = slice_mask_density(&m, &d, err);
        *mean += d / n;
        slice_mask_free(&m);
    }
    return rc;
}

static int cached_density(const struct fg_params *p, const struct head_in *samples, int n,
                          double *mean, struct err *err)
{
    int rc = 0;
    *mean = 0;
    for (int k = 0; k < n && !rc; k++) {
        struct slice_mask m = {0};
        struct fg_stats stats;
        double d = 0;
        rc = fg_cached_mask(p, &samples[k], p->tau, NULL, &m, &stats, err);
        if (!rc)
            rc = slice_mask_density(&m, &d, err);
        *mean += d / n;
        slice_mask_free(&m);
    }
    return rc;
}

/* The parameter of the pooled rule as a search variable in which density does not rise: ln c1,
 * ln tau1, -kappa. */
static void set_search(struct fg_params *p, double x)
{
    if (p->pool == FG_POOL_NORM)
        p->c1 = exp(x);
    else if (p->pool == FG_POOL_LITERAL)
        p->tau1 = exp(x);
    else
        p->kappa = -x;
}

/* Halvings: 2^-60 of the interval is below a double's spacing. */
#define HALVINGS 60

static int calibrate_pooled(const struct fg_params *given, const struct head_in *samples, int n,
                            struct jw *w, struct err *err)
{
    struct fg_params p = *given;
    double want, d, lo, hi, d_lo = 1, d_hi = 0;
    int rc = 0;

    TRY(cached_density(&p, samples, n, &want, err));
    lo = p.pool == FG_POOL_TOPK ? -1 : -690;
    hi = p.pool == FG_POOL_TOPK ? -1e-12 : 690;
    for (int k = 0; k < HALVINGS; k++) {
        double mid = lo + (hi - lo) / 2;
        set_search(&p, mid);
        TRY(pooled_density(&p, samples, n, &d, err));
        if (d >= want) {
            lo = mid;
            d_lo = d;
        } else {
            hi = mid;
            d_hi = d;
        }
    }
    set_search(&p, want - d_hi < d_lo - want ? hi : lo);
    if (p.pool == FG_POOL_NORM)
        jw_knum(w, "c1", p.c1);
    else if (p.pool == FG_POOL_LITERAL)
        jw_knum(w, "tau1", p.tau1);
    else
        jw_knum(w, "kappa", p.kappa);
out:
    return rc;
}

int fg_calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples, int n,
                 struct jw *w, struct err *err)
{
    const struct fg_params *p = params;
    return p->mode == FG_POOLED ? calibrate_pooled(p, samples, n, w, err)
                                : calibrate_cached(p, samples, n, w, err);
}
