/*
 * SpargeAttn, attention: filter 2 inside the online softmax, whole method, quantised arithmetic.
 */
#include "sim/metrics.h"
#include "tests/harness/spargerun.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const struct method method_spargeattn;

/* ---- filter 2 ------------------------------------------------------------------------------- */

/* One row whose kept tiles have the maxima 0, -10, 3, -20, -20 in log2 units. */
static double filtered_tiles(double pv, int tail, double *out)
{
    static const float q[1] = {1}, k[5] = {0, -10, 3, -20, -20}, v[5] = {1, 2, -4, 8, 16};
    static const int32_t col[5] = {0, 1, 2, 3, 4};
    struct attn_in in = {
        .nq = 1, .nk = 5, .d = 1, .dv = 1, .q = q, .k = k, .v = v, .scale = 0.69314718055994530942};
    OWN(exact_free) struct exact exact;
    struct tile_work *w;
    double lse, tiles = 0;
    exact_init(&exact, &in, PREC_F64);
    struct tile_attn t = {.nq = 1,
                          .nk = 5,
                          .d = 1,
                          .dv = 1,
                          .bq = 1,
                          .bk = 1,
                          .exact = &exact,
                          .pv = pv,
                          .scope = 1,
                          .tail = tail};
    MUST(tile_work_new(&t, &w, ERR));
    tile_attn_block(&t, w, 0, 1, col, 5, out, &lse, &tiles);
    tile_work_free(w);
    return tiles;
}

TEST(filter_counts)
{
    double out, unfiltered, wide;
    ck_assert_double_eq(filtered_tiles(12, 1, &out), 4);
    ck_assert_double_eq(filtered_tiles(10, 1, &out), 3);
    ck_assert_double_eq(filtered_tiles(10, 2, &out), 4);
    ck_assert_double_eq(filtered_tiles(10, 0, &out), 2);
    ck_assert_double_eq_tol(out, (1.0 / 8 - 4) / (1.0 / 8 + 1), 1e-15);
    ck_assert_double_eq(filtered_tiles(INFINITY, 0, &unfiltered), 5);
    ck_assert_double_eq(filtered_tiles(1e6, 0, &wide), 5);
    ck_assert_double_eq(unfiltered, wide);
    double w[] = {1, exp2(-10), 8, exp2(-20), exp2(-20)}, v[] = {1, 2, -4, 8, 16}, o = 0, l = 0;
    for (int j = 0; j < 5; j++) {
        o += w[j] * v[j];
        l += w[j];
    }
    ck_assert_double_eq_tol(unfiltered, o / l, 1e-14);
}

/* The rules of filter 2 on one query block, without tiles of products: plain loops. */
static double reference_block(const struct attn_in *in, int64_t row0, int64_t rows, int64_t bk,
                              const int32_t *col, int64_t n, double pv, int64_t scope, int tail,
                              bool keep_l, double *out, double *lse)
{
    double m[128], l[128], tiles = 0;
    memset(out, 0, (size_t)(rows * in->dv) * sizeof *out);
    for (int64_t r = 0; r < rows; r++)
        m[r] = -INFINITY, l[r] = 0;
    for (int64_t e = 0; e < n; e++) {
        int64_t k0 = col[e] * bk, k1 = k0 + bk < in->nk ? k0 + bk : in->nk, done = 0, groups = 0;
        for (int64_t g = 0; g < rows; g += scope, groups++) {
            double delta = -INFINITY, s[128][128], before[128];
            int64_t g1 = g + scope < rows ? g + scope : rows;
            for (int64_t r = g; r < g1; r++) {
                double top = -INFINITY;
                for (int64_t k = k0; k < k1; k++) {
                    double dot = 0;
                    for (int c = 0; c < in->d; c++)
                        dot += (double)in->q[(row0 + r) * in->d + c] * in->k[k * in->d + c];
                    bool seen = !in->causal || k <= row0 + r;
                    s[r - g][k - k0] = seen ? dot * in->scale / log(2) : -INFINITY;
                    top = fmax(top, s[r - g][k - k0]);
                }
                if (top > -INFINITY)
                    delta = fmax(delta, top - m[r]);
                before[r - g] = m[r];
                m[r] = fmax(m[r], top);
            }
            bool compute = delta + pv > 0 || e >= n - tail;
            done += compute;
            for (int64_t r = g; r < g1; r++) {
                if (m[r] == -INFINITY)
                    continue;
                double f = exp2(before[r - g] - m[r]);
                l[r] *= f;
                for (int c = 0; c < in->dv; c++)
                    out[r * in->dv + c] *= f;
                for (int64_t k = k0; k < k1; k++) {
                    double p = exp2(s[r - g][k - k0] - m[r]);
                    l[r] += compute || keep_l ? p : 0;
                    for (int c = 0; compute && c < in->dv; c++)
                        out[r * in->dv + c] += p * in->v[k * in->dv + c];
                }
            }
        }
        tiles += (double)done / (double)groups;
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int c = 0; c < in->dv; c++)
            out[r * in->dv + c] = l[r] > 0 ? out[r * in->dv + c] / l[r] : 0;
        lse[r] = m[r] * log(2) + log(l[r]);
    }
    return tiles;
}

TEST(filter_by_brute_force)
{
    enum { N = 1300, D = 24 }; /* longer than what is taken at once */
    static const struct {
        bool causal, keep_l;
        int64_t bq, bk, scope;
        int tail, prec;
        double pv;
    } c[] = {
        {true, false, 128, 64, 128, 2, PREC_F64, 1}, {true, true, 128, 64, 16, 0, PREC_F64, 2},
        {false, false, 64, 128, 64, 0, PREC_F64, 1}, {false, true, 64, 128, 16, 0, PREC_F32, 3},
        {true, false, 64, 128, 16, 1, PREC_F32, 1},
    };
    OWN(free_at) float *q = normals(11, N * D), *k = normals(12, N * D), *v = normals(13, N * D);
    for (int i = 0; i < N * D; i++) {
        q[i] = 2 * q[i] + 1;
        k[i] += 4 * (1 - (float)(i / D) / N); /* later tiles stay below the maximum */
    }
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct attn_in in = {.nq = N,
                             .nk = N,
                             .d = D,
                             .dv = D,
                             .q = q,
                             .k = k,
                             .v = v,
                             .scale = 1 / sqrt(D),
                             .causal = c[i].causal};
        OWN(exact_free) struct exact exact;
        int32_t col[32];
        int64_t n = 0;
        struct tile_work *w;
        double out[128 * D], lse[128], want[128 * D], want_lse[128], skipped = 0;
        double tol = c[i].prec == PREC_F64 ? 1e-12 : 2e-5;
        exact_init(&exact, &in, c[i].prec);
        struct tile_attn t = {.nq = N,
                              .nk = N,
                              .d = D,
                              .dv = D,
                              .causal = c[i].causal,
                              .bq = c[i].bq,
                              .bk = c[i].bk,
                              .exact = &exact,
                              .pv = c[i].pv,
                              .scope = c[i].scope,
                              .tail = c[i].tail,
                              .keep_denominator = c[i].keep_l};
        MUST(tile_work_new(&t, &w, ERR));
        for (int32_t j = 0; j * c[i].bk < N; j++)
            if (j != 1 || c[i].bk == 128)
                col[n++] = j;
        for (int64_t row0 = 128; row0 < N; row0 += 128) {
            int64_t rows = N - row0 < c[i].bq ? N - row0 : c[i].bq;
            double tiles = 0;
            tile_attn_block(&t, w, row0, rows, col, n, out, lse, &tiles);
            double got = reference_block(&in, row0, rows, c[i].bk, col, n, c[i].pv, c[i].scope,
                                         c[i].tail, c[i].keep_l, want, want_lse);
            ck_assert_double_eq_tol(tiles, got, 1e-12);
            for (int64_t e = 0; e < rows * D; e++)
                ck_assert_double_eq_tol(out[e], want[e], tol);
            for (int64_t r = 0; r < rows; r++)
                ck_assert_double_eq_tol(lse[r], want_lse[r], 2 * tol);
            skipped += (double)n - tiles;
        }
        ck_assert_double_gt(skipped, 0); /* the filter acted */
        tile_work_free(w);
    }
}

TEST(sparsities_from_counts)
{
    OWN(metrics_free) struct metrics_acc acc;
    OWN(mask_free) struct mask m = {0};
    OWN(record_free) struct record r;
    double zero[128] = {0};
    record_init(&r);
    MUST(metrics_init(&acc, 128, 1, ERR));
    MUST(mask_lists_init(&m, 128, 512, 0, 128, false, 128, 64, ERR));
    MUST(mask_lists_add_run(&m, 0, 0, 5, ERR));
    mask_lists_finish(&m);
    metrics_add_rows(&acc, 0, 128, zero, zero, zero, zero, zero);
    MUST(metrics_add_mask(&acc, &m, 3, ERR));
    MUST(metrics_finish(&acc, 128, 512, false, &r, ERR));
    HAS(&r, 0, "sparsity_qk sparsity_pv sparsity_total", 0.375, 0.625, 0.5);
}

TEST(scopes_and_tails_of_the_presets)
{
    static const struct {
        const char *text;
        int d, tail;
        int64_t bq, bk, scope;
    } c[] = {
        {"", 64, 2, 128, 64, 128},
        {"arch=sm89", 128, 2, 128, 64, 128},
        {"arch=sm90", 128, 1, 64, 128, 64},
        {"pv_scope=warp", 64, 2, 128, 64, 32},
        {"pv_scope=warp", 128, 2, 128, 64, 16},
        {"pv_scope=warp:arch=sm89", 128, 2, 128, 64, 32},
        {"profile=paper:arch=sm90", 128, 0, 64, 128, 16},
        {"profile=paper:pv_scope=cta:pv_tail=1", 64, 1, 128, 64, 128},
        {"tile=64x128", 64, 2, 64, 128, 64},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct sparge_rules r = rules_of(c[i].text, c[i].d);
        ck_assert_int_eq(r.tail, c[i].tail);
        ck_assert_int_eq(r.bq, c[i].bq);
        ck_assert_int_eq(r.bk, c[i].bk);
        ck_assert_int_eq(r.scope, c[i].scope);
    }
}

TEST(auto_arithmetic_hangs_on_head_dimension_and_tile)
{
    static const struct {
        const char *text;
        int d, arith;
    } c[] = {
        {"", 128, SPARGE_EXACT},
        {"arith=auto:arch=sm90", 64, SPARGE_EXACT},
        {"arith=auto:arch=sm90", 96, SPARGE_EXACT},
        {"arith=auto:arch=sm90", 128, SPARGE_SAGE2},
        {"arith=auto:arch=sm90", 192, SPARGE_EXACT},
        {"arith=auto:tile=64x128:pv=off", 128, SPARGE_SAGE2},
        {"arith=auto", 128, SPARGE_EXACT},
        {"arith=auto:arch=sm90:tile=128x64", 128, SPARGE_EXACT},
        {"arith=sage1", 128, SPARGE_SAGE1},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        ck_assert_int_eq(rules_of(c[i].text, c[i].d).arith, c[i].arith);
}

TEST(lambda_is_pv_in_nats)
{
    ck_assert_double_eq_tol(params_of("lambda=-5").pv, 7.213475, 1e-6);
    ck_assert_double_eq_tol(params_of("lambda=-34.657").pv, 50, 1e-3);
    ck_assert_double_eq_tol(params_of("lambda=-13.863").pv, 20, 1e-3);
    ck_assert(isinf(params_of("pv=off").pv));
}

/* ---- whole method --------------------------------------------------------------------------- */

TEST(full_budget_is_dense)
{
    static const char *const text[] = {"theta=1", "theta=1:pv=off", "theta=1:arch=sm90",
                                       "profile=paper:theta=1:tau=1"};
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        OWN(record_free) struct record r;
        sparge_record(text[i], &h, &r);
        HAS(&r, 0, "density_elem sparsity_qk dead_rows", 1, 0, 0);
        HAS(&r, 1e-11, "err_l1_rel err_lse_max", 0, 0);
        if (i == 1)
            HAS(&r, 0, "sparsity_total", 0);
    }
}

TEST(density_native_is_the_official_count)
{
    OWN(record_free) struct record dense, r, paper;
    HEAD(h, golden_code_lm, 5, 0, PREC_F32);
    sparge_record("theta=1:arch=sm90", &h, &dense); /* 13 x 7 tiles, 49 causal */
    HAS(&dense, 1e-12, "density_native", 49.0 / (13 * 4));
    sparge_record("theta=-1:tau=0.7:pv=2", &h, &r);
    double qk = record_get(&r, "sparsity_qk");
    ck_assert_double_gt(qk, 0.1);
    ck_assert_double_gt(record_get(&r, "sparsity_pv"), qk);
    HAS(&r, 1e-12, "density_native judged_q", (1 - qk) * 55 / (7 * 7), 6.0 / 7);
    ck_assert_double_le(record_get(&r, "coarse_mass"), 0.75);
    sparge_record("profile=paper:tau=0.7:pv=2", &h, &paper);
    HAS(&paper, 1e-12, "density_native", 1 - record_get(&paper, "sparsity_total"));
}

/* Query block 1 keeps key block 3 only, which its first 64 rows cannot see. */
static void dead_head(struct sim_head *h)
{
    enum { SIZE = 256 * 16 };
    HEAD(from, random_head, 3, 256, 256, 16, true, 0.01, PREC_F64);
    for (int i = 0; i < SIZE; i++) {
        from.q[i] += 1;
        from.k[i] += i >= 192 * 16 ? 1.0f : -1.0f;
    }
    MUST(head_init(h, &from.in, PREC_F64, ERR));
}

static int copy_rows(void *ctx, const struct mask *m, const double *out, const double *lse,
                     struct err *err)
{
    memcpy((double *)ctx + m->row0 * 16, out, (size_t)((m->row1 - m->row0) * 16) * sizeof *out);
    return 0;
}

TEST(rows_without_a_visible_key)
{
    OWN(sim_head_free) struct sim_head h;
    struct method_ctx ctx = {0};
    double *out = malloc(256 * 16 * sizeof *out), mean[16] = {0};
    dead_head(&h);
    for (int i = 192 * 16; i < 256 * 16; i++)
        mean[i % 16] += h.v[i] / 64.0;
    static const char *const text[] = {"theta=-1:tau=0:dead=zero", "theta=-1:tau=0:dead=mean",
                                       "theta=-1:tau=0:pv=off",
                                       "theta=-1:tau=0:dead=mean:arith=sage1"};
    for (int i = 0; i < 4; i++) {
        struct sparge_params p = params_of(text[i]);
        OWN(record_free) struct record r;
        record_init(&r);
        struct sim_cell cell = {&method_spargeattn, &p, &ctx, &h.in, .sink = copy_rows,
                                .sink_ctx = out};
        MUST(sim_run(&cell, &r, ERR));
        HAS(&r, 0, "dead_rows rows_empty", 64, 64);
        for (int e = 128 * 16; e < 192 * 16; e++)
            ck_assert_double_eq_tol(out[e], i % 2 ? mean[e % 16] : 0, 1e-12);
    }
    ck_assert_double_eq(sparge_metric("theta=-1:tau=0:sink=1", &h, "dead_rows"), 0);
    ck_assert_double_eq(sparge_metric("theta=-1:tau=0:arch=sm90", &h, "dead_rows"), 0);
    free(out);
}

TEST(empty_rows_exist_in_the_paper_profile_only)
{
    HEAD(h, random_head, 8, 256, 256, 32, false, 1, PREC_F64);
    RUN_HAS("spargeattn:profile=paper:theta=0:tau=0", &h.in, 0, "rows_empty dead_rows", 256, 256);
    RUN_HAS("spargeattn:theta=-1:tau=0", &h.in, 0, "rows_empty density_tile", 0, 0.25);
}

TEST(token_order_changes_masks_not_dense_attention)
{
    HEAD(h, golden_video, 3, 5, 0, PREC_F64);
    static const char *const orders[] = {"row", "column", "time", "random", "hilbert"};
    for (int i = 0; i < 5; i++) {
        char full[64], sparse[64];
        snprintf(full, sizeof full, "theta=1:permute=%s", orders[i]);
        snprintf(sparse, sizeof sparse, "theta=-1:tau=0.5:permute=%s", orders[i]);
        ck_assert_double_lt(sparge_metric(full, &h, "err_l1_rel"), 1e-11);
        ck_assert_double_eq_tol(sparge_metric(full, &h, "cra_min"), 1, 1e-12);
        double cra = sparge_metric(sparse, &h, "cra_mean"),
               none = sparge_metric("theta=-1:tau=0.5", &h, "cra_mean");
        if (i == 0)
            ck_assert_double_eq_tol(cra, none, 1e-12);
        else
            ck_assert_double_gt(fabs(cra - none), 1e-6);
    }
}

/* ---- quantised arithmetic ------------------------------------------------------------------- */

TEST(quantised_errors_are_small_and_ordered)
{
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    double one = sparge_metric("theta=1:pv=off:arith=sage1", &h, "err_l1_rel");
    double two = sparge_metric("theta=1:pv=off:arith=sage2", &h, "err_l1_rel");
    double low = sparge_metric("theta=1:pv=off:arith=sage2:v_max=2.25", &h, "err_l1_rel");
    ck_assert_double_gt(one, 1e-4);
    ck_assert_double_lt(one, 0.03);
    ck_assert_double_gt(two, one);
    ck_assert_double_lt(two, 0.06);
    /* The narrow range costs only values that become subnormal. */
    ck_assert_double_ne(low, two);
    ck_assert_double_eq_tol(low / two, 1, 0.05);
    ck_assert_double_lt(sparge_metric("theta=1:pv=off:arith=sage1", &h, "err_lse_max"), 0.2);
    ck_assert_double_eq(sparge_metric("theta=1:pv=off:arith=sage1", &h, "cra_min"), 1);
    /* Smoothing removes an offset of K that softmax cannot see. */
    double rough = sparge_metric("theta=1:pv=off:arith=sage1:smooth_k=0", &h, "err_l1_rel");
    ck_assert_double_ge(rough, one * 0.9);
}

TEST(half_precision_output_is_delivered)
{
    OWN(record_free) struct record r;
    HEAD(h, golden_code_lm, 5, 0, PREC_F32);
    h.in.src_dtype = DT_BF16;
    sparge_record("arith=sage1", &h, &r);
    assert_note(&r, "out_dtype=bfloat16");
}

/* e4m3 drops what lies 2^18.807 below the maximum, so a wider filter changes only the row sum. */
TEST(wide_filter_changes_only_the_sum)
{
    enum { N = 256, D = 16 };
    OWN(sim_head_free) struct sim_head h;
    OWN(free_at) float *x = malloc(3 * N * D * sizeof *x);
    for (int i = 0; i < N * D; i++) {
        x[i] = 1 + 0.05f * (float)rng_normal(1, 0, (uint64_t)i);
        x[N * D + i] =
            (i / D % 128 < 64 ? 1.0f : -1.0f) * 2.2f + 0.05f * (float)rng_normal(1, 1, (uint64_t)i);
        x[2 * N * D + i] = (float)rng_normal(1, 2, (uint64_t)i);
    }
    struct head_in in = plain_head(x, x + N * D, N, D, false);
    in.x.v = x + 2 * N * D;
    MUST(head_init(&h, &in, PREC_F64, ERR));
    double out[2][128 * D], lse[2][128], tiles[2] = {0};
    int32_t col[4] = {0, 1, 2, 3};
    for (int i = 0; i < 2; i++) {
        OWN(sparge_end)
        struct sparge *s =
            sparge_on(i ? "arith=sage2:pv=18.81:pv_tail=0" : "arith=sage2:pv=off", &h.in);
        struct tile_work *w;
        MUST(tile_work_new(&s->tile, &w, ERR));
        tile_attn_block(&s->tile, w, 0, 128, col, 4, out[i], lse[i], &tiles[i]);
        tile_work_free(w);
    }
    ck_assert_double_eq(tiles[0], 4);
    ck_assert_double_eq(tiles[1], 2);
    for (int r = 0; r < 128; r++) {
        double ratio = exp(lse[0][r] - lse[1][r]);
        ck_assert_double_ge(ratio, 1 - 1e-6);
        ck_assert_double_le(ratio, 1 + 128 * exp2(-18.81) + 1e-6);
        for (int c = 0; c < D; c++)
            ck_assert_double_eq_tol(out[0][r * D + c] * ratio, out[1][r * D + c], 2e-6);
    }
}

/* Two neighbouring tiles that are rounded together are one tile of twice the keys. */
TEST(tiles_rounded_together)
{
    enum { N = 256, D = 16 };
    OWN(sim_head_free) struct sim_head h;
    OWN(free_at) float *x = malloc(3 * N * D * sizeof *x);
    for (int i = 0; i < 3 * N * D; i++)
        x[i] = (float)rng_normal(3, 0, (uint64_t)i);
    struct head_in in = plain_head(x, x + N * D, N, D, false);
    in.x.v = x + 2 * N * D;
    MUST(head_init(&h, &in, PREC_F64, ERR));
    double out[3][128 * D], lse[128], apart[2] = {0, 0};
    OWN(sparge_end) struct sparge *s = sparge_on("arith=sage2:pv=off", &h.in);
    for (int i = 0; i < 3; i++) { /* by itself, together, as one */
        struct tile_attn t = s->tile;
        struct tile_work *w;
        t.together = i == 1 ? 2 : 0;
        t.bk = i == 2 ? 128 : 64;
        MUST(tile_work_new(&t, &w, ERR));
        tile_attn_block(&t, w, 0, 128, (const int32_t[]){0, 1, 2, 3}, N / t.bk, out[i], lse, NULL);
        tile_work_free(w);
    }
    for (int i = 0; i < 128 * D; i++)
        for (int k = 0; k < 2; k++)
            apart[k] = fmax(apart[k], fabs(out[k][i] - out[2][i]));
    ck_assert_double_lt(apart[1], 1e-6);
    ck_assert_double_gt(apart[0], 1e-3);
}
