/*
 * SALE: regions, threshold, 4-bit operands, the block test against a plain loop, calibration, INT8
 * attention.
 */
#include "core/dtype.h"
#include "core/rng.h"
#include "sim/methods/sale/sale.h"
#include "tests/harness/methodrun.h"

/* ---- geometry --------------------------------------------------------------------------- */

/* Key blocks of all query blocks: T of the sparsity. */
static int64_t tiles_of(int64_t tokens)
{
    int64_t sum = 0;
    for (int64_t m = 0; m * SALE_BQ < tokens; m++)
        sum += sale_regions(tokens, m, 4).n;
    return sum;
}

TEST(regions_of_query_blocks)
{
    const struct {
        int64_t tokens, m, w, n, n_local, mid;
    } c[] = {{2048, 0, 4, 2, 5, 0},     {2048, 1, 4, 4, 7, 0},    {2048, 2, 4, 6, 5, 0},
             {2048, 3, 4, 8, 7, 0},     {2048, 4, 4, 10, 5, 4},   {2048, 5, 4, 12, 7, 4},
             {2048, 30, 4, 62, 5, 56},  {2048, 31, 4, 64, 7, 56}, {2048, 30, 8, 62, 9, 52},
             {2048, 31, 8, 64, 11, 52}, {2000, 31, 4, 63, 6, 56}, {2049, 32, 4, 65, 4, 60},
             {2100, 32, 4, 66, 5, 60}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct sale_regions r = sale_regions(c[i].tokens, c[i].m, c[i].w);
        ck_assert_int_eq(r.n, c[i].n);
        ck_assert_int_eq(r.n_local, c[i].n_local);
        ck_assert_int_eq(r.mid, c[i].mid);
    }
}

TEST(regions_partition_the_blocks)
{
    for (int64_t tokens = 1; tokens < 3000; tokens += 7)
        for (int64_t m = 0; m * 64 < tokens; m++)
            for (int64_t w = 4; w <= 8; w += 4) {
                struct sale_regions r = sale_regions(tokens, m, w);
                ck_assert(r.mid == 0 || r.n - r.mid == r.n_local + 1);
                ck_assert_int_eq(r.mid % 4, 0);
                /* Tested keys come before the block's first query. */
                ck_assert_int_le((r.mid + 1) * 32, m * 64 < 32 ? 32 : m * 64);
            }
}

TEST(tile_totals_and_ceilings)
{
    const struct {
        int64_t tokens, tiles, always4, always8;
        double ceiling;
    } c[] = {{2048, 1056, 216, 328, 0.79545},        {8192, 16512, 888, 1384, 0.94622},
             {16384, 65792, 1784, 2792, 0.97288},    {32768, 262656, 3576, 5608, 0.98639},
             {65536, 1049600, 7160, 11240, 0.99318}, {131072, 4196352, 14328, 22504, 0.99659}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t always[2] = {0, 0};
        for (int64_t m = 0; m < c[i].tokens / 64; m++)
            for (int w = 0; w < 2; w++) {
                struct sale_regions r = sale_regions(c[i].tokens, m, 4 + 4 * w);
                always[w] += r.n - r.mid;
            }
        ck_assert_int_eq(tiles_of(c[i].tokens), c[i].tiles);
        ck_assert_int_eq(always[0], c[i].always4);
        ck_assert_int_eq(always[1], c[i].always8);
        ck_assert_double_eq_tol(1 - (double)always[0] / (double)c[i].tiles, c[i].ceiling, 5e-6);
    }
    ck_assert_int_eq(tiles_of(1024), 272);
}

TEST(threshold_in_natural_units)
{
    ck_assert_float_eq_tol(sale_threshold(0, 2, 0.25, 1, false), -0.693147f, 1e-6f);
    ck_assert_float_gt(-0.6931f, sale_threshold(0, 2, 0.25, 1, false));
    ck_assert_float_lt(-0.6932f, sale_threshold(0, 2, 0.25, 1, false));
    ck_assert_float_eq_tol(sale_threshold(3, 2, 0.25, 1, false), 2.306853f, 1e-6f);
    /* Raw units: the scale divides the logarithm, not the maximum. */
    ck_assert_float_eq_tol(sale_threshold(3, 2, 0.25, 0.125, false), 3 - 8 * 0.693147f, 1e-5f);
    ck_assert_float_eq(sale_threshold(3, 2, 0.25, 1, true), f16_to_f32(f32_to_f16(2.306853f)));
}

/* ---- 4-bit operands --------------------------------------------------------------------- */

TEST(integers_round_half_to_even)
{
    const float x[6] = {7, 2.5f, 3.5f, -2.5f, 0.5f, 1.5f};
    const int want[6] = {7, 2, 4, -2, 0, 2};
    float q[2 * 16] = {0};
    OWN(sale_quant_free) struct sale_quant z;
    for (int e = 0; e < 6; e++) /* rows x and -x: the mean is 0, the groups are separate */
        q[e] = x[e], q[16 + e] = -x[e];
    MUST(sale_quant_init(&z, q, q, 2, 16, 4, ERR));
    for (int e = 0; e < 16; e++) {
        int w = e < 6 ? want[e] : 0;
        ck_assert_int_eq(z.qi[e], w);
        ck_assert_int_eq(z.qi[16 + e], -w);
        ck_assert_int_eq(z.ki[e * 32 + sale_lane(0)], w);
        ck_assert_int_eq(z.ki[e * 32 + sale_lane(1)], -w);
        ck_assert_int_eq(z.ki[e * 32 + sale_lane(2)], 0); /* past the end */
    }
    ck_assert_float_eq(z.sq[0], 1);
    ck_assert_float_eq(z.sk[0], 1);
}

TEST(scale_groups)
{
    const int first[] = {0, 1, 8, 9, 16, 17, 24, 25};
    bool lanes[32] = {false};
    ck_assert_int_eq(sale_q_group(0), sale_q_group(8));
    ck_assert_int_ne(sale_q_group(0), sale_q_group(1));
    ck_assert_int_eq(sale_q_group(16), 8);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(sale_k_group(first[i]), 0);
    ck_assert_int_eq(sale_k_group(2), 1);
    ck_assert_int_eq(sale_k_group(32), 4);
    for (int t = 0; t < 32; t++) {
        ck_assert_int_eq(sale_lane(t) % 4, sale_k_group(t));
        ck_assert(!lanes[sale_lane(t)]);
        lanes[sale_lane(t)] = true;
    }
}

/* Every scale is the largest smoothed value of its group over 7, whatever the length. */
TEST(scales_cover_their_groups)
{
    const int64_t lengths[] = {1, 9, 16, 33, 64, 100};
    for (int i = 0; i < 6; i++) {
        int64_t n = lengths[i];
        float *x = malloc((size_t)n * 16 * sizeof *x), aq[128] = {0}, ak[64] = {0};
        OWN(sale_quant_free) struct sale_quant z;
        for (int64_t e = 0; e < n * 16; e++)
            x[e] = (float)rng_normal(1, 2, (uint64_t)e);
        MUST(sale_quant_init(&z, x, x, n, 16, 4, ERR));
        for (int64_t e = 0; e < n * 16; e++) {
            int64_t t = e / 16;
            float y = fabsf(f16_finite(z.q[e] - z.qbar[e % 16])), *a = &aq[sale_q_group(t)];
            *a = fmaxf(*a, y);
            a = &ak[sale_k_group(t)];
            *a = fmaxf(*a, fabsf(z.k[e]));
        }
        for (int g = 0; g < z.npad / 2; g++)
            ck_assert_float_eq(z.sq[g], f16_finite(aq[g] / 7));
        for (int g = 0; g < z.npad / 8; g++)
            ck_assert_float_eq(z.sk[g], ak[g] > 0 ? f16_finite(1 / (7 / ak[g])) : 0);
        free(x);
    }
}

TEST(fp16_rounding_saturates)
{
    for (uint32_t i = 0; i < 200000; i++) {
        uint32_t u = (uint32_t)rng_u64(3, 4, i);
        float x, want;
        memcpy(&x, &u, sizeof x);
        if (isnan(x))
            continue;
        want = fminf(fmaxf(f16_to_f32(f32_to_f16(x)), -65504), 65504);
        ck_assert_msg(f16_finite(x) == want, "%a: %a, expected %a", x, f16_finite(x), want);
    }
}

static float fl16(float x)
{
    return f16_to_f32(f32_to_f16(x));
}

/* Estimate of one pair from the integers, written out (4 bits, fp16). */
static float estimate(const struct sale_quant *z, int64_t row, int64_t key)
{
    int lane = sale_lane((int)(key % 32));
    float sq = z->sq[sale_q_group(row)], sk = z->sk[sale_k_group(key)];
    float c = z->corr[key / 32 * 32 + lane];
    int dot = 0;
    if (sq == 0)
        return fl16(c * sk);
    for (int e = 0; e < z->d; e++)
        dot += z->qi[row * z->d + e] * z->ki[key / 32 * 32 * z->d + e * 32 + lane];
    float value = (float)dot + rintf(fl16(c * fl16(1 / sq)));
    return fl16(fl16(value) * fl16(sq * sk));
}

static double exact_dot(const struct sale_quant *z, int64_t row, int64_t key)
{
    double s = 0;
    for (int e = 0; e < z->d; e++)
        s += (double)z->q[row * z->d + e] * z->k[key * z->d + e];
    return s;
}

/* |estimate - q . k'| <= sk/2 sum |q'| + sq/2 sum |k^| + sq sk / 2 + roundings to fp16. */
TEST(estimate_error_is_bounded)
{
    OWN(sale_quant_free) struct sale_quant z;
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    MUST(sale_quant_init(&z, h.q, h.k, 770, 64, 4, ERR));
    for (int64_t row = 5; row < 770; row += 13)
        for (int64_t key = 0; key < 770; key += 11) {
            double sq = z.sq[sale_q_group(row)], sk = z.sk[sale_k_group(key)], sum_q = 0, sum_k = 0;
            float c = z.corr[key / 32 * 32 + sale_lane((int)(key % 32))];
            for (int e = 0; e < 64; e++) {
                sum_q += fabs((double)z.q[row * 64 + e] - z.qbar[e]);
                sum_k += fabs((double)z.k[key * 64 + e]) + sk / 2;
            }
            double value = estimate(&z, row, key), exact = exact_dot(&z, row, key);
            double bound = sk / 2 * sum_q + sq / 2 * sum_k + sq * sk / 2 +
                           0x1p-9 * (fabs(exact) + fabs(c * sk) + sum_q * sk * 7);
            ck_assert_msg(fabs(value - exact) <= bound, "row %d key %d: %g, exact %g, bound %g",
                          (int)row, (int)key, value, exact, bound);
        }
}

TEST(equal_queries_are_estimated_by_the_correction_alone)
{
    float q[64 * 16], k[64 * 16];
    OWN(sale_quant_free) struct sale_quant z;
    for (int i = 0; i < 64 * 16; i++) {
        q[i] = (float)(i % 16 - 5) / 4;
        k[i] = (float)rng_normal(5, 6, (uint64_t)i);
    }
    MUST(sale_quant_init(&z, q, k, 64, 16, 4, ERR));
    for (int64_t row = 0; row < 64; row++)
        for (int64_t key = 0; key < 64; key++) {
            double exact = exact_dot(&z, row, key);
            ck_assert_float_eq(z.sq[sale_q_group(row)], 0);
            ck_assert_double_eq_tol(estimate(&z, row, key), exact, 0x1p-9 * fabs(exact) + 1e-6);
        }
}

TEST(equal_keys_have_estimate_zero)
{
    float q[64 * 16], k[64 * 16];
    OWN(sale_quant_free) struct sale_quant z;
    for (int i = 0; i < 64 * 16; i++) {
        q[i] = (float)rng_normal(5, 7, (uint64_t)i);
        k[i] = 0.5f;
    }
    MUST(sale_quant_init(&z, q, k, 64, 16, 4, ERR));
    for (int64_t key = 0; key < 64; key++) {
        ck_assert_float_eq(z.sk[sale_k_group(key)], 0);
        ck_assert_float_eq(z.corr[key], 0);
        ck_assert_float_eq(estimate(&z, 3, key), 0);
    }
}

/* ---- selection -------------------------------------------------------------------------- */

static struct sale_config official(double tau, double scale)
{
    return (struct sale_config){.tau = tau,
                                .scale = scale,
                                .bits = 4,
                                .w = 4,
                                .f16 = true,
                                .strict = true,
                                .causal_stats = true};
}

static void select_all(const struct sim_head *h, const struct sale_config *c, struct sale_head *s,
                       struct mask *m)
{
    memset(m, 0, sizeof *m);
    sale_head_init(s, c, h->q, h->k, h->in.x.nq, h->in.x.d);
    MUST(sale_head_quantise(s, ERR));
    MUST(sale_select(s, 0, h->in.x.nq, m, ERR));
    MUST(mask_check(m, ERR));
}

/* Both of the block. */
#define SELECT(s, m, h, c)                                                                         \
    OWN(sale_head_free) struct sale_head s;                                                        \
    OWN(mask_free) struct mask m;                                                                  \
    select_all(h, c, &s, &m)

static bool has_block(const struct mask *m, int64_t g, int64_t j)
{
    for (int64_t e = m->ptr[g]; e < m->ptr[g + 1]; e++)
        if (m->col[e] == j)
            return true;
    return false;
}

/* The published test as loops over pairs, on the product's thresholds. */
static bool kept_by_loops(const struct sale_head *s, int64_t m, int64_t j, const float *thr)
{
    for (int64_t r = m * 64; r < (m + 1) * 64 && r < s->z.n; r++)
        for (int64_t t = j * 32; t < (j + 1) * 32; t++)
            if (estimate(&s->z, r, t) > thr[r - m * 64])
                return true;
    return false;
}

static int64_t check_low_bit(const struct sim_head *h, double tau)
{
    struct sale_config c = official(tau, h->in.x.scale);
    float thr[64];
    int64_t dropped = 0;
    SELECT(s, m, h, &c);
    for (int64_t g = 0; g < m.ngroups; g++) {
        struct sale_regions r = sale_regions(s.z.n, g, c.w);
        sale_row_thresholds(&s, g, thr);
        for (int64_t j = 0; j < r.n; j++) {
            bool want = j == 0 || j > r.mid || kept_by_loops(&s, g, j, thr);
            ck_assert_msg(has_block(&m, g, j) == want, "tau %g block (%d, %d)", tau, (int)g,
                          (int)j);
            dropped += !want;
        }
    }
    ck_assert_int_eq(s.counts.tiles - s.counts.kept, dropped);
    ck_assert_int_eq(s.counts.tested - s.counts.tested_kept, dropped);
    ck_assert_int_eq(s.counts.tiles, tiles_of(s.z.n));
    return dropped;
}

TEST(low_bit_selection_equals_plain_loops)
{
    const double tau[] = {1e-4, 0.004, 0.05};
    struct sim_head h;
    int64_t dropped = 0;
    MUST(golden_code_lm(5, 0, PREC_F32, &h, ERR)); /* N = 770, ragged */
    for (int i = 0; i < 3; i++)
        dropped += check_low_bit(&h, tau[i]);
    ck_assert_int_gt(dropped, 0);
    sim_head_free(&h);
    /* Sums beyond 16 bits take another path. */
    MUST(random_head(1, 400, 400, 656, true, 1, PREC_F32, &h, ERR));
    h.in.x.scale = 0.03;
    dropped = check_low_bit(&h, 0.1);
    ck_assert_int_gt(dropped, 0);
    sim_head_free(&h);
}

TEST(largest_dot_product_fits)
{
    struct sale_quant z;
    int dot = 0;
    HEAD(h, random_head, 2, 512, 512, 128, true, 1, PREC_F32);
    for (int64_t i = 0; i < 512 * 128; i++) /* rows +x and -x of equal magnitudes: mean 0 */
        h.q[i] = h.k[i] = (i / 128 % 2 ? 1.0f : -1.0f) * (i % 3 ? 1.0f : -1.0f);
    MUST(sale_quant_init(&z, h.q, h.k, 512, 128, 4, ERR));
    for (int e = 0; e < 128; e++)
        dot += z.qi[e] * z.ki[e * 32];
    ck_assert_int_eq(dot, 6272);
    sale_quant_free(&z);
    h.in.x.scale = 0.01;
    check_low_bit(&h, 0.004);
}

/* bits = 16 and fp32: keep iff max e^(S - m)/l > tau, in double and natural units. */
TEST(exact_test_equals_the_relative_score)
{
    int64_t kept = 0, dropped = 0;
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    double scale = h.in.x.scale;
    struct sale_config c = official(0.004, scale);
    c.bits = 16;
    c.f16 = false;
    SELECT(s, m, &h, &c);
    for (int64_t g = 4; g < m.ngroups; g++) {
        struct sale_regions r = sale_regions(770, g, 4);
        for (int64_t j = 1; j <= r.mid; j++) {
            double best = 0;
            for (int64_t q = g * 64; q < (g + 1) * 64 && q < 770; q++) {
                double top = -INFINITY, l = 0, most = -INFINITY;
                for (int64_t t = 0; t <= q; t++)
                    if (t < 32 || t >= (r.mid + 1) * 32)
                        top = fmax(top, exact_dot(&s.z, q, t) * scale);
                for (int64_t t = 0; t <= q; t++)
                    if (t < 32 || t >= (r.mid + 1) * 32)
                        l += exp(exact_dot(&s.z, q, t) * scale - top);
                for (int64_t t = j * 32; t < (j + 1) * 32; t++)
                    most = fmax(most, exact_dot(&s.z, q, t) * scale);
                best = fmax(best, exp(most - top) / l);
            }
            if (fabs(best / 0.004 - 1) > 1e-4)
                ck_assert_int_eq(has_block(&m, g, j), best > 0.004);
            kept += best > 0.004;
            dropped += best <= 0.004;
        }
    }
    ck_assert_int_gt(kept, 0);
    ck_assert_int_gt(dropped, 0);
}

/* All scores 0: with 256 unmasked sink-local keys (odd query blocks) and tau = 1/256 the threshold
 * is exactly 0; with 192 (even ones) it is below. */
TEST(score_on_the_threshold_is_dropped_by_official_and_kept_by_paper)
{
    for (int strict = 0; strict < 2; strict++) {
        HEAD(h, random_head, 1, 1024, 1024, 16, true, 0, PREC_F32);
        struct sale_config c = official(1.0 / 256, 1);
        c.bits = 16;
        c.f16 = false;
        c.causal_stats = false;
        c.strict = strict;
        SELECT(s, m, &h, &c);
        for (int64_t g = 4; g < m.ngroups; g++)
            for (int64_t j = 1; j <= sale_regions(1024, g, 4).mid; j++)
                ck_assert_int_eq(has_block(&m, g, j), g % 2 == 0 || !strict);
        ck_assert_int_eq(s.counts.ties > 0, 1);
    }
}

TEST(later_keys_enter_the_statistics_without_the_mask_only)
{
    OWN(sale_head_free) struct sale_head a, b;
    float ta[64], tb[64];
    HEAD(h, golden_code_lm, 5, 0, PREC_F32);
    struct sale_config c = official(0.004, h.in.x.scale);
    sale_head_init(&a, &c, h.q, h.k, 770, 64);
    MUST(sale_head_quantise(&a, ERR));
    c.causal_stats = false;
    sale_head_init(&b, &c, h.q, h.k, 770, 64);
    MUST(sale_head_quantise(&b, ERR));
    sale_row_thresholds(&a, 5, ta);
    sale_row_thresholds(&b, 5, tb);
    for (int r = 0; r < 64; r++)
        ck_assert_float_ge(tb[r], ta[r]);
    ck_assert_float_gt(tb[0], ta[0]);
    ck_assert_float_eq(tb[63], ta[63]);
}

TEST(smaller_tau_keeps_a_superset_at_every_width)
{
    const double tau[] = {0.05, 0.008, 0.004, 0.001, 1e-4};
    const int bits[] = {4, 8, 16};
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    for (int b = 0; b < 3; b++)
        for (int f16 = 0; f16 < 2; f16++) {
            struct mask last = {0};
            for (int i = 0; i < 5; i++) {
                struct sale_config c = official(tau[i], h.in.x.scale);
                OWN(sale_head_free) struct sale_head s;
                struct mask m;
                c.bits = bits[b];
                c.f16 = f16;
                select_all(&h, &c, &s, &m);
                for (int64_t g = 0; i > 0 && g < m.ngroups; g++)
                    for (int64_t e = last.ptr[g]; e < last.ptr[g + 1]; e++)
                        ck_assert(has_block(&m, g, last.col[e]));
                mask_free(&last);
                last = m;
            }
            mask_free(&last);
        }
}

/* 8 bits are closer to the exact test than 4. */
TEST(wider_estimates_agree_better_with_the_exact_test)
{
    const int bits[] = {16, 8, 4};
    int64_t differ[3] = {0};
    OWN(mask_free) struct mask ref = {0};
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    for (int b = 0; b < 3; b++) {
        struct sale_config c = official(0.02, h.in.x.scale);
        OWN(sale_head_free) struct sale_head s;
        struct mask m;
        c.bits = bits[b];
        c.f16 = false;
        select_all(&h, &c, &s, &m);
        if (b == 0)
            ref = m;
        for (int64_t g = 0; b > 0 && g < m.ngroups; g++)
            for (int64_t j = 0; j < 25; j++)
                differ[b] += has_block(&m, g, j) != has_block(&ref, g, j);
        if (b > 0)
            mask_free(&m);
    }
    ck_assert_int_lt(differ[1], differ[2]);
    ck_assert_int_le(differ[1], 2);
}

/* ---- whole method ----------------------------------------------------------------------- */

TEST(sparsity_counts_64_by_32_tiles)
{
    HEAD(h, random_head, 3, 2048, 2048, 16, true, 0.1, PREC_F32);
    RUN(r, "sale:tau=0.9", &h.in);
    HAS(&r, 5e-6, "sparsity_total", 0.79545);
    HAS(&r, 1e-12, "sparsity_total_rect density_native tested_share tested_kept tau",
        1 - 216.0 / (32 * 64), 216.0 / 1056, 840.0 / 1056, 0, 0.9);
}

TEST(adding_a_constant_to_the_keys_changes_nothing)
{
    OWN(sim_head_free) struct sim_head a2, b;
    HEAD(a, random_head, 4, 1280, 1280, 32, true, 1, PREC_F32);
    /* Sixteenths in pairs x, -x: the mean, hence k', is exact with and without the constant. */
    for (int64_t t = 0; t < 1280; t++)
        for (int e = 0; e < 32; e++) {
            float x = rintf((float)rng_normal(9, (uint64_t)e, (uint64_t)t / 2) * 16) / 16;
            a.k[t * 32 + e] = t % 2 ? -x : x;
        }
    struct head_in in = a.in;
    OWN(free_at) float *k = malloc(1280 * 32 * sizeof *k);
    for (int64_t i = 0; i < 1280 * 32; i++)
        k[i] = a.k[i] + 0.25f * (float)(i % 32);
    in.x.k = k;
    MUST(head_init(&b, &in, PREC_F32, ERR));
    MUST(head_init(&a2, &a.in, PREC_F32, ERR)); /* reference of the new keys */
    RUN(ra, "sale:tau=0.15", &a2.in);
    RUN(rb, "sale:tau=0.15", &b.in);
    ck_assert_double_gt(record_get(&ra, "sparsity_total"), 0);
    assert_agree(&ra, &rb, 0, "pairs_kept");
    assert_agree(&ra, &rb, 1e-4, "err_l2_rel cra_min");
}

TEST(int8_attention_is_close_on_the_same_mask)
{
    HEAD(h, golden_code_lm, 5, 0, PREC_F32);
    RUN(exact, "sale:dense_below=0:tau=0", &h.in);
    RUN(sage, "sale:dense_below=0:tau=0:arith=sage1", &h.in);
    HAS(&exact, 1e-5, "err_l2_rel", 0);
    HAS(&sage, 0, "pairs_kept sparsity_pv", record_get(&exact, "pairs_kept"), 0);
    ck_assert_double_gt(record_get(&sage, "err_l2_rel"), 1e-5);
    HAS(&sage, 0.03, "err_l2_rel", 0);
    HAS(&sage, 5e-4, "err_cos", 1);
    HAS(&sage, 0.1, "err_lse_max", 0); /* the key mean is put back */
}

/* ---- calibration ------------------------------------------------------------------------ */

struct answers {
    int calls, first_ok; /* within the bound from this call on; -1 never */
    double seen[16];
};

static int answer(void *ctx, int i, double tau, bool *ok, struct err *err)
{
    struct answers *a = ctx;
    ck_assert_int_lt(a->calls, 16);
    a->seen[a->calls] = tau;
    *ok = a->first_ok >= 0 && a->calls >= a->first_ok;
    a->calls++;
    return 0;
}

TEST(tau_is_halved_down_to_dense)
{
    const double want[] = {0.008, 0.004, 0.002, 0.001, 5e-4, 2.5e-4, 1.25e-4};
    struct sale_search s = {.theta = 0.4, .tau0 = 0.008, .tau_min = 1e-4};
    struct answers never = {.first_ok = -1}, always = {.first_ok = 0}, third = {.first_ok = 2};
    double tau;
    int64_t rounds;
    MUST(sale_search_tau(&s, 1, answer, &never, &tau, &rounds, ERR));
    ck_assert_int_eq(rounds, 8);
    ck_assert_double_eq(tau, 0);
    for (int i = 0; i < 7; i++)
        ck_assert_double_eq_tol(never.seen[i], want[i], 1e-15);
    MUST(sale_search_tau(&s, 5, answer, &always, &tau, &rounds, ERR));
    ck_assert_int_eq(rounds, 5);
    ck_assert_double_eq(tau, 0.008);
    MUST(sale_search_tau(&s, 2, answer, &third, &tau, &rounds, ERR));
    ck_assert_int_eq(rounds, 4);
    ck_assert_double_eq(tau, 0.002);
}

/* The chosen tau is the first whose measured error, a replay with the same local stretch, is within
 * theta. */
TEST(calibration_agrees_with_the_replayed_error)
{
    char text[128];
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    const struct head_in in[2] = {h.in, h.in};
    double error = metric_of("sale:dense_below=0:local=256:tau=0.002", &h.in, "err_l1_tok");
    ck_assert_double_gt(error, 0);
    ck_assert_double_gt(metric_of("sale:dense_below=0:local=256:tau=0.004", &h.in, "err_l1_tok"),
                        error);
    snprintf(text, sizeof text, "sale:dense_below=0:theta=%.6g", error * 1.001);
    ck_assert_double_eq(calibrated(text, in, 2, "tau"), 0.002);
    ck_assert_double_eq(calibrated("sale:dense_below=0:theta=1e6", in, 2, "tau"), 0.008);
    /* Below 0.002 every block is kept: whether rounding leaves an error depends on the BLAS. */
    ck_assert_double_eq(calibrated("sale:dense_below=0:theta=1e-9:tau_min=0.0015", in, 2, "tau"),
                        0);
    ck_assert_double_eq(calibrated("sale:dense_below=0:theta=1e6:tau0=0.5", in, 1, "tau"), 0.5);
}
