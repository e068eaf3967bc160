/*
 * FlexPrefill: counts, the pattern test, bins, block selection, the golden trace, the port, short
 * prompts.
 */
#include "sim/methods/flexprefill/flexprefill.h"
#include "tests/harness/methodrun.h"

#define FAR 986

static struct flex_config config(int64_t n, double gamma, double tau, int64_t min_budget)
{
    return (struct flex_config){
        .n = n, .block = 128, .gamma = gamma, .tau = tau, .scale = 0.125, .min_budget = min_budget};
}

/* ---- parts ------------------------------------------------------------------------------ */

TEST(counts_are_strict)
{
    const double v[4] = {0.125, 0.5, 0.25, 0.125};
    const double gamma[] = {0.5, 0.7, 0.75, 1};
    const int64_t official[] = {2, 2, 3, 5}, paper[] = {1, 2, 2, 4}, entries[] = {1, 1, 2, 4};
    for (int i = 0; i < 4; i++) {
        int64_t count;
        struct block_map map;
        double w[16] = {0};
        MUST(flex_count(v, 4, gamma[i], true, &count, ERR));
        ck_assert_int_eq(count, official[i]);
        MUST(flex_count(v, 4, gamma[i], false, &count, ERR));
        ck_assert_int_eq(count, paper[i]);
        /* The entries (3, 0..3) of a 4 x 4 block map; zero entries are sorted behind. */
        memcpy(w + 12, v, sizeof v);
        MUST(block_map_init(&map, 4, 4, 1, true, ERR));
        MUST(flex_keep_entries(w, 4, gamma[i], false, &map, ERR));
        int64_t kept = 0;
        for (int j = 0; j < 4; j++)
            kept += block_map_get(&map, 3, j);
        ck_assert_int_eq(kept, entries[i]);
        ck_assert_int_eq(block_map_get(&map, 3, 1), 1);
        block_map_free(&map);
        MUST(block_map_init(&map, 4, 4, 1, true, ERR));
        MUST(flex_keep_entries(w, 4, gamma[i], true, &map, ERR));
        ck_assert_int_eq(block_map_count(&map), paper[i]);
        block_map_free(&map);
    }
}

TEST(js_distance_values)
{
    const double half[] = {0.5, 0.5}, quarter[] = {0.25, 0.75}, one[] = {1, 0};
    const double a[] = {0.7, 0.2, 0.1}, b[] = {0.1, 0.2, 0.7};
    ck_assert_double_eq_tol(flex_js(half, quarter, 2, true), 0.183908, 1e-6);
    ck_assert_double_eq_tol(flex_js(a, b, 3, true), 0.503092, 1e-6);
    ck_assert_double_eq(flex_js(a, a, 3, true), 0);
    ck_assert(isnan(flex_js(one, half, 2, true)));
    ck_assert(isnan(flex_js(half, one, 2, true)));
    ck_assert_double_eq_tol(flex_js(one, half, 2, false), 0.464490, 1e-4);
    const double tiny[] = {1, 1e-50}; /* zero as a float */
    ck_assert(isnan(flex_js(tiny, half, 2, true)));
}

/* Mass 1 at one distance: which block diagonal is its bin? */
static int64_t diagonal_of(int64_t n, int64_t d)
{
    struct flex_config c = config(n, 0.9, 0, 0);
    OWN(flex_scores_free) struct flex_scores s;
    int64_t found = -1;
    MUST(flex_scores_init(&s, &c, 1, ERR));
    s.sla[d] = 1;
    flex_block_sums(&s, &c);
    for (int64_t b = 0; b < s.nb; b++)
        if (s.diag[b] == 1)
            found = s.nb - 1 - b;
    return found;
}

TEST(distance_bins_count_from_the_end)
{
    ck_assert_int_eq(diagonal_of(4000, 0), 0);
    ck_assert_int_eq(diagonal_of(4000, 31), 0);
    ck_assert_int_eq(diagonal_of(4000, 32), 1);
    ck_assert_int_eq(diagonal_of(4000, FAR), 8);
    ck_assert_int_eq(diagonal_of(4096, FAR), 7);
}

/* Share of a slash that its own diagonal holds, over the positions of the slash in its bin. */
TEST(a_diagonal_holds_part_of_its_slash)
{
    const struct {
        int64_t n;
        double share;
    } c[] = {{4096, 0.50390625}, {4032, 0.75}, {4000, 0.685547}};
    for (int i = 0; i < 3; i++) {
        int64_t pad = (128 - c[i].n % 128) % 128, on = 0;
        for (int64_t d = 7 * 128 - pad; d < 8 * 128 - pad; d++) {
            ck_assert_int_eq(diagonal_of(c[i].n, d), 7);
            for (int64_t q = 20 * 128; q < 21 * 128; q++)
                on += q / 128 - (q - d) / 128 == 7;
        }
        ck_assert_double_eq_tol((double)on / (128 * 128), c[i].share, 5e-7);
        ck_assert_double_eq_tol((double)on / (128 * 128),
                                1 - (double)(pad * (pad + 1) + (127 - pad) * (128 - pad)) / 32768,
                                1e-12);
    }
}

/* ---- heads ------------------------------------------------------------------------------ */

static void build(const struct sim_head *h, const struct flex_config *c, struct flex_plan *p,
                  struct flex_scores *s)
{
    MUST(flex_scores_run(s, c, &h->in, c->block, true, ERR));
    MUST(flex_plan_build(p, c, s, &h->in, ERR));
}

/* Both of the block. */
#define BUILD(p, s, h, c)                                                                          \
    OWN(flex_scores_free) struct flex_scores s;                                                    \
    OWN(flex_plan_free) struct flex_plan p;                                                        \
    build(h, c, &p, &s)

static int64_t row_count(const struct block_map *m, int64_t i)
{
    int32_t cols[64];
    return block_map_row(m, i, cols);
}

TEST_N(uniform_rows, 3)
{
    static const struct {
        double gamma, tau;
        int64_t blocks, rows[8]; /* kept; per row */
    } cases[] = {{0.9, 0, 36, {1, 2, 3, 4, 5, 6, 7, 8}},
                 {0.9, 0.1, 30, {1, 2, 3, 4, 5, 6, 7, 2}},
                 {0.95, 0.1, 33, {1, 2, 3, 4, 5, 6, 7, 5}}};
    HEAD(h, random_head, 1, 1024, 1024, 16, true, 0, PREC_F64);
    struct flex_config c = config(1024, cases[_i].gamma, cases[_i].tau, 0);
    BUILD(p, s, &h, &c);
    ck_assert_int_eq(p.query_aware, _i > 0);
    ck_assert_int_eq(block_map_count(&p.map), cases[_i].blocks);
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(row_count(&p.map, i), cases[_i].rows[i]);
        ck_assert_double_eq_tol(s.col[i], i < 7 ? 0.133461662 : 0.065768363, 1e-8);
        ck_assert_double_eq_tol(s.diag[7 - i], i < 7 ? 0.133461662 : 0.065768363, 1e-8);
    }
    ck_assert(_i || (p.k_v == 7 && p.k_s == 7));
    ck_assert_double_eq_tol(p.js, 0.071829, 1e-6);
}

/* Rows with all their mass at distance FAR (on themselves before it), pooled estimate uniform. */
static double pure_slash_keep(int64_t min_budget, struct flex_plan *p)
{
    enum { N = 4096 };
    struct flex_config c = config(N, 0.9, 0.1, min_budget);
    OWN(flex_scores_free) struct flex_scores s;
    double keep = 0;
    static double row[N];
    MUST(flex_scores_init(&s, &c, 1, ERR));
    for (int64_t q = N - 128; q < N; q++) {
        row[q - FAR] = 1.0 / 128;
        token_scores_add(row, q, s.ver, s.sla);
        row[q - FAR] = 0;
    }
    for (int64_t j = 0; j < s.nb; j++)
        s.est[j] = 1.0 / (double)s.nb;
    flex_block_sums(&s, &c);
    MUST(flex_plan_build(p, &c, &s, NULL, ERR));
    for (int64_t q = FAR; q < N; q++)
        keep += block_map_get(&p->map, q / 128, (q - FAR) / 128) / (double)(N - FAR);
    return keep;
}

TEST(pure_slash_is_the_weak_spot)
{
    struct flex_plan p;
    ck_assert_double_eq_tol(pure_slash_keep(0, &p), 0.041158, 1e-6);
    ck_assert_int_eq(p.t_v, 116);
    ck_assert_int_eq(p.t_s, 1);
    ck_assert_int_eq(p.k_v, 1);
    ck_assert_int_eq(p.k_s, 1);
    ck_assert(isnan(p.js));
    ck_assert(!p.query_aware);
    ck_assert_int_eq(block_map_count(&p.map), 63);
    flex_plan_free(&p);
    ck_assert_double_eq_tol(pure_slash_keep(1024, &p), 0.508039, 1e-6);
    for (int64_t i = 24; i < 32; i++) {
        ck_assert(block_map_get(&p.map, i, 23) && block_map_get(&p.map, i, 24));
        ck_assert(block_map_get(&p.map, i, i - 7));
    }
    flex_plan_free(&p);
}

struct golden_row {
    const char *options;
    int64_t t_v, t_s, k_v, k_s;
    int cols[10], diags[10]; /* ended by -1 */
    int64_t blocks;
    double native, density, min, p1, mean;
};

/* Columns and diagonals of a vertical-slash map: column J is full below the diagonal. */
static void check_lists(const struct sim_head *h, const struct golden_row *g, double gamma,
                        int64_t min_budget)
{
    struct flex_config c = config(h->in.x.nk, gamma, 0, min_budget);
    BUILD(p, s, h, &c);
    OWN(block_map_free) struct block_map want;
    MUST(block_map_init(&want, c.n, c.n, 128, true, ERR));
    for (int k = 0; g->cols[k] >= 0; k++)
        for (int64_t i = g->cols[k]; i < want.rows; i++)
            block_map_set(&want, i, g->cols[k]);
    for (int k = 0; g->diags[k] >= 0; k++)
        for (int64_t i = g->diags[k]; i < want.rows; i++)
            block_map_set(&want, i, i - g->diags[k]);
    for (int64_t i = 0; i < want.rows; i++)
        for (int64_t j = 0; j <= i; j++)
            ck_assert_int_eq(block_map_get(&p.map, i, j), block_map_get(&want, i, j));
}

static void check_golden(const struct sim_head *h, const struct golden_row *g)
{
    char text[160];
    OWN(record_free) struct record r;
    snprintf(text, sizeof text, "flexprefill:%s", g->options);
    ck_assert_double_eq_tol(run_p1(text, &h->in, &r), g->p1, 1e-4);
    HAS(&r, 1e-6, "tokens_columns tokens_slashes columns slashes pairs_exec", (double)g->t_v,
        (double)g->t_s, (double)g->k_v, (double)g->k_s, (double)g->blocks * 128 * 128);
    HAS(&r, 1e-6, "density_native density_elem", g->native, g->density);
    HAS(&r, 1e-4, "cra_min cra_mean", g->min, g->mean);
    HAS(&r, 1e-5, "js_distance", h->in.x.nq == 4096 ? 0.575836 : 0.568627);
}

TEST(golden_trace_4096)
{
    /* clang-format off */
    const struct golden_row rows[] = {
        {"gamma=0.9:tau=0:min_budget=0", 104, 133, 1, 2, {0, -1}, {0, 31, -1}, 63, 0.061523,
         0.092019, 0.000041, 0.008990, 0.753606},
        {"gamma=0.95:tau=0:min_budget=0", 205, 374, 2, 3, {0, 31, -1}, {0, 7, 31, -1}, 87, 0.084961,
         0.138882, 0.000041, 0.015172, 0.802242},
        {"preset=readme:tau=0", 104, 133, 4, 4, {0, 15, 23, 31, -1}, {0, 7, 15, 31, -1}, 124,
         0.121094, 0.211130, 0.000484, 0.033408, 0.861551},
        {"preset=paper-b:tau=0", 104, 133, 8, 8, {0, 1, 9, 15, 23, 24, 30, 31, -1},
         {0, 7, 13, 15, 16, 22, 30, 31, -1}, 213, 0.208008, 0.384916, 0.000535, 0.041621, 0.886035},
        {"preset=api:tau=0.6", 104, 133, 1, 1, {-1}, {-1}, 415, 0.405273, 0.779351, 0.009451,
         0.696018, 0.984156},
    };
    /* clang-format on */
    const double gamma[] = {0.9, 0.95, 0.9, 0.9};
    const int64_t budget[] = {0, 0, 512, 1024};
    HEAD(h, golden_sample, 4096, PREC_F32);
    for (int i = 0; i < 5; i++) {
        check_golden(&h, &rows[i]);
        if (i < 4)
            check_lists(&h, &rows[i], gamma[i], budget[i]);
    }
    RUN(r, "flexprefill:preset=api:tau=0.6", &h.in);
    assert_note(&r, "pattern=query-aware");
    /* Logits in bf16: nearly the same columns. */
    RUN(bf16, "flexprefill:preset=api:emulate=bf16", &h.in);
    HAS(&bf16, 5, "tokens_columns", 104);
    HAS(&bf16, 0.01, "js_distance", 0.575836);
}

TEST(golden_trace_4000)
{
    /* clang-format off */
    const struct golden_row rows[] = {
        {"gamma=0.9:tau=0:min_budget=0", 98, 143, 1, 2, {0, -1}, {0, 31, -1}, 63, 0.061523,
         0.093987, 0.000041, 0.009568, 0.756711},
        {"gamma=0.95:tau=0:min_budget=0", 201, 363, 2, 3, {0, 30, -1}, {0, 8, 31, -1}, 87, 0.084961,
         0.140055, 0.000326, 0.040176, 0.854491},
        {"gamma=0.9:tau=0:min_budget=512", 98, 143, 4, 4, {0, 15, 23, 30, -1}, {0, 8, 15, 31, -1},
         124, 0.121094, 0.212741, 0.000373, 0.086768, 0.908972},
    };
    /* clang-format on */
    const double gamma[] = {0.9, 0.95, 0.9};
    const int64_t budget[] = {0, 0, 512};
    HEAD(h, golden_sample, 4000, PREC_F32);
    for (int i = 0; i < 3; i++) {
        check_golden(&h, &rows[i]);
        check_lists(&h, &rows[i], gamma[i], budget[i]);
    }
}

TEST(paper_selects_the_tokens_themselves)
{
    const struct {
        int64_t n;
        double cols, dists, blocks, density, mean, sampled;
    } c[] = {{4096, 104, 133, 342, 0.636807, 0.981597, 0.962924},
             {4000, 98, 143, 308, 0.569516, 0.980460, 0}};
    for (int i = 0; i < 2; i++) {
        OWN(record_free) struct record r;
        OWN(free_at) double *keep = calloc((size_t)c[i].n, sizeof *keep);
        double sampled = 0;
        HEAD(h, golden_sample, c[i].n, PREC_F32);
        struct recalls rows = {keep, head_lse(&h.in)};
        run_text_carry("flexprefill:profile=paper:gamma=0.9:min_budget=0", &h.in, NULL, 1,
                       sink_recalls, &rows, &r);
        HAS(&r, 1e-6, "columns slashes pairs_exec density_elem", c[i].cols, c[i].dists,
            c[i].blocks * 128 * 128, c[i].density);
        HAS(&r, 1e-4, "cra_mean", c[i].mean);
        for (int64_t q = c[i].n - 128; q < c[i].n; q++)
            sampled += keep[q] / 128;
        ck_assert_double_ge(sampled, 0.9);
        if (c[i].sampled > 0)
            ck_assert_double_eq_tol(sampled, c[i].sampled, 1e-4);
    }
}

TEST(paper_query_aware_keeps_the_crossing_entry_and_the_diagonal)
{
    HEAD(h, random_head, 2, 1500, 1500, 16, true, 1, PREC_F64);
    struct flex_config c = config(1500, 0.5, 0.8, 0);
    BUILD(official, s, &h, &c);
    c.profile = FLEX_PAPER;
    BUILD(paper, t, &h, &c);
    ck_assert(official.query_aware && paper.query_aware);
    for (int64_t i = 0; i < paper.map.rows; i++)
        ck_assert(block_map_get(&paper.map, i, i));
    /* Beside the diagonal and column 0 (official's two forced ones) paper has one entry more, if
     * that is not a forced one. */
    int64_t more = 0;
    for (int64_t i = 0; i < paper.map.rows; i++)
        for (int64_t j = 1; j < i; j++)
            more += block_map_get(&paper.map, i, j) - block_map_get(&official.map, i, j);
    ck_assert(more == 0 || more == 1);
}

TEST(frontier_port_on_the_golden_trace)
{
    struct flex_scores s;
    OWN(record_free) struct record r;
    int64_t count;
    HEAD(h, golden_sample, 4096, PREC_F32);
    struct flex_config c = config(4096, 0.65, 0, 512);
    MUST(flex_scores_run(&s, &c, &h.in, 512, false, ERR));
    MUST(flex_count(s.ver, 4096, 0.65, true, &count, ERR));
    ck_assert_int_eq(count, 39);
    flex_scores_free(&s);
    run_text("flexprefill:profile=frontier", &h.in, &r);
    HAS(&r, 0, "tokens_columns columns slashes list_blocks list_columns", 39, 512, 512, 677, 6593);
    ck_assert_double_eq_tol(1 - record_get(&r, "density_native"), 0.619226, 1e-6);
    ck_assert_double_eq_tol(1 - record_get(&r, "density_exec"), 0.619226, 1e-6);
    ck_assert_double_lt(record_get(&r, "density_elem"), record_get(&r, "density_exec"));
}

/* Values of 8 bits, exact in bf16. */
static float *eight_bits(uint32_t salt, int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        uint32_t v = ((uint32_t)i + salt) * 2654435761u;
        v = (v ^ v >> 15) * 2246822519u;
        x[i] = (float)((int)(v >> 24) - 100) / 32;
    }
    return x;
}

/* Sum of (i + 1) times the 16 bits of entry i, modulo 2^32. */
static uint32_t checksum(const float *x, int64_t n)
{
    uint32_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (uint32_t)(i + 1) * f32_to_bf16(x[i]);
    return sum;
}

/* Pooled keys, queries and the estimate of the published bf16 code, from tests/data/gpu_sums.py:
 * pooled keys are summed in bf16 in the order of the kernel's threads (34, 37, 31, 30 %
 * of them differ from a mean that is rounded once), pooled queries are scaled and rounded, and so
 * are pooled scores. Ragged and whole last blocks. */
TEST_N(bf16_pools_are_those_of_the_kernel, 4)
{
    static const struct {
        int64_t n, block;
        int d;
        uint32_t kbar, qbar;
        double first, last;
    } c[] = {{1000, 128, 64, 2129118329u, 2079437469u, 0.121965861, 0.118213366},
             {1024, 128, 128, 4214735928u, 3979947359u, 0.115826335, 0.139713229},
             {700, 64, 32, 1012219420u, 987349882u, 0.069224934, 0.068151701},
             {500, 32, 16, 552168857u, 567036233u, 0.040456458, 0.077981864}};
    int64_t n = c[_i].n;
    int d = c[_i].d;
    OWN(free_at) float *q = eight_bits(77777, n * d), *k = eight_bits(0, n * d);
    struct head_in in = {
        .x = {.nq = n, .nk = n, .d = d, .q = q, .k = k, .scale = 1 / sqrt(d), .causal = true}};
    struct flex_config f = config(n, 0.9, 0.1, 0);
    OWN(flex_scores_free) struct flex_scores s;
    f.block = c[_i].block;
    f.scale = in.x.scale;
    f.bf16 = true;
    MUST(flex_scores_run(&s, &f, &in, f.block, true, ERR));
    ck_assert_uint_eq(checksum(s.kbar, s.nb * d), c[_i].kbar);
    for (int64_t i = 0; i < s.nb; i++)
        flex_pool_query(&f, &in, i, s.qbar + i * d);
    ck_assert_uint_eq(checksum(s.qbar, s.nb * d), c[_i].qbar);
    ck_assert_double_eq_tol(s.est[0], c[_i].first, 1e-8);
    ck_assert_double_eq_tol(s.est[s.nb - 1], c[_i].last, 1e-8);
    float a[] = {256, 1}, b[] = {1, 1};
    ck_assert_double_eq(flex_pooled_score(&f, a, b, 2), 256);
    f.bf16 = false;
    ck_assert_double_eq(flex_pooled_score(&f, a, b, 2), 257 * f.scale);
}

TEST(budgets_are_monotone)
{
    int64_t last_v = 0, last_s = 0;
    HEAD(h, golden_sample, 2500, PREC_F32);
    for (double g = 0.5; g < 1; g += 0.07) {
        struct flex_config c = config(2500, g, 0, 0);
        BUILD(p, s, &h, &c);
        ck_assert(p.t_v >= last_v && p.t_s >= last_s);
        last_v = p.t_v;
        last_s = p.t_s;
    }
    for (int64_t budget = 256; budget <= 2048; budget += 256) {
        struct flex_config less = config(2500, 0.6, 0, budget - 256), c = less;
        c.min_budget = budget;
        BUILD(last, t, &h, &less);
        BUILD(p, s, &h, &c);
        for (int64_t i = 0; i < p.map.rows; i++)
            for (int64_t j = 0; j <= i; j++)
                ck_assert(block_map_get(&p.map, i, j) || !block_map_get(&last.map, i, j));
    }
}

TEST_N(gamma_1_is_dense_in_every_profile, 5)
{
    static const char *const text[] = {"flexprefill:gamma=1:tau=0:min_budget=0",
                                       "flexprefill:gamma=1:tau=0.83:min_budget=0",
                                       "flexprefill:gamma=1:tau=0:min_budget=0:profile=paper",
                                       "flexprefill:gamma=1:tau=0.83:min_budget=0:profile=paper",
                                       "flexprefill:gamma=1:profile=frontier"};
    HEAD(h, random_head, 4, 1000, 1000, 16, true, 1, PREC_F32);
    RUN_HAS(text[_i], &h.in, 0, "density_elem", 1);
    struct flex_config c = config(1000, 1, 0, 0);
    BUILD(p, s, &h, &c);
    ck_assert(p.t_v == 1001 && p.k_v == 8);
}

TEST(max_budget_limits_both_lists)
{
    HEAD(h, golden_sample, 2500, PREC_F32);
    RUN_HAS("flexprefill:gamma=0.999:tau=0:min_budget=0:max_budget=300", &h.in, 0,
            "columns slashes", 3, 3);
    RUN_HAS("flexprefill:gamma=0.999:tau=0:min_budget=0:max_budget=300:profile=paper", &h.in, 0,
            "columns", 300);
}
