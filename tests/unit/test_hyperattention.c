/*
 * HyperAttention: ranks, counts and merges worked out by hand, masks of the shipped models whose
 * counts and recalls were computed elsewhere, and the weighted output against an explicit matrix of
 * weights.
 */
#include "tests/harness/conform.h"
#include "tests/harness/hyperweights.h"

TEST(ranks_of_bins)
{
    static const uint32_t official[] = {0, 1, 3, 2, 6, 7, 5, 4, 12, 13, 15, 14, 10, 11, 9, 8};
    static const uint32_t inverse[] = {0, 1, 3, 2, 7, 6, 4, 5, 15, 14, 12, 13, 8, 9, 11, 10};
    for (uint32_t b = 0; b < 16; b++) {
        ck_assert_uint_eq(own_hash_rank(b, false), official[b]);
        ck_assert_uint_eq(own_hash_rank(b, true), inverse[b]);
    }
    /* Bits in which the bins of neighbouring ranks differ. */
    for (int inv = 0; inv < 2; inv++) {
        uint32_t bin_of[128];
        int bits[8] = {0};
        for (uint32_t b = 0; b < 128; b++)
            bin_of[own_hash_rank(b, inv)] = b;
        for (int r = 1; r < 128; r++)
            bits[__builtin_popcount(bin_of[r] ^ bin_of[r - 1])]++;
        ck_assert_int_eq(bits[1], inv ? 127 : 96);
        ck_assert_int_eq(bits[2], inv ? 0 : 24);
        ck_assert_int_eq(bits[3], inv ? 0 : 6);
        ck_assert_int_eq(bits[4], inv ? 0 : 1);
    }
}

TEST(merging)
{
    double t, lse;
    hyper_merge(0, log(3), &t, &lse);
    ck_assert_double_eq_tol(t, 0.25, 1e-15);
    ck_assert_double_eq_tol(lse, 1.386294361119891, 1e-14);
    hyper_merge(700, 700, &t, &lse);
    ck_assert_double_eq_tol(t, 0.5, 1e-15);
    hyper_merge(-INFINITY, 5, &t, &lse);
    ck_assert(t == 0 && lse == 5);
    hyper_merge(5, -INFINITY, &t, &lse);
    ck_assert(t == 1 && lse == 5);
}

/* ---- counts --------------------------------------------------------------------------------- */

/* A head of n zero vectors. */
static double exec_of(const char *text, int64_t n, bool causal)
{
    OWN(free_at) float *zero = calloc((size_t)n, sizeof *zero);
    struct head_in in = one_head(zero, zero, zero, n, n, 1, causal);
    PREPARED(p, text, &in, 1, NULL);
    return ((const struct hyper_plan *)p.state)->at.pairs; /* the state begins with it */
}

TEST(pairs_that_are_multiplied)
{
    static const struct {
        int64_t n;
        double pairs;
    } causal[] = {{4096, 8390656},   {8192, 18878464},   {16384, 41951232},
                  {32768, 92291072}, {65536, 201359360}, {131072, 436273152}},
      other[] = {{4095, 4095. * 4095},
                 {4096, 512. * 4096},
                 {8192, 4194304},
                 {32768, 16777216},
                 {131072, 67108864}};
    for (int k = 0; k < 6; k++)
        ck_assert_double_eq(exec_of("hyperattention", causal[k].n, true), causal[k].pairs);
    for (int k = 0; k < 5; k++)
        ck_assert_double_eq(exec_of("hyperattention", other[k].n, false), other[k].pairs);
}

/* The cut of [lo, hi), counted by hand: every pair of a query and a key up to it is in one exact
 * range or one hashed square. */
static void mark(const struct own_hashed *r, int64_t lo, int64_t hi, int64_t n, uint8_t *hashed)
{
    int64_t mid = lo + (hi - lo) / 2;
    if (hi - lo <= r->min_len || hi - lo < 2)
        return;
    for (int64_t i = mid; i < hi && hi - mid >= r->min_len; i++)
        memset(hashed + i * n + lo, 1, (size_t)(mid - lo));
    mark(r, lo, mid, n, hashed);
    mark(r, mid, hi, n, hashed);
}

static void assert_cut(int64_t n, int64_t min_len)
{
    struct own_hashed r = {.block = 8, .samples = 3, .min_len = min_len};
    OWN(own_squares_free) struct own_squares s;
    OWN(free_at) uint8_t *hashed = calloc((size_t)(n * n), 1);
    int64_t at = 0;
    mark(&r, 0, n, n, hashed);
    MUST(own_squares_make(&r, n, n, true, &s, ERR));
    ck_assert_int_eq(s.n_hashed > 0, own_squares_any(&r, n, true));
    for (int64_t i = 0; i < n; i++) {
        struct own_walk w = {0, n, 1};
        int64_t from = 0;
        for (int32_t k; (k = own_walk_next(s.node, i, &w)) >= 0; from = s.square[k].k1) {
            ck_assert(s.square[k].hashed && s.square[k].q0 <= i && i < s.square[k].q1);
            ck_assert_int_eq(s.square[k].k0, from);
            for (int64_t j = from; j < s.square[k].k1; j++)
                ck_assert_int_eq(hashed[i * n + j], 1);
        }
        ck_assert_int_eq(w.lo, from);
        for (int64_t j = from; j <= i; j++)
            ck_assert_int_eq(hashed[i * n + j], 0);
        at += i == s.exact[at].hi;
        ck_assert(s.exact[at].lo == w.lo && s.exact[at].hi == w.hi);
    }
    ck_assert_int_eq(at, s.n_exact - 1);
}

TEST(squares_and_ranges_of_causal_heads)
{
    static const int64_t min_len[] = {0, 1, 2, 3, 10, 32, 33, 65, 200};
    for (int64_t n = 1; n < 140; n += 1 + n / 9)
        for (size_t k = 0; k < sizeof min_len / sizeof *min_len; k++)
            assert_cut(n, min_len[k]);
}

TEST(one_block_is_dense)
{
    for (int causal = 0; causal < 2; causal++) {
        OWN(sim_head_free) struct sim_head h;
        conform_head(NORMAL, 129, 129, causal, PREC_F64, &h);
        RUN(r, "hyperattention:min_len=0:block=129:samples=0", &h.in);
        ck_assert_double_eq(record_get(&r, "density_elem"), 1);
        ck_assert_double_lt(record_get(&r, "err_l2_rel"), 1e-12);
    }
}

/* Zero vectors have bin 0 and keep their order: blocks lie on the diagonal. */
TEST(zero_vectors_keep_their_order)
{
    enum { N = 100, B = 16 };
    static uint8_t bits[N * N];
    OWN(sim_head_free) struct sim_head h;
    OWN(record_free) struct record r;
    conform_head(ZEROS, N, N, false, PREC_F64, &h);
    run_text_carry("hyperattention:min_len=0:block=16:samples=0", &h.in, NULL, 1, sink_bits, bits,
                   &r);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            ck_assert_int_eq(bits[i * N + j], i / B == j / B);
    ck_assert(isnan(record_get(&r, "mass_est_mean"))); /* no weights */
}

/* ---- weights -------------------------------------------------------------------------------- */

static void build(struct hyper_plan *p, const struct own_hashed *rule, const struct head_in *in)
{
    struct own_hashed r = *rule;
    r.seed = 5;
    r.layer = in->layer;
    r.step = in->step;
    r.head = in->head;
    snprintf(r.branch, sizeof r.branch, "%s", in->branch);
    hyper_plan_make(p, &r, &in->x);
}

static void assert_weighted(const char *text, const struct own_hashed *c, bool causal)
{
    enum { N = 129, D = 64 };
    OWN(hyper_plan_free) struct hyper_plan p;
    OWN(conform_result_free) struct conform_result res;
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, N, N, causal, PREC_F64, &h);
    build(&p, c, &h.in);
    conform_run(text, &h.in, NULL, 5, &res);
    for (int i = 0; i < N; i++) {
        double w[N], out[D], zeros = hyper_weights(&p, i, w);
        double lse = weighted_row(&h.in.x, i, w, zeros, out);
        for (int j = 0; j < N; j++)
            ck_assert_int_eq(res.bits[i * N + j], w[j] > 0);
        ck_assert_double_eq_tol(res.lse[i], lse, 1e-10);
        for (int e = 0; e < D; e++)
            ck_assert_double_eq_tol(res.out[i * D + e], out[e], 1e-10);
    }
}

TEST(outputs_are_those_of_the_weights)
{
    struct own_hashed c = {.projs = 7, .block = 16, .samples = 24, .min_len = 20, .exclude = true};
    for (int causal = 0; causal < 2; causal++) {
        c.exclude = true;
        c.padded = false;
        assert_weighted("hyperattention:block=16:samples=24:min_len=20", &c, causal);
        c.exclude = false;
        c.padded = true;
        assert_weighted("hyperattention:block=16:samples=24:min_len=20:exclude=0:official_pad=1",
                        &c, causal);
    }
}

/* Keys of length 0: every score is 0, so the estimate of a row's sum is b plus the weights of the
 * drawn keys outside of its block: N - b on average over seeds. */
TEST(the_estimate_is_unbiased)
{
    enum { N = 300, SEEDS = 300 };
    OWN(sim_head_free) struct sim_head h;
    double sum = 0, squares = 0;
    conform_head(ZEROS, N, N, false, PREC_F64, &h);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        OWN(record_free) struct record r;
        run_text_carry("hyperattention:min_len=0:block=50:samples=32", &h.in, NULL, seed, NULL,
                       NULL, &r);
        sum += record_get(&r, "mass_est_mean");
        squares += pow(record_get(&r, "mass_est_mean"), 2);
        ck_assert_double_gt(record_get(&r, "mass_est_sd"), 0);
    }
    double mean = sum / SEEDS, sd = sqrt(squares / SEEDS - mean * mean);
    ck_assert_double_le(fabs(mean - 1), 5 * sd / sqrt(SEEDS) + 1e-12);
}

/* ---- real data ------------------------------------------------------------------------------ */

static const struct {
    int layer;
    const char *text;
    int pairs;
    double min, p5, p50, mean;
} video[] = {
    {5, "block=64", 24576, 4.88e-10, 7.46e-6, 0.0139255, 0.0856430},
    {5, "block=64:gray=inverse", 24576, 6.63e-9, 6.12e-5, 0.0188816, 0.100775},
    {5, "block=100", 37056, 7.06e-9, 7.56e-5, 0.0620458, 0.178590},
    {0, "block=64", 24576, 0.0490351, 0.0594944, 0.153455, 0.163672},
};

TEST_N(masks_of_the_shipped_video_model, 4)
{
    enum { N = 384 };
    char text[160];
    HEAD(h, golden_video, 3, video[_i].layer, 0, PREC_F64);
    snprintf(text, sizeof text, "hyperattention:min_len=0:samples=0:proj_dir=axes:%s",
             video[_i].text);
    RUN(r, text, &h.in);
    HAS(&r, 0, "pairs_kept pairs_exec", video[_i].pairs, N * (_i == 2 ? 100. : 64.));
    ck_assert_double_eq_tol(record_get(&r, "cra_min") / video[_i].min, 1, 5e-3);
    ck_assert_double_eq_tol(record_get(&r, "cra_p5") / video[_i].p5, 1, 2e-3);
    ck_assert_double_eq_tol(record_get(&r, "cra_p50") / video[_i].p50, 1, 5e-6);
    ck_assert_double_eq_tol(record_get(&r, "cra_mean") / video[_i].mean, 1, 5e-6);
}

/* Seeds, heads and calls draw other keys; the directions are those of the call for all heads. */
TEST(random_numbers_belong_to_the_call)
{
    struct own_hashed c = {.projs = 7, .block = 16, .samples = 24, .min_len = 20, .exclude = true};
    struct hyper_plan a, b;
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, 129, 129, false, PREC_F64, &h);
    build(&a, &c, &h.in);
    h.in.head++;
    build(&b, &c, &h.in);
    ck_assert_int_eq(memcmp(a.squares->keys, b.squares->keys, 129 * sizeof(int32_t)), 0);
    ck_assert(a.squares->n_samples != b.squares->n_samples ||
              memcmp(a.squares->samples, b.squares->samples,
                     (size_t)a.squares->n_samples * sizeof *a.squares->samples) != 0);
    hyper_plan_free(&b);
    h.in.step++;
    build(&b, &c, &h.in);
    ck_assert_int_ne(memcmp(a.squares->keys, b.squares->keys, 129 * sizeof(int32_t)), 0);
    hyper_plan_free(&a);
    hyper_plan_free(&b);
}

/* Five blocks of keys, the last of one; 13 queries each, the last 11. */
TEST(fewer_queries_than_keys)
{
    OWN(sim_head_free) struct sim_head h;
    conform_head(NORMAL, 63, 129, false, PREC_F64, &h);
    RUN_HAS("hyperattention:min_len=0:block=32:samples=0", &h.in, 0, "pairs_kept",
            4 * 13 * 32 + 11);
}
