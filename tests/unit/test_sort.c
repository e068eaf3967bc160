/*
 * test_sort.c - numbers in ascending order, by comparison and by digits.
 */
#include "core/rng.h"
#include "core/sort.h"
#include "tests/harness/test.h"

#include <math.h>
#include <stdlib.h>

static const int64_t sizes[] = {0, 1, 2, 511, 512, 513, 5000, 100000};

/* Ascending, and each value as often as before: equal sums of any odd function of the numbers do
 * not happen by chance. */
static void check_sorted(double *x, int64_t n)
{
    double before = 0, after = 0;
    int64_t infinite[2] = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        before += isinf(x[i]) ? 0 : floor(atan(x[i]) * 0x1p30);
        infinite[0] += isinf(x[i]) ? (x[i] > 0 ? 1 : 1 << 20) : 0;
    }
    sort_f64(x, n);
    for (int64_t i = 0; i < n; i++) {
        ck_assert(i == 0 || x[i - 1] <= x[i]);
        after += isinf(x[i]) ? 0 : floor(atan(x[i]) * 0x1p30);
        infinite[1] += isinf(x[i]) ? (x[i] > 0 ? 1 : 1 << 20) : 0;
    }
    ck_assert_double_eq(before, after); /* whole numbers, whose sum is below 2^53 */
    ck_assert_int_eq(infinite[0], infinite[1]);
}

LOOP_TEST(any_numbers, sizeof sizes / sizeof *sizes)
{
    int64_t n = sizes[_i];
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    for (int kind = 0; kind < 4; kind++) {
        for (int64_t i = 0; i < n; i++) {
            double u = rng_normal(1, (uint64_t)kind, (uint64_t)i);
            x[i] = kind == 0   ? u
                   : kind == 1 ? ldexp(u, (int)(i % 1200) - 600)
                   : kind == 2 ? (double)(i % 3) - 1
                               : fabs(u) * 1e-3;
            if (kind < 2 && i % 97 == 5)
                x[i] = i % 2 ? INFINITY : -INFINITY;
            if (i % 101 == 7)
                x[i] = i % 2 ? 0.0 : -0.0;
        }
        check_sorted(x, n);
    }
    free(x);
}
