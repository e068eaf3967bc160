/*
 * test_dense.c - the dense method and the statistics of the exact map: blocks and slices below c/N
 * against brute force, by hand and on the golden heads; block similarity.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "sim/blocks/exact.h"
#include "tests/harness/methodrun.h"

#include <stdio.h>

/* A head with given q, k (d 64 or less), v of small numbers. */
static void head_of(const float *q, const float *k, int64_t nq, int64_t nk, int d, double scale,
                    bool causal, struct sim_head *h)
{
    OWN(free_at) float *v = calloc((size_t)(nk * d), sizeof *v);
    for (int64_t j = 0; j < nk * d; j++)
        v[j] = (float)(j % 7) - 3;
    struct head_in in = {.x = {.nq = nq,
                               .nk = nk,
                               .d = d,
                               .dv = d,
                               .q = q,
                               .k = k,
                               .v = v,
                               .scale = scale,
                               .causal = causal},
                         .n_heads = 1,
                         .n_kv_heads = 1,
                         .n_layers = 1,
                         .branch = "main"};
    MUST(head_init(h, &in, PREC_F64, ERR));
}

TEST_N(dense_is_exact, 4)
{
    bool causal = _i & 1;
    int64_t nq = _i & 2 ? 77 : 130;
    HEAD(h, random_head, 3, nq, 130, 24, causal, 1, PREC_F64);
    RUN(r, "dense", &h.in);
    static const char *const ones[] = {"density_elem", "density_tile", "cra_min",  "cra_p1",
                                       "cra_p5",       "cra_p50",      "cra_mean", "err_cos"};
    static const char *const zeros[] = {"sparsity_qk", "sparsity_pv", "sparsity_total",
                                        "err_l1_rel",  "err_l2_rel",  "err_max",
                                        "err_lse_max", "rows_empty"};
    for (int k = 0; k < 8; k++) {
        ck_assert_double_eq_tol(record_get(&r, ones[k]), 1, 1e-12);
        ck_assert_double_eq_tol(record_get(&r, zeros[k]), 0, 1e-12);
    }
    double allowed = (double)pairs_allowed(nq, 130, causal);
    ck_assert_double_eq_tol(record_get(&r, "density_rect"), allowed / (double)(nq * 130), 1e-12);
    if (nq == 130 && causal)
        ck_assert_double_eq_tol(record_get(&r, "density_rect"), 131.0 / 260, 1e-12);
    ck_assert_double_ge(record_get(&r, "density_exec"), 1);
}

/* ---- below c/N ------------------------------------------------------------------------------ */

/* The definition spelled out over an explicit P. */
static void brute_below(const struct sim_head *h, int height, int width, double c, double *share,
                        double *area)
{
    const struct attn_in *x = &h->in.x;
    OWN(free_at) double *p = NULL;
    int64_t units = 0, below = 0, pairs = 0, pairs_below = 0;
    MUST(mem_alloc(&p, x->nq * x->nk, sizeof *p, "P", ERR));
    MUST(exact_probs(h->in.exact, 0, x->nq, p, ERR));
    for (int64_t r = 0; r < x->nq; r += height)
        for (int64_t k = 0; k < x->nk; k += width) {
            double top = 0;
            int64_t n = 0;
            for (int64_t i = r; i < r + height && i < x->nq; i++)
                for (int64_t j = k; j < k + width && j < x->nk; j++) {
                    if (x->causal && j > i + x->nk - x->nq)
                        continue;
                    n++;
                    top = fmax(top, p[i * x->nk + j]);
                }
            units += n > 0;
            pairs += n;
            if (n > 0 && top * (double)x->nk < c) {
                below++;
                pairs_below += n;
            }
        }
    *share = (double)below / (double)units;
    *area = (double)pairs_below / (double)pairs;
}

static const struct {
    const char *name;
    int height, width;
} units[] = {{"b16", 16, 16}, {"b32", 32, 32}, {"b64", 64, 64}, {"b128", 128, 128},
             {"s16", 16, 1},  {"s64", 64, 1},  {"s128", 128, 1}};

TEST_N(below_equals_its_definition, 8)
{
    static const int64_t shapes[][2] = {{150, 150}, {77, 150}, {33, 290}, {1, 1}};
    bool causal = _i & 1;
    HEAD(h, random_head, 17 + (uint64_t)_i, shapes[_i / 2][0], shapes[_i / 2][1], 16, causal, 1.7,
         PREC_F64);
    RUN(r, "dense:c=2+0.5+0.01+0.1", &h.in);
    static const double c[] = {0.01, 0.1, 0.5, 2};
    for (int k = 0; k < 4; k++)
        for (int u = 0; u < 7; u++) {
            char name[48], at[16] = "";
            double share, area;
            brute_below(&h, units[u].height, units[u].width, c[k], &share, &area);
            if (c[k] != 0.5)
                snprintf(at, sizeof at, "@%g", c[k]);
            snprintf(name, sizeof name, "below_%s%s", units[u].name, at);
            ck_assert_double_eq_tol(record_get(&r, name), share, 1e-12);
            snprintf(name, sizeof name, "below_%s_area%s", units[u].name, at);
            ck_assert_double_eq_tol(record_get(&r, name), area, 1e-12);
        }
}

TEST(below_of_uniform_attention)
{
    OWN(sim_head_free) struct sim_head h;
    float zero[200 * 4] = {0};
    head_of(zero, zero, 200, 200, 4, 0.5, false, &h);
    RUN(r, "dense:c=0.5+1.5", &h.in);
    for (int u = 0; u < 7; u++) {
        char name[48];
        snprintf(name, sizeof name, "below_%s", units[u].name);
        ck_assert_double_eq(record_get(&r, name), 0);
        snprintf(name, sizeof name, "below_%s@1.5", units[u].name);
        ck_assert_double_eq(record_get(&r, name), 1);
    }
    ck_assert_double_eq_tol(record_get(&r, "p_max"), 1.0 / 200, 1e-15);
}

/* Keys on a circle, queries far out along their key: p_ii = 1 to rounding for any N. */
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
    head_of(q, k, n, n, 2, 1, false, h);
}

/* Identity attention leaves nb diagonal blocks of nb^2. */
TEST_N(below_of_identity_attention, 2)
{
    static const struct {
        int64_t n;
        double skipped[4];
    } cases[] = {{1000, {3906, 992, 240, 56}}, {4096, {65280, 16256, 4032, 992}}};
    OWN(sim_head_free) struct sim_head h;
    identity_head(cases[_i].n, &h);
    RUN(r, "dense", &h.in);
    ck_assert_double_eq_tol(record_get(&r, "p_max"), 1, 1e-12);
    for (int u = 0; u < 4; u++) {
        char name[48];
        int64_t nb = (cases[_i].n + units[u].width - 1) / units[u].width;
        snprintf(name, sizeof name, "below_%s", units[u].name);
        ck_assert_double_eq_tol(record_get(&r, name) * (double)(nb * nb), cases[_i].skipped[u],
                                1e-6);
    }
}

static const struct {
    int head;
    double b16, b32, b64, b128, s64, s128, sim_q, sim_k;
} code[] = {
    {0, 42, 2, 0, 0, 1305, 801, 0.478953, 0.220782},
    {7, 20, 0, 0, 0, 1094, 681, 0.519622, 0.259848},
};

TEST_N(golden_code_map, 2)
{
    HEAD(h, golden_code_lm, 5, code[_i].head, PREC_F64);
    RUN(r, "dense", &h.in);
    ck_assert_double_eq_tol(record_get(&r, "below_b16") * 1225, code[_i].b16, 1e-6);
    ck_assert_double_eq_tol(record_get(&r, "below_b32") * 325, code[_i].b32, 1e-6);
    ck_assert_double_eq_tol(record_get(&r, "below_b64") * 91, code[_i].b64, 1e-6);
    ck_assert_double_eq_tol(record_get(&r, "below_b128") * 28, code[_i].b128, 1e-6);
    ck_assert_double_eq_tol(record_get(&r, "below_s64") * 5762, code[_i].s64, 1e-6);
    ck_assert_double_eq_tol(record_get(&r, "below_s128") * 3458, code[_i].s128, 1e-6);
    if (code[_i].head == 0) { /* kept pairs of the slice masks */
        ck_assert_double_eq_tol(296835 * (1 - record_get(&r, "below_s64_area")), 251384, 1e-3);
        ck_assert_double_eq_tol(296835 * (1 - record_get(&r, "below_s128_area")), 271800, 1e-3);
    }
    assert_printed(record_get(&r, "sim_q"), code[_i].sim_q, 6);
    assert_printed(record_get(&r, "sim_k"), code[_i].sim_k, 6);
    ck_assert_double_eq(record_get(&r, "sim_q_left_out"), 1);
    ck_assert_double_eq(record_get(&r, "sim_k_left_out"), 1);
}

TEST(golden_similarity)
{
    struct sim_head h;
    MUST(golden_code_lm(0, 0, PREC_F64, &h, ERR));
    assert_printed(metric_of("dense", &h.in, "sim_q"), 0.035800, 5);
    assert_printed(metric_of("dense", &h.in, "sim_k"), 0.040476, 5);
    sim_head_free(&h);
    MUST(golden_video(0, 0, 0, PREC_F64, &h, ERR));
    assert_printed(metric_of("dense", &h.in, "sim_q"), 0.587571, 6);
    assert_printed(metric_of("dense", &h.in, "sim_k"), 0.055297, 5);
    sim_head_free(&h);
    MUST(golden_video(3, 5, 0, PREC_F64, &h, ERR));
    assert_printed(metric_of("dense", &h.in, "sim_q"), 0.116630, 6);
    assert_printed(metric_of("dense", &h.in, "sim_k"), 0.050101, 5);
    sim_head_free(&h);
}

static const struct {
    int step, layer, head;
    double lse0, p_max;
} video[] = {{0, 0, 0, 7.461062, 0.050610},
             {0, 0, 1, 9.551317, 0.029217},
             {3, 5, 0, 19.307371, 0.922742},
             {3, 5, 1, 20.583227, 0.989033}};

TEST_N(golden_normalisers_and_largest_probabilities, 4)
{
    HEAD(h, golden_video, video[_i].step, video[_i].layer, video[_i].head, PREC_F64);
    ck_assert_double_eq_tol(head_lse(&h.in)[0], video[_i].lse0, 1e-6);
    ck_assert_double_eq_tol(metric_of("dense", &h.in, "p_max"), video[_i].p_max, 1e-6);
}

TEST(golden_code_normalisers)
{
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    ck_assert_double_eq_tol(head_lse(&h.in)[1], 11.698650, 1e-6);
    ck_assert_double_eq_tol(head_lse(&h.in)[769], 12.421256, 1e-6);
}

/* Blocks of 16, 32, 64, 128 below 0.5/N on video heads of 384 tokens. */
TEST_N(golden_video_map, 3)
{
    static const struct {
        int step, layer, head;
        double b16;
    } cases[] = {{3, 5, 0, 8}, {3, 0, 1, 40}, {0, 5, 0, 17}};
    HEAD(h, golden_video, cases[_i].step, cases[_i].layer, cases[_i].head, PREC_F64);
    RUN(r, "dense", &h.in);
    ck_assert_double_eq_tol(record_get(&r, "below_b16") * 576, cases[_i].b16, 1e-6);
    ck_assert_double_eq(record_get(&r, "below_b32"), 0);
    ck_assert_double_eq(record_get(&r, "below_b64"), 0);
    ck_assert_double_eq(record_get(&r, "below_b128"), 0);
}

/* Grids that nest: a block is below only when all blocks inside are. */
TEST(smaller_blocks_are_skipped_more_often)
{
    HEAD(h, random_head, 23, 256, 256, 16, false, 2, PREC_F64);
    RUN(r, "dense:c=0.3", &h.in);
    for (int u = 0; u < 3; u++) {
        char fine[32], coarse[32];
        snprintf(fine, sizeof fine, "below_%s@0.3", units[u].name);
        snprintf(coarse, sizeof coarse, "below_%s@0.3", units[u + 1].name);
        ck_assert_double_le(record_get(&r, coarse), record_get(&r, fine));
    }
}

/* ---- similarity ----------------------------------------------------------------------------- */

TEST(similarity_by_hand)
{
    double mean;
    int64_t left_out;
    static const float same[] = {1, 0, 2, 0, 3, 0, 4, 0}, turn[] = {1, 0, 0, 1, -1, 0, 0, -1};
    static const float zero[] = {1, 0, 0, 0, 3, 0, 5, 0, 1, 1};
    MUST(map_similarity(same, 4, 2, 4, false, &mean, &left_out, ERR));
    ck_assert_double_eq_tol(mean, 1, 1e-15);
    MUST(map_similarity(turn, 4, 2, 4, false, &mean, &left_out, ERR));
    ck_assert_double_eq_tol(mean, 0, 1e-15);
    MUST(map_similarity(turn, 4, 2, 2, false, &mean, &left_out, ERR));
    ck_assert_double_eq_tol(mean, 0.5, 1e-15);
    /* The first block has a zero row, the last one is partial. */
    MUST(map_similarity(zero, 5, 2, 2, false, &mean, &left_out, ERR));
    ck_assert_double_eq_tol(mean, 1, 1e-15);
    ck_assert_int_eq(left_out, 2);
    MUST(map_similarity(zero, 1, 2, 2, false, &mean, &left_out, ERR));
    ck_assert(isnan(mean));
    /* Centred: 1, 2, 3, 4 become -1.5 .. 1.5. */
    MUST(map_similarity(same, 4, 2, 2, true, &mean, &left_out, ERR));
    ck_assert_double_eq_tol(mean, 1, 1e-15);
    MUST(map_similarity(same, 4, 2, 4, true, &mean, &left_out, ERR));
    ck_assert_double_eq_tol(mean, 0, 1e-15);
    /* Of equal rows nothing is left. */
    float equal[49 * 2];
    for (int i = 0; i < 49 * 2; i++)
        equal[i] = i % 2 ? 0.1f : 0.7f;
    MUST(map_similarity(equal, 49, 2, 7, true, &mean, &left_out, ERR));
    ck_assert(isnan(mean));
    ck_assert_int_eq(left_out, 7);
}

/* A constant added to all keys changes scores and normalisers, and no metric of a fixed mask. */
TEST(a_constant_key_shifts_nothing)
{
    static const char *const names[] = {"pairs_kept", "cra_min", "cra_mean",
                                        "err_l1_rel", "err_cos", "err_lse_mean"};
    enum { N = 90, D = 16 };
    OWN(sim_head_free) struct sim_head a, b;
    float q[N * D], k[N * D], moved[N * D];
    for (int i = 0; i < N * D; i++) {
        q[i] = (float)rng_normal(5, 1, (uint64_t)i);
        k[i] = (float)(rng_below(5, 2, (uint64_t)i, 64)) / 16 - 2;
        moved[i] = k[i] + (float)(i % D) / 8 - 1; /* exact in float */
    }
    head_of(q, k, N, N, D, 0.25, true, &a);
    head_of(q, moved, N, N, D, 0.25, true, &b);
    ck_assert_double_gt(fabs(head_lse(&a.in)[5] - head_lse(&b.in)[5]), 1e-3);
    RUN(ra, "streaming:sink=2:window=20", &a.in);
    RUN(rb, "streaming:sink=2:window=20", &b.in);
    for (int m = 0; m < 6; m++)
        ck_assert_double_eq_tol(record_get(&ra, names[m]), record_get(&rb, names[m]), 1e-9);
    ck_assert_double_eq_tol(metric_of("dense", &a.in, "sim_k"), metric_of("dense", &b.in, "sim_k"),
                            1e-9);
}

TEST(options_of_dense)
{
    struct record r;
    struct method_run *runs = NULL;
    int64_t n = 0;
    HEAD(h, random_head, 29, 140, 140, 8, false, 1, PREC_F64);
    run_text("dense:map=0", &h.in, &r);
    ck_assert(isnan(record_get(&r, "below_b16")) && isnan(record_get(&r, "sim_q")));
    record_free(&r);
    run_text("dense:sim_block_q=64:sim_block_k=32", &h.in, &r);
    ck_assert(isfinite(record_get(&r, "sim_q@64")) && isfinite(record_get(&r, "sim_k@32")));
    record_free(&r);
    FAILS(method_runs_parse(test_methods, "dense:c=0.5+x", &runs, &n, ERR), ERR_USAGE, "a+b+c");
    FAILS(method_runs_parse(test_methods, "dense:c=0", &runs, &n, ERR), ERR_USAGE, "above 0");
    method_runs_free(runs, n);
}
