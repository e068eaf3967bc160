/*
 * test_work.c - stages of masks (sim/work.h) against a count pair by pair.
 */
#include "core/intmath.h"
#include "core/rng.h"
#include "sim/work.h"
#include "tests/harness/suite.h"

#include <stdlib.h>

/* Which unit is in which of two lists: golden case of a pair of rows {0 1 2 3}, {2 3 4 5}. */
TEST(a_pair_of_rows)
{
    OWN(mask_free) struct mask m;
    struct mask_work w = {0};
    MUST(mask_lists_init(&m, 128, 512, 0, 128, false, 64, 64, ERR));
    MUST(mask_lists_add_run(&m, 0, 0, 4, ERR));
    MUST(mask_lists_add_run(&m, 1, 2, 6, ERR));
    mask_lists_finish(&m);
    MUST(work_add(&w, &m, ERR));
    const struct work_counts *c = w.of + WORK_64x64;
    ck_assert_int_eq(c->rows, 1);
    ck_assert_int_eq(c->stages, 1);
    ck_assert_int_eq(c->half, 2);
    ck_assert_int_eq(c->longest, 3);
    ck_assert_int_eq(c->masked, 0);
}

/* One count of all, by looking at every pair. */
struct plain {
    const uint8_t *kept; /* [nq][nk] */
    int64_t nq, nk;
    bool causal;
};

static bool sees(const struct plain *p, int64_t i, int64_t j)
{
    return !p->causal || j <= i + p->nk - p->nq;
}

/* Blocks of `keys` keys with a kept pair in rows [a, b); late: with a key that row `a` misses. */
static int64_t blocks(const struct plain *p, int64_t a, int64_t b, int64_t keys, int64_t *late)
{
    int64_t n = 0;
    *late = 0;
    for (int64_t k = 0; k < p->nk; k += keys) {
        bool any = false;
        for (int64_t i = a; i < MIN(b, p->nq); i++)
            for (int64_t j = k; j < MIN(k + keys, p->nk); j++)
                any |= p->kept[i * p->nk + j];
        n += any;
        *late += any && (k + keys > p->nk || !sees(p, a, k + keys - 1));
    }
    return n;
}

static void count_plain(const struct plain *p, int64_t per, int64_t keys, struct work_counts *c)
{
    *c = (struct work_counts){0};
    for (int64_t a = 0; a < p->nq; a += 128) {
        int64_t late, n = blocks(p, a, a + 128, keys, &late);
        int64_t stages = ceil_div(n * keys, 64 * per), masked = ceil_div(late * keys, 64 * per);
        if (!n)
            continue;
        c->rows++;
        c->stages += stages;
        c->masked += MIN(masked, stages);
        c->longest = MAX(c->longest, stages);
        c->shortest = c->shortest ? MIN(c->shortest, stages) : stages;
    }
}

static void same(const struct work_counts *a, const struct work_counts *b)
{
    ck_assert_int_eq(a->rows, b->rows);
    ck_assert_int_eq(a->stages, b->stages);
    ck_assert_int_eq(a->half, b->half);
    ck_assert_int_eq(a->masked, b->masked);
    ck_assert_int_eq(a->longest, b->longest);
    ck_assert_int_eq(a->shortest, b->shortest);
}

static const struct shape {
    int64_t nq, nk, bq, bk;
    bool causal;
    double share;
} shapes[] = {{512, 512, 128, 128, true, 0.3}, {512, 512, 64, 64, true, 0.2},
              {640, 640, 128, 64, true, 0.3},  {384, 1024, 64, 64, false, 0.1},
              {600, 600, 64, 32, true, 0.3},   {512, 512, 128, 1, true, 0.05},
              {300, 300, 1, 1, true, 0.02},    {256, 500, 16, 16, true, 0.1},
              {512, 512, 256, 64, false, 0.4}, {256, 512, 128, 128, false, 0.5}};

static void fill(const struct shape *s, struct mask *m, uint8_t *kept)
{
    int64_t groups = ceil_div(s->nq, s->bq), units = ceil_div(s->nk, s->bk);
    MUST(mask_lists_init(m, s->nq, s->nk, 0, s->nq, s->causal, s->bq, s->bk, ERR));
    for (int64_t g = 0; g < groups; g++)
        for (int64_t c = 0; c < units; c++) {
            int64_t last = MIN((g + 1) * s->bq, s->nq) - 1;
            if (rng_uniform(5, (uint64_t)g, (uint64_t)c) >= s->share ||
                c * s->bk >= key_limit(s->nq, s->nk, s->causal, last))
                continue;
            MUST(mask_lists_add(m, g, (int32_t)c, ERR));
            for (int64_t i = g * s->bq; i <= last; i++)
                for (int64_t j = c * s->bk;
                     j < MIN((c + 1) * s->bk, key_limit(s->nq, s->nk, s->causal, i)); j++)
                    kept[i * s->nk + j] = 1;
        }
    mask_lists_finish(m);
}

TEST_EACH(counts_are_those_of_the_pairs, shapes)
{
    const struct shape *s = shapes + _i;
    OWN(mask_free) struct mask m;
    struct mask_work w = {0};
    struct work_counts want;
    OWN(free_at) uint8_t *kept = calloc((size_t)(s->nq * s->nk), 1);
    struct plain p = {kept, s->nq, s->nk, s->causal};
    int64_t pairs = 0;
    fill(s, &m, kept);
    for (int64_t i = 0; i < s->nq * s->nk; i++)
        pairs += kept[i];
    MUST(work_add(&w, &m, ERR));
    count_plain(&p, 2, 128, &want);
    same(w.of + WORK_128x128, &want);
    ck_assert_int_ge(want.stages * 128 * 128, pairs);
    if (!s->causal && s->bq == 128 && s->bk == 128) /* every block is whole */
        ck_assert_int_eq(want.stages * 128 * 128, pairs);
    count_plain(&p, 2, 64, &want);
    same(w.of + WORK_128x64, &want);
    count_plain(&p, 3, 64, &want);
    same(w.of + WORK_WIDE_128x64, &want);
    const struct work_counts *pair = w.of + WORK_64x64;
    ck_assert_int_eq(pair->stages + pair->half, w.of[WORK_128x64].stages);
    count_plain(&p, 2, 32, &want);
    const struct work_counts *slim = w.of + WORK_64x32;
    ck_assert_int_eq(slim->stages + slim->half, want.stages);
    ck_assert_int_eq(slim->masked, want.masked);
    ck_assert_int_eq(w.of[WORK_BITS].stages, w.of[WORK_128x128].stages);
    ck_assert_int_le(w.of[WORK_GATHER].stages, w.of[WORK_128x128].stages);
}

/* A tile is whole where it has all allowed pairs; gathered keys fill tiles. */
TEST(bits_and_gathered_keys)
{
    OWN(mask_free) struct mask m;
    struct mask_work w = {0};
    MUST(mask_lists_init(&m, 128, 512, 0, 128, false, 128, 1, ERR));
    MUST(mask_lists_add_run(&m, 0, 0, 128, ERR));
    MUST(mask_lists_add_run(&m, 0, 130, 140, ERR));
    MUST(mask_lists_add_run(&m, 0, 500, 512, ERR));
    mask_lists_finish(&m);
    MUST(work_add(&w, &m, ERR));
    ck_assert_int_eq(w.of[WORK_BITS].stages, 3);
    ck_assert_int_eq(w.of[WORK_BITS].masked, 2);
    ck_assert_int_eq(w.of[WORK_GATHER].stages, 2);
}

/* Heads of a call, one of which keeps everything, and chunks of a head. */
TEST(a_call_is_the_sum_of_its_heads)
{
    struct mask full, part;
    struct mask_work w = {0}, head = {0}, call = {0}, other = {0};
    OWN(record_free) struct record r;
    mask_full(&full, 256, 256, 0, 256, true);
    MUST(mask_lists_init(&part, 256, 256, 128, 256, true, 128, 128, ERR));
    MUST(mask_lists_add_run(&part, 0, 1, 2, ERR));
    mask_lists_finish(&part);
    MUST(work_add(&w, &full, ERR));
    MUST(work_add(&head, &part, ERR));
    record_init(&r);
    MUST(work_record(&w, 128, &r, ERR));
    ck_assert_int_eq(record_metrics(&r), 0);
    work_join(&call, &w);
    work_join(&call, &head);
    work_join(&other, &head); /* in any order */
    work_join(&other, &w);
    for (int i = 0; i < WORK_LISTS; i++)
        same(call.of + i, other.of + i);
    MUST(work_record(&call, 128, &r, ERR));
    ck_assert_int_eq(record_metrics(&r), 6);
    ck_assert_double_eq(record_get(&r, "work_rows@128x128"), 3);
    ck_assert_double_eq(record_get(&r, "work_stages@128x128"), 1 + 2 + 1);
    ck_assert_double_eq(record_get(&r, "work_masked@128x128"), 3);
    ck_assert_double_eq(record_get(&r, "work_longest@128x128"), 2);
    ck_assert_double_eq(record_get(&r, "work_shortest@128x128"), 1);
    mask_free(&part);
}
