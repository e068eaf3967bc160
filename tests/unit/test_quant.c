/*
 * The quantisers shared by SageAttention, SpargeAttn and SALE: rounding rules, scale groups, e4m3
 * and fp16 grids.
 */
#include "core/dtype.h"
#include "core/rng.h"
#include "sim/blocks/quant.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>

static const struct quant_groups tensor = {OWN_BY_TENSOR, false, 0, 0};

TEST(rounding_rules_differ_at_halves)
{
    const struct {
        int levels;
        float amax, x;
        int eps, away, even;
    } c[] = {
        {127, 127, 63.5f, 63, 64, 64},
        {127, 127, 62.5f, 62, 63, 62},
        {127, 127, 0.5f, 0, 1, 0},
        {127, 127, 126.5f, 126, 127, 126},
        {127, 127, -63.5f, -63, -64, -64},
        {127, 127, 127, 127, 127, 127},
        {7, 7, 2.5f, 2, 3, 2},
        {7, 7, 3.5f, 3, 4, 4},
        {7, 7, -2.5f, -2, -3, -2},
        {7, 7, 1.5f, 1, 2, 2},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        ck_assert_int_eq(quant_value(OWN_RHA_EPS, c[i].levels, c[i].amax, c[i].x), c[i].eps);
        ck_assert_int_eq(quant_value(OWN_RHA, c[i].levels, c[i].amax, c[i].x), c[i].away);
        ck_assert_int_eq(quant_value(OWN_RNE, c[i].levels, c[i].amax, c[i].x), c[i].even);
    }
}

TEST(scales_of_a_group)
{
    ck_assert_float_eq(quant_delta(OWN_RHA_EPS, 127, 127), 0x1.000002p+0f);
    ck_assert_float_eq(quant_delta(OWN_RHA, 127, 127), 1);
    ck_assert_float_eq(quant_delta(OWN_RNE, 127, 254), 2);
    ck_assert_float_eq(quant_delta(OWN_RNE, 127, 0), 1e-7f / 127);
    ck_assert_float_eq(quant_delta(OWN_RHA_EPS, 7, 0), 1e-7f);
}

TEST(zero_group_has_zero_integers)
{
    float x[8] = {0};
    struct quant q;
    for (int r = OWN_RHA_EPS; r <= OWN_RNE; r++) {
        MUST(quant_int(&q, x, 2, 4, &tensor, 127, r, ERR));
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(q.q[i], 0);
        quant_free(&q);
    }
}

TEST(integers_stay_within_the_levels)
{
    OWN(free_at) float *x = malloc(64 * 16 * sizeof *x);
    for (int i = 0; i < 64 * 16; i++)
        x[i] = (float)(rng_normal(1, 0, (uint64_t)i) * exp(rng_normal(2, 0, (uint64_t)i) * 3));
    const int levels[] = {127, 7};
    for (int l = 0; l < 2; l++)
        for (int r = OWN_RHA_EPS; r <= OWN_RNE; r++) {
            struct quant_groups g = {OWN_BY_THREAD, false, 32, 16};
            OWN(quant_free) struct quant q;
            MUST(quant_int(&q, x, 64, 16, &g, levels[l], r, ERR));
            for (int i = 0; i < 64 * 16; i++) {
                float back = (float)q.q[i] * quant_scale_of(&q, i / 16);
                ck_assert_int_le(abs(q.q[i]), levels[l]);
                ck_assert_float_le(fabsf(back - x[i]), quant_scale_of(&q, i / 16) * 0.5001f);
            }
        }
}

TEST(scale_counts)
{
    struct quant_groups q90 = {OWN_BY_THREAD, false, 64, 16}, k90 = {OWN_BY_THREAD, true, 128, 0};
    struct quant_groups q89 = {OWN_BY_THREAD, false, 128, 32}, k89 = {OWN_BY_THREAD, true, 64, 0};
    ck_assert_int_eq(quant_group_count(&q90, 1000), 512);
    ck_assert_int_eq(quant_group_count(&k90, 1000), 32);
    ck_assert_int_eq(quant_group_count(&q89, 1000), 256);
    ck_assert_int_eq(quant_group_count(&k89, 1000), 64);
    struct quant_groups warp = {OWN_BY_WARP, false, 64, 16}, block = {OWN_BY_BLOCK, false, 64, 0};
    struct quant_groups token = {OWN_BY_TOKEN, true, 128, 0};
    ck_assert_int_eq(quant_group_count(&warp, 1000), 64);
    ck_assert_int_eq(quant_group_count(&block, 1000), 16);
    ck_assert_int_eq(quant_group_count(&token, 1000), 1000);
    ck_assert_int_eq(quant_group_count(&tensor, 1000), 1);
}

TEST(thread_groups)
{
    struct quant_groups q90 = {OWN_BY_THREAD, false, 64, 16}, k90 = {OWN_BY_THREAD, true, 128, 0};
    ck_assert_int_eq(quant_group_of(&q90, 5), 5);
    ck_assert_int_eq(quant_group_of(&q90, 13), 5);
    ck_assert_int_eq(quant_group_of(&q90, 21), 13);
    for (int64_t t = 0; t < 128; t++)
        ck_assert_int_eq(quant_group_of(&k90, t) == 1, t % 8 == 2 || t % 8 == 3);

    struct quant_groups q89 = {OWN_BY_THREAD, false, 128, 32};
    int rows[64] = {0};
    for (int64_t t = 0; t < 128; t++)
        rows[quant_group_of(&q89, t)]++;
    for (int g = 0; g < 32; g++)
        ck_assert_int_eq(rows[g], 4);

    struct quant_groups sale_q = {OWN_BY_THREAD, false, 16, 16};
    struct quant_groups sale_k = {OWN_BY_THREAD, true, 32, 0};
    ck_assert_int_eq(quant_group_of(&sale_q, 0), quant_group_of(&sale_q, 8));
    ck_assert_int_ne(quant_group_of(&sale_q, 0), quant_group_of(&sale_q, 1));
    static const int same[] = {0, 1, 8, 9, 16, 17, 24, 25};
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(quant_group_of(&sale_k, same[i]), 0);
    ck_assert_int_eq(quant_group_of(&sale_k, 2), 1);
}

TEST(groups_take_their_own_maximum)
{
    float x[130 * 2];
    struct quant_groups g = {OWN_BY_BLOCK, true, 64, 0};
    OWN(quant_free) struct quant q;
    for (int i = 0; i < 260; i++)
        x[i] = (float)(i / 128 + 1) * (i % 3 == 0 ? -1.0f : 0.5f);
    MUST(quant_int(&q, x, 130, 2, &g, 127, OWN_RHA, ERR));
    ck_assert_int_eq(q.n_groups, 3);
    for (int b = 0; b < 3; b++)
        ck_assert_float_eq(q.amax[b], (float)(b + 1));
}

/* Value of an e4m3 code, from the format: 1 sign, 4 exponent (bias 7), 3 mantissa bits. */
static float e4m3_value(int code)
{
    int e = code >> 3 & 15, m = code & 7;
    return ldexpf(e ? 1 + (float)m / 8 : (float)m / 8, (e ? e : 1) - 7);
}

TEST(e4m3_is_nearest_even_and_saturates)
{
    for (int c = 0; c < 126; c++) {
        float a = e4m3_value(c), b = e4m3_value(c + 1), mid = (a + b) / 2;
        ck_assert_float_eq(e4m3_round(a), a);
        ck_assert_float_eq(e4m3_round(-a), -a);
        ck_assert_float_eq(e4m3_round(mid), c % 2 ? b : a);
        ck_assert_float_eq(e4m3_round(nextafterf(mid, 0)), a);
        ck_assert_float_eq(e4m3_round(-nextafterf(mid, 1000)), -b);
    }
    ck_assert_float_eq(e4m3_round(448), 448);
    ck_assert_float_eq(e4m3_round(1e9f), 448);
    ck_assert_float_eq(e4m3_round(-INFINITY), -448);
    ck_assert_float_eq(e4m3_round(447.8898f), 448);
    ck_assert_float_eq(e4m3_round(0x1p-9f), 0x1p-9f);
    ck_assert_float_eq(e4m3_round(0x1p-10f), 0);
    ck_assert(isnan(e4m3_round(NAN)));
}

TEST(f16_grid_is_that_of_the_type)
{
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t u = (uint32_t)rng_u64(3, 0, i);
        float x;
        if (i % 2) /* half of the cases around the range of fp16 */
            u = (u & 0x807fffffu) | (100u + u % 48u) << 23;
        memcpy(&x, &u, sizeof x);
        if (isnan(x))
            continue;
        float want = dtype_round(DT_F16, x), got = f16_round(x);
        ck_assert_msg(memcmp(&want, &got, sizeof got) == 0, "%a -> %a, not %a", x, got, want);
    }
    ck_assert_float_eq(f16_round(65519.0f), 65504);
    ck_assert(isinf(f16_round(65520.0f)));
}

TEST(offset_of_p_is_the_largest_e4m3)
{
    ck_assert_double_eq_tol(exp2(8.807), 447.8898, 1e-4);
    ck_assert_double_lt(exp2(8.807), 448);
    ck_assert_float_eq(e4m3_round((float)exp2(8.807)), 448);
    /* so P below 2^-10 / 2^8.807 relative to the row maximum vanishes */
    ck_assert_float_eq(e4m3_round((float)exp2(-18.808 + 8.807)), 0);
    ck_assert_float_eq(e4m3_round((float)exp2(-18.806 + 8.807)), 0x1p-9f);
}

TEST(channels_fill_the_range)
{
    float v[3 * 4] = {1, 0, -8, 3, -2, 0, 4, 1, 0.5f, 0, 2, 0}, out[12], scale[4];
    quant_channels_e4m3(v, 3, 4, 448, out, scale);
    for (int c = 0; c < 4; c++) {
        float top = 0;
        for (int t = 0; t < 3; t++) {
            top = fmaxf(top, fabsf(out[t * 4 + c]));
            ck_assert_float_eq_tol(out[t * 4 + c] * scale[c], v[t * 4 + c],
                                   0.0001f + fabsf(v[t * 4 + c]) / 16);
        }
        ck_assert_float_eq(top, c == 1 ? 0 : 448);
    }
    ck_assert_float_eq(scale[1], 0);
    ck_assert_float_eq(scale[2], 8.0f / 448);
}

TEST(four_and_eight_bit_dots_are_exact)
{
    /* Largest dot at d = 128: 7 * 7 * 128. */
    int32_t dot = 0;
    for (int c = 0; c < 128; c++)
        dot += quant_value(OWN_RNE, 7, 7, 7) * quant_value(OWN_RNE, 7, 7, 7);
    ck_assert_int_eq(dot, 6272);
    /* A float sum of int8 products up to d = 1024 has no rounding. */
    ck_assert_int_lt(127 * 127 * 1024, 1 << 24);
}
