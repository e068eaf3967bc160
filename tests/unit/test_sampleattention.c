/*
 * SampleAttention: slices, score lists, find_k, extension, merging, the golden trace, the earlier
 * algorithm (v2), short prompts, prompt chunks and the offline search.
 */
#include "core/sort.h"
#include "sim/methods/sampleattention/sampleattention.h"
#include "tests/harness/methodrun.h"

#define FAR 986

static struct sample_config config(int64_t n, int chunks, double alpha)
{
    return (struct sample_config){.nq = n,
                                  .nk = n,
                                  .block = 128,
                                  .chunks = chunks,
                                  .alpha_c = alpha,
                                  .alpha_s = alpha,
                                  .keep_diag = true};
}

/* ---- parts ------------------------------------------------------------------------------ */

TEST(slices_end_at_block_boundaries_and_at_the_prompt)
{
    const struct {
        int64_t n, end[4];
        int chunks;
    } cases[] = {{4096, {4096}, 1},
                 {4096, {2048, 4096}, 2},
                 {4096, {1024, 2048, 3072, 4096}, 4},
                 {4000, {2048, 4000}, 2},
                 {4000, {1024, 2048, 3072, 4000}, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t end[SAMPLE_MAX_CHUNKS + 1];
        struct sample_config c = config(cases[i].n, cases[i].chunks, 0.9);
        sample_ends(&c, end);
        ck_assert_int_eq(end[0], 0);
        for (int k = 0; k < c.chunks; k++)
            ck_assert_int_eq(end[k + 1], cases[i].end[k]);
    }
}

TEST(slice_ends_do_not_overflow_and_increase)
{
    struct sample_config c = config((int64_t)1 << 40, 64, 0.9);
    int64_t end[SAMPLE_MAX_CHUNKS + 1];
    sample_ends(&c, end);
    for (int i = 0; i < 64; i++)
        ck_assert_int_eq(end[i + 1], (int64_t)(i + 1) << 34);
    for (int64_t n = 257; n < 1200; n += 37)
        for (c = config(n, 1, 0.9); sample_applies(&c); c.chunks++) {
            sample_ends(&c, end);
            for (int i = 0; i < c.chunks; i++)
                ck_assert_int_gt(end[i + 1], end[i]);
        }
}

TEST(find_k_keeps_the_crossing_element)
{
    const double score[4] = {0.5, 0.25, 0.125, 0.125};
    const double alpha[] = {0, 0.5, 0.7, 0.75, 0.76, 1};
    const int64_t want[] = {1, 1, 2, 2, 3, 4};
    int32_t order[4];
    int64_t k;
    for (int i = 0; i < 6; i++) {
        MUST(sample_find_k(score, 4, alpha[i], order, &k, ERR));
        ck_assert_int_eq(k, want[i]);
    }
    const double ties[4] = {1, 2, 2, 1};
    MUST(sample_find_k(ties, 4, 0.5, order, &k, ERR));
    ck_assert_int_eq(order[0], 1);
    ck_assert_int_eq(order[1], 2);
    ck_assert_int_eq(order[2], 0);
    ck_assert_int_eq(order[3], 3);
}

/* Share of the rows of a block whose key at distance d lies on the diagonals of d's bin. */
static double slash_share(enum sample_extend extend, int64_t d)
{
    struct sample_config c = config(4096, 1, 0.5);
    OWN(sample_scores_free) struct sample_scores s;
    OWN(sample_plan_free) struct sample_plan p;
    int64_t row_block = 20, on = 0;
    c.extend = extend;
    MUST(sample_scores_init(&s, &c, ERR));
    s.col[0] = 1;
    s.slash[sample_bin(&c, d)] = 1;
    MUST(sample_plan_build(&p, &c, &s, ERR));
    for (int64_t q = row_block * 128; q < (row_block + 1) * 128; q++)
        on += sample_plan_keeps(&p, 0, row_block, (q - d) / 128) != 0;
    return (double)on / 128;
}

TEST(diagonals_hold_the_stated_share_of_a_slash)
{
    double cover1 = 0, cover2 = 0, centred = 0;
    for (int64_t r = 0; r < 128; r++) {
        cover1 += slash_share(SAMPLE_COVER1, 7 * 128 + r) / 128;
        cover2 += slash_share(SAMPLE_COVER2, 7 * 128 + r) / 128;
        centred += slash_share(SAMPLE_CENTRED, 7 * 128 + r - 64) / 128;
    }
    ck_assert_double_eq(cover1, 0.50390625);
    ck_assert_double_eq(centred, 0.75);
    ck_assert_double_eq(cover2, 1);
    struct sample_config c = config(4096, 1, 0.5);
    c.extend = SAMPLE_CENTRED;
    ck_assert_int_eq(sample_bin(&c, 63), 0);
    ck_assert_int_eq(sample_bin(&c, 64), 1);
    ck_assert_int_eq(sample_bin(&c, 4095), 31); /* the last bin takes the rest */
    ck_assert_double_eq(slash_share(SAMPLE_COVER1, FAR), 0.296875);
    ck_assert_double_eq(slash_share(SAMPLE_CENTRED, FAR), 0.703125);
}

static int64_t plan_blocks(const struct sample_plan *p)
{
    int64_t n = 0;
    for (int64_t i = 0; i < p->nb; i++)
        for (int64_t j = 0; j <= i; j++)
            n += sample_plan_keeps(p, sample_plan_list(p, i), i, j) != 0;
    return n;
}

/* Every row has all its mass at distance FAR, or on itself before that. */
static void pure_slash(enum sample_extend extend, struct sample_plan *p, struct sample_scores *s)
{
    enum { N = 4096 };
    struct sample_config c = config(N, 1, 0.9);
    static double row[N];
    c.extend = extend;
    MUST(sample_scores_init(s, &c, ERR));
    for (int64_t q = N - 128; q < N; q++) {
        row[q - FAR] = 1;
        sample_scores_add(s, &c, 0, q, row);
        row[q - FAR] = 0;
    }
    MUST(sample_plan_build(p, &c, s, ERR));
}

static double pure_slash_keep(const struct sample_plan *p, double *least)
{
    double sum = 0;
    *least = 1;
    for (int64_t q = 0; q < 4096; q++) {
        int64_t k = q >= FAR ? q - FAR : q;
        double keep = sample_plan_keeps(p, 0, q / 128, k / 128) != 0;
        sum += keep / 4096;
        *least = fmin(*least, keep);
    }
    return sum;
}

TEST(pure_slash_is_kept_whole_by_cover2_only)
{
    const struct {
        enum sample_extend extend;
        int bin;
        int64_t blocks;
        double mean, least;
    } cases[] = {{SAMPLE_COVER2, 7, 93, 1, 1},
                 {SAMPLE_COVER1, 7, 70, 0.494629, 0},
                 {SAMPLE_CENTRED, 8, 70, 0.786621, 0}};
    for (int e = 0; e < 3; e++) {
        OWN(sample_plan_free) struct sample_plan p;
        OWN(sample_scores_free) struct sample_scores s;
        double least;
        pure_slash(cases[e].extend, &p, &s);
        for (int64_t j = 0; j < 32; j++) {
            ck_assert_double_eq(s.slash[j], j == cases[e].bin);
            ck_assert_double_eq(s.col[j], j == 23 ? 0.703125 : j == 24 ? 0.296875 : 0);
            ck_assert_int_eq(p.cols[j], j == 23 || j == 24);
            ck_assert_int_eq(p.bins[j], j == cases[e].bin);
        }
        ck_assert_int_eq(plan_blocks(&p), cases[e].blocks);
        ck_assert_double_eq_tol(pure_slash_keep(&p, &least), cases[e].mean, 1e-6);
        ck_assert_double_eq(least, cases[e].least);
    }
}

/* ---- whole heads ------------------------------------------------------------------------ */

struct golden_row {
    const char *options, *lists;
    double blocks, density, min, p1, mean;
};

/* Tiles of 128 x 128 times their number is what a kernel executes. */
static void check_golden(const struct sim_head *h, const struct golden_row *g)
{
    char text[256];
    OWN(record_free) struct record r;
    double n = (double)h->in.x.nq, pairs = n * (n + 1) / 2, exec = g->blocks * 128 * 128;
    snprintf(text, sizeof text, "sampleattention:alpha_c=0.9:alpha_s=0.9%s", g->options);
    double p1 = run_p1(text, &h->in, &r);
    HAS(&r, 1e-6, "pairs_exec density_elem density_exec density_native", exec, g->density,
        exec / pairs, g->density * pairs / (n * n));
    HAS(&r, 1e-4, "cra_min cra_mean", g->min, g->mean);
    ck_assert_double_eq_tol(p1, g->p1, 1e-4);
    assert_note(&r, g->lists);
}

TEST(golden_trace_4096)
{
    const struct golden_row rows[] = {
        {":chunks=1", "kc,ks=5,5", 206, 0.371247, 0.279077, 0.628847, 0.962066},
        {":chunks=2", "kc,ks=4,3 5,5", 216, 0.390774, 0.279077, 0.639154, 0.963570},
        {":chunks=4", "kc,ks=2,2 4,3 4,4 5,5", 208, 0.375153, 0.279077, 0.628847, 0.962716},
        {":chunks=1:extend=cover1", "kc,ks=5,5", 144, 0.250183, 0.000484, 0.033479, 0.863555},
        {":chunks=1:extend=centred", "kc,ks=5,4", 129, 0.220893, 0.000373, 0.086758, 0.909352},
        {":chunks=4:merge=union", "kc,ks=2,2 4,3 4,4 5,5", 282, 0.519649, 0.302775, 0.691308,
         0.969992},
        {":chunks=4:merge=mean", "kc,ks=6,5", 230, 0.418111, 0.282244, 0.641212, 0.964439},
        {":chunks=1:keep_diag=0:keep_sink=1", "kc,ks=5,5", 206, 0.371247, 0.279077, 0.628847,
         0.962066},
    };
    HEAD(h, golden_sample, 4096, PREC_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_golden(&h, &rows[i]);

    RUN(r, "sampleattention:alpha_c=0.9:alpha_s=0.9", &h.in);
    HAS(&r, 1e-6, "density_exec units_forced", 0.402246, 0);
    HAS(&r, 1e-4, "err_l2_rel", 0.087674);
    RUN(defaults, "sampleattention", &h.in);
    HAS(&defaults, 1e-6, "pairs_exec density_elem", 327 * 128 * 128, 0.607518);
    HAS(&defaults, 1e-4, "cra_mean", 0.980525);
    assert_note(&defaults, "kc,ks=10,10");
}

TEST(golden_trace_4000)
{
    const struct golden_row rows[] = {
        {":chunks=1", "kc,ks=6,6", 210, 0.382682, 0.280025, 0.641537, 0.963375},
        {":chunks=2", "kc,ks=4,3 6,6", 219, 0.401110, 0.280418, 0.655673, 0.964680},
    };
    HEAD(h, golden_sample, 4000, PREC_F32);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        check_golden(&h, &rows[i]);
}

static void golden_plan(int64_t n, struct sample_config *c, struct sample_plan *p)
{
    OWN(sample_scores_free) struct sample_scores s;
    HEAD(h, golden_sample, n, PREC_F32);
    MUST(sample_scores_init(&s, c, ERR));
    MUST(sample_scores_run(&s, c, h.in.exact, ERR));
    for (int i = 0; i < c->chunks; i++) {
        double col = 0, slash = 0;
        for (int64_t j = 0; j < sample_blocks(c); j++) {
            col += s.col[i * sample_blocks(c) + j];
            slash += s.slash[i * sample_blocks(c) + j];
        }
        ck_assert_double_eq_tol(col, 1, 1e-6);
        ck_assert_double_eq_tol(slash, 1, 1e-6);
    }
    MUST(sample_plan_build(p, c, &s, ERR));
}

TEST(golden_columns_and_bins)
{
    const int col4096[] = {0, 15, 23, 24, 31, -1}, bin4096[] = {0, 7, 15, 16, 31, -1};
    const int col4000[] = {0, 15, 22, 23, 30, 31, -1}, bin4000[] = {0, 7, 14, 15, 30, 31, -1};
    const int *col[] = {col4096, col4000}, *bin[] = {bin4096, bin4000};
    for (int i = 0; i < 2; i++) {
        struct sample_config c = config(i ? 4000 : 4096, 1, 0.9);
        OWN(sample_plan_free) struct sample_plan p;
        int nc = 0, ns = 0;
        golden_plan(c.nq, &c, &p);
        for (int64_t j = 0; j < p.nb; j++) {
            if (p.cols[j])
                ck_assert_int_eq(j, col[i][nc++]);
            if (p.bins[j])
                ck_assert_int_eq(j, bin[i][ns++]);
        }
        ck_assert_int_eq(col[i][nc], -1);
        ck_assert_int_eq(bin[i][ns], -1);
    }
}

/* Every block that `lo` keeps `hi` keeps, too. */
static void assert_contained(const struct sample_config *lo, const struct sample_config *hi,
                             const struct sample_scores *s)
{
    OWN(sample_plan_free) struct sample_plan a, b;
    MUST(sample_plan_build(&a, lo, s, ERR));
    MUST(sample_plan_build(&b, hi, s, ERR));
    for (int64_t i = 0; i < a.nb; i++)
        for (int64_t j = 0; j <= i; j++)
            ck_assert(!sample_plan_keeps(&a, sample_plan_list(&a, i), i, j) ||
                      sample_plan_keeps(&b, sample_plan_list(&b, i), i, j));
}

TEST(masks_are_nested)
{
    const double alpha[] = {0.3, 0.6, 0.8, 0.9, 0.95, 0.99};
    OWN(sample_scores_free) struct sample_scores s;
    struct sample_config c = config(2500, 4, 0.3);
    HEAD(h, golden_sample, 2500, PREC_F32);
    MUST(sample_scores_init(&s, &c, ERR));
    MUST(sample_scores_run(&s, &c, h.in.exact, ERR));
    for (int i = 0; i < 5; i++) {
        struct sample_config lo = config(2500, 4, alpha[i]), strict = lo;
        struct sample_config more[] = {lo, lo, lo, lo}; /* of columns, of slashes, union, safe */
        more[0].alpha_c = more[1].alpha_s = alpha[i + 1];
        more[2].merge = SAMPLE_UNION;
        more[3].keep_sink = true;
        for (int k = 0; k < 4; k++)
            assert_contained(&lo, &more[k], &s);
        strict.keep_diag = false;
        assert_contained(&strict, &lo, &s);
    }
}

TEST(uniform_rows)
{
    const struct {
        const char *options, *lists;
        double blocks;
    } cases[] = {{":alpha_c=0.3:alpha_s=0.3:extend=cover1", "kc,ks=3,3", 33},
                 {":alpha_c=0.3:alpha_s=0.3", "kc,ks=3,3", 35},
                 {":alpha_c=0.9:alpha_s=0.9", "kc,ks=7,7", 36}};
    OWN(sample_scores_free) struct sample_scores s;
    OWN(sample_plan_free) struct sample_plan p;
    struct sample_config c = config(1024, 1, 0.3);
    HEAD(h, random_head, 1, 1024, 1024, 16, true, 0, PREC_F64);
    MUST(sample_scores_init(&s, &c, ERR));
    MUST(sample_scores_run(&s, &c, h.in.exact, ERR));
    MUST(sample_plan_build(&p, &c, &s, ERR));
    for (int j = 0; j < 8; j++) {
        ck_assert_double_eq_tol(s.col[j], j < 7 ? 0.133461662 : 0.065768363, 1e-9);
        ck_assert_double_eq_tol(s.slash[j], j < 7 ? 0.133461662 : 0.065768363, 1e-9);
        ck_assert_int_eq(p.cols[j], j < 3); /* equal scores: the lower index */
        ck_assert_int_eq(p.bins[j], j < 3);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];
        snprintf(text, sizeof text, "sampleattention%s", cases[i].options);
        RUN(r, text, &h.in);
        assert_note(&r, cases[i].lists);
        ck_assert_double_eq(record_get(&r, "pairs_exec"), cases[i].blocks * 128 * 128);
    }
}

/* Entries of a row needed for a share 0.95 of its mass, summed over the rows. */
static int64_t oracle_entries(int64_t n)
{
    int64_t sum = 0;
    OWN(free_at) double *p = malloc((size_t)n * sizeof *p);
    HEAD(h, golden_sample, n, PREC_F32);
    for (int64_t q = 0; q < n; q++) {
        double mass = 0;
        MUST(exact_probs(h.in.exact, q, q + 1, p, ERR));
        sort_f64(p, q + 1);
        for (int64_t k = q; k >= 0 && mass < 0.95; k--, sum++)
            mass += p[k];
    }
    return sum;
}

TEST(oracle_of_the_golden_trace)
{
    double a = (double)oracle_entries(4096), pairs = 4096.0 * 4097 / 2;
    ck_assert_double_eq_tol(a, 44170, 44);
    ck_assert_double_eq_tol(1 - a / pairs, 0.994736, 1e-5);
    ck_assert_double_eq_tol(1 - a / (4096.0 * 4096), 0.997367, 1e-5);
    ck_assert_double_eq_tol((double)oracle_entries(4000), 42038, 42);
}

TEST(earlier_algorithm_on_the_golden_trace)
{
    struct sample_v2 v;
    HEAD(h, golden_sample, 4096, PREC_F32);
    sample_v2_init(&v, &h.in.x, 0.08, 0.05, 128);
    MUST(sample_v2_choose(&v, 0.95, h.in.exact, ERR));
    ck_assert_int_eq(v.window, 328);
    ck_assert_int_eq(v.sampled, 205);
    ck_assert_int_eq(v.ncols, 182);
    sample_v2_free(&v);
    RUN(r, "sampleattention:profile=v2", &h.in);
    HAS(&r, 1e-6, "density_elem columns", 0.251024, 182);
    HAS(&r, 1e-4, "cra_min cra_p1 cra_mean", 0.000385, 0.028830, 0.848365);
}

TEST(presets_follow_the_prompt_length_and_yield_to_explicit_values)
{
    const struct {
        const char *text, *same;
    } cases[] = {
        {"sampleattention:preset=glm4-acc", "sampleattention:alpha_c=0.98:alpha_s=0.9:chunks=1"},
        {"sampleattention:preset=internlm2-spd", "sampleattention:alpha_c=0.85:alpha_s=0.85"},
        {"sampleattention:preset=internlm2-acc:alpha_c=0.5:chunks=2",
         "sampleattention:alpha_c=0.5:alpha_s=0.95:chunks=2"},
    };
    HEAD(h, random_head, 3, 1024, 1024, 16, true, 2, PREC_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RUN(a, cases[i].text, &h.in);
        RUN(b, cases[i].same, &h.in);
        ck_assert_double_eq(record_get(&a, "pairs_kept"), record_get(&b, "pairs_kept"));
        ck_assert_str_eq(buf_str(&a.notes), buf_str(&b.notes));
    }
}

/* The last rows of a prompt as a chunk of their own: with one slice, which is the same in both, the
 * lists are equal, so every row keeps what it keeps in the whole prompt. */
TEST(prompt_chunk_uses_absolute_positions)
{
    const int64_t cuts[] = {512, 500, 640, 333};
    HEAD(whole, random_head, 4, 1100, 1100, 16, true, 3, PREC_F64);
    for (int i = 0; i < 4; i++)
        assert_chunk_keeps("sampleattention:alpha_c=0.6:alpha_s=0.4", &whole, cuts[i], 1e-12);
}

/* Column 5 and distance 6 of 8: rows 5, 6, 7; diagonals 6 and 7. Row blocks 0..4 have neither,
 * unless the diagonal and the sink are forced. */
TEST_N(strict_counts_rows_without_a_key, 2)
{
    enum { N = 1024 };
    struct sample_config c = config(N, 1, 0);
    OWN(sample_scores_free) struct sample_scores s;
    OWN(sample_plan_free) struct sample_plan p;
    OWN(mask_free) struct mask m = {0};
    struct mask_counts n;
    int64_t forced = 0;
    MUST(sample_scores_init(&s, &c, ERR));
    s.col[5] = s.slash[6] = 1;
    c.keep_diag = c.keep_sink = _i;
    MUST(sample_plan_build(&p, &c, &s, ERR));
    MUST(sample_plan_mask(&p, 0, N, &m, &forced, ERR));
    MUST(mask_count(&m, &n, ERR));
    ck_assert_int_eq(n.rows_empty, _i ? 0 : 5 * 128);
    ck_assert_int_eq(forced > 0, _i);
    ck_assert_int_eq(n.tiles_kept - forced, 3 + 2 + 1);
}

/* ---- offline search --------------------------------------------------------------------- */

TEST(search_reports_what_the_replay_measures)
{
    struct sample_choice c;
    char text[128];
    struct sample_config base = config(0, 1, 0);
    HEAD(h, golden_sample, 2100, PREC_F64);
    RUN_HAS("sampleattention:alpha_c=1:alpha_s=0:chunks=3", &h.in, 1e-12, "density_elem cra_min", 1,
            1);
    struct sample_target want = {.mean = 0.9, .fast = true};
    MUST(sample_search(&base, &want, &h.in, 1, &c, NULL, ERR));
    ck_assert(c.met);
    ck_assert_double_ge(c.keep_mean, 0.9);
    snprintf(text, sizeof text, "sampleattention:alpha_c=%g:alpha_s=%g:chunks=%d", c.alpha_c,
             c.alpha_s, c.chunks);
    RUN(r, text, &h.in);
    ck_assert_double_eq_tol(record_get(&r, "density_elem"), c.density, 1e-12);
    HAS(&r, 1e-9, "cra_p1 cra_mean", c.keep_p1, c.keep_mean);
    ck_assert_double_eq_tol(record_get(&r, "err_l2_rel"), c.error, 1e-6);

    want = (struct sample_target){.p1 = 1.01, .error = 0.05};
    MUST(sample_search(&base, &want, &h.in, 1, &c, NULL, ERR));
    ck_assert(!c.met);
    ck_assert_double_eq(c.alpha_c, 1);
}

TEST(calibrate_writes_a_triple)
{
    const char *text = "sampleattention:target=spd:target_mean=0.8";
    HEAD(a, random_head, 7, 600, 600, 16, true, 2, PREC_F32);
    HEAD(b, random_head, 8, 600, 600, 16, true, 2, PREC_F32);
    const struct head_in in[2] = {a.in, b.in};
    double alpha_c = calibrated(text, in, 2, "alpha_c"),
           alpha_s = calibrated(text, in, 2, "alpha_s");
    double chunks = calibrated(text, in, 2, "chunks");
    ck_assert(alpha_c >= 0.8 && alpha_c <= 1 && alpha_s >= 0.8 && alpha_s <= 1);
    ck_assert(chunks == 1 || chunks == 2 || chunks == 4);
}
