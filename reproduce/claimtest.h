/*
 * claimtest.h - the tests behind claims, on values per unit. Nothing here knows papers or pages.
 */
#ifndef LACUNA_CLAIMTEST_H
#define LACUNA_CLAIMTEST_H

#include "core/err.h"

#include <stdint.h>

#define CLAIM_MIN_UNITS 6

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

/* Is mean(x) - with y: mean(x) / mean(y), or with `difference` mean(x - y) - inside of [l, h]? Ends
 * may be infinite: below and above. */
enum claim_range { RANGE_OF_MEAN, RANGE_OF_RATIO, RANGE_OF_DIFFERENCE };
int claim_within(const double *x, const double *y, int64_t n, enum claim_range of, double l,
                 double h, struct claim_pair *out, struct err *err);

#endif
