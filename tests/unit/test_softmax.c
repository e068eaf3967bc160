/*
 * test_softmax.c - the loops of a softmax row against the C library, at every length that ends
 * inside a vector, and at the edges of the exponent.
 */
#include "core/attention.h"

#include "core/rng.h"
#include "tests/harness/suite.h"

#include <math.h>

enum { MOST = 200 };

TEST(sums_of_exponentials)
{
    for (int64_t n = 1; n < MOST; n++) {
        float f[MOST] = {0}, f2[MOST];
        double d[MOST] = {0}, d2[MOST], top = -INFINITY, want = 0, want2 = 0;
        for (int64_t j = 0; j < n; j++) {
            f[j] = f2[j] = (float)(20 * rng_normal(3, (uint64_t)n, (uint64_t)j));
            d[j] = d2[j] = f[j];
            top = fmax(top, d[j]);
        }
        ck_assert_double_eq(row_max_f64(d, n), top);
        ck_assert_double_eq((double)row_max_f32(f, n), top);
        for (int64_t j = 0; j < n; j++) {
            want += exp(d[j] - top);
            want2 += exp2(d[j] - top);
        }
        ck_assert_double_eq_tol(exp_sum_f64(d, n, top), want, 1e-14 * want);
        ck_assert_double_eq_tol(exp2_sum_f64(d2, n, top), want2, 1e-14 * want2);
        ck_assert_double_eq_tol(exp_sum_f32(f, n, (float)top), want, 1e-6 * want);
        ck_assert_double_eq_tol(exp2_sum_f32(f2, n, (float)top), want2, 1e-6 * want2);
        for (int64_t j = 0; j < n; j++) {
            ck_assert_double_le(d[j], 1);
            ck_assert_double_eq_tol(f[j], d[j], 1e-5 * d[j] + 1e-37);
            ck_assert_double_eq_tol(f2[j], d2[j], 1e-5 * d2[j] + 1e-37);
        }
    }
}

TEST(what_is_too_small_is_zero)
{
    double d[] = {0, -707, -709, -INFINITY}, d2[] = {0, -1021, -1022, -INFINITY};
    float f[] = {0, -86, -88, -INFINITY}, f2[] = {0, -125, -126, -INFINITY};
    ck_assert_double_eq(exp_sum_f64(d, 0, 0), 0);
    ck_assert(row_max_f64(d, 0) == -INFINITY);
    exp_sum_f64(d, 4, 0);
    exp2_sum_f64(d2, 4, 0);
    exp_sum_f32(f, 4, 0);
    exp2_sum_f32(f2, 4, 0);
    ck_assert(d[0] == 1 && d2[0] == 1 && f[0] == 1 && f2[0] == 1);
    ck_assert_double_eq_tol(d[1], exp(-707), 1e-14 * exp(-707));
    ck_assert_double_eq(d2[1], 0x1p-1021);
    ck_assert_double_eq_tol(f[1], exp(-86), 1e-6 * exp(-86));
    ck_assert_double_eq(f2[1], 0x1p-125);
    for (int i = 2; i < 4; i++)
        ck_assert(d[i] == 0 && d2[i] == 0 && f[i] == 0 && f2[i] == 0);
}

TEST(a_row_of_weights)
{
    double z[] = {-1000, 0, 1, 0}, one = -5;
    softmax_f64(z, 4);
    softmax_f64(&one, 1);
    ck_assert_double_eq(one, 1);
    ck_assert_double_eq(z[0], 0);
    ck_assert_double_eq(z[1], z[3]);
    ck_assert_double_eq_tol(z[2] / z[1], exp(1), 1e-14);
    ck_assert_double_eq_tol(z[1] + z[2] + z[3], 1, 1e-15);
}
