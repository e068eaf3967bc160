/*
 * test_fgattn.c - FG-Attn: slices against an explicit P, structure, hand cases, masks carried over
 * steps, pooled readings, forced keys, golden heads.
 */
#include "core/rng.h"
#include "sim/blocks/exact.h"
#include "sim/methods/fgattn/fgattn.h"
#include "tests/harness/methodrun.h"

#include <stdio.h>

/* A square bidirectional head of given q, k with v = k. */
static void head_of(const float *q, const float *k, int64_t n, int d, double scale,
                    struct sim_head *h)
{
    struct head_in in = one_head(q, k, k, n, n, d, false);
    in.x.scale = scale;
    MUST(head_init(h, &in, PREC_F64, ERR));
}

static bool subset(const uint8_t *a, const uint8_t *b, int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        if (a[k] && !b[k])
            return false;
    return true;
}

/* ---- the cached rule ------------------------------------------------------------------------ */

TEST_N(slices_follow_an_explicit_map, 6)
{
    enum { N = 150 };
    static const int widths[] = {1, 8, 32};
    double p[N * N];
    int width = widths[_i % 3], M = _i < 3 ? 32 : 48;
    char text[80];
    HEAD(h, random_head, 3, N, N, 16, false, 1.6, PREC_F64);
    MUST(exact_probs(h.in.exact, 0, N, p, ERR));
    snprintf(text, sizeof text, "fg-attn:refresh=1:tau=4:M=%d:width=%d", M, width);
    OWN(free_at) uint8_t *bits = run_bits(text, &h.in);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double top = 0;
            for (int a = i / M * M; a < (i / M + 1) * M && a < N; a++)
                for (int b = j / width * width; b < (j / width + 1) * width && b < N; b++)
                    top = fmax(top, p[a * N + b]);
            ck_assert_int_eq(bits[i * N + j], top * N > 4);
        }
}

TEST(thresholds_at_the_ends)
{
    HEAD(h, random_head, 4, 100, 100, 16, false, 1.6, PREC_F64);
    ck_assert_double_eq(metric_of("fg-attn:refresh=1:tau=1e-300", &h.in, "density_elem"), 1);
    RUN_HAS("fg-attn:refresh=1:tau=101", &h.in, 0, "density_elem rows_empty err_l1_rel cra_min", 0,
            100, 1, 0);
}

/* A lower threshold, a wider unit and a taller group keep all that the other keeps. */
TEST_N(kept_set_is_monotone, 3)
{
    static const char *const chains[][4] = {
        {"fg-attn:refresh=1:tau=8", "fg-attn:refresh=1:tau=4", "fg-attn:refresh=1:tau=2",
         "fg-attn:refresh=1:tau=1"},
        {"fg-attn:refresh=1:tau=6:width=1", "fg-attn:refresh=1:tau=6:width=8",
         "fg-attn:refresh=1:tau=6:width=16", "fg-attn:refresh=1:tau=6:width=128"},
        {"fg-attn:refresh=1:tau=6:M=16", "fg-attn:refresh=1:tau=6:M=32",
         "fg-attn:refresh=1:tau=6:M=64", "fg-attn:refresh=1:tau=6:M=256"},
    };
    HEAD(h, random_head, 5, 140, 140, 16, false, 1.6, PREC_F64);
    for (int k = 0; k < 3; k++) {
        OWN(free_at)
        uint8_t *small = run_bits(chains[_i][k], &h.in),
                *large = run_bits(chains[_i][k + 1], &h.in);
        ck_assert(subset(small, large, 140 * 140));
    }
}

TEST(uniform_attention_is_all_or_nothing)
{
    OWN(sim_head_free) struct sim_head h;
    float zero[200 * 4] = {0};
    head_of(zero, zero, 200, 4, 0.5, &h);
    ck_assert_double_eq(metric_of("fg-attn:refresh=1:tau=0.999", &h.in, "density_elem"), 1);
    ck_assert_double_eq(metric_of("fg-attn:refresh=1:tau=1.001", &h.in, "density_elem"), 0);
}

/* q_i = k_i = 16 e_i, scale 1/8: p_ii = e^32 / (e^32 + 63). */
TEST_N(diagonal_attention_by_hand, 2)
{
    enum { D = 64 };
    static float x[D * D];
    int64_t n = _i ? 60 : 64;
    OWN(sim_head_free) struct sim_head h;
    for (int i = 0; i < D; i++)
        x[i * D + i] = 16;
    head_of(x, x, n, D, 0.125, &h);
    RUN(r, "fg-attn:refresh=1:M=16", &h.in);
    HAS(&r, 1e-15, "pairs_kept density_elem mask_units", _i ? 912 : 1024, _i ? 912.0 / 3600 : 0.25,
        (double)n);
}

/* Keys on a circle, queries far out along their key: p_ii = 1. */
static void identity_head(int64_t n, struct sim_head *h)
{
    OWN(free_at)
    float *q = calloc((size_t)(2 * n), sizeof *q), *k = calloc((size_t)(2 * n), sizeof *k);
    for (int64_t i = 0; i < n; i++) {
        double angle = 2 * acos(-1) * (double)i / (double)n;
        k[2 * i] = (float)cos(angle);
        k[2 * i + 1] = (float)sin(angle);
        q[2 * i] = 1e9f * k[2 * i];
        q[2 * i + 1] = 1e9f * k[2 * i + 1];
    }
    head_of(q, k, n, 2, 1, h);
}

TEST_N(identity_attention_keeps_the_groups_own_keys, 2)
{
    static const struct {
        int64_t n, pairs;
        double elem, exec;
    } cases[] = {{1000, 125504, 0.125504, 0.131072}, {4096, 524288, 0.031250, 0.031250}};
    OWN(sim_head_free) struct sim_head h;
    identity_head(cases[_i].n, &h);
    RUN(r, "fg-attn:refresh=1", &h.in);
    ck_assert_double_eq(record_get(&r, "pairs_kept"), (double)cases[_i].pairs);
    HAS(&r, DIGITS(6), "density_elem density_exec", cases[_i].elem, cases[_i].exec);
}

/* The same counts at the video lengths, from a mask that holds each group's own keys. */
TEST_N(identity_masks_at_video_lengths, 2)
{
    static const struct {
        int64_t n, groups, last, pairs;
        double elem, exec;
    } cases[] = {{24576, 192, 128, 3145728, 0.005208, 0.005208},
                 {32760, 256, 120, 4192320, 0.003906, 0.003908}};
    OWN(slice_mask_free) struct slice_mask m;
    OWN(mask_free) struct mask lists = {0};
    struct mask_counts c;
    int64_t n = cases[_i].n;
    double density;

    MUST(slice_mask_init(&m, n, n, false, 128, 1, ERR));
    ck_assert_int_eq(m.groups, cases[_i].groups);
    for (int64_t j = 0; j < n; j++)
        slice_mask_set(&m, j / 128, j);
    ck_assert_int_eq(slice_mask_count(&m, m.groups - 1), cases[_i].last);
    MUST(slice_mask_lists(&m, 0, n, &lists, ERR));
    MUST(mask_count(&lists, &c, ERR));
    ck_assert_int_eq(c.pairs_kept, cases[_i].pairs);
    MUST(slice_mask_density(&m, &density, ERR));
    ck_assert_double_eq_tol(density, cases[_i].elem, 5e-7);
    ck_assert_double_eq_tol((double)c.pairs_exec / (double)c.pairs_allowed, cases[_i].exec, 5e-7);
}

/* A row loses at most (skipped keys) c/N. */
TEST_N(recall_respects_its_bound, 2)
{
    static const double taus[] = {0.1, 0.3, 0.5, 0.9};
    HEAD(h, random_head, 6, 200, 200, 16, _i & 1, 1.6, PREC_F64);
    for (int k = 0; k < 4; k++) {
        char text[64];
        snprintf(text, sizeof text, "fg-attn:refresh=1:M=16:tau=%g", taus[k]);
        RUN(r, text, &h.in);
        double bound = record_get(&r, "cra_bound"), cra = record_get(&r, "cra_min");
        ck_assert_double_ge(cra, bound);
        ck_assert_double_ge(bound, 1 - taus[k]);
    }
}

/* The last unit of 17 keys in units of 16 has one key, and that one has less than half of the mass
 * (17 keys, scores 0 but for the last). */
TEST(keys_past_the_end_are_not_kept)
{
    enum { N = 17, D = 16 };
    float q[N * D], k[N * D];
    OWN(sim_head_free) struct sim_head h;
    for (int i = 0; i < N * D; i++) {
        q[i] = i % D == 0;
        k[i] = i == (N - 1) * D ? 2.7f : 0; /* e^2.7 = 14.9 of 30.9 */
    }
    head_of(q, k, N, D, 1, &h);
    RUN(r, "fg-attn:refresh=1:M=16:width=16:tau=8", &h.in);
    ck_assert_double_eq_tol(record_get(&r, "cra_min"), 0.482, 1e-3);
    ck_assert_double_eq_tol(record_get(&r, "cra_bound"), 1 - 8 * (1 - 1.0 / N), 1e-12);
}

/* Shares weighted by pairs fall with the block size whether or not the grid divides N. */
TEST_N(larger_blocks_skip_less_area, 2)
{
    static const char *const names[] = {"below_b16_area", "below_b32_area", "below_b64_area",
                                        "below_b128_area"};
    HEAD(h, random_head, 8, _i ? 203 : 256, _i ? 203 : 256, 16, false, 1.6, PREC_F64);
    RUN(r, "dense:c=0.5", &h.in);
    for (int k = 0; k < 3; k++)
        ck_assert_double_ge(record_get(&r, names[k]), record_get(&r, names[k + 1]));
}

/* ---- forced keys ---------------------------------------------------------------------------- */

TEST(causal_groups_keep_their_diagonal_block)
{
    HEAD(h, random_head, 9, 300, 300, 16, true, 1.6, PREC_F64);
    OWN(free_at) uint8_t *bits = run_bits("fg-attn:refresh=1:tau=301", &h.in);
    for (int i = 0; i < 300; i++)
        for (int j = 0; j < 300; j++)
            ck_assert_int_eq(bits[i * 300 + j], j <= i && j / 128 == i / 128);
    RUN_HAS("fg-attn:refresh=1:tau=301", &h.in, 0, "mask_units rows_empty", 128 + 128 + 44, 0);
}

TEST_N(text_tokens_are_kept, 4)
{
    enum { N = 160, TEXT = 20 };
    HEAD(h, random_head, 10, N, N, 16, false, 1.6, PREC_F64);
    bool front = _i & 1;
    h.in.geom =
        (struct geometry){.t = 2, .h = 7, .w = 10, .text = TEXT, .text_place = front ? 1 : 2};
    OWN(free_at)
    uint8_t *bits = run_bits(
        _i & 2 ? "fg-attn:mode=pooled:c1=161:M=32" : "fg-attn:refresh=1:tau=161:M=32", &h.in);
    int first = front ? 0 : N - TEXT, last = first + TEXT;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            /* A group with a text row shares one full list. */
            bool row = i / 32 >= first / 32 && i / 32 <= (last - 1) / 32;
            ck_assert_int_eq(bits[i * N + j], row || (j >= first && j < last));
        }
}

TEST(padding_counts_in_n_on_request)
{
    HEAD(h, random_head, 11, 128, 128, 16, false, 1.6, PREC_F64);
    double plain = metric_of("fg-attn:refresh=1:tau=2:M=16", &h.in, "mask_units");
    double half = metric_of("fg-attn:refresh=1:tau=1:M=16", &h.in, "mask_units");
    h.in.n_padding = 128;
    ck_assert_double_eq(metric_of("fg-attn:refresh=1:tau=2:M=16", &h.in, "mask_units"), plain);
    ck_assert_double_eq(
        metric_of("fg-attn:refresh=1:tau=2:M=16:normaliser_n=all", &h.in, "mask_units"), half);
}

/* ---- steps ---------------------------------------------------------------------------------- */

TEST(masks_are_made_on_refresh_steps_and_reused)
{
    OWN(carry_end) struct carry carry = {0};
    const char *text = "fg-attn:M=16:tau=3:refresh=4";
    HEAD(h, random_head, 12, 96, 96, 16, false, 1.6, PREC_F64);
    STEP(r, text, &h, 0, &carry);
    HAS(&r, 0, "refresh dense_call density_elem mask_age", 1, 1, 1, NONE);
    double made = record_get(&r, "mask_density_elem");
    ck_assert_double_lt(made, 1);
    for (int t = 1; t < 4; t++)
        STEP_HAS(text, &h, t, &carry, 1e-15, "refresh mask_age density_elem", 0, t, made);
    STEP_HAS(text, &h, 4, &carry, 0, "refresh", 1);
    STEP_HAS(text, &h, 7, &carry, 0, "mask_age", 3);
    step_skips(text, &h, 9, &carry, "no refresh step in trace");
    step_skips(text, &h, 5, NULL, "no refresh step in trace");
}

TEST(dense_layers_and_steps_shift_the_schedule)
{
    OWN(carry_end) struct carry carry = {0};
    const char *text = "fg-attn:M=16:tau=3:refresh=3:dense_steps=2:dense_layers=1";
    HEAD(h, random_head, 14, 64, 64, 16, false, 1.6, PREC_F64);
    h.in.layer = 1;
    for (int t = 0; t < 7; t++) {
        bool refresh = t >= 2 && (t - 2) % 3 == 0;
        STEP_HAS(text, &h, t, &carry, 0, "dense_call refresh", t < 2 || refresh, refresh);
    }
    h.in.layer = 0;
    STEP_HAS(text, &h, 3, &carry, 0, "dense_call density_elem", 1, 1);
}

/* With an unchanged head the previous normaliser is the exact one: same masks, one step later. */
TEST(previous_normaliser_needs_two_dense_steps)
{
    OWN(carry_end) struct carry exact = {0}, previous = {0};
    HEAD(h, random_head, 15, 64, 64, 16, false, 1.6, PREC_F64);
    for (int t = 0; t < 9; t++) {
        STEP(want, "fg-attn:M=16:tau=3:refresh=4", &h, t, &exact);
        STEP(r, "fg-attn:M=16:tau=3:refresh=4:norm=previous", &h, t, &previous);
        HAS(&r, 1e-12, "dense_call mask_density_elem", t == 1 || t % 4 == 0,
            t ? record_get(&want, "mask_density_elem") : NONE);
        if (t > 1 && t % 4)
            HAS(&r, 0, "mask_age", t < 4 ? t - 1 : t % 4);
    }
}

/* A normaliser far below the scores makes p huge; it still only has to exceed c/N. */
TEST(foreign_normalisers_do_not_overflow)
{
    OWN(slice_mask_free) struct slice_mask m;
    struct fg_stats stats;
    double lse[64];
    struct fg_params p = {.M = 16, .width = 1};
    HEAD(h, random_head, 16, 64, 64, 16, false, 1.6, PREC_F64);
    for (int i = 0; i < 64; i++)
        lse[i] = head_lse(&h.in)[i] - 5000;
    MUST(fg_cached_mask(&p, &h.in, 0.5, lse, &m, &stats, ERR));
    ck_assert_int_eq(slice_mask_total(&m), 4 * 64);
}

/* ---- the pooled rule ------------------------------------------------------------------------ */

TEST(pooled_equals_cached_when_rows_of_a_group_are_equal)
{
    enum { N = 96, D = 16 };
    struct sim_head h;
    float q[N * D], k[N * D];
    for (int i = 0; i < N; i++)
        for (int c = 0; c < D; c++) {
            q[i * D + c] = (float)(3 * rng_normal(1, 1, (uint64_t)(i / 16 * D + c)));
            k[i * D + c] = (float)rng_normal(1, 2, (uint64_t)(i * D + c));
        }
    head_of(q, k, N, D, 0.25, &h);
    uint8_t *a = run_bits("fg-attn:mode=pooled:M=16:c1=0.7", &h.in);
    uint8_t *b = run_bits("fg-attn:refresh=1:M=16:tau=0.7", &h.in);
    ck_assert_int_eq(memcmp(a, b, N * N), 0);
    free(a);
    free(b);
    for (int i = 0; i < N; i++)
        for (int c = 0; c < D; c++)
            q[i * D + c] = (i % 2 ? -1 : 1) * (float)rng_normal(1, 3, (uint64_t)c);
    sim_head_free(&h);
    head_of(q, k, N, D, 0.25, &h);
    ck_assert_double_eq(metric_of("fg-attn:mode=pooled:M=16:c1=0.5", &h.in, "density_elem"), 1);
    sim_head_free(&h);
}

TEST(pooled_literal_by_hand)
{
    enum { N = 40, D = 128 };
    static float zero[N * D];
    OWN(sim_head_free) struct sim_head h;
    head_of(zero, zero, N, D, 1 / sqrt(D), &h);
    RUN_HAS("fg-attn:mode=pooled:pool=literal:tau1=0.0078125", &h.in, 0, "density_elem", 1);
    RUN_HAS("fg-attn:mode=pooled:pool=literal:tau1=0.008", &h.in, 0, "density_elem", 0);
}

TEST(pooled_topk_by_hand)
{
    enum { N = 1000, D = 2 };
    static float zero[N * D];
    OWN(sim_head_free) struct sim_head h;
    head_of(zero, zero, N, D, 1, &h);
    OWN(free_at) uint8_t *bits = run_bits("fg-attn:mode=pooled:pool=topk:kappa=0.333", &h.in);
    for (int i = 0; i < N; i += 111)
        for (int j = 0; j < N; j++)
            ck_assert_int_eq(bits[i * N + j], j < 333);
    RUN_HAS("fg-attn:mode=pooled:pool=topk:kappa=0.3331", &h.in, 0, "mask_units", 8 * 334);
}

/* ---- golden heads --------------------------------------------------------------------------- */

static const struct {
    int layer, M;
    double c, slices, of, elem, margin, min, p1, p5, mean, l1, l2;
} fresh[] = {
    {5, 16, 0.5, 5200, 9216, 0.564236, 2.6e-4, 0.969707, 0.971921, 0.983684, 0.994789, 0.00472731,
     0.00642094},
    {5, 16, 1, 4407, 9216, 0.478190, 5.9e-4, 0.941250, 0.955168, 0.965915, 0.988148, 0.0101616,
     0.0132436},
    {5, 128, 0.5, 1150, 1152, 0.998264, 3.8e-2, 0.998746, 0.999541, 0.999965, 0.999985, 3.19167e-5,
     1.82376e-4},
    {5, 128, 4, 1101, 1152, 0.955729, 1.6e-2, 0.966360, 0.981962, 0.988563, 0.997118, 0.00377979,
     0.00621998},
    {0, 16, 1, 5065, 9216, 0.549588, 1.7e-4, 0.805204, 0.814324, 0.834589, 0.867668, 0.252898,
     0.231919},
    {0, 128, 0.5, 1081, 1152, 0.938368, 1.4e-3, 0.985694, 0.987266, 0.988573, 0.992119, 0.0210090,
     0.0191189},
    {0, 128, 1, 896, 1152, 0.777778, 7.3e-4, 0.913139, 0.917731, 0.925804, 0.947438, 0.116315,
     0.104722},
    {0, 128, 2, 575, 1152, 0.499132, 1.8e-4, 0.707048, 0.735613, 0.749107, 0.813263, 0.332125,
     0.301614},
};

TEST_N(golden_masks_of_the_same_step, 8)
{
    char text[64];
    HEAD(h, golden_video, 3, fresh[_i].layer, 0, PREC_F64);
    snprintf(text, sizeof text, "fg-attn:refresh=1:M=%d:tau=%g", fresh[_i].M, fresh[_i].c);
    RUN(r, text, &h.in);
    HAS(&r, 1e-12, "mask_units density_tile", fresh[_i].slices, fresh[_i].slices / fresh[_i].of);
    HAS(&r, DIGITS(6), "density_elem cra_min cra_p1 cra_p5 cra_mean err_l1_rel err_l2_rel",
        fresh[_i].elem, fresh[_i].min, fresh[_i].p1, fresh[_i].p5, fresh[_i].mean, fresh[_i].l1,
        fresh[_i].l2);
    assert_printed(record_get(&r, "mask_margin"), fresh[_i].margin, 2);
}

TEST_N(golden_counts_of_groups, 2)
{
    static const struct {
        int step;
        int64_t cnt[3];
    } cases[] = {{3, {362, 357, 362}}, {0, {373, 376, 378}}};
    OWN(slice_mask_free) struct slice_mask m;
    struct fg_stats stats;
    struct fg_params p = {.M = 128, .width = 1};
    HEAD(h, golden_video, cases[_i].step, 0, 0, PREC_F64);
    MUST(fg_cached_mask(&p, &h.in, 0.5, NULL, &m, &stats, ERR));
    for (int g = 0; g < 3; g++)
        ck_assert_int_eq(slice_mask_count(&m, g), cases[_i].cnt[g]);
}

/* The float path keeps the same slices where the margin is above 1e-4. */
TEST_N(golden_masks_in_float_arithmetic, 8)
{
    char text[64];
    HEAD(h, golden_video, 3, fresh[_i].layer, 0, PREC_F32);
    snprintf(text, sizeof text, "fg-attn:refresh=1:M=%d:tau=%g", fresh[_i].M, fresh[_i].c);
    ck_assert_double_eq(metric_of(text, &h.in, "mask_units"), fresh[_i].slices);
}

TEST_N(golden_reuse_after_three_steps, 3)
{
    static const struct {
        int layer, head;
        double both, either, iou, min, l1;
    } cases[] = {{0, 0, 1068, 1140, 0.936842, 0.982620, 0.0100957},
                 {5, 0, NAN, NAN, 0.998264, NAN, NAN},
                 {5, 1, NAN, NAN, 0.996528, NAN, NAN}};
    OWN(carry_end) struct carry carry = {0};
    HEAD(h0, golden_video, 0, cases[_i].layer, cases[_i].head, PREC_F64);
    HEAD(h3, golden_video, 3, cases[_i].layer, cases[_i].head, PREC_F64);
    STEP_HAS("fg-attn:compare", &h0, 0, &carry, 0, "refresh", 1);
    STEP(r, "fg-attn:compare", &h3, 3, &carry);
    HAS(&r, DIGITS(6), "mask_iou mask_age", cases[_i].iou, 3);
    if (!isnan(cases[_i].both)) {
        double units = record_get(&r, "mask_units");
        HAS(&r, 1e-12, "mask_precision mask_recall", cases[_i].both / units, cases[_i].both / 1081);
        HAS(&r, DIGITS(6), "mask_diff cra_min err_l1_rel", cases[_i].either - cases[_i].both,
            cases[_i].min, cases[_i].l1);
    }
}

TEST(golden_pooled)
{
    HEAD(h, golden_video, 3, 0, 0, PREC_F64);
    RUN_HAS("fg-attn:mode=pooled", &h.in, DIGITS(6), "mask_units cra_min", 695, 0.777900);
    RUN_HAS("fg-attn:mode=pooled:pool=literal:tau1=0.02", &h.in, 0, "mask_units", 1112);
    RUN_HAS("fg-attn:mode=pooled:pool=topk:kappa=0.25", &h.in, 0, "mask_units", 288);
    OWN(free_at) uint8_t *pooled = run_bits("fg-attn:mode=pooled", &h.in);
    OWN(free_at) uint8_t *cached = run_bits("fg-attn:refresh=1", &h.in);
    ck_assert(subset(pooled, cached, 384 * 384));
    HEAD(other, golden_video, 3, 5, 0, PREC_F64);
    RUN_HAS("fg-attn:mode=pooled", &other.in, DIGITS(3), "mask_units cra_min", 588, 9.48e-7);
}

/* ---- token orders --------------------------------------------------------------------------- */

TEST(token_order_changes_groups_not_attention)
{
    static const char *const orders[] = {"column", "time", "random", "hilbert", "voxel-2x4x4"};
    double lowest = 1, highest = 0;
    HEAD(h, golden_video, 3, 5, 0, PREC_F64);
    for (int k = 0; k < 5; k++) {
        char text[64];
        snprintf(text, sizeof text, "fg-attn:refresh=1:M=16:permute=%s", orders[k]);
        RUN(r, text, &h.in);
        double d = record_get(&r, "density_elem");
        lowest = fmin(lowest, d);
        highest = fmax(highest, d);
        ck_assert_double_ge(record_get(&r, "cra_min"), record_get(&r, "cra_bound"));
    }
    ck_assert_double_gt(highest, lowest + 0.01);
    ck_assert_double_eq(metric_of("fg-attn:refresh=1:M=16:permute=row", &h.in, "mask_units"), 5200);
}
