/*
 * claimtest.h - the tests behind claims, on values per unit. Nothing here knows papers or pages.
 */
#ifndef LACUNA_CLAIMTEST_H
#define LACUNA_CLAIMTEST_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define CLAIM_MIN_UNITS 6
#define CLAIM_MIN_TREND 5 /* points of an axis */

enum claim_state { CLAIM_HOLDS, CLAIM_HOLDS_NOT, CLAIM_CANNOT };

/* One side of a comparison: mean over units, and the paired values where units are shared. */
struct claim_pair {
    double a, b;      /* means */
    double d, lo, hi; /* of the paired differences, or of the ratio */
    double low, high; /* the same interval at the level of several tests */
    int64_t n;
    enum claim_state state;
};

/* Is A more than B? x, y: paired values. `tests`: how many comparisons the claim makes; a reversal
 * must hold at level 1 - 0.05 / tests.
 *   holds           mean d > tie and lower end > 0
 *   does not hold   mean d < tie and upper end < tie (of the wider interval where tests > 1)
 *   cannot be told  else, and where n < CLAIM_MIN_UNITS */
int claim_more(const double *x, const double *y, int64_t n, double tie, int tests,
               struct claim_pair *out, struct err *err);

/* Does the mean rise along the axis? v: [members][n], one row per point of the axis, units in the
 * same order. Spearman's rho of the means, with its interval over units.
 *   holds lower end > 0, does not hold upper end < 0; else, with fewer than 5 points or
 *   CLAIM_MIN_UNITS units, cannot be told */
int claim_trend(const double *v, int members, int64_t n, struct claim_pair *out, struct err *err);

/* Does the mean change from one point of the axis to the next by a share inside of [l, h], in the
 * geometric mean over the steps: (last / first)^(1 / (members - 1)) - 1, of means over units? v as
 * above; 0.2: a rise by 20 % at each step. Cannot be told where a mean is not above 0. */
int claim_step(const double *v, int members, int64_t n, double l, double h, struct claim_pair *out,
               struct err *err);

/* Is the largest mean of a group at least `least` above the smallest? x[i]: the n[i] values of
 * group i; `paired`: all groups have the same units. high, low: the groups. */
int claim_spread(double *const *x, const int64_t *n, int groups, bool paired, double least,
                 struct claim_pair *out, int *high, int *low, struct err *err);

/* Is mean(x), mean(x) / mean(y) or mean(x - y) inside of [l, h]? Ends may be infinite: below and
 * above. y is NULL with RANGE_OF_MEAN. */
enum claim_range { RANGE_OF_MEAN, RANGE_OF_RATIO, RANGE_OF_DIFFERENCE };
int claim_within(const double *x, const double *y, int64_t n, enum claim_range of, double l,
                 double h, struct claim_pair *out, struct err *err);

#endif
