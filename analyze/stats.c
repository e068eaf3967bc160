/*
 * stats.c - mean with equal weights, standard deviation with n - 1, extremes, median (mean of the
 * two middle values when n is even). Two passes, so that values with a large common part keep their
 * digits; equal values deviate by exactly 0, which the rounded mean would not give. O(n log n).
 */
#include "analyze/stats.h"

#include "core/mem.h"
#include "core/rng.h"
#include "core/sort.h"

#include <math.h>
#include <stdbool.h>
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

#define EXACT_MOST 25
#define RESAMPLES 10000

static int by_value(const void *a, const void *b, void *values)
{
    const double *v = values;
    double x = v[*(const int64_t *)a], y = v[*(const int64_t *)b];
    return (x > y) - (x < y);
}

/* Average ranks, from 1, by an order that has room for n; returns the sum of t^3 - t over ties. */
static double average_ranks(const double *x, int64_t n, int64_t *order, double *rank)
{
    double ties = 0;
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, by_value, (void *)(uintptr_t)x);
    for (int64_t i = 0, k; i < n; i = k) {
        for (k = i; k < n && x[order[k]] == x[order[i]]; k++)
            ;
        for (int64_t m = i; m < k; m++)
            rank[order[m]] = (double)(i + 1 + k) / 2;
        double t = (double)(k - i);
        ties += t * t * t - t;
    }
    return ties;
}

/* Share of the 2^n sign patterns whose smaller sum of ranks is at most `least`: both tails. */
static int exact_p(const double *rank, int64_t n, double least, double *p, struct err *err)
{
    int64_t total = n * (n + 1); /* twice the sum of all ranks */
    double *ways = NULL, tail = 0;
    PASS_ON(mem_zalloc(&ways, total + 1, sizeof *ways, "signed-rank test", err));
    ways[0] = 1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t s = total, twice = (int64_t)(2 * rank[i]); s >= twice; s--)
            ways[s] += ways[s - twice];
    for (int64_t s = 0; s <= (int64_t)(2 * least); s++)
        tail += ways[s];
    free(ways);
    *p = fmin(1, 2 * tail / ldexp(1, (int)n));
    return 0;
}

static double normal_p(double n, double plus, double ties)
{
    double mean = n * (n + 1) / 4, var = n * (n + 1) * (2 * n + 1) / 24 - ties / 48;
    return var > 0 ? erfc(fabs(plus - mean) / sqrt(2 * var)) : 1;
}

static int signed_rank_test(const double *d, int64_t n, struct signed_rank *out, struct err *err)
{
    OWN(free_at) double *size = NULL, *rank = NULL;
    OWN(free_at) int64_t *order = NULL, *at = NULL;
    int64_t m = 0;
    *out = (struct signed_rank){.p = 1};
    PASS_ON(mem_alloc(&size, n, sizeof *size, "signed-rank test", err));
    PASS_ON(mem_alloc(&rank, n, sizeof *rank, "signed-rank test", err));
    PASS_ON(mem_alloc(&order, n, sizeof *order, "signed-rank test", err));
    PASS_ON(mem_alloc(&at, n, sizeof *at, "signed-rank test", err));
    for (int64_t i = 0; i < n; i++)
        if (d[i] != 0 && isfinite(d[i])) {
            size[m] = fabs(d[i]);
            at[m++] = i;
        }
    double ties = average_ranks(size, m, order, rank);
    for (int64_t i = 0; i < m; i++)
        *(d[at[i]] > 0 ? &out->plus : &out->minus) += rank[i];
    out->n = m;
    if (m > EXACT_MOST)
        out->p = normal_p((double)m, out->plus, ties);
    else if (m)
        return exact_p(rank, m, fmin(out->plus, out->minus), &out->p, err);
    return 0;
}

int holm_correct(double *p, int64_t n, struct err *err)
{
    int64_t *order = NULL, tests = 0;
    double last = 0;
    PASS_ON(mem_alloc(&order, n, sizeof *order, "order of tests", err));
    for (int64_t i = 0; i < n; i++)
        if (!isnan(p[i]))
            order[tests++] = i;
    qsort_r(order, (size_t)tests, sizeof *order, by_value, p);
    for (int64_t k = 0; k < tests; k++)
        p[order[k]] = last = fmax(last, fmin(1, (double)(tests - k) * p[order[k]]));
    free(order);
    return 0;
}

int spearman(const double *x, const double *y, int64_t n, double *rho, struct err *err)
{
    OWN(free_at) double *rank = NULL;
    double xy = 0, xx = 0, yy = 0, mean = (double)(n + 1) / 2;
    OWN(free_at) int64_t *order = NULL;
    PASS_ON(mem_alloc(&rank, 2 * n, sizeof *rank, "ranks", err));
    PASS_ON(mem_alloc(&order, n, sizeof *order, "ranks", err));
    average_ranks(x, n, order, rank);
    average_ranks(y, n, order, rank + n);
    for (int64_t i = 0; i < n; i++) {
        double a = rank[i] - mean, b = rank[n + i] - mean;
        xy += a * b;
        xx += a * a;
        yy += b * b;
    }
    *rho = xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
    return 0;
}

static double middle(const double *sorted, int64_t n)
{
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static int median_of(const double *x, int64_t n, double *out, struct err *err)
{
    OWN(free_at) double *y = NULL;
    PASS_ON(mem_alloc(&y, n, sizeof *y, "median", err));
    memcpy(y, x, (size_t)n * sizeof *y);
    sort_f64(y, n);
    *out = middle(y, n);
    return 0;
}

static int median_interval(const double *x, int64_t n, double *low, double *high, struct err *err)
{
    OWN(free_at) double *draw = NULL, *medians = NULL;
    PASS_ON(mem_alloc(&draw, n, sizeof *draw, "resample", err));
    PASS_ON(mem_alloc(&medians, RESAMPLES, sizeof *medians, "resamples", err));
    for (int64_t k = 0; k < RESAMPLES; k++) {
        for (int64_t i = 0; i < n; i++)
            draw[i] = x[rng_below(0, (uint64_t)k, (uint64_t)i, (uint64_t)n)];
        sort_f64(draw, n);
        medians[k] = middle(draw, n);
    }
    sort_f64(medians, RESAMPLES);
    /* Nearest ranks: 2.5 % and 97.5 % of the resamples. */
    *low = medians[RESAMPLES / 40 - 1];
    *high = medians[RESAMPLES - RESAMPLES / 40 - 1];
    return 0;
}

int paired_test(const double *d, int64_t n, struct paired *out, struct err *err)
{
    PASS_ON(median_of(d, n, &out->median, err));
    PASS_ON(median_interval(d, n, &out->low, &out->high, err));
    return signed_rank_test(d, n, &out->test, err);
}

static int by_x(const void *a, const void *b)
{
    double x = ((const struct curve_point *)a)->x, y = ((const struct curve_point *)b)->x;
    return (x > y) - (x < y);
}

/* Between two points: linear in the logarithms, in the numbers themselves where one is not
 * positive. */
static double between(const struct curve_point *a, const struct curve_point *b, double x)
{
    bool log_x = a->x > 0 && b->x > 0, log_y = a->y > 0 && b->y > 0;
    if (a->x == b->x)
        return (a->y + b->y) / 2;
    double t = log_x ? log(x / a->x) / log(b->x / a->x) : (x - a->x) / (b->x - a->x);
    return log_y ? a->y * pow(b->y / a->y, t) : a->y + t * (b->y - a->y);
}

double curve_at(struct curve_point *p, int64_t n, double x)
{
    qsort(p, (size_t)n, sizeof *p, by_x);
    for (int64_t i = 0; i < n; i++)
        if (p[i].x == x)
            return p[i].y;
    for (int64_t i = 1; i < n; i++)
        if (p[i - 1].x < x && x < p[i].x)
            return between(p + i - 1, p + i, x);
    return NAN;
}
