/*
 * test_streaming.c - window + sink: counts over lengths, presets, last rows, dilated windows, the
 * offset of short query blocks, and a golden head.
 */
#include "tests/harness/methodrun.h"

#include <stdio.h>

static const struct {
    int64_t n, sink, window;
    int64_t pairs;
    double of_triangle;
    int64_t tiles, visible, with_last;
} table[] = {
    {1000, 4, 64, 65722, 0.131313, 45, 136, 153972},
    {1024, 4, 64, 67354, 0.128342, 45, 136, 158004},
    {4096, 4, 512, 1980666, 0.236056, 595, 2080, 2333716},
    {4096, 128, 3968, 8390656, 1.000000, 2080, 2080, 8390656},
    {8192, 128, 3968, 25167872, 0.749969, 6240, 8256, 25572522},
    {16384, 128, 3968, 58722304, 0.437489, 14560, 32896, 59946154},
    {32768, 128, 3968, 125831168, 0.234372, 31200, 131328, 128693418},
    {131072, 128, 3968, 528484352, 0.061523, 131040, 2098176, 541177002},
    {32768, 4, 2000, 63660066, 0.118572, 16847, 131328, 66731516},
    {32768, 4, 512, 16775418, 0.031246, 5075, 131328, 19995668},
};

TEST_N(counts_over_lengths, 10)
{
    char text[96];
    int64_t n = table[_i].n, s = table[_i].sink, w = table[_i].window;
    snprintf(text, sizeof text, "streaming:sink=%lld:window=%lld", (long long)s, (long long)w);
    struct mask_counts c = shape_counts(text, n, n, true, 0, 1, 1);
    ck_assert_int_eq(c.pairs_kept, table[_i].pairs);
    ck_assert_int_eq(c.tiles_kept, table[_i].tiles);
    ck_assert_int_eq(c.tiles_allowed, table[_i].visible);
    assert_printed((double)c.pairs_kept / (double)c.pairs_allowed, table[_i].of_triangle,
                   table[_i].of_triangle < 0.1 ? 5 : 6);
    if (s + w <= n) /* closed form */
        ck_assert_int_eq(c.pairs_kept,
                         w * (w + 1) / 2 + (n - w) * w + s * (s - 1) / 2 + (n - w - s + 1) * s);
    strcat(text, ":last=100");
    ck_assert_int_eq(shape_counts(text, n, n, true, 0, 1, 1).pairs_kept, table[_i].with_last);
}

TEST(window_is_one_wider_in_the_eager_path)
{
    ck_assert_int_eq(
        shape_counts("streaming:sink=30:window=50", 1024, 1024, true, 0, 1, 1).pairs_kept, 78760);
    ck_assert_int_eq(
        shape_counts("streaming:sink=30:window=51", 1024, 1024, true, 0, 1, 1).pairs_kept, 79704);
}

static const struct {
    int64_t n, pairs;
} samples[] = {{16384, 20681005}, {32768, 82602143}, {65536, 330104511}, {131072, 1319930475}};

TEST_N(preset_of_the_sampleattention_baseline, 4)
{
    struct mask_counts c =
        shape_counts("streaming:preset=sample", samples[_i].n, samples[_i].n, true, 0, 1, 1);
    ck_assert_int_eq(c.pairs_kept, samples[_i].pairs);
}

TEST(presets_are_their_parameters)
{
    static const struct {
        const char *preset, *same;
    } pairs[] = {
        {"preset=a-shape", "sink=128:window=3968:last=0"},
        {"preset=tri-shape", "sink=128:window=3968:last=100"},
        {"preset=streamingllm", "sink=4:window=512"},
        {"preset=streamingllm-demo", "sink=4:window=2000"},
        {"preset=sample", "sink=4:window=8%"},
        {"preset=streamingllm:window=100", "sink=4:window=100"},
        {"preset=streamingllm:sink=7", "sink=7:window=512"},
    };
    char a[96], b[96];
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        snprintf(a, sizeof a, "streaming:%s", pairs[k].preset);
        snprintf(b, sizeof b, "window-sink:%s", pairs[k].same);
        struct mask_counts x = shape_counts(a, 5000, 5000, true, 0, 1, 1);
        struct mask_counts y = shape_counts(b, 5000, 5000, true, 0, 1, 1);
        ck_assert_int_eq(x.pairs_kept, y.pairs_kept);
        ck_assert_int_eq(x.tiles_kept, y.tiles_kept);
    }
}

/* The whole mask of a small head as bits, to be freed. */
static uint8_t *bits_of(const char *text, int64_t nq, int64_t nk, bool causal)
{
    HEAD(h, random_head, 2, nq, nk, 4, causal, 1, PREC_F64);
    return run_bits(text, &h.in);
}

static void assert_row(const uint8_t *bits, int64_t nk, const char *want)
{
    for (int64_t j = 0; j < nk; j++)
        ck_assert_msg(bits[j] == (want[j] == 'x'), "key %lld", (long long)j);
}

static const struct {
    const char *text;
    int64_t nq;
    bool causal;
    struct {
        int64_t row;
        const char *keys;
    } rows[5];
} by_hand[] = {
    {"streaming:sink=1:window=3",
     10,
     true,
     {{0, "x........."},
      {2, "xxx......."},
      {3, "xxxx......"},
      {4, "x.xxx....."},
      {9, "x......xxx"}}},
    /* Queries stand at the end of the keys. */
    {"streaming:sink=1:window=3", 4, true, {{0, "x...xxx..."}, {3, "x......xxx"}}},
    /* A bidirectional window is symmetric. */
    {"streaming:sink=1:window=3",
     10,
     false,
     {{0, "xxx......."}, {5, "x..xxxxx.."}, {9, "x......xxx"}}},
    {"streaming:sink=1:window=2:last=3",
     10,
     true,
     {{6, "x....xx..."}, {7, "xxxxxxxx.."}, {9, "xxxxxxxxxx"}}},
    /* `last` never reaches the first row. */
    {"streaming:sink=0:window=1:last=50", 10, false, {{0, "x........."}, {1, "xxxxxxxxxx"}}},
};

TEST_EACH(rows_by_hand, by_hand)
{
    OWN(free_at) uint8_t *bits = bits_of(by_hand[_i].text, by_hand[_i].nq, 10, by_hand[_i].causal);
    for (int k = 0; k < 5 && by_hand[_i].rows[k].keys; k++)
        assert_row(bits + 10 * by_hand[_i].rows[k].row, 10, by_hand[_i].rows[k].keys);
    int sum = 0;
    for (int k = 0; k < 100 && _i == 0; k++)
        sum += bits[k];
    ck_assert_int_eq(sum, _i ? 0 : 34);
}

TEST_N(dilated_windows_keep_odd_distances, 2)
{
    enum { N = 9000, FIRST = 8990 };
    OWN(free_at)
    uint8_t *bits =
        bits_of(_i ? "streaming:dilate=dilated2" : "streaming:dilate=dilated1", 10, N, true);
    for (int64_t i = 0; i < 10; i++)
        for (int64_t j = 0; j < N; j++) {
            int64_t d = FIRST + i - j;
            bool odd = d % 2 == 1 && d <= (_i ? 6143 : 8191);
            ck_assert_int_eq(bits[i * N + j], d >= 0 && (j < 1024 || d < (_i ? 2048 : 1) || odd));
        }
}

/* The official kernel widens every distance to 64 keys: the band is executed whole. */
TEST(dilated_windows_execute_a_band)
{
    HEAD(h, random_head, 2, 640, 640, 4, true, 1, PREC_F32);
    RUN_HAS("streaming:dilate=dilated1", &h.in, 0, "pairs_exec pairs_kept", 64 * 64 * 55,
            640 * 641 / 2);
    HEAD(late, random_head, 2, 64, 12800, 4, true, 1, PREC_F32);
    RUN(r, "streaming:dilate=dilated1", &late.in);
    HAS(&r, 0, "pairs_exec", 64 * 64 * (129 + 16));
    ck_assert_double_lt(record_get(&r, "density_elem"), 0.6 * record_get(&r, "density_exec"));
}

static const struct {
    int head;
    const char *text;
    double pairs, min, p1, p5, p50, mean, l1, l2;
} golden[] = {
    {0, "streaming:sink=4:window=64", 50082, 0.152683, 0.233462, 0.365734, 0.843588, 0.783557,
     0.217040, 0.291803},
    {0, "streaming:sink=0:window=128", 90432, 0.120360, 0.250394, 0.456820, 0.920568, 0.849917,
     0.133047, 0.197235},
    {0, "streaming:sink=4:window=256", 166530, 0.324723, 0.485004, 0.748508, 0.988720, 0.949015,
     0.0394119, 0.0775161},
    {7, "streaming:sink=4:window=64", 50082, 0.033294, 0.0715009, 0.137500, 0.514065, 0.537124,
     0.455213, 0.526363},
};

TEST_N(golden_code_head, 4)
{
    HEAD(h, golden_code_lm, 5, golden[_i].head, PREC_F64);
    RUN(r, golden[_i].text, &h.in);
    HAS(&r, 5.1e-7, "pairs_kept cra_min cra_p1 cra_p5 cra_p50 cra_mean err_l1_rel err_l2_rel",
        golden[_i].pairs, golden[_i].min, golden[_i].p1, golden[_i].p5, golden[_i].p50,
        golden[_i].mean, golden[_i].l1, golden[_i].l2);
}

/* Every metric of doc/records.md's worked example. */
TEST(golden_code_head_all_metrics)
{
    HEAD(h, golden_code_lm, 5, 0, PREC_F64);
    RUN(r, "streaming:sink=4:window=64", &h.in);
    HAS(&r, DIGITS(5), "pairs_kept", 50082);
    HAS(&r, DIGITS(6),
        "density_elem density_rect density_tile@64x64 density_tile density_exec cra_min cra_p1 "
        "cra_p5 cra_p50 cra_mean err_l1_rel err_l1_tok err_l2_rel err_cos err_rmse err_max "
        "err_lse_mean",
        0.168720, 0.0844696, 0.395604, 0.395604, 0.496761, 0.152683, 0.233462, 0.365734, 0.843588,
        0.783557, 0.217040, 6.70047, 0.291803, 0.965138, 0.199071, 3.38567, 0.287840);
    HAS(&r, DIGITS(7), "err_lse_max", 1.879394);
}
