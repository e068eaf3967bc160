/*
 * claimtest.c - a point estimate alone never decides: every state needs an interval over units.
 */
#include "reproduce/claimtest.h"

#include "core/mem.h"
#include "core/rng.h"
#include "reproduce/evidence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double mean(const double *x, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += x[i];
    return n ? s / (double)n : NAN;
}

int claim_more(const double *x, const double *y, int64_t n, double tie, int tests,
               struct claim_pair *out, struct err *err)
{
    double *d = NULL;
    int rc = 0;
    *out = (struct claim_pair){.a = mean(x, n), .b = mean(y, n), .n = n, .state = CLAIM_CANNOT};
    TRY(mem_alloc(&d, n, sizeof *d, "differences", err));
    for (int64_t i = 0; i < n; i++)
        d[i] = x[i] - y[i];
    out->d = mean(d, n);
    TRY(mean_interval(d, NULL, n, 0.95, &out->lo, &out->hi, err));
    out->low = out->lo;
    out->high = out->hi;
    if (tests > 1)
        TRY(mean_interval(d, NULL, n, 1 - 0.05 / tests, &out->low, &out->high, err));
    if (n < CLAIM_MIN_UNITS)
        goto out;
    if (out->d > tie && out->lo > 0)
        out->state = CLAIM_HOLDS;
    else if (out->d < tie && out->high < tie)
        out->state = CLAIM_HOLDS_NOT;
out:
    free(d);
    return rc;
}

int claim_within(const double *x, const double *y, int64_t n, enum claim_range of, double l,
                 double h, struct claim_pair *out, struct err *err)
{
    double *d = NULL;
    int rc = 0;
    *out = (struct claim_pair){
        .a = mean(x, n), .b = y ? mean(y, n) : NAN, .n = n, .state = CLAIM_CANNOT};
    TRY(mem_alloc(&d, n, sizeof *d, "values", err));
    for (int64_t i = 0; i < n; i++)
        d[i] = of == RANGE_OF_DIFFERENCE && y ? x[i] - y[i] : x[i];
    out->d = of == RANGE_OF_RATIO ? out->a / out->b : mean(d, n);
    TRY(mean_interval(d, of == RANGE_OF_RATIO ? y : NULL, n, 0.95, &out->lo, &out->hi, err));
    out->low = out->lo;
    out->high = out->hi;
    if (n < CLAIM_MIN_UNITS || !isfinite(out->lo) || !isfinite(out->hi))
        goto out;
    if (out->lo >= l && out->hi <= h)
        out->state = CLAIM_HOLDS;
    else if (out->lo > h || out->hi < l)
        out->state = CLAIM_HOLDS_NOT;
out:
    free(d);
    return rc;
}

/* ---- several groups ---------------------------------------------------------------------------
 */

#define RESAMPLES 10000

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void percentiles(double *m, double *lo, double *hi)
{
    qsort(m, RESAMPLES, sizeof *m, by_value);
    *lo = m[(int)floor(0.025 * (RESAMPLES - 1))];
    *hi = m[(int)ceil(0.975 * (RESAMPLES - 1))];
}

/* Spearman's rho of m with its index; equal values have the mean of their ranks. NAN: all equal. */
static double rho_of_index(const double *m, int n)
{
    double xy = 0, xx = 0, yy = 0, middle = (n - 1) / 2.0;
    for (int i = 0; i < n; i++) {
        double rank = 0;
        for (int k = 0; k < n; k++)
            rank += k == i ? 0 : m[k] < m[i] ? 1 : m[k] == m[i] ? 0.5 : 0;
        xy += (i - middle) * (rank - middle);
        xx += (i - middle) * (i - middle);
        yy += (rank - middle) * (rank - middle);
    }
    return xy / sqrt(xx * yy);
}

int claim_trend(const double *v, int members, int64_t n, struct claim_pair *out, struct err *err)
{
    double *m = NULL, *rho = NULL;
    int rc = 0;
    *out = (struct claim_pair){.d = NAN, .lo = NAN, .hi = NAN, .n = n, .state = CLAIM_CANNOT};
    if (n < 1 || members < 2)
        return 0;
    TRY(mem_alloc(&m, members, sizeof *m, "means", err));
    TRY(mem_alloc(&rho, RESAMPLES, sizeof *rho, "resamples", err));
    for (int i = 0; i < members; i++)
        m[i] = mean(&v[i * n], n);
    out->a = m[0];
    out->b = m[members - 1];
    out->d = rho_of_index(m, members);
    for (int64_t k = 0; k < RESAMPLES; k++) {
        memset(m, 0, (size_t)members * sizeof *m);
        for (int64_t i = 0; i < n; i++) {
            int64_t at = (int64_t)rng_below(0, (uint64_t)k, (uint64_t)i, (uint64_t)n);
            for (int g = 0; g < members; g++)
                m[g] += v[g * n + at];
        }
        double r = rho_of_index(m, members);
        rho[k] = isfinite(r) ? r : 0;
    }
    percentiles(rho, &out->lo, &out->hi);
    if (n >= CLAIM_MIN_UNITS && members >= CLAIM_MIN_TREND)
        out->state = out->lo > 0 ? CLAIM_HOLDS : out->hi < 0 ? CLAIM_HOLDS_NOT : CLAIM_CANNOT;
out:
    free(m);
    free(rho);
    return rc;
}

int claim_step(const double *v, int members, int64_t n, double l, double h, struct claim_pair *out,
               struct err *err)
{
    const double *last = &v[(members - 1) * n];
    double root = members > 1 ? 1.0 / (members - 1) : NAN;
    *out = (struct claim_pair){.a = mean(v, n),
                               .b = mean(last, n),
                               .d = NAN,
                               .lo = NAN,
                               .hi = NAN,
                               .n = n,
                               .state = CLAIM_CANNOT};
    if (members < 2 || !(out->a > 0) || !(out->b > 0))
        return 0;
    out->d = pow(out->b / out->a, root) - 1;
    int rc = mean_interval(last, v, n, 0.95, &out->lo, &out->hi, err);
    if (rc)
        return rc;
    /* A root keeps the order of what is above 0, and so the percentiles. */
    out->lo = pow(out->lo, root) - 1;
    out->hi = pow(out->hi, root) - 1;
    if (n < CLAIM_MIN_UNITS || !isfinite(out->lo) || !isfinite(out->hi))
        return 0;
    if (out->lo >= l && out->hi <= h)
        out->state = CLAIM_HOLDS;
    else if (out->lo > h || out->hi < l)
        out->state = CLAIM_HOLDS_NOT;
    return 0;
}

int claim_spread(double *const *x, const int64_t *n, int groups, bool paired, double least,
                 struct claim_pair *out, int *high, int *low, struct err *err)
{
    double *d = NULL;
    int64_t total = 0;
    int rc = 0;
    *out = (struct claim_pair){.d = NAN, .lo = NAN, .hi = NAN, .state = CLAIM_CANNOT};
    *high = *low = 0;
    for (int g = 0; g < groups; g++) {
        total = paired ? n[g] : total + n[g];
        if (n[g] < 1)
            return 0;
        *high = mean(x[g], n[g]) > mean(x[*high], n[*high]) ? g : *high;
        *low = mean(x[g], n[g]) < mean(x[*low], n[*low]) ? g : *low;
    }
    if (groups < 2)
        return 0;
    out->n = total;
    out->a = mean(x[*high], n[*high]);
    out->b = mean(x[*low], n[*low]);
    out->d = out->a - out->b;
    TRY(mem_alloc(&d, RESAMPLES, sizeof *d, "resamples", err));
    for (int64_t k = 0; k < RESAMPLES; k++) {
        double most = -INFINITY, fewest = INFINITY;
        uint64_t draw = 0;
        for (int g = 0; g < groups; g++) {
            double s = 0;
            draw = paired ? 0 : draw;
            for (int64_t i = 0; i < n[g]; i++)
                s += x[g][rng_below(0, (uint64_t)k, draw++, (uint64_t)n[g])];
            most = fmax(most, s / (double)n[g]);
            fewest = fmin(fewest, s / (double)n[g]);
        }
        d[k] = most - fewest;
    }
    percentiles(d, &out->lo, &out->hi);
    if (total >= CLAIM_MIN_UNITS)
        out->state = out->lo >= least  ? CLAIM_HOLDS
                     : out->hi < least ? CLAIM_HOLDS_NOT
                                       : CLAIM_CANNOT;
out:
    free(d);
    return rc;
}
