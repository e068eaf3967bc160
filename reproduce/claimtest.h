/*
 * claimtest.h - the statistics behind claims, on values per unit. Nothing here knows papers or
 * pages.
 */
#ifndef LACUNA_CLAIMTEST_H
#define LACUNA_CLAIMTEST_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define CLAIM_MIN_UNITS 6
#define CLAIM_MEMBERS 32

enum claim_state { CLAIM_HOLDS, CLAIM_HOLDS_NOT, CLAIM_OPEN };

/* Values of the members of a claim: x[g] has n[g] units; paired: all members have the same units.
 */
struct claim_sample {
    double *x[CLAIM_MEMBERS];
    int64_t n[CLAIM_MEMBERS];
    int members;
    bool paired;
};

/* A number made of the means of the members. */
enum claim_stat {
    STAT_MEAN,       /* of the first member */
    STAT_DIFFERENCE, /* A - B, of four members A - B - (C - D) */
    STAT_RATIO,      /* A / B; of more members the geometric mean of each by the next */
    STAT_SPREAD,     /* largest - smallest */
    STAT_RANK,       /* Spearman's rho of the means with their order; at least 5 members */
};

struct claim_estimate {
    double value, lo, hi; /* with a bootstrap interval of 95 % over units */
    double wide_hi;       /* the upper end at the level 1 - 0.05 / tests */
    int64_t n;            /* units */
};

/* `tests`: how many comparisons the claim makes. n = 0 where a member has no unit. */
int claim_estimate(const struct claim_sample *s, enum claim_stat stat, int tests,
                   struct claim_estimate *out, struct err *err);

/* Is the number above 0? Holds: value > tie and lo > 0; does not hold: value < tie and wide_hi <
 * tie; open: else, and with fewer than CLAIM_MIN_UNITS units. */
enum claim_state claim_above(const struct claim_estimate *e, double tie);

/* Is the number inside of [l, h]? By the whole interval; `least` units are needed. */
enum claim_state claim_inside(const struct claim_estimate *e, double l, double h, int64_t least);

#endif
