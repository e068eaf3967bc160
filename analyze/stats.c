/*
 * stats.c - mean with equal weights, standard deviation with n - 1, extremes, median (mean of the
 * two middle values when n is even). Two passes, so that values with a large common part keep their
 * digits; equal values deviate by exactly 0, which the rounded mean would not give. O(n log n).
 */
#include "analyze/stats.h"

#include "core/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void stats_of(double *x, int64_t n, struct stats *out)
{
    int64_t m = 0;
    bool all_inf = n > 0;
    for (int64_t i = 0; i < n; i++) {
        all_inf = all_inf && isinf(x[i]) && x[i] > 0;
        if (isfinite(x[i]))
            x[m++] = x[i];
    }
    *out = (struct stats){m, n - m, NAN, NAN, NAN, NAN, NAN, NAN, NAN, m > 0, all_inf};
    if (m == 0)
        return;
    sort_f64(x, m);
    double sum = 0, square = 0;
    for (int64_t i = 0; i < m; i++) {
        sum += x[i];
        out->zero_one = out->zero_one && (x[i] == 0 || x[i] == 1);
    }
    out->mean = sum / (double)m;
    for (int64_t i = 0; i < m; i++)
        square += (x[i] - out->mean) * (x[i] - out->mean);
    if (m > 1)
        out->sd = x[0] == x[m - 1] ? 0 : sqrt(square / (double)(m - 1));
    out->min = x[0];
    out->max = x[m - 1];
    out->median = m % 2 ? x[m / 2] : (x[m / 2 - 1] + x[m / 2]) / 2;
    out->q1 = x[(m + 3) / 4 - 1];
    out->q3 = x[(3 * m + 3) / 4 - 1];
}

void stats_wilson(const struct stats *s, double *low, double *high)
{
    const double z = 1.96;
    double n = (double)s->n, p = s->mean, scale = 1 / (1 + z * z / n);
    double middle = scale * (p + z * z / (2 * n));
    double half = scale * z * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *low = p == 0 ? 0 : middle - half; /* exactly, where rounding would not give it */
    *high = p == 1 ? 1 : middle + half;
}

bool stats_differ(const struct stats *a, const struct stats *b)
{
    if (a->n < 2 || b->n < 2)
        return false;
    double error = sqrt(a->sd * a->sd / (double)a->n + b->sd * b->sd / (double)b->n);
    return fabs(a->mean - b->mean) > 2 * error;
}
