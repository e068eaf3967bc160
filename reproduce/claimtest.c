/*
 * claimtest.c - a point estimate alone never decides: every state needs an interval over units.
 */
#include "reproduce/claimtest.h"

#include "core/mem.h"
#include "reproduce/evidence.h"

#include <math.h>
#include <stdlib.h>

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
