/*
 * Vertical-slash lists of 64-row blocks: known conversions, coverage, no key twice, masks.
 */
#include "core/rng.h"
#include "sim/blocks/vslash.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>

static int32_t *copy(const int *x, int64_t n)
{
    int32_t *out = malloc((size_t)(n + 1) * sizeof *out);
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
    return out;
}

struct expected {
    int m, blocks[8], columns[8]; /* ended by -1 */
};

static void check_block(const struct vslash *v, const struct expected *x)
{
    int32_t blocks[512], columns[512];
    int64_t nb, nc, wb = 0, wc = 0;
    vslash_block(v, x->m, blocks, &nb, columns, &nc);
    while (x->blocks[wb] >= 0)
        wb++;
    while (x->columns[wc] >= 0)
        wc++;
    ck_assert_int_eq(nb, wb);
    ck_assert_int_eq(nc, wc);
    for (int64_t i = 0; i < nb; i++)
        ck_assert_int_eq(blocks[i], x->blocks[i]);
    for (int64_t i = 0; i < nc; i++)
        ck_assert_int_eq(columns[i], x->columns[i]);
}

TEST(known_lists)
{
    const struct {
        int cols[4], n_cols, dists[5], n_dists; /* distances descending */
        struct expected x[4];
        /* clang-format off */
    } c[] = {
        {{0, 5, 70, 200}, 4, {130, 64, 0}, 3,
         {{0, {0, -1}, {-1}}, {64, {0, 64, -1}, {-1}}, {128, {0, 64, 128, -1}, {-1}},
          {192, {62, 128, 192, -1}, {0, 5, -1}}}},
        {{0, 1, 130}, 3, {0}, 1,
         {{0, {0, -1}, {-1}}, {64, {64, -1}, {0, 1, -1}}, {128, {128, -1}, {0, 1, -1}},
          {192, {192, -1}, {0, 1, 130, -1}}}},
        {{3}, 1, {65, 64, 63, 1, 0}, 5,
         {{0, {0, -1}, {-1}}, {64, {0, 64, -1}, {-1}}, {128, {63, 127, 191, -1}, {3, -1}},
          {192, {127, 191, 255, -1}, {3, -1}}}},
        {{0, 10, 100, 180}, 4, {100, 0}, 2,
         {{0, {0, -1}, {-1}}, {64, {0, 64, -1}, {-1}}, {128, {28, 128, -1}, {0, 10, 100, -1}},
          {192, {92, 192, -1}, {0, 10, 180, -1}}}},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        OWN(vslash_free)
        struct vslash v = {.n = 256,
                           .n_cols = c[i].n_cols,
                           .n_dists = c[i].n_dists,
                           .cols = copy(c[i].cols, c[i].n_cols),
                           .dists = copy(c[i].dists, c[i].n_dists)};
        for (int b = 0; b < 4; b++)
            check_block(&v, &c[i].x[b]);
    }
}

TEST(window_only)
{
    double zero[704] = {0};
    int32_t blocks[128], columns[32];
    int64_t nb, nc;
    OWN(vslash_free) struct vslash v;
    MUST(vslash_select(&v, 704, zero, 30, 30, zero, 100, 100, ERR));
    vslash_block(&v, 640, blocks, &nb, columns, &nc);
    ck_assert_int_eq(nb, 3);
    ck_assert_int_eq(blocks[0], 541);
    ck_assert_int_eq(blocks[1], 605);
    ck_assert_int_eq(blocks[2], 669);
    ck_assert_int_eq(nc, 30);
    for (int i = 0; i < 30; i++)
        ck_assert_int_eq(columns[i], i);
}

TEST(no_distance_inside_the_block)
{
    const int cols[] = {1, 70}, dists[] = {300};
    OWN(vslash_free)
    struct vslash v = {
        .n = 400, .n_cols = 2, .n_dists = 1, .cols = copy(cols, 2), .dists = copy(dists, 1)};
    check_block(&v, &(struct expected){64, {-1}, {1, 70, -1}});
    check_block(&v, &(struct expected){0, {-1}, {1, -1}});
}

/* Distance 0 is in the list: without it, columns beyond the last block are dropped. */
static void random_lists(uint64_t seed, int64_t n, struct vslash *v)
{
    OWN(free_at) double *a = malloc((size_t)n * sizeof *a), *b = malloc((size_t)n * sizeof *b);
    for (int64_t i = 0; i < n; i++) {
        a[i] = rng_uniform(seed, 1, (uint64_t)i);
        b[i] = rng_uniform(seed, 2, (uint64_t)i);
    }
    int64_t nc = 1 + (int64_t)rng_below(seed, 3, 0, 60);
    int64_t nd = 1 + (int64_t)rng_below(seed, 3, 1, 60);
    MUST(vslash_select(v, n, a, nc, 4, b, nd, 1, ERR));
}

/* Key k of query q is asked for. */
static bool requested(const struct vslash *v, int64_t q, int64_t k)
{
    for (int64_t i = 0; i < v->n_cols; i++)
        if (v->cols[i] == k)
            return true;
    for (int64_t i = 0; i < v->n_dists; i++)
        if (q - v->dists[i] == k)
            return true;
    return false;
}

static void check_coverage(const struct vslash *v, int64_t m)
{
    int32_t blocks[512], columns[512];
    int64_t nb, nc;
    OWN(free_at) int *times = calloc((size_t)v->n + 256, sizeof *times);
    vslash_block(v, m, blocks, &nb, columns, &nc);
    ck_assert_int_le(nb, v->n_dists);
    for (int64_t i = 0; i < nb; i++)
        for (int k = 0; k < 64; k++)
            times[blocks[i] + k]++;
    for (int64_t i = 0; i < nc; i++) {
        ck_assert_int_lt(columns[i], m);
        times[columns[i]]++;
    }
    for (int64_t k = 0; k < v->n; k++)
        ck_assert_int_le(times[k], 1);
    for (int64_t q = m; q < m + 64 && q < v->n; q++)
        for (int64_t k = 0; k <= q; k++)
            ck_assert(times[k] || !requested(v, q, k));
}

TEST(lists_cover_every_requested_pair_once)
{
    for (uint64_t seed = 0; seed < 25; seed++) {
        OWN(vslash_free) struct vslash v;
        int64_t n = 100 + (int64_t)rng_below(seed, 4, 0, 500);
        random_lists(seed, n, &v);
        for (int64_t m = 0; m < n; m += 64)
            check_coverage(&v, m);
    }
}

TEST(masks_hold_the_lists_and_the_requested_pairs)
{
    for (uint64_t seed = 0; seed < 5; seed++) {
        enum { N = 330 };
        OWN(vslash_free) struct vslash v;
        OWN(mask_free) struct mask real = {0}, want = {0};
        struct mask_counts c;
        struct span s[N];
        int64_t listed = 0;
        random_lists(seed, N, &v);
        MUST(vslash_mask(&v, true, 64, N, &real, ERR));
        MUST(vslash_mask(&v, false, 64, N, &want, ERR));
        MUST(mask_check(&real, ERR));
        MUST(mask_check(&want, ERR));
        for (int64_t q = 64; q < N; q++) {
            bool in[N] = {false};
            int64_t n = mask_row_spans(&real, q, s);
            for (int64_t i = 0; i < n; i++)
                for (int64_t k = s[i].lo; k < s[i].hi; k++)
                    in[k] = true;
            n = mask_row_spans(&want, q, s);
            for (int64_t i = 0, k = 0; k <= q; k++) {
                i += i < n && k >= s[i].hi;
                bool asked = i < n && k >= s[i].lo;
                ck_assert_int_eq(asked, requested(&v, q, k));
                ck_assert(in[k] || !asked);
                listed += in[k];
            }
        }
        MUST(mask_count(&real, &c, ERR));
        ck_assert_int_eq(c.pairs_kept, listed);
        ck_assert_int_ge(vslash_exec(&v), listed);
    }
}

TEST(best_entries_with_forced_ones_inside_the_count)
{
    const double col[6] = {0, 5, 1, 5, 9, 0}, slash[6] = {0, 0, 3, 0, 0, 4};
    const int want_col[] = {0, 1, 4}, want_dist[] = {5, 1, 0};
    struct vslash v;
    MUST(vslash_select(&v, 6, col, 3, 1, slash, 3, 2, ERR));
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(v.cols[i], want_col[i]); /* 1 and 3 tie: the lower */
        ck_assert_int_eq(v.dists[i], want_dist[i]);
    }
    vslash_free(&v);
    MUST(vslash_select(&v, 6, col, 99, 1, slash, 2, 4, ERR));
    ck_assert_int_eq(v.n_cols, 6);
    ck_assert_int_eq(v.dists[0], 1); /* forced beyond the count: the smallest distances */
    ck_assert_int_eq(v.dists[1], 0);
    vslash_free(&v);
}

TEST(mass_lands_on_its_distance)
{
    double p[50] = {0}, col[50] = {0}, slash[50] = {0};
    p[12] = 1;
    token_scores_add(p, 40, col, slash);
    for (int i = 0; i < 50; i++) {
        ck_assert_double_eq(col[i], i == 12);
        ck_assert_double_eq(slash[i], i == 28);
    }
}

TEST(uniform_rows_spread_evenly)
{
    enum { N = 1024 };
    double col[N], slash[N];
    const enum tok_logits how[] = {TOK_EXACT, TOK_BF16_QUERY, TOK_BF16_DOT};
    HEAD(h, random_head, 1, N, N, 16, true, 0, PREC_F64);
    for (int i = 0; i < 3; i++) {
        MUST(token_scores(&h.in, 64, how[i], DT_F32, col, slash, ERR));
        for (int k = 0; k <= 960; k++) {
            ck_assert_double_eq_tol(col[k], 0.0645059800, 1e-8);
            ck_assert_double_eq_tol(slash[k], 0.0645059800, 1e-8);
        }
        ck_assert_double_lt(col[961], col[960]);
    }
}

/* A key that comes twice has the same mass both times, to the last bit. */
TEST_N(equal_keys_have_equal_mass, TOK_BF16_DOT + 1)
{
    enum { N = 700, D = 80, PERIOD = 37 };
    double col[N], slash[N];
    HEAD(h, random_head, 2, N, N, D, true, 2, PREC_F32);
    for (int64_t i = PERIOD * D; i < N * D; i++)
        h.k[i] = h.k[i - PERIOD * D];
    MUST(token_scores(&h.in, 64, (enum tok_logits)_i, DT_F32, col, slash, ERR));
    for (int k = PERIOD; k <= N - 64; k++)
        ck_assert_msg(col[k] == col[k - PERIOD], "key %d: %a, key %d: %a", k, col[k], k - PERIOD,
                      col[k - PERIOD]);
}

/* bf16 logits, and bf16 probabilities, move the mass a little. */
TEST(rounded_logits_stay_close)
{
    enum { N = 300 };
    double col[N], slash[N], col2[N], slash2[N], sum = 0;
    HEAD(h, random_head, 2, N, N, 32, true, 1, PREC_F64);
    MUST(token_scores(&h.in, 64, TOK_EXACT, DT_F32, col, slash, ERR));
    for (int how = TOK_BF16_QUERY; how <= TOK_BF16_DOT; how++) {
        double off = 0, total = 0;
        MUST(token_scores(&h.in, 64, (enum tok_logits)how, DT_F32, col2, slash2, ERR));
        for (int k = 0; k < N; k++) {
            off += fabs(col[k] - col2[k]);
            total += slash2[k];
        }
        ck_assert_double_eq_tol(total, 64, 1e-4);
        ck_assert_double_gt(off, 0);
        ck_assert_double_lt(off, 64 * 0.02);
    }
    MUST(token_scores(&h.in, 64, TOK_EXACT, DT_BF16, col2, slash2, ERR));
    for (int k = 0; k < N; k++)
        sum += fabs(col[k] - col2[k]);
    ck_assert(sum > 0 && sum < 64 * 0.004);
}
