/*
 * stats.h - statistics of a group of values (the aggregation rule of doc/records.md), of pairs (the
 * signed-rank test, Holm's correction, a bootstrap interval of the median, Spearman's rank
 * correlation), and a curve through points.
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

struct stats {
    int64_t n;                         /* finite values */
    int64_t n_bad;                     /* values that are infinite or not a number: left out */
    double mean, sd, min, median, max; /* NAN when n = 0; sd (n - 1) is NAN when n < 2 */
    double q1, q3;                     /* quartiles, nearest rank */
    bool zero_one;                     /* every finite value is 0 or 1; false when n = 0 */
    bool all_inf;                      /* every value is +infinity, as PSNR of equal clips is */
};

/* Statistics of x[0..n). The finite values are moved to the front and sorted. */
void stats_of(double *x, int64_t n, struct stats *out);

/* Wilson's 95 % interval (z = 1.96) of the share of ones among values of 0 and 1 (`zero_one`):
 * E. B. Wilson, JASA 22 (1927). */
void stats_wilson(const struct stats *s, double *low, double *high);

/* Do the means differ by more than two standard errors of their difference? False where one of them
 * has fewer than two values. */
bool stats_differ(const struct stats *a, const struct stats *b);

/* Wilcoxon's signed-rank test (F. Wilcoxon, "Individual comparisons by ranking methods", 1945).
 * Differences of 0 are left out, equal sizes get their mean rank. */
struct signed_rank {
    int64_t n;          /* differences other than 0 */
    double plus, minus; /* sums of the ranks of positive and negative differences */
    double p;           /* two-sided; 1 where n = 0. Exact for n <= 25 (over all 2^n signs of the
                         * ranks at hand, ties included); above, by the normal approximation with
                         * tie correction, without continuity correction */
};

/* Holm's step-down correction (S. Holm, 1979) in place; values that are NAN are no tests. */
int holm_correct(double *p, int64_t n, struct err *err);

/* Spearman's rank correlation of x and y with average ranks; NAN where all values of one side are
 * equal. */
int spearman(const double *x, const double *y, int64_t n, double *rho, struct err *err);

/* Of paired differences d[0..n), n >= 1. */
struct paired {
    double median, low, high; /* and its 95 % percentile interval over 10,000 resamples, seed 0 */
    struct signed_rank test;
};
int paired_test(const double *d, int64_t n, struct paired *out, struct err *err);

struct curve_point {
    double x, y;
};

/* y at x, interpolated between the neighbours: on logarithmic scales as far as both are above 0.
 * NAN beyond the ends. Sorts the n points by x. */
double curve_at(struct curve_point *p, int64_t n, double x);
