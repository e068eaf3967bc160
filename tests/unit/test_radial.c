/*
 * test_radial.c - Radial Attention: block counts and maps by hand, band widths, thinning, the block
 * rule, the printed formula, text, padding, refusals, golden heads.
 */
#include "sim/methods/radial/radialmap.h"
#include "tests/harness/methodrun.h"

#include <stdio.h>

static struct radial_rule rule(int64_t F, int64_t T, int64_t B, double decay, bool sink,
                               int64_t text)
{
    return (struct radial_rule){
        .F = F, .T = T, .text = text, .block = B, .thin = 128, .decay = decay, .sink = sink};
}

/* ---- block maps ----------------------------------------------------------------------------- */

static const struct {
    int64_t F, T, B;
    double decay;
    bool wan;
    int64_t text, side, kept;
    double density;
    int64_t spilled;
} counts[] = {
    {96, 4, 64, 0.5, true, 0, 6, 21, 0.583333, 0},
    {96, 4, 64, 0.5, false, 0, 6, 14, 0.388889, 0},
    {96, 8, 64, 0.25, false, 64, 13, 53, 0.313609, 0},
    {64, 16, 64, 0.2, false, 0, 16, 16, 0.062500, 0},
    {100, 16, 64, 1.0, true, 0, 25, 97, 0.155200, 16},
    {128, 9, 128, 1.0, true, 0, 9, 55, 0.679012, 0},
    {160, 6, 64, 0.3, true, 0, 15, 190, 0.844444, 0},
    {192, 10, 128, 0.2, true, 0, 15, 174, 0.773333, 0},
    {256, 4, 64, 1.0, true, 0, 16, 248, 0.968750, 0},
    {256, 8, 64, 0.2, true, 64, 33, 813, 0.746556, 0},
    {256, 12, 128, 1.0, false, 0, 24, 432, 0.750000, 0},
    {256, 16, 128, 0.2, true, 0, 32, 704, 0.687500, 0},
    {320, 8, 64, 0.5, true, 0, 40, 1090, 0.681250, 0},
    {768, 16, 128, 0.2, true, 0, 96, 4848, 0.526042, 0},
    {1536, 16, 128, 0.2, true, 0, 192, 15304, 0.415148, 0},
    {3840, 18, 128, 0.2, true, 0, 540, 83728, 0.287133, 0},
    {3840, 20, 64, 0.8, true, 0, 1200, 502720, 0.349111, 0},
    {3840, 30, 128, 0.95, false, 256, 902, 226056, 0.277845, 0},
    {100, 5, 64, 0.5, true, 0, 8, 28, 0.437500, 4},
    {1560, 21, 128, 0.2, true, 0, 256, 22143, 0.337875, 42},
    {3600, 21, 128, 0.2, true, 0, 591, 91470, 0.261881, -1},
};

TEST_EACH(kept_blocks, counts)
{
    OWN(block_map_free) struct block_map m;
    struct radial_rule r = rule(counts[_i].F, counts[_i].T, counts[_i].B, counts[_i].decay,
                                counts[_i].wan, counts[_i].text);
    OWN(free_at) int32_t *cols = calloc((size_t)counts[_i].side, sizeof *cols);
    MUST(radial_map(&r, &m, ERR));
    ck_assert_int_eq(m.rows, counts[_i].side);
    ck_assert_int_eq(m.cols, counts[_i].side);
    ck_assert_int_eq(block_map_count(&m), counts[_i].kept);
    assert_printed((double)counts[_i].kept / (double)(m.rows * m.cols), counts[_i].density, 5);
    for (int64_t i = 0; i < m.rows; i++)
        ck_assert_int_gt(block_map_row(&m, i, cols), 0);
    if (counts[_i].spilled >= 0)
        ck_assert_int_eq(radial_spilled_pairs(&r), counts[_i].spilled);
}

static void assert_map(const struct radial_rule *r, const char *const *rows)
{
    OWN(block_map_free) struct block_map m;
    MUST(radial_map(r, &m, ERR));
    for (int64_t i = 0; i < m.rows; i++) {
        char got[32] = {0};
        for (int64_t j = 0; j < m.cols; j++)
            got[j] = block_map_get(&m, i, j) ? '1' : '0';
        ck_assert_str_eq(got, rows[i]);
    }
}

TEST(maps_by_hand)
{
    static const char *const wan[] = {"110000", "111000", "111000", "110110", "110111", "110011"};
    static const char *const hunyuan[] = {"110000", "111000", "011000",
                                          "000110", "000111", "000011"};
    static const char *const text[] = {
        "1100000000001", "1110000000001", "0110000000001", "0001100000001", "0001110000001",
        "0000110000001", "0000001100001", "0000001110001", "0000000110001", "0000000001101",
        "0000000001111", "0000000000111", "1111111111111"};
    struct radial_rule r = rule(96, 4, 64, 0.5, true, 0);
    assert_map(&r, wan);
    r.sink = false;
    assert_map(&r, hunyuan);
    r = rule(96, 8, 64, 0.25, false, 64);
    assert_map(&r, text);
}

/* One block per frame pair: the first frame, and distances 0, 1, 2, 4, 8. */
TEST(one_block_per_frame)
{
    OWN(block_map_free) struct block_map m;
    struct radial_rule r = rule(128, 9, 128, 1, true, 0);
    MUST(radial_map(&r, &m, ERR));
    for (int i = 0; i < 9; i++)
        for (int j = 0; j < 9; j++) {
            int d = abs(i - j);
            ck_assert_int_eq(block_map_get(&m, i, j),
                             j == 0 || d == 0 || d == 1 || d == 2 || d == 4 || d == 8);
        }
}

/* The map that the published procedure makes from an explicit token mask of every frame pair. */
TEST_N(maps_follow_the_token_masks, 6)
{
    static const struct {
        int64_t F, T, B;
        double decay;
        bool sink;
        int64_t text;
    } cases[] = {
        {96, 5, 64, 0.7, true, 0},   {200, 6, 64, 0.3, false, 40}, {150, 7, 64, 1, true, 1},
        {300, 5, 128, 0.6, true, 0}, {130, 9, 128, 0.4, false, 0}, {70, 4, 64, 0.2, true, 3},
    };
    OWN(block_map_free) struct block_map m;
    struct radial_rule r = rule(cases[_i].F, cases[_i].T, cases[_i].B, cases[_i].decay,
                                cases[_i].sink, cases[_i].text);
    int64_t F = r.F, B = r.block, video = r.F * r.T, n = video + r.text;
    int64_t side = (n + B - 1) / B, blocks = (F + B - 1) / B;
    OWN(free_at) uint8_t *want = calloc((size_t)(side * side), 1);

    for (int64_t i = 0; i < r.T; i++)
        for (int64_t j = 0; j < r.T; j++)
            for (int64_t a = 0; a < blocks; a++)
                for (int64_t b = 0; b < blocks; b++) {
                    int64_t high = 0, nonzero = 0, d = llabs(i - j);
                    for (int64_t c = b * B; c < (b + 1) * B; c++) {
                        int64_t l = c - j * F % B, rows = 0;
                        for (int64_t x = a * B; x < (a + 1) * B; x++) {
                            int64_t k = x - i * F % B;
                            bool band = fabs((double)(k - l)) <= radial_width(&r, d) &&
                                        radial_frames_kept(&r, d);
                            rows +=
                                k >= 0 && k < F && l >= 0 && l < F && (band || (r.sink && j == 0));
                        }
                        nonzero += rows > 0;
                        high += radial_column_high(rows, B);
                    }
                    int64_t x = i * F / B + a, y = j * F / B + b;
                    if (x < side && y < side && radial_block_kept(high, nonzero))
                        want[x * side + y] = 1;
                }
    for (int64_t x = 0; x < side; x++)
        for (int64_t y = 0; y < side; y++)
            if (r.text && (x >= video / B || y >= video / B))
                want[x * side + y] = 1;
    MUST(radial_map(&r, &m, ERR));
    for (int64_t x = 0; x < side; x++)
        for (int64_t y = 0; y < side; y++)
            ck_assert_msg(block_map_get(&m, x, y) == want[x * side + y], "block %lld, %lld",
                          (long long)x, (long long)y);
}

TEST(widths_and_thinning_by_hand)
{
    struct radial_rule r = rule(3840, 32, 128, 0.2, true, 0);
    ck_assert_double_eq(radial_width(&r, 0), 3840);
    ck_assert_double_eq(radial_width(&r, 1), 3840);
    ck_assert_double_eq_tol(radial_width(&r, 2), 204.8, 1e-9);
    ck_assert_double_eq_tol(radial_width(&r, 3), 204.8, 1e-9);
    for (int64_t d = 4; d < 32; d++)
        ck_assert_double_eq(radial_width(&r, d), 128);
    for (int64_t d = 0; d < 32; d++)
        ck_assert(radial_frames_kept(&r, d));
    r.F = 256;
    for (int64_t d = 0; d < 16; d++)
        ck_assert_int_eq(radial_frames_kept(&r, d), d < 4 || d == 4 || d == 6 || d == 8 || d == 12);
    /* The neighbouring frame stays iff the thinning constant fits into half of 2^bl(F). */
    r.F = 127;
    ck_assert(!radial_frames_kept(&r, 1));
    ck_assert(radial_frames_kept(&r, 0));
    r.F = 128;
    ck_assert(radial_frames_kept(&r, 1));
}

TEST(block_rule_by_hand)
{
    ck_assert(radial_column_high(22, 64));
    ck_assert(!radial_column_high(21, 64));
    ck_assert(radial_column_high(43, 128));
    ck_assert(!radial_column_high(42, 128));
    ck_assert(!radial_block_kept(3, 5));
    ck_assert(radial_block_kept(4, 6));
    ck_assert(radial_block_kept(2, 3));
    ck_assert(!radial_block_kept(0, 0));
}

/* Width 204.8 at B = 128: the second block below the diagonal has 34 high of 76 non-empty columns
 * and goes, the first neighbour at width 128 has 86 of 128 and stays. */
TEST(slivers_at_the_edge_of_the_band_go)
{
    OWN(block_map_free) struct block_map m;
    struct radial_rule r = rule(3840, 5, 128, 0.2, false, 0);
    MUST(radial_map(&r, &m, ERR));
    int64_t i = 5, two = 2 * 30, four = 4 * 30;
    ck_assert(block_map_get(&m, i, two + i - 1));
    ck_assert(!block_map_get(&m, i, two + i - 2));
    ck_assert(block_map_get(&m, i, four + i + 1));
    ck_assert(!block_map_get(&m, i, four + i + 2));
}

TEST(symmetric_where_frames_are_whole_blocks)
{
    OWN(block_map_free) struct block_map m;
    struct radial_rule r = rule(256, 9, 64, 0.3, false, 100);
    MUST(radial_map(&r, &m, ERR));
    for (int64_t i = 0; i < m.rows; i++)
        for (int64_t j = 0; j < i; j++)
            ck_assert_int_eq(block_map_get(&m, i, j), block_map_get(&m, j, i));
}

/* ---- the printed formula -------------------------------------------------------------------- */

static const struct {
    int64_t F, T, with_sink, without;
} paper[] = {
    {1, 8, 46, 42},
    {4, 12, 1296, 1180},
    {7, 9, 2439, 2189},
    {96, 4, 138048, 133344},
    {256, 8, 3271168, 3089920},
    {1536, 16, 351316992, 330361344},
    {1560, 21, 542901480, 510576960},
    {3600, 21, 2892682800, 2720653200},
    {3840, 18, 2623757760, 2466921120},
};

TEST_EACH(paper_pairs, paper)
{
    for (int sink = 0; sink < 2; sink++) {
        struct radial_rule r = rule(paper[_i].F, paper[_i].T, 128, 1, sink, 0);
        int64_t sum = 0, lo, hi;
        for (int64_t i = 0; i < r.T; i++)
            for (int64_t k = 0; k < r.F; k++)
                for (int64_t j = 0; j < r.T; j++) {
                    radial_row(&r, i, k, j, &lo, &hi);
                    ck_assert(hi == lo || (lo >= j * r.F && hi <= (j + 1) * r.F && hi > lo));
                    sum += hi - lo;
                }
        ck_assert_int_eq(sum, sink ? paper[_i].with_sink : paper[_i].without);
    }
}

/* |k - l| + 1 <= F / 2^r, else k = l at distances that ceil(2^r / F) divides. */
TEST_N(paper_rows_follow_the_formula, 4)
{
    static const int64_t sizes[][2] = {{7, 20}, {4, 40}, {1, 9}, {33, 6}};
    struct radial_rule r = rule(sizes[_i][0], sizes[_i][1], 64, 1, false, 0);
    for (int64_t i = 0; i < r.T; i++)
        for (int64_t j = 0; j < r.T; j++)
            for (int64_t k = 0; k < r.F; k++) {
                int64_t lo, hi, d = llabs(i - j), band = 1;
                while (2 * band <= d)
                    band *= 2;
                radial_row(&r, i, k, j, &lo, &hi);
                for (int64_t l = 0; l < r.F; l++) {
                    bool near = (double)llabs(k - l) + 1 <= (double)r.F / (double)band;
                    bool far = k == l && d % ((band + r.F - 1) / r.F) == 0;
                    ck_assert_int_eq(j * r.F + l >= lo && j * r.F + l < hi,
                                     band <= r.F ? near : far);
                }
            }
}

TEST(paper_closed_form_of_a_frame_pair)
{
    struct radial_rule r = rule(1560, 9, 128, 1, false, 0);
    for (int64_t d = 0; d < 9; d++) {
        int64_t u = radial_reach(&r, d), sum = 0, lo, hi;
        for (int64_t k = 0; k < r.F; k++) {
            radial_row(&r, d, k, 0, &lo, &hi);
            sum += hi - lo;
        }
        ck_assert_int_eq(sum, r.F * (2 * u + 1) - u * (u + 1));
    }
}

/* ---- the method ----------------------------------------------------------------------------- */

/* 480p and 720p at B = 128 are refused only when the published shape rule is asked for; nothing is
 * computed here, so the heads need no data. */
TEST(ragged_videos_need_our_padding)
{
    static const struct geometry grids[] = {{21, 30, 52, 0, 0}, {21, 45, 80, 0, 0}};
    for (int k = 0; k < 4; k++) {
        bool official = k & 1;
        OWN(run_free) struct method_run *run = run_of(official ? "radial:pad=official" : "radial");
        struct method_ctx ctx = {0};
        struct geometry g = grids[k / 2];
        int64_t n = g.t * g.h * g.w;
        struct head_in in = {
            .x = {.nq = n, .nk = n, .d = 1, .dv = 1}, .geom = g, .layer = 3, .step = 20};
        struct err err = {0};
        void *state = NULL;
        int rc = method_prepare(run->method, &ctx, run->params, &in, &state, &err);
        ck_assert_int_eq(rc, official ? METHOD_SKIP : 0);
        method_release(run->method, state);
    }
}

static double dense_call(const char *text, struct sim_head *h, int layer, int step)
{
    h->in.layer = layer;
    h->in.step = step;
    return metric_of(text, &h->in, "dense_call");
}

TEST_N(presets_keep_layers_and_steps_dense, 8)
{
    static const struct {
        const char *text;
        int layers, steps;
    } cases[] = {{"radial", 1, 12},
                 {"radial:preset=wan22", 1, 11},
                 {"radial:kind=hunyuan", 0, 12},
                 {"radial:preset=hunyuan", 0, 12},
                 {"radial:preset=wan21-long", 2, 2},
                 {"radial:preset=hunyuan-long", 2, 2},
                 {"radial:preset=none", 0, 0},
                 {"radial:preset=wan21:dense_layers=3:dense_steps=5", 3, 5}};
    HEAD(h, random_video, 3, 3, 4, 5, 0, 0);
    ck_assert_double_eq(dense_call(cases[_i].text, &h, cases[_i].layers, cases[_i].steps), 0);
    if (cases[_i].layers)
        ck_assert_double_eq(dense_call(cases[_i].text, &h, cases[_i].layers - 1, 49), 1);
    if (cases[_i].steps)
        ck_assert_double_eq(dense_call(cases[_i].text, &h, 5, cases[_i].steps - 1), 1);
    h.in.layer = h.in.step = 0;
    if (cases[_i].layers || cases[_i].steps)
        ck_assert_double_eq(metric_of(cases[_i].text, &h.in, "density_elem"), 1);
}

/* Settings that presets and kinds stand for. */
TEST(presets_are_their_parameters)
{
    static const char *const pairs[][2] = {
        {"radial:dense_layers=0:dense_steps=0",
         "radial:preset=none:kind=wan:decay=0.2:sink=1:block=128"},
        {"radial:preset=wan22:dense_layers=0:dense_steps=0",
         "radial:preset=none:decay=0.8:sink=1:block=64"},
        {"radial:preset=hunyuan:dense_steps=0", "radial:preset=none:decay=0.95:sink=0:block=128"},
        {"radial:kind=hunyuan:dense_steps=0", "radial:preset=none:kind=hunyuan"},
    };
    HEAD(h, random_video, 3, 12, 16, 16, 0, 0);
    h.in.layer = 2;
    for (int k = 0; k < 4; k++)
        ck_assert_double_eq(metric_of(pairs[k][0], &h.in, "pairs_kept"),
                            metric_of(pairs[k][1], &h.in, "pairs_kept"));
    ck_assert_double_ne(metric_of(pairs[0][0], &h.in, "pairs_kept"),
                        metric_of(pairs[2][0], &h.in, "pairs_kept"));
}

TEST(counts_of_a_run)
{
    HEAD(h, random_video, 3, 5, 10, 10, 0, 0);
    RUN(r, "radial:preset=none:block=64:decay=0.5", &h.in);
    HAS(&r, 1e-15, "density_native density_tile density_exec", 28.0 / 64, 28.0 / 64,
        28.0 * 4096 / 250000);
    assert_note(&r, "spilled_pairs=4");
}

/* Text behind the video; padding tokens count in density_native only, as the code prints it. */
TEST(text_and_padding)
{
    const char *text = "radial:preset=none:block=64:decay=0.25";
    HEAD(h, random_video, 3, 8, 8, 12, 64, 2);
    RUN(r, text, &h.in);
    HAS(&r, 1e-15, "density_native density_elem", 53.0 / 169, 53.0 / 169);
    assert_note(&r, "kind=hunyuan");

    HEAD(padded, random_video, 3, 8, 8, 12, 20, 2);
    padded.in.n_padding = 44;
    /* 28 blocks between video tokens; text sees and is seen by everything. */
    RUN_HAS(text, &padded.in, 1e-15, "density_native pairs_kept", 53.0 / 169,
            28 * 4096 + 20 * 768 * 2 + 20 * 20);
    OWN(free_at) uint8_t *bits = run_bits("radial:preset=none:profile=paper", &padded.in);
    for (int i = 0; i < 788; i++)
        for (int j = 0; j < 788; j++)
            ck_assert(bits[i * 788 + j] || (i < 768 && j < 768));
}

TEST(paper_profile_counts_pairs_and_tiles)
{
    HEAD(h, random_video, 3, 4, 8, 12, 0, 0);
    RUN(r, "radial:preset=none:profile=paper", &h.in);
    double tile = record_get(&r, "density_tile@128x128");
    HAS(&r, 0, "pairs_kept pairs_exec density_tile sparsity_qk", 138048, 9 * 128 * 128, tile,
        1 - tile);
    RUN(fine, "radial:preset=none:profile=paper:sink=0:block=64", &h.in);
    HAS(&fine, 0, "pairs_kept density_tile", 133344, record_get(&fine, "density_tile@64x64"));
}

TEST_N(golden_heads, 4)
{
    static const struct {
        const char *kind;
        int layer;
        double min, p1, p5, p50, mean, l1, l2;
    } cases[] = {
        {"wan", 5, 0.179588, 0.269384, 0.385759, 0.708063, 0.704505, 0.255154, 0.311807},
        {"wan", 0, 0.284978, 0.293184, 0.319894, 0.560962, 0.573135, 0.273619, 0.294487},
        {"hunyuan", 5, 0.145086, 0.182113, 0.282748, 0.582102, 0.572750, 0.367934, 0.408873},
        {"hunyuan", 0, 0.226536, 0.238915, 0.286199, 0.397835, 0.417895, 0.356557, 0.360828},
    };
    char text[80];
    HEAD(h, golden_video, 3, cases[_i].layer, 0, PREC_F64);
    snprintf(text, sizeof text, "radial:preset=none:kind=%s:block=64:decay=0.5", cases[_i].kind);
    RUN(r, text, &h.in);
    HAS(&r, DIGITS(6), "cra_min cra_p1 cra_p5 cra_p50 cra_mean err_l1_rel err_l2_rel",
        cases[_i].min, cases[_i].p1, cases[_i].p5, cases[_i].p50, cases[_i].mean, cases[_i].l1,
        cases[_i].l2);
}
