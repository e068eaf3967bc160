/*
 * test_values.c - the power of two by which values are divided before they go to a GPU
 * (cuda/operands.c), which needs no GPU: when there is one, and that sums then fit float32.
 */
#include "cuda/operands.h"
#include "core/dtype.h"
#include "core/rng.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <string.h>

static const struct {
    float most;
    int e;
} cases[] = {
    {0, 0},
    {1, 0},
    {-65504, 0},
    {0x1.fffffep39f, 0}, /* just below the limit */
    {0x1p40f, 41},
    {-0x1p40f, 41},
    {0x1p64f, 65},
    {1e36f, 120},
    {0x1.fffffep127f, 128}, /* the largest float */
    {0x1p-40f, 0},
    {0x1.fffffep-41f, -40},
    {1e-36f, -119},
    {0x1p-149f, -148}, /* the smallest one */
};

TEST_EACH(the_largest_value_decides, cases)
{
    float v[4] = {0, cases[_i].most, cases[_i].most / 2, -cases[_i].most / 4}, scaled[4];
    int e = values_exponent(v, 4);

    ck_assert_int_eq(e, cases[_i].e);
    if (!e)
        return;
    values_scale(v, 4, e, scaled);
    ck_assert(fabsf(scaled[1]) >= 0.5f && fabsf(scaled[1]) < 1);
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq(ldexp(scaled[i], e), v[i]);
}

/* As without the values that are no numbers. */
TEST(infinity_does_not_decide)
{
    const float v[] = {INFINITY, 3, NAN, -INFINITY}, big[] = {NAN, -1e36f};
    ck_assert_int_eq(values_exponent(v, 4), 0);
    ck_assert_int_eq(values_exponent(big, 2), 120);
    ck_assert_int_eq(values_exponent(v, 0), 0);
}

/* One channel as a kernel adds it up: in float, with probabilities of up to 2^60. */
static float sum_of(const float *v, int n, float *square)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += 0x1p60f * bf16_to_f32(f32_to_bf16(v[i]));
    *square = sum / (0x1p60f * (float)n) * (sum / (0x1p60f * (float)n));
    return sum;
}

TEST_N(sums_fit_float32, 5)
{
    enum { N = 4096 };
    static const float sizes[] = {1e36f, 0x1p126f, 0x1p-126f, 1e-36f, 0x1p39f};
    static float v[N], scaled[N];

    for (int i = 0; i < N; i++)
        v[i] = sizes[_i] * (float)(1 + rng_uniform(3, 0, (uint64_t)i)) / 2;
    int e = values_exponent(v, N);
    float square, sum = sum_of(v, N, &square);
    ck_assert(e == 0 ? isfinite(sum) : !isfinite(sum) || !(square > 0)); /* it would not fit */
    values_scale(v, N, e, scaled);
    sum = sum_of(scaled, N, &square);
    ck_assert(isfinite(sum) && isfinite(square) && square > 0);
    double exact = 0;
    for (int i = 0; i < N; i++)
        exact += v[i] / (double)N;
    double got = ldexp(sum / 0x1p60 / N, e);
    ck_assert_msg(fabs(got - exact) <= 0x1p-8 * exact, "%g, expected %g", got, exact);
}
