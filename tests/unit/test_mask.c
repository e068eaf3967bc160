/* Masks: the canonical form against a brute-force matrix, and the counts of doc/records.md. */
#include "core/mask.h"
#include "core/rng.h"
#include "tests/harness/suite.h"

#include <string.h>

static struct err err;

enum { MAXN = 300 };
static unsigned char kept[MAXN][MAXN];

static bool allowed(const struct mask *m, int64_t p, int64_t j)
{
    const struct reach *r = &m->reach;
    return (!m->causal || j <= p || j < r->prefix) && (!r->back || j > p - r->back) &&
           (!r->ahead || j < p + r->ahead) && (!r->chunk || j / r->chunk == p / r->chunk);
}

/* The mask as a matrix, straight from its definition. */
static void brute(const struct mask *m)
{
    memset(kept, 0, sizeof kept);
    for (int64_t i = m->row0; i < m->row1; i++)
        for (int64_t j = 0; j < m->nk; j++) {
            int64_t p = i + m->nk - m->nq, d = p - j;
            if (!allowed(m, p, j))
                continue;
            bool keep = m->form == MASK_FULL;
            if (m->form == MASK_BAND)
                keep = i >= m->dense_from || j < m->sink ||
                       (d < m->window && -d < (m->causal ? 1 : m->window));
            if (m->form == MASK_LISTS) {
                int64_t g = (i - m->row0) / m->bq;
                for (int64_t e = m->ptr[g]; e < m->ptr[g + 1]; e++)
                    keep |= m->col[e] == j / m->bk;
            }
            kept[i][j] = keep;
        }
}

static void check_against_brute(const struct mask *m)
{
    struct mask_counts c, want = {0};
    struct span s[MAXN];
    brute(m);
    MUST(mask_check(m, ERR));
    for (int64_t i = m->row0; i < m->row1; i++) {
        int64_t n = mask_row_spans(m, i, s), at = 0, row = 0;
        ck_assert_int_le(n, mask_max_spans(m));
        for (int64_t k = 0; k < n; k++) {
            ck_assert_int_lt(s[k].lo, s[k].hi);
            ck_assert_msg(k == 0 || s[k].lo > s[k - 1].hi, "spans touch");
            for (; at < s[k].lo; at++)
                ck_assert_int_eq(kept[i][at], 0);
            for (; at < s[k].hi; at++, row++)
                ck_assert_int_eq(kept[i][at], 1);
        }
        for (; at < m->nk; at++)
            ck_assert_int_eq(kept[i][at], 0);
        want.pairs_kept += row;
        want.rows_empty += row == 0;
        for (int64_t j = 0; j < m->nk; j++)
            want.pairs_allowed += allowed(m, i + m->nk - m->nq, j);
    }
    for (int64_t r = m->row0; r < m->row1; r += m->bq)
        for (int64_t k = 0; k < m->nk; k += m->bk) {
            bool any = false, some = false;
            for (int64_t i = r; i < r + m->bq && i < m->row1; i++)
                for (int64_t j = k; j < k + m->bk && j < m->nk; j++) {
                    any |= kept[i][j];
                    some |= allowed(m, i + m->nk - m->nq, j);
                }
            want.tiles_kept += any;
            want.tiles_allowed += some;
            want.tiles_rect++;
        }
    MUST(mask_count(m, &c, ERR));
    ck_assert_int_eq(c.pairs_kept, want.pairs_kept);
    ck_assert_int_eq(c.rows_empty, want.rows_empty);
    ck_assert_int_eq(c.pairs_allowed, want.pairs_allowed);
    ck_assert_int_eq(c.tiles_kept, want.tiles_kept);
    ck_assert_int_eq(c.tiles_allowed, want.tiles_allowed);
    ck_assert_int_eq(c.tiles_rect, want.tiles_rect);
    int64_t tiles, native;
    MUST(mask_tiles_kept(m, m->bq, m->bk, &tiles, &native, ERR));
    ck_assert_int_eq(tiles, want.tiles_kept);
    ck_assert_int_eq(native, want.tiles_allowed);
}

/* Union of rows r0..r1 against the matrix. */
static void check_union(const struct mask *m, int64_t r0, int64_t r1)
{
    struct span s[MAXN + 2];
    brute(m);
    int64_t n = mask_union_spans(m, r0, r1, s, &err), at = 0;
    ck_assert_int_ge(n, 0);
    ck_assert_int_le(n, mask_union_max(m, r0, r1));
    for (int64_t j = 0; j < m->nk; j++) {
        bool any = false;
        for (int64_t i = r0; i < r1; i++)
            any |= kept[i][j];
        while (at < n && s[at].hi <= j)
            at++;
        ck_assert_msg(any == (at < n && s[at].lo <= j), "key %d", (int)j);
    }
}

static void random_lists(struct mask *m, uint64_t seed, int64_t nq, int64_t nk, bool causal,
                         int64_t bq, int64_t bk, double density)
{
    MUST(mask_lists_init(m, nq, nk, 0, nq, causal, bq, bk, ERR));
    for (int64_t g = 0; g < m->ngroups; g++)
        for (int64_t c = 0; c * bk < nk; c++)
            if (rng_uniform(seed, (uint64_t)g, (uint64_t)c) < density)
                MUST(mask_lists_add(m, g, (int32_t)c, ERR));
    mask_lists_finish(m);
}

TEST_N(lists_match_brute_force, 64)
{
    static const int64_t shape[][4] = {{64, 64, 16, 16},  {65, 65, 16, 8},   {1, 1, 4, 4},
                                       {127, 200, 32, 1}, {200, 127, 1, 1},  {129, 129, 128, 64},
                                       {40, 300, 64, 32}, {130, 190, 48, 20}};
    const int64_t *s = shape[_i / 8];
    OWN(mask_free) struct mask m;
    double density = (double[]){0.0, 0.3, 0.96, 1.0}[_i % 4];
    random_lists(&m, 7 + (uint64_t)_i, s[0], s[1], _i / 4 % 2, s[2], s[3], density);
    check_against_brute(&m);
    check_union(&m, 0, m.nq);
    check_union(&m, m.nq / 3, m.nq / 3 + 1);
    check_union(&m, 0, m.nq / 2 + 1); /* 66 of 130 rows: groups of 48 that end inside of units */
}

TEST_N(band_matches_brute_force, 24)
{
    static const int64_t shape[][4] = {{10, 10, 1, 3},   {4, 10, 1, 3},   {100, 100, 4, 16},
                                       {130, 130, 0, 1}, {90, 60, 8, 30}, {65, 65, 100, 200}};
    const int64_t *s = shape[_i / 4];
    struct mask m;
    mask_band(&m, s[0], s[1], 0, s[0], _i % 2,
              (struct band){s[2], s[3], _i / 2 % 2 ? s[0] - 3 : s[0]});
    check_against_brute(&m);
    check_union(&m, 0, m.nq);
    check_union(&m, 1, 3);
}

static const struct reach reaches[] = {
    {.back = 1},
    {.back = 7},
    {.back = 1000},
    {.back = 20, .ahead = 5},
    {.ahead = 9},
    {.chunk = 1},
    {.chunk = 16},
    {.chunk = 50, .back = 30},
    {.chunk = 7, .ahead = 3},
    {.prefix = 1},
    {.prefix = 37},
    {.prefix = 1000},
};
#define N_REACHES (int)(sizeof reaches / sizeof *reaches)

static void check_all(const struct mask *m)
{
    check_against_brute(m);
    check_union(m, 0, m->nq);
    check_union(m, m->nq / 3, m->nq / 3 + 1);
    check_union(m, m->nq / 2, m->nq);
}

/* Every form under windows and chunks of the model. */
TEST_N(reach_matches_brute_force, N_REACHES)
{
    static const int64_t shape[][4] = {{64, 64, 16, 16},  {65, 65, 16, 8},     {1, 1, 4, 4},
                                       {127, 200, 32, 1}, {129, 129, 128, 64}, {40, 300, 64, 32},
                                       {90, 91, 1, 1}};
    struct reach clipped = reaches[_i], *r = &clipped;
    struct mask m;
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        for (int causal = 0; causal < 2; causal++) {
            const int64_t *s = shape[k];
            r->prefix = reaches[_i].prefix < s[1] ? reaches[_i].prefix : s[1];
            for (int d = 0; d < 4; d++) {
                random_lists(&m, (uint64_t)(_i * 100 + d), s[0], s[1], causal, s[2], s[3],
                             (double[]){0.0, 0.1, 0.7, 1.0}[d]);
                mask_within(&m, r);
                check_all(&m);
                mask_free(&m);
            }
            for (int last = 0; last < 2; last++) {
                mask_band(&m, s[0], s[1], 0, s[0], causal,
                          (struct band){last * 5, 6, last ? s[0] - s[0] / 4 : s[0]});
                mask_within(&m, r);
                check_all(&m);
            }
            mask_full(&m, s[0], s[1], 0, s[0], causal);
            mask_within(&m, r);
            check_all(&m);
        }
}

/* Published closed forms: window W: n W - W (W - 1) / 2; chunks of c: sum of c (c + 1) / 2; prefix
 * P: n (n + 1) / 2 + P (P - 1) / 2. */
TEST(allowed_pairs_with_a_reach)
{
    struct head_shape h = {40, 40, true, {.back = 16}};
    ck_assert_int_eq(pairs_within(&h, 0, 40, 0, 40), 520);
    h.reach = (struct reach){.chunk = 16};
    ck_assert_int_eq(pairs_within(&h, 0, 40, 0, 40), 2 * 136 + 36);
    h.reach = (struct reach){.prefix = 10};
    ck_assert_int_eq(pairs_within(&h, 0, 40, 0, 40), 820 + 45);
}

TEST(window_edge_of_ten_tokens)
{
    struct mask m;
    struct span s[2];
    mask_band(&m, 10, 10, 0, 10, true, (struct band){1, 3, 10});
    ck_assert_int_eq(mask_row_spans(&m, 3, s), 1);
    ck_assert(s[0].lo == 0 && s[0].hi == 4);
    ck_assert_int_eq(mask_row_spans(&m, 4, s), 2);
    ck_assert(s[0].lo == 0 && s[0].hi == 1 && s[1].lo == 2 && s[1].hi == 5);
    struct mask_counts c;
    MUST(mask_count(&m, &c, ERR));
    ck_assert_int_eq(c.pairs_kept, 34);
}

TEST(chunks_add_up_to_the_whole)
{
    struct mask whole, part;
    struct mask_counts w, p, sum = {0};
    random_lists(&whole, 3, 300, 300, true, 32, 16, 0.4);
    MUST(mask_count(&whole, &w, ERR));
    for (int64_t r = 0; r < 300; r += 96) {
        int64_t r1 = r + 96 < 300 ? r + 96 : 300;
        MUST(mask_lists_init(&part, 300, 300, r, r1, true, 32, 16, ERR));
        for (int64_t g = 0; g < part.ngroups; g++)
            for (int64_t e = whole.ptr[g + r / 32]; e < whole.ptr[g + r / 32 + 1]; e++)
                MUST(mask_lists_add(&part, g, whole.col[e], ERR));
        mask_lists_finish(&part);
        MUST(mask_count(&part, &p, ERR));
        sum.pairs_kept += p.pairs_kept;
        sum.pairs_allowed += p.pairs_allowed;
        sum.pairs_exec += p.pairs_exec;
        sum.tiles_kept += p.tiles_kept;
        sum.tiles_allowed += p.tiles_allowed;
        mask_free(&part);
    }
    ck_assert_int_eq(sum.pairs_kept, w.pairs_kept);
    ck_assert_int_eq(sum.pairs_allowed, w.pairs_allowed);
    ck_assert_int_eq(sum.pairs_exec, w.pairs_exec);
    ck_assert_int_eq(sum.tiles_kept, w.tiles_kept);
    ck_assert_int_eq(sum.tiles_allowed, w.tiles_allowed);
    mask_free(&whole);
}

TEST(allowed_pairs_and_tiles)
{
    ck_assert_int_eq(pairs_allowed(770, 770, true), 296835);
    ck_assert_int_eq(pairs_allowed(4, 10, true), 34);
    ck_assert_int_eq(pairs_allowed(384, 384, false), 147456);
    ck_assert_int_eq(pairs_allowed(131072, 131072, true), 8590000128);
    ck_assert_int_eq(pairs_allowed(10, 4, true), 10);

    struct mask m;
    int64_t kept_tiles, tiles;
    mask_full(&m, 770, 770, 0, 770, true);
    MUST(mask_tiles_kept(&m, 64, 64, &kept_tiles, &tiles, ERR));
    ck_assert_int_eq(tiles, 91);
    MUST(mask_tiles_kept(&m, 128, 128, &kept_tiles, &tiles, ERR));
    ck_assert_int_eq(tiles, 28);
    mask_full(&m, 1000, 1000, 0, 1000, true);
    MUST(mask_tiles_kept(&m, 128, 64, &kept_tiles, &tiles, ERR));
    ck_assert_int_eq(tiles, 72);
    ck_assert_int_eq(kept_tiles, 72);
}

TEST(executed_pairs_of_gathered_slices_are_padded)
{
    OWN(mask_free) struct mask m;
    struct mask_counts c;
    MUST(mask_lists_init(&m, 200, 400, 0, 200, false, 128, 1, ERR));
    MUST(mask_lists_add_run(&m, 0, 0, 129, ERR));
    MUST(mask_lists_add_run(&m, 1, 5, 6, ERR));
    mask_lists_finish(&m);
    MUST(mask_count(&m, &c, ERR));
    ck_assert_int_eq(c.pairs_exec, 128 * 256 + 128 * 128);
    ck_assert_int_eq(c.pairs_kept, 128 * 129 + 72);
}

TEST(bad_lists_are_found)
{
    struct mask m;
    MUST(mask_lists_init(&m, 64, 64, 0, 64, false, 16, 16, ERR));
    MUST(mask_lists_add(&m, 0, 2, ERR));
    MUST(mask_lists_add(&m, 0, 1, ERR));
    mask_lists_finish(&m);
    FAILS(mask_check(&m, ERR), ERR_RUN, "unit 1 follows unit 2");
    m.col[0] = 4;
    FAILS(mask_check(&m, ERR), ERR_RUN, "outside 0..3");
    mask_free(&m);
    FAILS(mask_lists_init(&m, 64, 64, 8, 64, false, 16, 16, ERR), ERR_RUN, "rows 8");
}

static int64_t counted_pairs(int64_t nq, int64_t nk, bool causal, int64_t q0, int64_t q1,
                             int64_t k0, int64_t k1)
{
    int64_t n = 0;
    for (int64_t i = q0; i < q1; i++)
        for (int64_t j = k0; j < k1; j++)
            n += !causal || j <= i + nk - nq;
    return n;
}

/* More keys than queries, as many, and fewer, where the first rows see nothing. */
TEST(allowed_pairs_of_a_block_match_counting)
{
    for (int causal = 0; causal < 2; causal++)
        for (int64_t nk = 5; nk <= 9; nk++)
            for (int64_t q0 = 0; q0 < 7; q0++)
                for (int64_t q1 = q0; q1 <= 7; q1++)
                    for (int64_t k0 = 0; k0 < nk; k0++)
                        for (int64_t k1 = k0; k1 <= nk; k1++)
                            ck_assert_int_eq(pairs_allowed_block(7, nk, causal, q0, q1, k0, k1),
                                             counted_pairs(7, nk, causal, q0, q1, k0, k1));
}
