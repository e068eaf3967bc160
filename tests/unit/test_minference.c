/*
 * MInference: shapes, lists on the golden trace, block pattern, budgets, published tables, search.
 */
#include "sim/methods/minference/minference.h"
#include "sim/blocks/vslash.h"
#include "tests/harness/methodrun.h"

#include <stdio.h>

#define FAR 986

static void write_file(const char *name, const char *text, char *path, size_t size)
{
    snprintf(path, size, "%s/%s", test_tmpdir(), name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(text, f);
    fclose(f);
}

/* ---- shapes ----------------------------------------------------------------------------- */

static int64_t shape_pairs(enum minf_pattern pattern, int64_t n, int64_t init, int64_t local,
                           int64_t last)
{
    struct minf_config c = {.pattern = pattern, .n = n, .init = init, .local = local, .last = last};
    OWN(minf_free) struct minf_head h;
    struct mask_counts k;
    int64_t sum = 0;
    MUST(minf_init(&h, &c, NULL, ERR));
    for (int64_t r = 0; r < n; r += 4096) {
        OWN(mask_free) struct mask m = {0};
        MUST(minf_select(&h, r, r + 4096 < n ? r + 4096 : n, &m, ERR));
        MUST(mask_count(&m, &k, ERR));
        sum += k.pairs_kept;
    }
    return sum;
}

TEST(known_shape_counts)
{
    ck_assert_int_eq(shape_pairs(MINF_ASHAPE, 8192, 128, 3968, 0), 25167872);
    ck_assert_double_eq_tol(25167872.0 / (double)pairs_allowed(8192, 8192, true), 0.749969, 5e-7);
    ck_assert_int_eq(shape_pairs(MINF_ASHAPE, 1024, 100, 800, 0), 517050);
    ck_assert_int_eq(shape_pairs(MINF_ASHAPE, 131072, 1024, 4096, 0), 657984000);
    ck_assert_int_eq(shape_pairs(MINF_ASHAPE, 131072, 128, 3968, 0), 528484352);
    double all = (double)pairs_allowed(131072, 131072, true);
    ck_assert_double_eq_tol(657984000.0 / all, 0.076599, 5e-7);
    ck_assert_double_eq_tol(528484352.0 / all, 0.061523, 5e-7);
    ck_assert_int_eq(shape_pairs(MINF_ASHAPE, 3968, 128, 3968, 0), pairs_allowed(3968, 3968, true));
    ck_assert_int_eq(shape_pairs(MINF_TRISHAPE, 8192, 128, 3968, 100), 25572522);
    ck_assert_int_eq(shape_pairs(MINF_TRISHAPE, 50, 1, 1, 100), 1 + 49 * 50 / 2 + 49);
}

TEST(budget_rule)
{
    const int64_t c[][3] = {{4096, 245, 982}, {32768, 1966, 7864}, {131072, 7864, 31456}};
    for (int i = 0; i < 3; i++) {
        int64_t v, s;
        minf_budget(c[i][0], 0.3, &v, &s);
        ck_assert_int_eq(v, c[i][1]);
        ck_assert_int_eq(s, c[i][2]);
    }
}

/* ---- vertical-slash --------------------------------------------------------------------- */

static double pure_slash(int64_t v, int64_t s, struct vslash *l)
{
    enum { N = 4096 };
    static double row[N], col[N], slash[N];
    double keep = 0;
    memset(col, 0, sizeof col);
    memset(slash, 0, sizeof slash);
    for (int64_t q = N - 64; q < N; q++) {
        row[q - FAR] = 1;
        token_scores_add(row, q, col, slash);
        row[q - FAR] = 0;
    }
    MUST(vslash_select(l, N, col, v, 30, slash, s, 100, ERR));
    for (int64_t r = 0; r < N; r += 1024) {
        OWN(mask_free) struct mask m = {0};
        struct span spans[N];
        MUST(vslash_mask(l, true, r, r + 1024, &m, ERR));
        for (int64_t q = r; q < r + 1024; q++) {
            int64_t key = q >= FAR ? q - FAR : q, n = mask_row_spans(&m, q, spans);
            for (int64_t i = 0; i < n; i++)
                if (q >= FAR && key >= spans[i].lo && key < spans[i].hi)
                    keep += 1.0 / (N - FAR);
        }
    }
    return keep;
}

TEST(pure_slash_needs_one_more_distance_than_the_forced_ones)
{
    struct vslash l;
    ck_assert_double_eq_tol(pure_slash(30, 100, &l), 0.009646, 1e-6);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(l.dists[i], 99 - i);
    vslash_free(&l);
    ck_assert_double_eq_tol(pure_slash(30, 101, &l), 1, 1e-9);
    ck_assert_int_eq(l.dists[0], FAR);
    ck_assert_int_eq(l.blocks, 238);
    ck_assert_int_eq(l.columns, 1829);
    vslash_free(&l);
}

struct golden_row {
    int v, s;
    double blocks, columns, exec, density, min, p1, mean, requested, requested_mean;
};

static void check_golden(const struct sim_head *h, const struct golden_row *g)
{
    char text[128];
    OWN(record_free) struct record r;
    snprintf(text, sizeof text, "minference:v=%d:s=%d", g->v, g->s);
    ck_assert_double_eq_tol(run_p1(text, &h->in, &r), g->p1, 1e-4);
    HAS(&r, 1e-6, "list_blocks list_columns density_exec density_elem density_requested rows_empty",
        g->blocks, g->columns, g->exec, g->density, g->requested, 0);
    HAS(&r, 1e-4, "cra_min cra_mean", g->min, g->mean);
    strcat(text, ":mask=requested");
    RUN(asked, text, &h->in);
    HAS(&asked, 1e-6, "density_elem density_requested", g->requested, g->requested);
    HAS(&asked, 1e-4, "cra_mean", g->requested_mean);
}

static const struct golden_row GOLDEN[] = {
    {30, 100, 189, 1859, 0.106442, 0.077351, 0.000041, 0.010622, 0.758831, 0.062462, 0.757404},
    {64, 128, 304, 2131, 0.164656, 0.135564, 0.235446, 0.572233, 0.951702, 0.067082, 0.948039},
    {100, 200, 642, 1996, 0.328625, 0.299754, 0.345575, 0.677196, 0.966859, 0.079083, 0.957217},
    {64, 128, 302, 1989, 0.170493, 0.138567, 0.288144, 0.576883, 0.954971, 0.067247, 0.951354},
};

/* Learned entries, block 60's lists. */
static void check_learned(const struct sim_head *h)
{
    const int cols[] = {134, 623, 2000, 2314, 3048, 3049, 3050, 3057};
    const int dists[] = {986, 2037, 2041, 2052};
    const int blocks[] = {1769, 1833, 2854, 3741, 3805, 3869};
    struct minf_config c = {.pattern = MINF_VS,
                            .n = 4096,
                            .v = 64,
                            .s = 128,
                            .last_q = 64,
                            .force_cols = 30,
                            .force_dists = 100,
                            .realised = true,
                            .p_dtype = DT_F32};
    OWN(minf_free) struct minf_head m;
    int32_t lb[200], lc[200];
    int64_t nb, nc;
    MUST(minf_init(&m, &c, &h->in, ERR));
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(m.lists.cols[30 + i], cols[i]);
    for (int i = 0; i < 4; i++) /* descending: the learned ones come before 99 .. 0 */
        ck_assert_int_eq(m.lists.dists[27 - i], dists[i]);
    vslash_block(&m.lists, 60 * 64, lb, &nb, lc, &nc);
    ck_assert_int_eq(nb, 6);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(lb[i], blocks[i]);
    ck_assert_int_eq(nc, 52);
}

TEST(golden_trace_vertical_slash)
{
    struct sim_head h;
    MUST(golden_sample(4096, PREC_F32, &h, ERR));
    for (int i = 0; i < 3; i++)
        check_golden(&h, &GOLDEN[i]);
    check_learned(&h);
    sim_head_free(&h);
    MUST(golden_sample(4000, PREC_F32, &h, ERR));
    check_golden(&h, &GOLDEN[3]);
    sim_head_free(&h);
}

TEST(sizes_are_scaled_then_clamped)
{
    const struct {
        const char *text;
        double columns, slashes;
    } c[] = {{"minference", 1000, 1200},
             {"minference:v=10:s=10", 30, 50},
             {"minference:v=100:s=301:ratio=0.5", 50, 150},
             {"minference:preset=light", 100, 800},
             {"minference:preset=llama31", 512, 1200},
             {"minference:preset=dense-columns:s=120", 1200, 120},
             {"minference:budget=0.3", 72, 288},
             {"minference:profile=frontier", 512, 512},
             {"minference:profile=frontier:v=2:s=10", 4, 64}};
    HEAD(h, random_head, 1, 1200, 1200, 16, true, 1, PREC_F32);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        RUN_HAS(c[i].text, &h.in, 0, "columns slashes", c[i].columns, c[i].slashes);
    }
}

/* A device that searched the sizes gives columns and distances: the share that they reach is that
 * of the head that searched here. */
TEST(a_search_of_a_device_reaches_the_same_share)
{
    HEAD(h, golden_sample, 4096, PREC_F32);
    for (int realised = 0; realised < 2; realised++) {
        struct minf_config c = {.pattern = MINF_VS,
                                .n = 4096,
                                .last_q = 64,
                                .force_cols = 4,
                                .force_dists = 10,
                                .realised = realised,
                                .p_dtype = DT_F32,
                                .block = 64,
                                .work = 0.6};
        OWN(minf_free) struct minf_head here, there;
        OWN(mask_free) struct mask m = {0}, again = {0};
        uint32_t bits[2][4096 / 32] = {0};
        struct accel_own own = {bits, sizeof bits};
        MUST(minf_init(&here, &c, &h.in, ERR));
        MUST(minf_select(&here, 0, 4096, &m, ERR));
        for (int64_t i = 0; i < here.lists.n_cols; i++)
            bits[0][here.lists.cols[i] / 32] |= 1u << here.lists.cols[i] % 32;
        for (int64_t i = 0; i < here.lists.n_dists; i++)
            bits[1][here.lists.dists[i] / 32] |= 1u << here.lists.dists[i] % 32;
        MUST(minf_begin(&there, &c, &h.in, ERR));
        MUST(minf_take(&there, &(struct device_choice){.lists = &m, .own = &own}, ERR));
        MUST(minf_select(&there, 0, 4096, &again, ERR));
        ck_assert_double_eq_tol(here.work, 0.6, 0.01);
        ck_assert_double_eq(there.work, here.work);
        ck_assert_int_eq(mask_lists_differ(&m, &again), 0);
        if (realised) {
            ck_assert_int_eq(there.lists.blocks, here.lists.blocks);
            ck_assert_int_eq(there.lists.columns, here.lists.columns);
        }
    }
}

/* ---- block pattern ---------------------------------------------------------------------- */

TEST(block_counts)
{
    enum { N = 131072 };
    OWN(free_at) float *q = calloc(N, sizeof *q);
    struct head_in in = {.x = {.nq = N, .nk = N, .d = 1, .q = q, .k = q, .causal = true}};
    struct minf_config c = {.pattern = MINF_BLOCK, .n = N, .top = 100, .block = 64};
    struct minf_head h;
    for (int i = 0; i < N; i++)
        q[i] = (float)(i / 64 % 97) - 48;
    MUST(minf_init(&h, &c, &in, ERR));
    ck_assert_int_eq(h.map.rows * (h.map.rows + 1) / 2, 2098176);
    ck_assert_int_eq(block_map_count(&h.map), 199850);
    ck_assert_double_eq_tol(199850.0 / 2098176, 0.095249, 5e-7);
    minf_free(&h);
    c.n = in.x.nq = in.x.nk = 6400;
    MUST(minf_init(&h, &c, &in, ERR));
    ck_assert_int_eq(block_map_count(&h.map), 100 * 101 / 2);
    minf_free(&h);
}

TEST(golden_trace_blocks)
{
    const struct {
        int64_t n;
        double blocks, density, mean;
    } c[] = {{4096, 484, 0.228822, 0.650597}, {4000, 476, 0.233794, 0.669528}};
    const int row40[] = {0, 5, 18, 28, 30, 31, 34, 35};
    for (int i = 0; i < 2; i++) {
        HEAD(h, golden_sample, c[i].n, PREC_F32);
        RUN(r, "minference:pattern=block:top=8", &h.in);
        HAS(&r, 1e-6, "pairs_exec density_elem", c[i].blocks * 64 * 64, c[i].density);
        ck_assert_double_eq_tol(record_get(&r, "cra_mean"), c[i].mean, 1e-4);
        ck_assert_double_eq_tol(record_get(&r, "density_native"), 2 * 64 * 8.0 / (double)c[i].n,
                                1e-12);
        if (i == 0) {
            struct minf_config m = {.pattern = MINF_BLOCK, .n = 4096, .top = 8, .block = 64};
            OWN(minf_free) struct minf_head b;
            int32_t cols[64];
            MUST(minf_init(&b, &m, &h.in, ERR));
            ck_assert_int_eq(block_map_row(&b.map, 40, cols), 8);
            for (int e = 0; e < 8; e++)
                ck_assert_int_eq(cols[e], row40[e]);
        }
    }
}

/* Equal blocks: the lower ones are kept, whatever order BLAS adds them in. */
TEST(equal_blocks_go_to_the_lower_index)
{
    enum { N = 64 * 40, D = 80 };
    OWN(minf_free) struct minf_head b;
    int32_t cols[40];
    HEAD(h, random_head, 4, N, N, D, true, 1, PREC_F32);
    for (int64_t i = 64 * D; i < N * D; i++)
        h.k[i] = h.k[i - 64 * D];
    struct minf_config m = {.pattern = MINF_BLOCK, .n = N, .top = 5, .block = 64};
    MUST(minf_init(&b, &m, &h.in, ERR));
    for (int64_t i = 4; i < 40; i++) {
        ck_assert_int_eq(block_map_row(&b.map, i, cols), 5);
        for (int e = 0; e < 5; e++)
            ck_assert_msg(cols[e] == e, "row %d keeps block %d", (int)i, cols[e]);
    }
}

/* Scores 256 and 257 of pooled keys are equal in bf16, and the lower block is kept. */
TEST(block_scores_are_rounded_to_bf16)
{
    enum { N = 64 * 6, D = 2 };
    float q[N * D], k[N * D];
    struct head_in in = {.x = {.nq = N, .nk = N, .d = D, .q = q, .k = k, .causal = true}};
    struct minf_config c = {.pattern = MINF_BLOCK, .n = N, .top = 1, .block = 64};
    struct minf_head h;
    int32_t col;
    for (int i = 0; i < N; i++) {
        q[2 * i] = q[2 * i + 1] = 1;
        k[2 * i] = 256;
        k[2 * i + 1] = i / 64 == 2 ? 1 : 0;
    }
    for (int bf16 = 0; bf16 < 2; bf16++) {
        c.bf16 = bf16 == 1;
        MUST(minf_init(&h, &c, &in, ERR));
        ck_assert_int_eq(block_map_row(&h.map, 5, &col), 1);
        ck_assert_int_eq(col, bf16 ? 0 : 2);
        minf_free(&h);
    }
}

TEST(published_native_density_of_blocks)
{
    ck_assert_double_eq_tol(2 * 64 * 100.0 / 131072, 0.097656, 5e-7);
    HEAD(h, random_head, 3, 2048, 2048, 16, true, 1, PREC_F32);
    RUN(r, "minference:profile=frontier:pattern=block", &h.in);
    /* 128 rows of 16, top 64: 64 * 65 / 2 + 64 * 64 of 128 * 129 / 2. */
    HAS(&r, 1e-12, "density_native density_tile", 6176.0 / 8256, 6176.0 / 8256);
}

TEST(port_forces_column_0_and_two_diagonals_inside_the_budget)
{
    OWN(minf_free) struct minf_head b;
    struct minf_config c = {
        .pattern = MINF_BLOCK, .n = 600, .top = 4, .block = 16, .force_blocks = true};
    int32_t cols[64];
    HEAD(h, random_head, 4, 600, 600, 16, true, 1, PREC_F32);
    MUST(minf_init(&b, &c, &h.in, ERR));
    for (int64_t i = 4; i < b.map.rows; i++) {
        ck_assert_int_eq(block_map_row(&b.map, i, cols), 4);
        ck_assert_int_eq(cols[0], 0);
        ck_assert_int_eq(cols[2], i - 1);
        ck_assert_int_eq(cols[3], i);
    }
}

/* ---- tables and layers ------------------------------------------------------------------ */

/* The content is part of the parameters, so that a changed table is another setting. */
TEST(tables_are_known_by_their_content)
{
    static const char *const content[] = {"[{}]", "[]"};
    struct method_run *runs[2];
    const char *id[2];
    char path[512], text[600];
    for (int k = 0; k < 2; k++) {
        write_file("table.json", content[k], path, sizeof path);
        snprintf(text, sizeof text, "minference:table=%s", path);
        runs[k] = run_of(text);
        id[k] = strstr(runs[k]->canonical, "table_id=");
        ck_assert_ptr_nonnull(id[k]);
    }
    ck_assert_str_ne(id[0], id[1]);
    run_free(&runs[0]);
    run_free(&runs[1]);
    struct method_run *none = NULL;
    int64_t n = 0;
    strcat(text, ":table_id=0123456789abcdef");
    FAILS(method_runs_parse(test_methods, text, &none, &n, ERR), ERR_INPUT, "it has changed");
    method_runs_free(none, n);
}

TEST(published_tables)
{
    const char *table = "[{\"0\": [\"vertical_and_slash\", 100, 750, 1.5],"
                        " \"1\": [\"stream_llm\", 60, 200, 2.5]},"
                        " {\"3\": [\"block_sparse\", 100, 800, 3]}]";
    char path[512], text[600];
    write_file("table.json", table, path, sizeof path);
    HEAD(h, random_head, 5, 1000, 1000, 16, true, 1, PREC_F32);
    snprintf(text, sizeof text, "minference:table=%s", path);
    RUN_HAS(text, &h.in, 0, "columns slashes", 100, 750);
    h.in.head = 1;
    RUN(shape, text, &h.in);
    assert_note(&shape, "pattern=ashape");
    HAS(&shape, 0, "pairs_kept", (double)shape_pairs(MINF_ASHAPE, 1000, 60, 200, 0));
    h.in.head = 7; /* not in the table */
    RUN_HAS(text, &h.in, 0, "columns", 1000);
    h.in.layer = 1;
    h.in.head = 3;
    RUN(block, text, &h.in);
    assert_note(&block, "pattern=block");
    h.in.layer = 5;
    RUN_HAS(text, &h.in, 0, "columns", 1000);
    RUN_HAS("minference:v=40:s=101:start_layer=6", &h.in, 0, "density_elem", 1);
    h.in.layer = 6;
    ck_assert_double_lt(metric_of("minference:v=40:s=101:start_layer=6", &h.in, "density_elem"), 1);
}

TEST(bad_tables_are_refused)
{
    const char *bad[][2] = {
        {"{\"0\": 1}", "a list over layers of objects was expected"},
        {"[3]", "a list over layers of objects was expected"},
        {"[{\"0\": 5}]", "[type, v, s, score] was expected"},
        {"[{\"0\": [\"vertical_and_slash\", 0, 5, 1]}]", "[type, v, s, score] was expected"},
        {"[{\"0\": [\"vertical_and_slash\", 5]}]", "[type, v, s, score] was expected"},
        {"[{\"0\": [\"diamond\", 5, 5, 1]}]", "unknown pattern 'diamond'"}};
    for (int i = 0; i < 6; i++) {
        char path[512];
        enum minf_pattern pattern;
        int64_t v, s;
        write_file("bad.json", bad[i][0], path, sizeof path);
        FAILS(minf_table_entry(path, 0, 0, &pattern, &v, &s, ERR), ERR_INPUT, bad[i][1]);
    }
}

/* ---- search ----------------------------------------------------------------------------- */

static struct minf_config search_base(int64_t n)
{
    return (struct minf_config){.n = n,
                                .last_q = 64,
                                .force_cols = 30,
                                .force_dists = 100,
                                .realised = true,
                                .p_dtype = DT_F32,
                                .top = 100,
                                .block = 64};
}

TEST(code_search_on_the_golden_trace)
{
    const double want[] = {0.675429, 0.846966, 0.946732, 0.980483, 0.999895, 0.704520};
    OWN(sim_head_free) struct sim_head h;
    struct minf_candidate cand[MINF_CANDIDATES];
    struct minf_search s = {.kind = MINF_SEARCH_EXACT, .rows_from = 2500};
    struct minf_config base = search_base(4096);
    struct err err = {0};
    int count;
    assert_ok(golden_sample(4096, PREC_F32, &h, &err), &err);
    int best = minf_search_run(&s, &base, &h.in, 1, cand, &count, &err);
    ck_assert_int_eq(best, 4);
    ck_assert_int_eq(count, 6);
    for (int i = 0; i < 6; i++)
        ck_assert_double_eq_tol(cand[i].score, want[i], 1e-4);
    ck_assert_int_eq(cand[4].v, 3500);
    ck_assert_int_eq(cand[4].s, 100);
    ck_assert_int_eq(cand[0].v, 100); /* what a winning A-shape, a winning block are written as */
    ck_assert_int_eq(cand[0].s, 800);
    ck_assert_int_eq(cand[0].pattern, MINF_VS);
    ck_assert_int_eq(cand[5].v, 1000);
    ck_assert_int_eq(cand[5].s, 6096);
    ck_assert_int_eq(cand[5].pattern, MINF_VS);

    s.kind = MINF_SEARCH_REALISED; /* a window of 800 distances */
    best = minf_search_run(&s, &base, &h.in, 1, cand, &count, &err);
    ck_assert_double_eq_tol(cand[0].score, 0.675407, 1e-4);
    for (int i = 1; i < 4; i++)
        ck_assert_double_gt(cand[i].score, want[i] - 1e-4);
    ck_assert_int_ge(best, 0);
}

TEST(paper_search_equalises_the_cost)
{
    OWN(sim_head_free) struct sim_head h;
    struct minf_candidate cand[MINF_CANDIDATES];
    struct minf_search s = {
        .kind = MINF_SEARCH_PAPER, .rows_from = 0, .min_v = 1, .min_s = 1, .scale_sizes = true};
    struct minf_config base = search_base(8192);
    struct err err = {0};
    int count;
    base.force_cols = 4;
    base.force_dists = 16;
    assert_ok(golden_sample(8192, PREC_F32, &h, &err), &err);
    int best = minf_search_run(&s, &base, &h.in, 1, cand, &count, &err);
    ck_assert(best >= 0 && count == 6);
    ck_assert_int_eq(cand[0].c.init, 64); /* 1024 * 8192 / 131072 */
    ck_assert_int_eq(cand[0].c.local, 256);
    for (int i = 1; i < 6; i++) {
        /* A block or a distance is 64 x 64 per row block, about 1.5 % of this triangle. */
        ck_assert_double_ge(cand[i].exec, cand[0].exec - 0.02);
        ck_assert_double_le(cand[i].exec, cand[0].exec + 0.02);
        ck_assert_double_ge(cand[i].error, cand[best].error);
    }
}

static int found(const char *text, const struct head_in *in, int n, char *pattern, int64_t *v,
                 int64_t *s, struct err *err)
{
    OWN(json_decrefp) json_t *doc = NULL;
    const char *name;
    struct err e = {0};
    PASS_ON(calibrate_text(text, in, n, &doc, err));
    assert_ok(jget_str(doc, "pattern", "calibration", &name, &e), &e);
    snprintf(pattern, 16, "%s", name);
    assert_ok(jget_int_opt(doc, "v", "calibration", v, &e), &e);
    assert_ok(jget_int_opt(doc, "s", "calibration", s, &e), &e);
    return 0;
}

TEST(calibrate_writes_pattern_and_sizes)
{
    char pattern[16];
    int64_t v = 0, s = 0;
    HEAD(h, golden_sample, 4096, PREC_F32);
    MUST(found("minference:search=exact:rows_from=2500", &h.in, 1, pattern, &v, &s, ERR));
    ck_assert_str_eq(pattern, "vs");
    ck_assert_int_eq(v, 3500);
    ck_assert_int_eq(s, 100);
    h.in.x.nq = h.in.x.nk = 2600;
    FAILS(found("minference", &h.in, 1, pattern, &v, &s, ERR), ERR_USAGE, "set rows_from");
    FAILS(found("minference:profile=frontier", &h.in, 1, pattern, &v, &s, ERR), ERR_USAGE,
          "is not calibrated");
}
