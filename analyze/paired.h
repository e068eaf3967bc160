/*
 * paired.h - statistics of pairs: the signed-rank test, Holm's correction, a bootstrap interval of
 * the median, Spearman's rank correlation.
 */
#ifndef LACUNA_PAIRED_H
#define LACUNA_PAIRED_H

#include "core/err.h"

#include <stdint.h>

/* Wilcoxon's signed-rank test (F. Wilcoxon, "Individual comparisons by ranking methods", 1945).
 * Differences of 0 are left out, equal sizes get their mean rank. */
struct signed_rank {
    int64_t n;          /* differences other than 0 */
    double plus, minus; /* sums of the ranks of positive and negative differences */
    double p;           /* two-sided; 1 where n = 0 */
};

/* p is exact for n <= 25 (over all 2^n signs of the ranks at hand, ties included); above, by the
 * normal approximation with tie correction, without continuity correction. */
int signed_rank_test(const double *d, int64_t n, struct signed_rank *out, struct err *err);

/* Holm's step-down correction (S. Holm, 1979) in place; values that are NAN are no tests. */
int holm_correct(double *p, int64_t n, struct err *err);

/* Spearman's rank correlation of x and y with average ranks; NAN where all values of one side are
 * equal. */
int spearman(const double *x, const double *y, int64_t n, double *rho, struct err *err);

/* Median of x[0..n), n >= 1. */
int median_of(const double *x, int64_t n, double *out, struct err *err);

/* 95 % percentile interval of the median over 10,000 resamples of the differences, seed 0. */
int median_interval(const double *x, int64_t n, double *low, double *high, struct err *err);

/* All of these for paired differences d[0..n), n >= 1. */
struct paired {
    double median, low, high; /* of the differences, and its interval */
    struct signed_rank test;
};
int paired_test(const double *d, int64_t n, struct paired *out, struct err *err);

#endif
