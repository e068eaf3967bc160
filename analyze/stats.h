/*
 * stats.h - plain statistics of a group of values: the aggregation rule of doc/records.md.
 */
#ifndef LACUNA_STATS_H
#define LACUNA_STATS_H

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

#endif
