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
};

/* Statistics of x[0..n). The finite values are moved to the front and sorted. */
void stats_of(double *x, int64_t n, struct stats *out);

/* Do the means differ by more than two standard errors of their difference? False where one of them
 * has fewer than two values. */
bool stats_differ(const struct stats *a, const struct stats *b);

#endif
