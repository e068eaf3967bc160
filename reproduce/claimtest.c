/*
 * claimtest.c - a point estimate alone never decides: every state needs an interval over units.
 */
#include "reproduce/claimtest.h"

#include "core/mem.h"
#include "core/rng.h"

#include <math.h>
#include <stdlib.h>

#define RESAMPLES 10000

/* Spearman's rho of m with its index; equal values have the mean of their ranks. All equal: 0. */
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
    double r = xy / sqrt(xx * yy);
    return isfinite(r) ? r : 0;
}

static double statistic(const double *m, int n, enum claim_stat stat)
{
    double most = m[0], least = m[0];
    switch (stat) {
    case STAT_DIFFERENCE:
        return n == 4 ? (m[0] - m[1]) - (m[2] - m[3]) : m[0] - m[1];
    case STAT_RATIO:
        return n == 2 ? m[0] / m[1] : pow(m[0] / m[n - 1], 1.0 / (n - 1));
    case STAT_RANK:
        return rho_of_index(m, n);
    case STAT_SPREAD:
        for (int g = 1; g < n; g++) {
            most = fmax(most, m[g]);
            least = fmin(least, m[g]);
        }
        return most - least;
    default:
        return m[0];
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The upper end of a percentile interval of this level; mirrored it is the lower one. */
static int upper_end(double level)
{
    return (int)ceil((1 + level) / 2 * (RESAMPLES - 1));
}

/* Means of resample k; paired members are drawn together. */
static void resample(const struct claim_sample *s, int64_t k, double *m)
{
    uint64_t draw = 0;
    for (int g = 0; g < s->members; g++) {
        draw = s->paired ? 0 : draw;
        m[g] = 0;
        for (int64_t i = 0; i < s->n[g]; i++)
            m[g] += s->x[g][rng_below(0, (uint64_t)k, draw++, (uint64_t)s->n[g])];
        m[g] /= (double)s->n[g];
    }
}

int claim_estimate(const struct claim_sample *s, enum claim_stat stat, int tests,
                   struct claim_estimate *out, struct err *err)
{
    double m[CLAIM_MEMBERS] = {0}, *drawn = NULL;
    int rc = 0;
    *out = (struct claim_estimate){NAN, NAN, NAN, NAN, 0};
    for (int g = 0; g < s->members; g++) {
        m[g] = 0;
        for (int64_t i = 0; i < s->n[g]; i++)
            m[g] += s->x[g][i] / (double)s->n[g];
        if (s->n[g] < 1)
            return 0;
        out->n = s->paired ? s->n[g] : out->n + s->n[g];
    }
    TRY(mem_alloc(&drawn, RESAMPLES, sizeof *drawn, "resamples", err));
    out->value = statistic(m, s->members, stat);
    for (int64_t k = 0; k < RESAMPLES; k++) {
        resample(s, k, m);
        drawn[k] = statistic(m, s->members, stat);
    }
    qsort(drawn, RESAMPLES, sizeof *drawn, by_value);
    out->lo = drawn[RESAMPLES - 1 - upper_end(0.95)];
    out->hi = drawn[upper_end(0.95)];
    out->wide_hi = drawn[upper_end(1 - 0.05 / tests)];
out:
    free(drawn);
    return rc;
}

enum claim_state claim_above(const struct claim_estimate *e, double tie)
{
    if (e->n < CLAIM_MIN_UNITS)
        return CLAIM_OPEN;
    if (e->value > tie && e->lo > 0)
        return CLAIM_HOLDS;
    return e->value < tie && e->wide_hi < tie ? CLAIM_HOLDS_NOT : CLAIM_OPEN;
}

enum claim_state claim_inside(const struct claim_estimate *e, double l, double h, int64_t least)
{
    if (e->n < least || !isfinite(e->value) || !isfinite(e->lo) || !isfinite(e->hi))
        return CLAIM_OPEN;
    if (e->lo >= l && e->hi <= h)
        return CLAIM_HOLDS;
    return e->lo > h || e->hi < l ? CLAIM_HOLDS_NOT : CLAIM_OPEN;
}
