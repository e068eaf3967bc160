/*
 * test_acceltiles.c - masks as tiles with bits (sim/accelattend.c): the pairs that tiles and bits
 * name are the mask's, for every form, and nothing is listed, or listed as a whole, without cause.
 */
#include "core/method.h"
#include "core/rng.h"
#include "sim/accelattend.h"
#include "tests/harness/accelrun.h"

#include <stdlib.h>
#include <string.h>

#define T ACCEL_TILE

/* ---- masks ---------------------------------------------------------------------------------- */

struct shape {
    int64_t nq, nk, bq, bk;
    double density;
    int64_t chunk; /* rows of a mask */
};

/* Random units; every 9th group keeps nothing, every 13th all. */
static void random_lists(const struct shape *s, bool causal, int64_t row0, int64_t row1,
                         uint64_t seed, struct mask *m)
{
    int64_t units = (s->nk + s->bk - 1) / s->bk;
    MUST(mask_lists_init(m, s->nq, s->nk, row0, row1, causal, s->bq, s->bk, ERR));
    for (int64_t g = 0; g < m->ngroups; g++) {
        uint64_t at = (uint64_t)(row0 / s->bq + g);
        for (int64_t u = 0; u < units && at % 9 != 4; u++)
            if (at % 13 == 5 || rng_uniform(seed, at, (uint64_t)u) < s->density)
                MUST(mask_lists_add(m, g, (int32_t)u, ERR));
    }
    mask_lists_finish(m);
}

/* ---- comparison ----------------------------------------------------------------------------- */

static bool bit_of(const struct accel_tiles *t, int64_t entry, int row, int key)
{
    const uint64_t *words = t->words + t->bits[entry] * ACCEL_TILE_WORDS;
    return words[accel_word(row, key)] >> accel_bit(row, key) & 1;
}

static int64_t key_of(const struct accel_tiles *t, int64_t entry, int64_t k)
{
    return t->keys ? t->keys[entry * T + k] : t->col[entry] * T + k;
}

/* Keys that row i keeps by the tiles, one byte each. */
static void expand_row(const struct accel_tiles *t, const struct mask *m, int64_t i, uint8_t *kept)
{
    int64_t limit = mask_limit(m, i), g = i / T;
    memset(kept, 0, (size_t)m->nk);
    for (int64_t e = t->ptr[g]; e < t->ptr[g + 1]; e++)
        for (int64_t k = 0; k < T; k++) {
            int64_t key = key_of(t, e, k);
            bool whole = t->bits[e] < 0 && (t->keys || key < limit);
            bool bit = whole || (t->bits[e] >= 0 && bit_of(t, e, (int)(i % T), (int)k));
            ck_assert_msg(!bit || (key >= 0 && key < limit), "row %lld: key %lld is not allowed",
                          (long long)i, (long long)key);
            if (bit)
                kept[key] = 1;
        }
}

static void mask_row(const struct mask *m, int64_t i, uint8_t *kept)
{
    OWN(free_at) struct span *s = calloc((size_t)mask_max_spans(m), sizeof *s);
    memset(kept, 0, (size_t)m->nk);
    int64_t n = mask_row_spans(m, i, s);
    for (int64_t k = 0; k < n; k++)
        memset(kept + s[k].lo, 1, (size_t)(s[k].hi - s[k].lo));
}

/* Gathered keys ascend, every one of them is kept by a row of the group, and only the last tile of
 * a group has room left, for repetitions of its last key. */
static void check_keys(const struct accel_tiles *t, const uint8_t *map, const struct mask *masks)
{
    int64_t nq = masks->nq, nk = masks->nk;
    for (int64_t g = 0; g * T < nq; g++) {
        int64_t last = -1;
        for (int64_t e = t->ptr[g]; e < t->ptr[g + 1]; e++)
            for (int64_t k = 0; k < T; k++) {
                int64_t key = key_of(t, e, k), kept = 0;
                if (key == last) {
                    ck_assert(k > 0 && e == t->ptr[g + 1] - 1);
                    ck_assert_int_ge(t->bits[e], 0);
                    for (int row = 0; row < T; row++)
                        ck_assert(!bit_of(t, e, row, (int)k));
                    continue;
                }
                ck_assert_int_gt(key, last);
                last = key;
                for (int64_t i = g * T; i < (g + 1) * T && i < nq; i++)
                    kept += map[i * nk + key];
                ck_assert_int_gt(kept, 0);
            }
    }
}

/* Tiles ascend, hold something, and have bits exactly when they do not hold all that is allowed. */
static void check_entries(const struct accel_tiles *t, const uint8_t *map, const struct mask *masks)
{
    int64_t nq = masks->nq, nk = masks->nk, bits = 0;
    for (int64_t g = 0; g * T < nq; g++)
        for (int64_t e = t->ptr[g]; e < t->ptr[g + 1]; e++) {
            int64_t kept = 0, allowed = 0;
            for (int64_t i = g * T; i < (g + 1) * T && i < nq; i++)
                for (int64_t k = t->col[e] * T; k < (t->col[e] + 1) * T && k < nk; k++) {
                    kept += map[i * nk + k];
                    allowed += k < mask_limit(masks, i);
                }
            ck_assert_int_gt(kept, 0);
            ck_assert_int_eq(t->bits[e] < 0, kept == allowed);
            ck_assert(e == t->ptr[g] || t->col[e] > t->col[e - 1]);
            if (t->bits[e] >= 0)
                ck_assert_int_eq(t->bits[e], bits++);
        }
    ck_assert_int_eq(bits, t->n_bits);
    ck_assert_int_eq(t->ptr[(nq + T - 1) / T], t->n_tiles);
}

static void compare_as(const struct mask *masks, int64_t n, bool gathered)
{
    int64_t nq = masks->nq, nk = masks->nk;
    OWN(free_at) uint8_t *map = malloc((size_t)(nq * nk)), *row = malloc((size_t)nk);
    OWN(accel_tiles_free) struct accel_tiles t;
    char why[160] = "";
    MUST(accel_tiles_make(masks, n, gathered, 1 << 30, &t, why, ERR));
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = masks[c].row0; i < masks[c].row1; i++) {
            mask_row(masks + c, i, map + i * nk);
            expand_row(&t, masks + c, i, row);
            ck_assert_msg(memcmp(row, map + i * nk, (size_t)nk) == 0,
                          "%lld x %lld, units of %lld x %lld: row %lld differs", (long long)nq,
                          (long long)nk, (long long)masks->bq, (long long)masks->bk, (long long)i);
        }
    if (gathered)
        check_keys(&t, map, masks);
    else
        check_entries(&t, map, masks);
}

static void compare(const struct mask *masks, int64_t n)
{
    compare_as(masks, n, false);
    compare_as(masks, n, true);
}

/* ---- tests ---------------------------------------------------------------------------------- */

TEST_N(lists_keep_their_pairs, 26)
{
    static const struct shape shapes[] = {
        {300, 300, 1, 1, 0.3, 300},    {513, 513, 1, 1, 0.01, 256},  {400, 400, 128, 1, 0.25, 256},
        {640, 640, 192, 1, 0.5, 384},  {500, 500, 64, 32, 0.4, 256}, {257, 257, 16, 16, 0.9, 128},
        {384, 384, 32, 32, 0.05, 128}, {77, 600, 16, 48, 0.5, 77},   {600, 200, 8, 8, 0.6, 600},
        {200, 129, 128, 96, 0.7, 128}, {1, 1, 1, 1, 0.9, 1},         {130, 4097, 48, 1, 0.02, 96},
        {260, 260, 1, 1, 1, 130}};
    const struct shape *s = shapes + _i / 2;
    int64_t n = (s->nq + s->chunk - 1) / s->chunk;
    OWN(free_at) struct mask *masks = calloc((size_t)n, sizeof *masks);
    for (int64_t c = 0; c < n; c++) {
        int64_t row1 = (c + 1) * s->chunk < s->nq ? (c + 1) * s->chunk : s->nq;
        random_lists(s, _i % 2, c * s->chunk, row1, (uint64_t)_i, masks + c);
    }
    compare(masks, n);
    for (int64_t c = 0; c < n; c++)
        mask_free(masks + c);
}

TEST_N(bands_keep_their_pairs, 12)
{
    static const int64_t forms[][5] = {{500, 500, 4, 100, 500},  {700, 700, 0, 1, 700},
                                       {700, 700, 64, 256, 650}, {300, 450, 200, 129, 290},
                                       {450, 300, 3, 700, 450},  {520, 520, 1, 0, 520}};
    const int64_t *f = forms[_i / 2];
    struct mask m;
    mask_band(&m, f[0], f[1], 0, f[0], _i % 2, (struct band){f[2], f[3], f[4]});
    compare(&m, 1);
}

/* Chunks of different forms and units, some of which end inside a tile. */
TEST_N(forms_change_from_chunk_to_chunk, 2)
{
    struct shape fine = {700, 700, 1, 1, 0.2, 0}, slices = {700, 700, 64, 1, 0.4, 0};
    struct mask m[5];
    mask_full(m, 700, 700, 0, 100, _i);
    random_lists(&fine, _i, 100, 256, 3, m + 1);
    random_lists(&slices, _i, 256, 448, 4, m + 2);
    mask_band(m + 3, 700, 700, 448, 600, _i, (struct band){10, 50, 590});
    random_lists(&fine, _i, 600, 700, 5, m + 4);
    compare(m, 5);
    for (int i = 0; i < 5; i++)
        mask_free(m + i);
}

TEST(too_many_bits_are_refused)
{
    struct shape s = {512, 512, 1, 1, 0.5, 0};
    OWN(accel_tiles_free) struct accel_tiles t;
    OWN(mask_free) struct mask m;
    struct err err = {0};
    char why[160] = "";
    random_lists(&s, false, 0, 512, 1, &m);
    ck_assert_int_eq(accel_tiles_make(&m, 1, false, 16 * 2048 - 1, &t, why, &err), METHOD_SKIP);
    ck_assert_ptr_nonnull(strstr(why, "bits"));
    ck_assert_ptr_null(t.words);
    assert_ok(accel_tiles_make(&m, 1, false, 16 * 2048, &t, why, &err), &err);
    ck_assert_int_eq(t.n_bits, 16);
}

/* Does it pay to gather the keys of a mask? */
static bool pays(const struct mask *m)
{
    int64_t tiles[2];
    MUST(accel_tiles_count(m, 1, tiles, ERR));
    return accel_tiles_gather(tiles);
}

/* Gathered where that leaves fewer tiles: slices do, dense rows and windows do not. */
TEST(gathers_where_it_pays)
{
    struct shape slices = {1024, 2048, 128, 1, 0.25, 0}, dense = {1024, 2048, 128, 1, 0.95, 0};
    struct accel_tiles t;
    struct mask m;
    char why[160];
    random_lists(&slices, false, 0, 1024, 1, &m);
    ck_assert(pays(&m));
    MUST(accel_tiles_make(&m, 1, true, 1 << 30, &t, why, ERR));
    ck_assert_ptr_nonnull(t.keys);
    ck_assert_int_lt(t.n_tiles, 16 + 6 * 6); /* of 7 * 16: a group keeps nothing, another all */
    accel_tiles_free(&t);
    mask_free(&m);
    random_lists(&dense, false, 0, 1024, 1, &m);
    ck_assert(!pays(&m));
    mask_free(&m);
    mask_band(&m, 1024, 1024, 0, 1024, true, (struct band){64, 300, 1024});
    ck_assert(!pays(&m));
}

/* ---- what a back end is asked for ------------------------------------------------------------ */

struct accel_session {
    struct accel_lists seen;
};

static int attend(struct accel_session *s, const struct accel_call *c, const struct accel_lists *l,
                  struct accel_result *r, struct err *err)
{
    s->seen = *l;
    return 0;
}

static struct accel_lists asked(const struct mask *masks, int64_t n)
{
    static const struct accel a = {
        .name = "test", .supports = accel_supports_all, .attend_call = attend};
    struct attn_in x = {.nq = masks->nq, .nk = masks->nk, .d = 64, .dv = 64, .scale = 1};
    struct accel_head head = {.x = &x, .masks = masks, .n_masks = n};
    const struct accel_call call = {.n = 1, .group = 1, .heads = &head, .data = 1};
    const struct attend_how how = {.jobs = 1};
    struct accel_session s = {{0}};
    struct accel_result r = {0};
    char why[160];
    MUST(accel_attend_masks(&a, &s, &how, &call, &r, why, ERR));
    return s.seen;
}

/* Bits are for masks that need them: blocks and whole tiles go to the kernels for lists. */
TEST(bits_only_where_needed)
{
    struct shape blocks = {512, 512, 128, 64, 0.5, 0}, halves = {512, 512, 64, 64, 0.5, 0};
    struct shape fine = {512, 512, 16, 16, 0.5, 0};
    struct mask m[2];
    struct accel_lists h;
    mask_full(m, 512, 512, 0, 512, false);
    ck_assert_ptr_null(asked(m, 1).ptr);
    random_lists(&blocks, false, 0, 256, 1, m);
    random_lists(&halves, false, 256, 512, 1, m + 1);
    h = asked(m, 2);
    ck_assert_ptr_null(h.bits);
    ck_assert_int_eq(h.bq, 64);
    mask_free(m + 1);
    random_lists(&fine, false, 256, 512, 1, m + 1);
    h = asked(m, 2);
    ck_assert_ptr_nonnull(h.bits);
    ck_assert_int_eq(h.bq, T);
    ck_assert_int_gt(h.n_bits, 0);
    mask_free(m);
    mask_free(m + 1);
    assert_ok(mask_lists_init(m, 512, 512, 0, 512, false, 16, 16, &(struct err){0}),
              &(struct err){0});
    for (int g = 0; g < 32; g++)
        assert_ok(mask_lists_add_run(m, g, g < 16 ? 0 : 8, 32, &(struct err){0}), &(struct err){0});
    mask_lists_finish(m);
    h = asked(m, 1);
    ck_assert_ptr_null(h.bits); /* every tile is whole or empty */
    ck_assert_ptr_nonnull(h.ptr);
    mask_free(m);
}
