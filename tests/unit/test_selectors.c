/* Selectors of serving stacks and video models: masks, recalls and outputs worked out by hand on
 * heads of few distinct tokens. tests/numpy/check_selectors.py has them again on random data. */
#include "tests/harness/methodrun.h"

/* Make a head: every token of q [nq][d], k [nk][d] and v [nk] `times` times in a row, scale 1. */
static int head_of(const float *q, int64_t nq, const float *k, int64_t nk, int d, int64_t times,
                   bool causal, struct sim_head *h, struct err *err)
{
    OWN(free_at) float *qs = malloc((size_t)(nq * times * d) * sizeof *qs);
    OWN(free_at) float *ks = malloc((size_t)(nk * times * d) * sizeof *ks);
    OWN(free_at) float *vs = malloc((size_t)(nk * times * d) * sizeof *vs);
    for (int64_t i = 0; i < nq * times * d; i++)
        qs[i] = q[i / (times * d) * d + i % d];
    for (int64_t i = 0; i < nk * times * d; i++) {
        ks[i] = k[i / (times * d) * d + i % d];
        vs[i] = ks[i];
    }
    struct head_in in = one_head(qs, ks, vs, nq * times, nk * times, d, causal);
    in.x.scale = 1;
    return head_init(h, &in, PREC_F64, err);
}

/* The units of bk keys that a row keeps whole, as digits; a row that keeps a part of one fails. */
static void assert_units(const char *text, const struct head_in *in, int64_t row, int64_t bk,
                         const char *want)
{
    OWN(free_at) uint8_t *bits = run_bits(text, in);
    const uint8_t *keep = bits + row * in->x.nk;
    char got[64] = {0};
    for (int64_t u = 0, n = 0; u * bk < in->x.nk; u++) {
        for (int64_t j = u * bk; j < (u + 1) * bk && j < in->x.nk; j++)
            ck_assert_int_eq(keep[j], keep[u * bk]);
        if (keep[u * bk])
            n += snprintf(got + n, sizeof got - (size_t)n, "%lld", (long long)u);
    }
    ck_assert_msg(strcmp(got, want) == 0, "%s: row %lld keeps %s, expected %s", text,
                  (long long)row, got, want);
}

/* ---- skip-softmax ---------------------------------------------------------------------------- */

/* A query tile of two rows and four key tiles of two, each token 64 times: 128 x 128. */
static const float skip_q[2][2] = {{1, 0}, {0, 1}};
static const float skip_k[8][2] = {{0, 1},   {1, 0},   {3, -9},    {2, -8},
                                   {-4, -2}, {-3, -5}, {2.9f, -9}, {0, -9}};

static const struct {
    const char *text, *tiles;
    double recall[2];
} skips[] = {
    {"skip-softmax", "0123", {1, 1}},
    {"skip-softmax:lambda=0.05", "013", {0.998650, 0.963204}},
    {"skip-softmax:lambda=0.2", "013", {0.998650, 0.963204}},
    {"skip-softmax:scale_factor=25.6", "013", {0.998650, 0.963204}}, /* 25.6 / 512 = 0.05 */
    {"skip-softmax:lambda=0.05:profile=calib", "013", {0.998650, 0.963204}},
};

TEST_EACH(tiles_far_below_the_maximum_are_skipped, skips)
{
    HEAD(h, head_of, skip_q[0], 2, skip_k[0], 8, 2, 64, false);
    assert_units(skips[_i].text, &h.in, 0, 128, skips[_i].tiles);
    RUN(r, skips[_i].text, &h.in);
    HAS(&r, 0, "tiles_walked tiles_skipped", 4, 4 - (double)strlen(skips[_i].tiles));
    HAS(&r, DIGITS(6), "cra_min", skips[_i].recall[1]);
    HAS(&r, 1e-6, "cra_mean", (skips[_i].recall[0] + skips[_i].recall[1]) / 2);
}

/* A tile at the threshold exactly: kernels keep it, the statistics skip it. */
TEST(a_tile_at_the_threshold)
{
    static const float q[] = {1}, k[] = {1, 1, 0, 1};
    HEAD(h, head_of, q, 1, k, 4, 1, 128, false);
    assert_units("skip-softmax:lambda=1", &h.in, 0, 128, "013");
    RUN(r, "skip-softmax:lambda=1:profile=calib", &h.in);
    HAS(&r, 0, "tiles_skipped rows_empty", 4, 128);
}

/* Rows of 64 decide for themselves. */
TEST(a_unit_of_64_rows_skips_more)
{
    HEAD(h, head_of, skip_q[0], 2, skip_k[0], 8, 2, 64, false);
    assert_units("skip-softmax:lambda=0.05:unit=64x128", &h.in, 0, 128, "013");
    assert_units("skip-softmax:lambda=0.05:unit=64x128", &h.in, 64, 128, "0");
}

/* ---- nm -------------------------------------------------------------------------------------- */

static const struct {
    const char *text, *keys;
} groups[] = {
    {"nm:recent=0", "0145"},           {"nm:recent=0:n=1", "04"},       {"nm:recent=1:n=1", "047"},
    {"nm:recent=0:n=1:sink=2", "014"}, {"nm:recent=0:n=3:m=8", "0134"}, {"nm:n=4:m=8", "01234567"},
};

/* Scores of the last of eight queries 3 3 1 3 | 4 2 2 1: four keys of 3 tie. */
TEST_EACH(the_best_of_every_group, groups)
{
    static const float q[] = {1, 1, 1, 1, 1, 1, 1, 1}, k[] = {3, 3, 1, 3, 4, 2, 2, 1};
    HEAD(h, head_of, q, 8, k, 8, 1, 1, true);
    assert_units(groups[_i].text, &h.in, 7, 1, groups[_i].keys);
}
