/*
 * test_operands.c - what the heads of a call become on a GPU (cuda/operands.c), which needs none:
 * how often a launch holds a head that it times, and the power of two by which values are divided,
 * so that sums fit float32.
 */
#include "core/dtype.h"
#include "core/rng.h"
#include "cuda/operands.h"
#include "tests/harness/suite.h"

#include <math.h>

/* Of 132 multiprocessors, head dim 128. */
static struct accel_heads copies_in(int64_t memory, int wanted, int heads, int kv, int64_t nq,
                                    int64_t nk)
{
    struct attn_in x = {.nq = nq, .nk = nk, .d = 128, .dv = 128};
    return copies_of(wanted, (struct accel_heads){heads, kv}, &x, 132, memory);
}

/* With 128 GB, of heads with keys and values of their own. */
static int copies(int wanted, int heads, int64_t nq, int64_t nk)
{
    struct accel_heads n = copies_in(INT64_C(1) << 37, wanted, heads, heads, nq, nk);
    ck_assert_int_eq(n.kv, n.q);
    return n.q;
}

static void assert_copies(struct accel_heads n, int q, int kv)
{
    ck_assert_int_eq(n.q, q);
    ck_assert_int_eq(n.kv, kv);
}

TEST(as_many_as_are_asked_for)
{
    ck_assert_int_eq(copies(5, 32, 4096, 4096), 5);
    ck_assert_int_eq(copies(1, 32, 4096, 4096), 1);
    ck_assert_int_eq(copies(100, 32, 1 << 20, 1 << 20), 100);
}

TEST(as_many_as_the_call_has)
{
    ck_assert_int_eq(copies(0, 8, 16384, 16384), 8); /* 128 rows of tiles each */
    ck_assert_int_eq(copies(0, 32, 300, 300), 32);
    ck_assert_int_eq(copies(0, 0, 300, 300), 1);
}

TEST(no_more_than_keep_it_busy)
{
    ck_assert_int_eq(copies(0, 32, 32768, 32768), 9);   /* 132 * 16 / 256 */
    ck_assert_int_eq(copies(0, 32, 131072, 131072), 3); /* 132 * 16 / 1024 */
    ck_assert_int_eq(copies(0, 32, 1 << 24, 1 << 24), 1);
    ck_assert_int_eq(copies(0, 32, 0, 0), 1);
}

TEST(no_more_than_fit)
{
    const int64_t k = 1 << 20; /* 0.5 GB of keys, values */
    assert_copies(copies_in(INT64_C(1) << 37, 0, 32, 32, 128, k), 31, 31);
    assert_copies(copies_in(INT64_C(1) << 34, 0, 32, 32, 128, k), 3, 3);
    assert_copies(copies_in(INT64_C(1) << 30, 0, 32, 32, 128, k), 1, 1);
    assert_copies(copies_in(INT64_C(1) << 34, 0, 32, 8, 128, k), 12, 3);
    assert_copies(copies_in(INT64_C(1) << 32, 0, 32, 8, 128, k), 1, 1);
    assert_copies(copies_in(0, 0, 32, 32, 128, k), 1, 1);
}

/* Keys and values are read once per group in a call. */
TEST(groups_share_keys)
{
    const int64_t all = INT64_C(1) << 37, n = 16384;
    assert_copies(copies_in(all, 0, 8, 2, n, n), 8, 2);
    assert_copies(copies_in(all, 0, 64, 8, n, n), 16, 2);        /* 17 keep it busy */
    assert_copies(copies_in(all, 0, 64, 8, 131072, n), 3, 1);    /* part of a group */
    assert_copies(copies_in(all, 0, 28, 4, 2 * n, 2 * n), 7, 1); /* 9 do */
    assert_copies(copies_in(all, 3, 8, 2, n, n), 3, 1);
    assert_copies(copies_in(all, 6, 8, 2, n, n), 6, 2); /* 4 does not divide them, 3 does */
    assert_copies(copies_in(all, 7, 8, 2, n, n), 7, 7);
    assert_copies(copies_in(all, 1, 8, 2, n, n), 1, 1);
    assert_copies(copies_in(all, 0, 0, 0, n, n), 1, 1);
    assert_copies(copies_in(all, 5, 0, 0, n, n), 5, 5);
}

/* ---- values --------------------------------------------------------------------------------- */

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
