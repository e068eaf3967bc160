/*
 * SpargeAttn: self-similarity, the cut of the coarse map, filter 2 inside the online softmax,
 * quantised arithmetic, and the per-head search.
 */
#include "core/mem.h"
#include "core/rng.h"
#include "sim/blockpool.h"
#include "sim/metrics.h"
#include "sim/registry.h"
#include "sim/spargeattn.h"
#include "tests/golden.h"
#include "tests/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

extern const struct method method_spargeattn;

/* ---- helpers -------------------------------------------------------------------------------- */

static struct sparge_params params_of(const char *text)
{
    struct method_run *runs = NULL;
    int64_t            n = 0;
    struct err         err = {0};
    char               full[256];
    snprintf(full, sizeof full, "spargeattn%s%s", text[0] ? ":" : "", text);
    assert_ok(method_runs_parse(sim_methods, full, &runs, &n, &err), &err);
    ck_assert_int_eq(n, 1);
    struct sparge_params p;
    memcpy(&p, runs[0].params, sizeof p);
    method_runs_free(runs, n);
    return p;
}

static struct sparge_rules rules_of(const char *text, int d)
{
    struct sparge_params p = params_of(text);
    struct sparge_rules  r;
    sparge_resolve(&p, d, &r);
    return r;
}

/* A head for filter 1 alone: no reference, no operands. */
static struct head_in plain_head(const float *q, const float *k, int64_t n, int d, bool causal)
{
    struct head_in in = {.x = {.nq = n,
                               .nk = n,
                               .d = d,
                               .dv = d,
                               .q = q,
                               .k = k,
                               .v = k,
                               .scale = 1 / sqrt(d),
                               .causal = causal},
                         .src_dtype = DT_F32,
                         .branch = "main"};
    return in;
}

static float *normals(uint64_t seed, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rng_normal(seed, 0, (uint64_t)i);
    return x;
}

static void run_record(const char *text, const struct sim_head *h, struct record *r)
{
    struct sparge_params p = params_of(text);
    struct method_ctx    ctx = {0};
    struct err           err = {0};
    record_init(r);
    assert_ok(sim_run(&method_spargeattn, &p, &ctx, &h->in, NULL, NULL, r, &err), &err);
}

/* One metric of one run. */
static double metric_of(const char *text, const struct sim_head *h, const char *name)
{
    struct record r;
    run_record(text, h, &r);
    double x = record_get(&r, name);
    record_free(&r);
    return x;
}

/* ---- self-similarity ------------------------------------------------------------------------ */

START_TEST(unit_vectors_have_similarity_one_over_n)
{
    float *x = calloc(128 * 128, sizeof *x);
    for (int a = 0; a < 64; a++)
        x[a * 64 + a] = 1;
    ck_assert_double_eq(block_cosine(x, 64, 64, NULL), 1.0 / 64);
    memset(x, 0, 128 * 128 * sizeof *x);
    for (int a = 0; a < 128; a++)
        x[a * 128 + a] = 1;
    ck_assert_double_eq(block_cosine(x, 128, 128, NULL), 1.0 / 128);
    memset(x, 0, 128 * 128 * sizeof *x);
    for (int a = 0; a < 128; a++)
        x[a * 64 + a / 2] = 1;
    ck_assert_double_eq(block_cosine(x, 128, 64, NULL), 1.0 / 64);
    free(x);
}
END_TEST

START_TEST(similarity_of_simple_blocks)
{
    float  same[64 * 3], opposite[64 * 2], angle[64 * 2], scaled[64 * 2];
    double c = cos(acos(-1) / 3), s = sin(acos(-1) / 3);
    for (int a = 0; a < 64; a++) {
        const float u[] = {0.3f, -1.7f, 2.2f};
        memcpy(same + a * 3, u, sizeof u);
        opposite[a * 2] = a % 2 ? 1 : -1;
        opposite[a * 2 + 1] = 0;
        angle[a * 2] = a < 32 ? 1 : (float)c;
        angle[a * 2 + 1] = a < 32 ? 0 : (float)s;
        scaled[a * 2] = a < 32 ? 1 : 2;
        scaled[a * 2 + 1] = 0;
    }
    ck_assert_double_eq_tol(block_cosine(same, 64, 3, NULL), 1, 1e-12);
    ck_assert_double_le(block_cosine(same, 64, 3, NULL), 1);
    ck_assert_double_eq(block_cosine(opposite, 64, 2, NULL), 0);
    ck_assert_double_eq_tol(block_cosine(angle, 64, 2, NULL), 0.75, 1e-7);
    ck_assert_double_eq(block_cosine(scaled, 64, 2, NULL), 1);
    ck_assert_double_eq(block_mean_share(scaled, 64, 2), 0.5625);

    struct sparge_rules r = rules_of("theta=-0.1", 64);
    ck_assert(sparge_similar(&r, 0, true));
    r.theta = 0;
    ck_assert(!sparge_similar(&r, 0, true));
    r.paper = true;
    ck_assert(sparge_similar(&r, 0, true));
}
END_TEST

START_TEST(random_directions)
{
    for (int d = 64; d <= 128; d += 64) {
        double sum = 0, sq = 0;
        float *x = normals(5, 100 * 64 * d);
        for (int b = 0; b < 100; b++) {
            double s = block_cosine(x + b * 64 * d, 64, d, NULL);
            sum += s;
            sq += (s - 1.0 / 64) * (s - 1.0 / 64);
        }
        ck_assert_double_eq_tol(sum / 100, 1.0 / 64, 0.001);
        ck_assert_double_eq_tol(sqrt(sq / 100), sqrt(2.0 / d) / 64, 0.0005);
        free(x);
    }
}
END_TEST

START_TEST(closed_form_is_the_double_sum)
{
    float *x = normals(6, 70 * 33);
    double sum = 0;
    for (int i = 0; i < 70 * 33; i++)
        x[i] += 0.5f;
    for (int a = 0; a < 70; a++)
        for (int b = 0; b < 70; b++) {
            double dot = 0, na = 0, nb = 0;
            for (int c = 0; c < 33; c++) {
                dot += (double)x[a * 33 + c] * x[b * 33 + c];
                na += (double)x[a * 33 + c] * x[a * 33 + c];
                nb += (double)x[b * 33 + c] * x[b * 33 + c];
            }
            sum += dot / sqrt(na * nb);
        }
    sum /= 70 * 70;
    ck_assert_double_eq_tol(block_cosine(x, 70, 33, NULL) / sum, 1, 1e-12);
    free(x);
}
END_TEST

START_TEST(zero_rows_and_partial_blocks_are_never_similar)
{
    bool  zero;
    float x[4] = {1, 0, 0, 0};
    block_cosine(x, 2, 2, &zero);
    ck_assert(zero);
    x[3] = 1;
    block_cosine(x, 2, 2, &zero);
    ck_assert(!zero);
    struct sparge_rules r = rules_of("theta=-1", 64), paper = rules_of("profile=paper:theta=0", 64);
    ck_assert(!sparge_similar(&r, 1, false));
    ck_assert(sparge_similar(&paper, 1, false));
    float none[4] = {0};
    ck_assert_double_eq(block_mean_share(none, 2, 2), 1);
}
END_TEST

/* ---- cut and map ---------------------------------------------------------------------------- */

START_TEST(cut_keeps_at_most_tau)
{
    static const float p[] = {0.5f, 0.25f, 0.125f, 0.125f}, three[] = {0.5f, 0.3f, 0.2f};
    static const struct {
        double tau;
        int    n;
    } c[] = {{0.3, 1}, {0.5, 1}, {0.7499, 1}, {0.75, 2}, {0.875, 3}, {0.9, 3}, {1, 4}};
    struct sparge_rules r = rules_of("", 64);
    double              mass;
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        r.tau = c[i].tau;
        ck_assert_int_eq(sparge_cut(&r, p, 4, &mass), c[i].n);
        ck_assert(mass <= c[i].tau || c[i].n == 1);
    }
    r.tau = 0.79;
    ck_assert_int_eq(sparge_cut(&r, three, 3, NULL), 1);
    r.tau = 0.81;
    ck_assert_int_eq(sparge_cut(&r, three, 3, NULL), 2);
    r.paper = true;
    r.tau = 0.3;
    ck_assert_int_eq(sparge_cut(&r, p, 4, NULL), 0);
    r.tau = 0.5;
    ck_assert_int_eq(sparge_cut(&r, p, 4, NULL), 1);
}
END_TEST

START_TEST(equal_probabilities_go_to_the_lower_block)
{
    struct sparge_entry e[] = {{0.125f, 3}, {0.5f, 0}, {0.125f, 2}, {0.25f, 1}};
    sparge_sort(e, 4);
    for (int j = 0; j < 4; j++)
        ck_assert_int_eq(e[j].j, j);
}
END_TEST

START_TEST(topk_truncates_a_float_product)
{
    static const struct {
        double share;
        int    n, kept;
    } c[] = {{0.5, 5, 2}, {0.1, 5, 1}, {0.3, 10, 3}, {0.7, 10, 7}};
    float               p[10] = {0};
    struct sparge_rules r = rules_of("select=topk", 64);
    ck_assert_double_eq(r.theta, -0.1);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        r.topk = c[i].share;
        ck_assert_int_eq(sparge_cut(&r, p, c[i].n, NULL), c[i].kept);
    }
}
END_TEST

static int64_t admissible_count(const struct sparge_rules *r, int64_t i)
{
    int64_t j = 0;
    while (sparge_admissible(r, true, i, j))
        j++;
    return j;
}

START_TEST(causal_tiles)
{
    static const struct {
        int64_t n, causal, all;
    } c[] = {{1024, 72, 128},      {4096, 1056, 2048},      {8192, 4160, 8192},
             {17776, 19460, 38642}, {131072, 1049600, 2097152}};
    struct sparge_rules a = rules_of("", 64), b = rules_of("arch=sm90", 64);
    ck_assert_int_eq(admissible_count(&a, 0), 2);
    ck_assert_int_eq(admissible_count(&a, 1), 4);
    ck_assert_int_eq(admissible_count(&b, 0), 1);
    ck_assert_int_eq(admissible_count(&b, 1), 1);
    ck_assert_int_eq(admissible_count(&b, 2), 2);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        int64_t n64 = (c[i].n + 63) / 64, n128 = (c[i].n + 127) / 128;
        ck_assert_int_eq(sparge_tiles(n128, n64, &a, true), c[i].causal);
        ck_assert_int_eq(sparge_tiles(n64, n128, &b, true), c[i].causal);
        ck_assert_int_eq(sparge_tiles(n128, n64, &a, false), c[i].all);
        ck_assert_int_eq(sparge_native_tiles(n128, n64, true), n128 * ((n64 + 2) / 2));
    }
    /* What the official count says of a dense causal run with 64 x 128 tiles. */
    double dense = 1 - 72.0 / (double)sparge_native_tiles(16, 8, true);
    ck_assert_double_eq_tol(dense, 0.1, 1e-15);
    dense = 1 - 72.0 / (double)sparge_native_tiles(8, 16, true);
    ck_assert_double_eq(dense, 0);
}
END_TEST

/* Kept tiles of all query blocks. */
static int64_t kept_tiles(struct sparge *s)
{
    int64_t  kept = 0;
    int32_t *col = malloc((size_t)s->nk_blocks * sizeof *col);
    double   mass;
    for (int64_t i = 0; i < s->nq_blocks; i++)
        kept += sparge_list(s, s->row, i, col, &mass);
    free(col);
    return kept;
}

START_TEST(causal_topk_counts)
{
    static const struct {
        const char *topk;
        int64_t     kept;
        double      sparsity;
    } c[] = {{"0.5", 3104, 0.2538}, {"0.25", 1808, 0.5654}, {"0.1", 738, 0.8226}};
    float         *q = normals(1, 8192 * 16), *k = normals(2, 8192 * 16);
    struct head_in in = plain_head(q, k, 8192, 16, true);
    for (int arch = 0; arch < 2; arch++)
        for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
            char text[64];
            snprintf(text, sizeof text, "select=topk:topk=%s:arch=%s", c[i].topk,
                     arch ? "sm90" : "sm80");
            struct sparge_params p = params_of(text);
            struct sparge       *s;
            struct err           err = {0};
            assert_ok(sparge_new(&p, &in, &s, &err), &err);
            int64_t kept = kept_tiles(s);
            ck_assert_int_eq(kept, c[i].kept);
            ck_assert_double_eq_tol(1 - (double)kept / 4160, c[i].sparsity, 5e-5);
            int64_t native = sparge_native_tiles(s->nq_blocks, s->nk_blocks, true);
            if (arch && i == 0)
                ck_assert_double_eq_tol(1 - (double)kept / (double)native, 0.2652, 5e-5);
            sparge_free(s);
        }
    free(q);
    free(k);
}
END_TEST

START_TEST(partial_blocks_are_kept)
{
    float               *q = normals(1, 200 * 64), *k = normals(2, 200 * 64);
    struct head_in       in = plain_head(q, k, 200, 64, false);
    struct sparge_params p = params_of("theta=-1:tau=0");
    struct sparge       *s;
    struct err           err = {0};
    int32_t              col[4];
    double               mass;
    assert_ok(sparge_new(&p, &in, &s, &err), &err);
    ck_assert_int_eq(s->nq_blocks, 2);
    ck_assert_int_eq(s->nk_blocks, 4);
    ck_assert_int_eq(sparge_list(s, s->row, 1, col, &mass), 4);
    ck_assert_double_eq(mass, -1);
    ck_assert_int_eq(sparge_list(s, s->row, 0, col, &mass), 2);
    ck_assert_int_eq(col[1], 3);
    ck_assert_double_gt(mass, 0);
    sparge_free(s);
    free(q);
    free(k);
}
END_TEST

START_TEST(extreme_budgets_keep_everything)
{
    static const char *const text[] = {"theta=1", "theta=-1:tau=1", "profile=paper:theta=0:tau=1",
                                       "theta=-1:tau=1:arch=sm90", "dense=1:tau=0"};
    struct err               err = {0};
    float                   *q = normals(1, 1920 * 8), *k = normals(2, 1920 * 8);
    for (int causal = 0; causal < 2; causal++)
        for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
            struct head_in       in = plain_head(q, k, 1920, 8, causal);
            struct sparge_params p = params_of(text[i]);
            struct sparge       *s;
            assert_ok(sparge_new(&p, &in, &s, &err), &err);
            ck_assert_int_eq(kept_tiles(s),
                             sparge_tiles(s->nq_blocks, s->nk_blocks, &s->rules, causal));
            sparge_free(s);
        }
    free(q);
    free(k);
}
END_TEST

START_TEST(map_rules_by_brute_force)
{
    struct sim_head h;
    struct err      err = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F32, &h, &err), &err);
    struct sparge_params p = params_of("theta=0.3:tau=0.8:sink=1");
    struct sparge       *s;
    assert_ok(sparge_new(&p, &h.in, &s, &err), &err);
    ck_assert_int_eq(s->nq_blocks, 7);
    int32_t col[16];
    double  mass;
    for (int64_t i = 0; i < 7; i++) {
        int64_t n = sparge_list(s, s->row, i, col, &mass);
        double  P[13], sum = 0, taken = 0;
        bool    judged_row = s->qb.s[i] > 0.3 && i < 6;
        for (int64_t j = 0; j < 13; j++) {
            double dot = 0;
            for (int c = 0; c < 64; c++)
                dot += (double)s->qb.mean[i * 64 + c] * s->kb.mean[j * 64 + c];
            bool judged = s->kb.s[j] > 0.3 && j < 12 && j * 64 < (i + 1) * 128;
            P[j] = judged ? exp(dot / 8) : 0;
            sum += P[j];
        }
        /* A judged block is kept iff the mass of all blocks up to it fits below tau (or it leads). */
        int64_t e = 0;
        for (int64_t j = 0; j < 13 && j * 64 < (i + 1) * 128; j++) {
            double before = 0;
            for (int64_t k = 0; k < 13; k++)
                before += P[k] > P[j] ? P[k] / sum : 0;
            bool keep = !judged_row || P[j] == 0 || j == 0 || before == 0 ||
                        before + P[j] / sum <= 0.8;
            if (keep && judged_row && P[j] > 0 && (before == 0 || before + P[j] / sum <= 0.8))
                taken += P[j] / sum;
            ck_assert_int_eq(e < n && col[e] == j, keep);
            e += keep;
        }
        ck_assert_int_eq(e, n);
        if (mass >= 0)
            ck_assert_double_eq_tol(mass, taken, 1e-6);
    }
    sparge_free(s);
    sim_head_free(&h);
}
END_TEST

START_TEST(sixteen_bit_running_sum_stalls)
{
    enum { N = 1024 };
    struct sparge_entry e[N];
    float               p[N];
    double              sum = 0;
    for (int j = 0; j < N; j++)
        sum += exp(rng_normal(9, 0, (uint64_t)j));
    for (int j = 0; j < N; j++)
        e[j] = (struct sparge_entry){(float)(exp(rng_normal(9, 0, (uint64_t)j)) / sum), j};
    sparge_sort(e, N);
    for (int j = 0; j < N; j++)
        p[j] = e[j].p;
    struct sparge_rules r = rules_of("tau=0.98", 64);
    int64_t             exact = sparge_cut(&r, p, N, NULL);
    ck_assert_int_lt(exact, 950);
    r.cdf = DT_BF16;
    ck_assert_int_eq(sparge_cut(&r, p, N, NULL), N);
    r.cdf = DT_F16;
    int64_t half = sparge_cut(&r, p, N, NULL);
    ck_assert_int_le(llabs(half - exact), N / 10);
}
END_TEST

START_TEST(input_grid_rounds_the_map)
{
    struct sim_head h;
    struct err      err = {0};
    assert_ok(golden_code_lm(5, 7, PREC_F32, &h, &err), &err);
    struct sparge_params p = params_of("map_dtype=input");
    struct sparge       *s;
    h.in.src_dtype = DT_BF16;
    assert_ok(sparge_new(&p, &h.in, &s, &err), &err);
    for (int64_t i = 0; i < s->nk_blocks * 64; i++)
        ck_assert_float_eq(s->kb.mean[i], dtype_round(DT_BF16, s->kb.mean[i]));
    for (int64_t i = 0; i < 770 * 64; i++)
        ck_assert_float_eq(s->k[i], dtype_round(DT_BF16, s->k[i]));
    sparge_free(s);
    h.in.src_dtype = DT_F32; /* becomes fp16, as in the official code */
    assert_ok(sparge_new(&p, &h.in, &s, &err), &err);
    for (int64_t i = 0; i < 770 * 64; i++)
        ck_assert_float_eq(s->q[i], dtype_round(DT_F16, h.q[i]));
    sparge_free(s);
    sim_head_free(&h);
}
END_TEST

/* ---- filter 2 ------------------------------------------------------------------------------- */

/* One row whose kept tiles have the maxima 0, -10, 3, -20, -20 in log2 units. */
static double filtered_tiles(double pv, int tail, double *out)
{
    static const float    q[1] = {1}, k[5] = {0, -10, 3, -20, -20}, v[5] = {1, 2, -4, 8, 16};
    static const int32_t  col[5] = {0, 1, 2, 3, 4};
    struct attn_in        in = {1, 5, 1, 1, q, k, v, 0.69314718055994530942, false};
    struct attn_ops       ops;
    struct tile_work     *w;
    struct err            err = {0};
    double                lse, tiles = 0;
    assert_ok(attn_prepare(&ops, &in, PREC_F64, &err), &err);
    struct tile_attn t = {.nq = 1, .nk = 5, .d = 1, .dv = 1, .bq = 1, .bk = 1, .ops = &ops,
                          .pv = pv, .scope = 1, .tail = tail};
    assert_ok(tile_work_new(&t, &w, &err), &err);
    tile_attn_block(&t, w, 0, 1, col, 5, out, &lse, &tiles);
    tile_work_free(w);
    attn_release(&ops);
    return tiles;
}

START_TEST(filter_counts)
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
END_TEST

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

START_TEST(filter_by_brute_force)
{
    enum { N = 300, D = 24 };
    static const struct {
        bool    causal, keep_l;
        int64_t bq, bk, scope;
        int     tail, prec;
        double  pv;
    } c[] = {
        {true, false, 128, 64, 128, 2, PREC_F64, 1}, {true, true, 128, 64, 16, 0, PREC_F64, 2},
        {false, false, 64, 128, 64, 0, PREC_F64, 1}, {false, true, 64, 128, 16, 0, PREC_F32, 3},
        {true, false, 64, 128, 16, 1, PREC_F32, 1},
    };
    float *q = normals(11, N * D), *k = normals(12, N * D), *v = normals(13, N * D);
    for (int i = 0; i < N * D; i++) {
        q[i] = 2 * q[i] + 1;
        k[i] += 4 * (1 - (float)(i / D) / N); /* later tiles stay below the maximum */
    }
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct attn_in    in = {N, N, D, D, q, k, v, 1 / sqrt(D), c[i].causal};
        struct attn_ops   ops;
        struct err        err = {0};
        int32_t           col[8];
        int64_t           n = 0;
        struct tile_work *w;
        double            out[128 * D], lse[128], want[128 * D], want_lse[128], skipped = 0;
        double            tol = c[i].prec == PREC_F64 ? 1e-12 : 2e-5;
        assert_ok(attn_prepare(&ops, &in, c[i].prec, &err), &err);
        struct tile_attn t = {.nq = N, .nk = N, .d = D, .dv = D, .causal = c[i].causal,
                              .bq = c[i].bq, .bk = c[i].bk, .ops = &ops, .pv = c[i].pv,
                              .scope = c[i].scope, .tail = c[i].tail,
                              .keep_denominator = c[i].keep_l};
        assert_ok(tile_work_new(&t, &w, &err), &err);
        for (int32_t j = 0; j * c[i].bk < N; j++)
            if (j != 1 || c[i].bk == 128)
                col[n++] = j;
        for (int64_t row0 = 128; row0 < N; row0 += 128) {
            int64_t rows = N - row0 < c[i].bq ? N - row0 : c[i].bq;
            double  tiles = 0;
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
        attn_release(&ops);
    }
    free(q);
    free(k);
    free(v);
}
END_TEST

START_TEST(sparsities_from_counts)
{
    struct metrics_acc acc;
    struct mask        m = {0};
    struct record      r;
    struct err         err = {0};
    double             zero[128] = {0};
    record_init(&r);
    assert_ok(metrics_init(&acc, 128, 1, &err), &err);
    assert_ok(mask_lists_init(&m, 128, 512, 0, 128, false, 128, 64, &err), &err);
    assert_ok(mask_lists_add_run(&m, 0, 0, 5, &err), &err);
    mask_lists_finish(&m);
    metrics_add_rows(&acc, 0, 128, zero, zero, zero, zero, zero);
    assert_ok(metrics_add_mask(&acc, &m, 3, &err), &err);
    assert_ok(metrics_finish(&acc, 128, 512, &r, &err), &err);
    ck_assert_double_eq(record_get(&r, "sparsity_qk"), 0.375);
    ck_assert_double_eq(record_get(&r, "sparsity_pv"), 0.625);
    ck_assert_double_eq(record_get(&r, "sparsity_total"), 0.5);
    mask_free(&m);
    metrics_free(&acc);
    record_free(&r);
}
END_TEST

START_TEST(scopes_and_tails_of_the_presets)
{
    static const struct {
        const char *text;
        int         d, tail;
        int64_t     bq, bk, scope;
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
END_TEST

START_TEST(lambda_is_pv_in_nats)
{
    ck_assert_double_eq_tol(params_of("lambda=-5").pv, 7.213475, 1e-6);
    ck_assert_double_eq_tol(params_of("lambda=-34.657").pv, 50, 1e-3);
    ck_assert_double_eq_tol(params_of("lambda=-13.863").pv, 20, 1e-3);
    ck_assert(isinf(params_of("pv=off").pv));
    ck_assert_int_eq(params_of("quant=int8").arith, SPARGE_SAGE1);

    struct method_run *runs = NULL;
    int64_t            n = 0;
    struct err         err = {0};
    assert_fails(method_runs_parse(sim_methods, "spargeattn:lambda=-5:pv=7", &runs, &n, &err), &err,
                 ERR_USAGE, "lambda");
    assert_fails(method_runs_parse(sim_methods, "spargeattn:quant=int8:arith=sage2", &runs, &n, &err),
                 &err, ERR_USAGE, "quant");
    assert_fails(method_runs_parse(sim_methods, "spargeattn:l1=0.1:l2=0.05", &runs, &n, &err), &err,
                 ERR_USAGE, "l2");
    method_runs_free(runs, n);
}
END_TEST

/* ---- whole method --------------------------------------------------------------------------- */

START_TEST(full_budget_is_dense)
{
    static const char *const text[] = {"theta=1", "theta=1:pv=off", "theta=1:arch=sm90",
                                       "profile=paper:theta=1:tau=1"};
    struct sim_head          h;
    struct err               err = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F64, &h, &err), &err);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        struct record r;
        run_record(text[i], &h, &r);
        ck_assert_double_eq(record_get(&r, "density_elem"), 1);
        ck_assert_double_eq(record_get(&r, "sparsity_qk"), 0);
        if (i == 1)
            ck_assert_double_eq(record_get(&r, "sparsity_total"), 0);
        ck_assert_double_lt(record_get(&r, "err_l1_rel"), 1e-11);
        ck_assert_double_lt(record_get(&r, "err_lse_max"), 1e-11);
        ck_assert_double_eq(record_get(&r, "dead_rows"), 0);
        record_free(&r);
    }
    sim_head_free(&h);
}
END_TEST

START_TEST(density_native_is_the_official_count)
{
    struct sim_head h;
    struct record   r;
    struct err      err = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F32, &h, &err), &err);
    run_record("theta=1:arch=sm90", &h, &r); /* 13 x 7 tiles, 49 causal */
    ck_assert_double_eq_tol(record_get(&r, "density_native"), 49.0 / (13 * 4), 1e-12);
    record_free(&r);
    run_record("theta=-1:tau=0.7:pv=2", &h, &r);
    double qk = record_get(&r, "sparsity_qk");
    ck_assert_double_gt(qk, 0.1);
    ck_assert_double_gt(record_get(&r, "sparsity_pv"), qk);
    ck_assert_double_eq_tol(record_get(&r, "density_native"), (1 - qk) * 55 / (7 * 7), 1e-12);
    ck_assert_double_eq(record_get(&r, "judged_q"), 6.0 / 7);
    ck_assert_double_le(record_get(&r, "coarse_mass"), 0.75);
    record_free(&r);
    run_record("profile=paper:tau=0.7:pv=2", &h, &r);
    ck_assert_double_eq_tol(record_get(&r, "density_native"), 1 - record_get(&r, "sparsity_total"),
                            1e-12);
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

/* Query block 1 keeps key block 3 only, which its first 64 rows cannot see. */
static void dead_head(struct sim_head *h)
{
    struct err err = {0};
    assert_ok(random_head(3, 256, 256, 16, true, 0.01, PREC_F64, h, &err), &err);
    struct head_in in = h->in;
    float         *q = malloc(256 * 16 * sizeof *q), *k = malloc(256 * 16 * sizeof *k);
    for (int i = 0; i < 256 * 16; i++) {
        q[i] = h->q[i] + 1;
        k[i] = h->k[i] + (i >= 192 * 16 ? 1.0f : -1.0f);
    }
    float *v = malloc(256 * 16 * sizeof *v);
    memcpy(v, h->v, 256 * 16 * sizeof *v);
    in.x.q = q;
    in.x.k = k;
    in.x.v = v;
    sim_head_free(h);
    assert_ok(sim_head_init(h, &in, PREC_F64, &err), &err);
    free(q);
    free(k);
    free(v);
}

static int copy_rows(void *ctx, const struct mask *m, const double *out, const double *lse,
                     struct err *err)
{
    memcpy((double *)ctx + m->row0 * 16, out, (size_t)((m->row1 - m->row0) * 16) * sizeof *out);
    return 0;
}

START_TEST(rows_without_a_visible_key)
{
    struct sim_head   h;
    struct err        err = {0};
    struct method_ctx ctx = {0};
    double           *out = malloc(256 * 16 * sizeof *out), mean[16] = {0};
    dead_head(&h);
    for (int i = 192 * 16; i < 256 * 16; i++)
        mean[i % 16] += h.v[i] / 64.0;
    static const char *const text[] = {"theta=-1:tau=0:dead=zero", "theta=-1:tau=0:dead=mean",
                                       "theta=-1:tau=0:pv=off", "theta=-1:tau=0:dead=mean:arith=sage1"};
    for (int i = 0; i < 4; i++) {
        struct sparge_params p = params_of(text[i]);
        struct record        r;
        record_init(&r);
        assert_ok(sim_run(&method_spargeattn, &p, &ctx, &h.in, copy_rows, out, &r, &err), &err);
        ck_assert_double_eq(record_get(&r, "dead_rows"), 64);
        ck_assert_double_eq(record_get(&r, "rows_empty"), 64);
        for (int e = 128 * 16; e < 192 * 16; e++)
            ck_assert_double_eq_tol(out[e], i % 2 ? mean[e % 16] : 0, 1e-12);
        record_free(&r);
    }
    ck_assert_double_eq(metric_of("theta=-1:tau=0:sink=1", &h, "dead_rows"), 0);
    ck_assert_double_eq(metric_of("theta=-1:tau=0:arch=sm90", &h, "dead_rows"), 0);
    free(out);
    sim_head_free(&h);
}
END_TEST

START_TEST(empty_rows_exist_in_the_paper_profile_only)
{
    struct sim_head h;
    struct err      err = {0};
    assert_ok(random_head(8, 256, 256, 32, false, 1, PREC_F64, &h, &err), &err);
    ck_assert_double_eq(metric_of("profile=paper:theta=0:tau=0", &h, "rows_empty"), 256);
    ck_assert_double_eq(metric_of("profile=paper:theta=0:tau=0", &h, "dead_rows"), 256);
    ck_assert_double_eq(metric_of("theta=-1:tau=0", &h, "rows_empty"), 0);
    ck_assert_double_eq(metric_of("theta=-1:tau=0", &h, "density_tile"), 0.25);
    sim_head_free(&h);
}
END_TEST

START_TEST(token_order_changes_masks_not_dense_attention)
{
    struct sim_head h, text;
    struct record   r;
    struct err      err = {0};
    assert_ok(golden_video(3, 5, 0, PREC_F64, &h, &err), &err);
    static const char *const orders[] = {"row", "column", "time", "random", "hilbert"};
    for (int i = 0; i < 5; i++) {
        char full[64], sparse[64];
        snprintf(full, sizeof full, "theta=1:permute=%s", orders[i]);
        snprintf(sparse, sizeof sparse, "theta=-1:tau=0.5:permute=%s", orders[i]);
        ck_assert_double_lt(metric_of(full, &h, "err_l1_rel"), 1e-11);
        ck_assert_double_eq_tol(metric_of(full, &h, "cra_min"), 1, 1e-12);
        double cra = metric_of(sparse, &h, "cra_mean"), none = metric_of("theta=-1:tau=0.5", &h, "cra_mean");
        if (i == 0)
            ck_assert_double_eq_tol(cra, none, 1e-12);
        else
            ck_assert_double_gt(fabs(cra - none), 1e-6);
    }
    assert_ok(golden_code_lm(5, 0, PREC_F32, &text, &err), &err);
    run_record("permute=time", &text, &r);
    ck_assert_int_eq(r.status, RECORD_SKIP);
    ck_assert_ptr_nonnull(strstr(r.reason, "video"));
    record_free(&r);
    sim_head_free(&h);
    sim_head_free(&text);
}
END_TEST

START_TEST(causal_rectangles_are_skipped)
{
    struct sim_head h;
    struct record   r;
    struct err      err = {0};
    assert_ok(random_head(1, 64, 128, 16, true, 1, PREC_F32, &h, &err), &err);
    run_record("", &h, &r);
    ck_assert_int_eq(r.status, RECORD_SKIP);
    ck_assert_str_eq(r.reason, "causal needs nq == nk");
    record_free(&r);
    sim_head_free(&h);
    assert_ok(random_head(1, 64, 128, 16, false, 1, PREC_F32, &h, &err), &err);
    run_record("", &h, &r);
    ck_assert_int_eq(r.status, RECORD_OK);
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

/* ---- quantised arithmetic ------------------------------------------------------------------- */

START_TEST(quantised_errors_are_small_and_ordered)
{
    struct sim_head h;
    struct err      err = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F64, &h, &err), &err);
    double one = metric_of("theta=1:pv=off:arith=sage1", &h, "err_l1_rel");
    double two = metric_of("theta=1:pv=off:arith=sage2", &h, "err_l1_rel");
    double low = metric_of("theta=1:pv=off:arith=sage2:v_max=2.25", &h, "err_l1_rel");
    ck_assert_double_gt(one, 1e-4);
    ck_assert_double_lt(one, 0.03);
    ck_assert_double_gt(two, one);
    ck_assert_double_lt(two, 0.06);
    /* The narrow range costs only values that become subnormal. */
    ck_assert_double_ne(low, two);
    ck_assert_double_eq_tol(low / two, 1, 0.05);
    ck_assert_double_lt(metric_of("theta=1:pv=off:arith=sage1", &h, "err_lse_max"), 0.2);
    ck_assert_double_eq(metric_of("theta=1:pv=off:arith=sage1", &h, "cra_min"), 1);
    /* Smoothing removes an offset of K that softmax cannot see. */
    double rough = metric_of("theta=1:pv=off:arith=sage1:smooth_k=0", &h, "err_l1_rel");
    ck_assert_double_ge(rough, one * 0.9);
    sim_head_free(&h);
}
END_TEST

START_TEST(half_precision_output_is_delivered)
{
    struct sim_head h;
    struct record   r;
    struct err      err = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F32, &h, &err), &err);
    h.in.src_dtype = DT_BF16;
    run_record("arith=sage1", &h, &r);
    ck_assert_ptr_nonnull(strstr(buf_str(&r.notes), "out_dtype=bfloat16"));
    record_free(&r);
    sim_head_free(&h);
}
END_TEST

/* e4m3 drops what lies 2^18.807 below the maximum, so a wider filter changes only the row sum. */
START_TEST(wide_filter_changes_only_the_sum)
{
    enum { N = 256, D = 16 };
    struct sim_head h;
    struct err      err = {0};
    float          *x = malloc(3 * N * D * sizeof *x);
    for (int i = 0; i < N * D; i++) {
        x[i] = 1 + 0.05f * (float)rng_normal(1, 0, (uint64_t)i);
        x[N * D + i] = (i / D % 128 < 64 ? 1.0f : -1.0f) * 2.2f +
                       0.05f * (float)rng_normal(1, 1, (uint64_t)i);
        x[2 * N * D + i] = (float)rng_normal(1, 2, (uint64_t)i);
    }
    struct head_in in = plain_head(x, x + N * D, N, D, false);
    in.x.v = x + 2 * N * D;
    assert_ok(sim_head_init(&h, &in, PREC_F64, &err), &err);
    double out[2][128 * D], lse[2][128], tiles[2] = {0};
    int32_t col[4] = {0, 1, 2, 3};
    for (int i = 0; i < 2; i++) {
        struct sparge_params p = params_of(i ? "arith=sage2:pv=18.81:pv_tail=0" : "arith=sage2:pv=off");
        struct sparge       *s;
        struct tile_work    *w;
        assert_ok(sparge_new(&p, &h.in, &s, &err), &err);
        assert_ok(tile_work_new(&s->tile, &w, &err), &err);
        tile_attn_block(&s->tile, w, 0, 128, col, 4, out[i], lse[i], &tiles[i]);
        tile_work_free(w);
        sparge_free(s);
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
    free(x);
    sim_head_free(&h);
}
END_TEST

/* ---- search --------------------------------------------------------------------------------- */

struct fake {
    bool   pass;
    int    n;
    double tau[16], pv[16];
};

static int fake_eval(void *ctx, double tau, double pv, double *l1, double *sparsity, struct err *err)
{
    struct fake *f = ctx;
    ck_assert_int_lt(f->n, 16);
    f->tau[f->n] = tau;
    f->pv[f->n++] = pv;
    *l1 = f->pass ? 0 : 1;
    *sparsity = f->n;
    return 0;
}

START_TEST(bisection_points)
{
    struct err  err = {0};
    double      x, sparsity;
    struct fake f = {true, 0, {0}, {0}};
    assert_ok(sparge_bisect_tau(fake_eval, &f, 0.5, &x, &sparsity, &err), &err);
    ck_assert_int_eq(f.n, 8);
    for (int i = 0; i < 8; i++) {
        ck_assert_double_eq_tol(f.tau[i], 0.1 / exp2(i), 1e-15);
        ck_assert_double_eq(f.pv[i], 50);
    }
    ck_assert_double_eq_tol(f.tau[7], 0.00078125, 1e-15);
    ck_assert_double_eq_tol(x, 0.000390625, 1e-15);
    ck_assert_double_eq(sparsity, 8);

    f = (struct fake){false, 0, {0}, {0}};
    assert_ok(sparge_bisect_tau(fake_eval, &f, 0.5, &x, &sparsity, &err), &err);
    ck_assert_int_eq(f.n, 11);
    ck_assert_double_eq(x, 1);

    f = (struct fake){true, 0, {0}, {0}};
    assert_ok(sparge_bisect_pv(fake_eval, &f, 0.5, 0.3, &x, &err), &err);
    ck_assert_int_eq(f.n, 9);
    ck_assert_double_eq_tol(x, 0.0390625, 1e-12);
    f = (struct fake){false, 0, {0}, {0}};
    assert_ok(sparge_bisect_pv(fake_eval, &f, 0.5, 0.3, &x, &err), &err);
    ck_assert_int_eq(f.n, 10);
    ck_assert_double_eq_tol(x, 49.9707, 1e-4);
    ck_assert_double_eq(f.tau[0], 0.3);
}
END_TEST

START_TEST(bins_of_theta)
{
    struct sparge_point best, p[] = {
        {-1, 0.5, 20, 0.5},        {-1 + 1.0 / 16, 0.6, 10, 0.3},  /* bin 0: 0.8 */
        {-1 + 2.0 / 16, 0.4, 5, 0.45}, {-1 + 3.0 / 16, 0.3, 30, 0.4}, /* bin 1: 0.85 */
        {0, 0.2, 1, 0.6},                                             /* bin 8: 0.6, mean 0.6 */
    };
    sparge_pick(p, 5, SPARGE_BIN_SUM, &best);
    ck_assert_double_eq(best.theta, -1 + 3.0 / 16);
    ck_assert_double_eq(best.tau, 0.4);
    ck_assert_double_eq(best.pv, 30);
    ck_assert_double_eq_tol(best.sparsity, 0.425, 1e-15);
    sparge_pick(p, 5, SPARGE_BIN_MEAN, &best);
    ck_assert_double_eq(best.theta, 0);
    /* A tie goes to the bin that appears first. */
    p[0].sparsity = p[1].sparsity = p[2].sparsity = p[3].sparsity = 0.5;
    sparge_pick(p, 4, SPARGE_BIN_SUM, &best);
    ck_assert_double_eq(best.theta, -1 + 1.0 / 16);
    struct sparge_point swapped[] = {p[2], p[3], p[0], p[1]};
    sparge_pick(swapped, 4, SPARGE_BIN_SUM, &best);
    ck_assert_double_eq(best.theta, -1 + 3.0 / 16);
}
END_TEST

static json_t *calibrated(const char *text, const struct head_in *samples, int n)
{
    struct sparge_params p = params_of(text);
    struct method_ctx    ctx = {0};
    struct err           err = {0};
    struct buf           b = {0};
    struct jw            w;
    json_t              *doc = NULL;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    assert_ok(sparge_calibrate(&ctx, &p, samples, n, &w, &err), &err);
    jw_obj_end(&w);
    assert_ok(json_read_text(buf_str(&b), b.len, "calibration", &doc, &err), &err);
    buf_free(&b);
    return doc;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

START_TEST(calibrated_head_keeps_the_bound)
{
    static const char *const text[] = {"l1=0.3:l2=0.35", "search=grid:l1=0.3:l2=0.35",
                                       "profile=paper:l1=0.3:l2=0.35",
                                       "arith=sage1:l1=0.3:l2=0.35:tune_pv=0"};
    struct sim_head          h;
    struct err               err = {0};
    assert_ok(golden_video(0, 0, 0, PREC_F32, &h, &err), &err);
    for (int i = 0; i < 4; i++) {
        json_t *doc = calibrated(text[i], &h.in, 1);
        double  theta = number(doc, "theta"), tau = number(doc, "tau"), pv = number(doc, "pv");
        ck_assert(json_is_false(json_object_get(doc, "dense")));
        ck_assert_int_eq(json_object_get(doc, "sink") != NULL, i != 2);
        ck_assert(theta >= -1 && theta <= 1 && tau >= 0 && tau <= 1 && pv > 0 && pv <= 50);
        if (i == 3)
            ck_assert_double_eq(pv, 20);
        char run[256];
        snprintf(run, sizeof run, "theta=%.17g:tau=%.17g:pv=%.17g%s%s", theta, tau, pv,
                 i == 2 ? ":profile=paper" : "", i == 3 ? ":arith=sage1" : "");
        /* tau is half a step beyond the last setting that was tried, hence the margin. */
        ck_assert_double_lt(metric_of(run, &h, "err_l1_rel"), 0.35 * 1.1);
        ck_assert_double_gt(metric_of(run, &h, "sparsity_qk"), 0.1);
        json_decref(doc);
    }
    sim_head_free(&h);
}
END_TEST

START_TEST(impossible_bound_makes_the_head_dense)
{
    struct sim_head h;
    struct err      err = {0};
    assert_ok(golden_code_lm(5, 7, PREC_F32, &h, &err), &err);
    json_t *doc = calibrated("l1=1e-9:l2=2e-9", &h.in, 1);
    ck_assert(json_is_true(json_object_get(doc, "dense")));
    ck_assert_double_eq(number(doc, "theta"), 1);
    ck_assert_double_eq(number(doc, "tau"), 1);
    json_decref(doc);
    sim_head_free(&h);
}
END_TEST

START_TEST(branches_of_a_step_are_one_input)
{
    static const struct {
        int         step;
        const char *branch;
        int         size; /* of the input that begins here, 0 = inside one */
    } c[] = {{0, "cond", 2},   {0, "uncond", 0}, {1, "cond", 1},   {2, "cond", 2},
             {2, "uncond", 0}, {2, "cond", 1},   {0, "main", 1},   {0, "main", 1}};
    struct head_in in[8];
    memset(in, 0, sizeof in);
    for (int i = 0; i < 8; i++) {
        in[i].step = c[i].step;
        in[i].branch = c[i].branch;
    }
    for (int i = 0; i < 8; i++)
        if (c[i].size)
            ck_assert_int_eq(sparge_input_size(in, 8, i), c[i].size);
}
END_TEST

/* Two equal branches have the errors and the sparsity of one; two equal inputs give equal points. */
START_TEST(repeated_samples_change_nothing)
{
    struct sim_head h;
    struct err      err = {0};
    struct head_in  two[2];
    assert_ok(golden_video(0, 0, 0, PREC_F32, &h, &err), &err);
    two[0] = two[1] = h.in;
    json_t *one = calibrated("l1=0.3:l2=0.35", two, 1);
    for (int step = 0; step < 2; step++) {
        two[1].branch = "other";
        two[1].step = h.in.step + step;
        json_t *doc = calibrated("l1=0.3:l2=0.35", two, 2);
        ck_assert(json_equal(one, doc));
        json_decref(doc);
    }
    json_decref(one);
    sim_head_free(&h);
}
END_TEST

/* A head that an input made dense stays dense: later inputs are not looked at. */
START_TEST(dense_is_for_good)
{
    struct sim_head h[2];
    struct err      err = {0};
    struct head_in  two[2];
    assert_ok(random_head(4, 384, 384, 128, false, 0.3, PREC_F32, &h[0], &err), &err);
    assert_ok(golden_video(0, 0, 0, PREC_F32, &h[1], &err), &err);
    const char *text = "l1=0.2:l2=0.3:search=grid";
    for (int first = 0; first < 2; first++) {
        two[0] = h[first].in;
        two[1] = h[!first].in;
        two[1].step = two[0].step + 1;
        json_t *alone = calibrated(text, two, 1), *both = calibrated(text, two, 2);
        bool    dense = json_is_true(json_object_get(alone, "dense"));
        ck_assert_int_eq(dense, first == 0);
        if (dense)
            ck_assert(json_equal(alone, both));
        json_decref(alone);
        json_decref(both);
    }
    sim_head_free(&h[0]);
    sim_head_free(&h[1]);
}
END_TEST

START_TEST(calibrate_refuses_topk)
{
    struct sparge_params p = params_of("select=topk");
    struct method_ctx    ctx = {0};
    struct err           err = {0};
    struct buf           b = {0};
    struct jw            w;
    struct head_in       in = {0};
    jw_init(&w, &b, 0);
    assert_fails(sparge_calibrate(&ctx, &p, &in, 1, &w, &err), &err, ERR_USAGE, "select=cdf");
    in.x = (struct attn_in){.nq = 4, .nk = 8, .d = 4, .causal = true};
    p = params_of("");
    ck_assert_int_eq(sparge_calibrate(&ctx, &p, &in, 1, &w, &err), METHOD_SKIP);
    buf_free(&b);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("spargeattn");
    TCase *a = tcase_create("similarity"), *b = tcase_create("map"), *c = tcase_create("filter"),
          *d = tcase_create("method"), *e = tcase_create("arithmetic"), *f = tcase_create("search");
    tcase_set_timeout(f, 60);
    tcase_add_test(a, unit_vectors_have_similarity_one_over_n);
    tcase_add_test(a, similarity_of_simple_blocks);
    tcase_add_test(a, random_directions);
    tcase_add_test(a, closed_form_is_the_double_sum);
    tcase_add_test(a, zero_rows_and_partial_blocks_are_never_similar);
    tcase_add_test(b, cut_keeps_at_most_tau);
    tcase_add_test(b, equal_probabilities_go_to_the_lower_block);
    tcase_add_test(b, topk_truncates_a_float_product);
    tcase_add_test(b, causal_tiles);
    tcase_add_test(b, causal_topk_counts);
    tcase_add_test(b, partial_blocks_are_kept);
    tcase_add_test(b, extreme_budgets_keep_everything);
    tcase_add_test(b, map_rules_by_brute_force);
    tcase_add_test(b, sixteen_bit_running_sum_stalls);
    tcase_add_test(b, input_grid_rounds_the_map);
    tcase_add_test(c, filter_counts);
    tcase_add_test(c, filter_by_brute_force);
    tcase_add_test(c, sparsities_from_counts);
    tcase_add_test(c, scopes_and_tails_of_the_presets);
    tcase_add_test(c, lambda_is_pv_in_nats);
    tcase_add_test(d, full_budget_is_dense);
    tcase_add_test(d, density_native_is_the_official_count);
    tcase_add_test(d, rows_without_a_visible_key);
    tcase_add_test(d, empty_rows_exist_in_the_paper_profile_only);
    tcase_add_test(d, token_order_changes_masks_not_dense_attention);
    tcase_add_test(d, causal_rectangles_are_skipped);
    tcase_add_test(e, quantised_errors_are_small_and_ordered);
    tcase_add_test(e, half_precision_output_is_delivered);
    tcase_add_test(e, wide_filter_changes_only_the_sum);
    tcase_add_test(f, bisection_points);
    tcase_add_test(f, bins_of_theta);
    tcase_add_test(f, calibrated_head_keeps_the_bound);
    tcase_add_test(f, impossible_bound_makes_the_head_dense);
    tcase_add_test(f, branches_of_a_step_are_one_input);
    tcase_add_test(f, repeated_samples_change_nothing);
    tcase_add_test(f, dense_is_for_good);
    tcase_add_test(f, calibrate_refuses_topk);
    suite_add_tcase(s, a);
    suite_add_tcase(s, b);
    suite_add_tcase(s, c);
    suite_add_tcase(s, d);
    suite_add_tcase(s, e);
    suite_add_tcase(s, f);
    return s;
}
