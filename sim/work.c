/*
 * work.c - see work.h. For each row of tiles, three bitmaps over keys: what either half of its rows
 * keeps, and allowed pairs that it lacks. O(keys / 64) for every run of rows with one list.
 */
#include "sim/work.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE ACCEL_TILE

struct counter {
    int64_t words;
    uint64_t *any[2], *missing, *one; /* [words]; `one`: of the rows at hand */
    struct span *spans;
    int64_t cap;
};

static uint64_t word_between(int64_t lo, int64_t hi)
{
    lo = MAX(lo, 0);
    hi = MIN(hi, 64);
    return lo < hi ? ~0ull >> (64 - (hi - lo)) << lo : 0;
}

static void mark(uint64_t *bits, int64_t lo, int64_t hi)
{
    for (int64_t w = lo / 64; w * 64 < hi; w++)
        bits[w] |= word_between(lo - w * 64, hi - w * 64);
}

static int counter_init(struct counter *c, int64_t nk, struct err *err)
{
    uint64_t **all[] = {&c->any[0], &c->any[1], &c->missing, &c->one};
    int rc = 0;
    *c = (struct counter){.words = ceil_div(nk, TILE) * 2};
    for (int i = 0; i < 4 && !rc; i++)
        rc = mem_zalloc(all[i], c->words, sizeof(uint64_t), "work of a mask", err);
    return rc;
}

static void counter_free(struct counter *c)
{
    free(c->any[0]);
    free(c->any[1]);
    free(c->missing);
    free(c->one);
    free(c->spans);
}

/* ---- a row of tiles ------------------------------------------------------------------------- */

static void add_row(struct work_counts *c, int64_t whole, int64_t half, int64_t masked)
{
    int64_t all = whole + half;
    if (!all)
        return;
    c->rows++;
    c->stages += whole;
    c->half += half;
    c->masked += MIN(masked, all);
    c->longest = MAX(c->longest, all);
    c->shortest = c->shortest ? MIN(c->shortest, all) : all;
}

/* Count the row in the bitmaps and clear them. seen: keys that its first row sees; limit: the last
 * one. */
static void count_row(struct mask_work *w, struct counter *c, int64_t seen, int64_t limit)
{
    int64_t blocks = 0, both = 0, own[2] = {0, 0}, late = 0, keys = 0;
    int64_t tiles = 0, late_tiles = 0, partial = 0, beyond = 0;
    for (int64_t t = 0; t < c->words / 2; t++) {
        bool any = false, lacks = false;
        for (int64_t i = 2 * t; i < 2 * t + 2; i++) {
            uint64_t a = c->any[0][i], b = c->any[1][i];
            both += a && b;
            own[0] += a && !b;
            own[1] += b && !a;
            blocks += (a | b) != 0;
            late += (a | b) && (i + 1) * 64 > seen;
            keys += __builtin_popcountll(a | b);
            any |= (a | b) != 0;
            lacks |= c->missing[i] != 0;
            c->any[0][i] = c->any[1][i] = c->missing[i] = 0;
        }
        tiles += any;
        late_tiles += any && (t + 1) * TILE > seen;
        partial += any && lacks;
        beyond = any && (2 * t + 1) * 64 >= limit;
    }
    int64_t half = own[0] / 2 + own[1] / 2;
    add_row(&w->of[WORK_128x128], tiles, 0, late_tiles);
    add_row(&w->of[WORK_128x64], ceil_div(blocks, 2), 0, ceil_div(late, 2));
    add_row(&w->of[WORK_64x64], ceil_div(both + own[0] + own[1], 2) - half, half,
            ceil_div(late, 2));
    add_row(&w->of[WORK_WIDE_128x128], ceil_div(2 * tiles - beyond, 3), 0,
            ceil_div(2 * late_tiles, 3));
    add_row(&w->of[WORK_WIDE_128x64], ceil_div(blocks, 3), 0, ceil_div(late, 3));
    add_row(&w->of[WORK_BITS], tiles, 0, partial);
    add_row(&w->of[WORK_GATHER], ceil_div(keys, TILE), 0, 0);
}

/* Rows [from, to) keep `one`, as far as they see it; it is cleared. */
static void add_run(struct counter *c, const struct mask *m, int64_t from, int64_t to)
{
    int64_t limit = mask_limit(m, to - 1), first = mask_first(m, from);
    uint64_t *any = c->any[from / 64 % 2];
    for (int64_t i = 0; i < c->words; i++) {
        uint64_t allowed = word_between(first - i * 64, limit - i * 64);
        any[i] |= c->one[i] & allowed;
        c->missing[i] |= allowed & ~c->one[i];
        c->one[i] = 0;
    }
}

static int add_rows(struct counter *c, const struct mask *m, int64_t from, int64_t to,
                    struct err *err)
{
    int rc = 0;
    while (from < to) {
        int64_t end = from + 1;
        while (end < to && mask_rows_uniform(m, from, end + 1))
            end++;
        TRY(mem_grow(&c->spans, &c->cap, mask_union_max(m, end - 1, end), sizeof *c->spans,
                     "mask spans", err));
        int64_t n = mask_row_spans(m, end - 1, c->spans);
        for (int64_t i = 0; i < n; i++)
            mark(c->one, c->spans[i].lo, c->spans[i].hi);
        add_run(c, m, from, end);
        from = end;
    }
out:
    return rc;
}

/* Of a map; rows within a group. */
static void add_mapped(struct counter *c, const struct mask *m, const struct accel_units *u,
                       int64_t from, int64_t to)
{
    const uint32_t *map = u->map + from / u->bq * u->words;
    for (int64_t w = 0; w < u->words; w++)
        for (uint32_t left = map[w]; left; left &= left - 1) {
            int64_t unit = w * 32 + __builtin_ctz(left);
            mark(c->one, unit * u->bk, MIN((unit + 1) * u->bk, m->nk));
        }
    add_run(c, m, from, to);
}

/* ---- masks ---------------------------------------------------------------------------------- */

static void join_unit(struct mask_work *w, int64_t bq, int64_t bk)
{
    w->unit_q = gcd(bq, w->unit_q);
    w->unit_k = gcd(bk, w->unit_k);
}

/* u NULL: of the mask's own lists. */
static int add_all(struct mask_work *w, const struct mask *m, const struct accel_units *u,
                   struct err *err)
{
    struct counter c;
    int rc = 0;
    TRY(counter_init(&c, m->nk, err));
    for (int64_t row = m->row0; row < m->row1; row += TILE) {
        int64_t end = MIN(row + TILE, m->row1), middle = MIN(row + TILE / 2, end);
        if (u) {
            add_mapped(&c, m, u, row, middle);
            if (middle < end)
                add_mapped(&c, m, u, middle, end);
        } else {
            TRY(add_rows(&c, m, row, middle, err));
            TRY(add_rows(&c, m, middle, end, err));
        }
        count_row(w, &c, mask_limit(m, row), mask_limit(m, end - 1));
    }
out:
    counter_free(&c);
    return rc;
}

int work_add(struct mask_work *w, const struct mask *m, struct err *err)
{
    if (m->form == MASK_LISTS)
        join_unit(w, m->bq, m->bk);
    else if (m->form != MASK_FULL)
        join_unit(w, 1, 1);
    return add_all(w, m, NULL, err);
}

int work_add_units(struct mask_work *w, const struct mask *lists, const struct accel_units *u,
                   struct err *err)
{
    join_unit(w, u->bq, u->bk);
    if (u->map && u->bq % 64 == 0)
        return add_all(w, lists, u, err);
    w->lost |= !u->tile_rows;
    for (int64_t i = 0; u->tile_rows && i < ceil_div(lists->nq, TILE); i++) {
        const struct accel_tile_row *t = u->tile_rows + i;
        add_row(&w->of[WORK_BITS], t->tiles, 0, t->partial);
        add_row(&w->of[WORK_GATHER], ceil_div(t->keys, TILE), 0, 0);
    }
    return 0;
}

void work_join(struct mask_work *w, const struct mask_work *more)
{
    join_unit(w, more->unit_q, more->unit_k);
    w->lost |= more->lost;
    for (int i = 0; i < WORK_LISTS; i++) {
        struct work_counts *a = w->of + i;
        const struct work_counts *b = more->of + i;
        a->rows += b->rows;
        a->stages += b->stages;
        a->half += b->half;
        a->masked += b->masked;
        a->longest = MAX(a->longest, b->longest);
        a->shortest = a->shortest && b->shortest ? MIN(a->shortest, b->shortest)
                                                 : MAX(a->shortest, b->shortest);
    }
}

static int record_lists(const struct work_counts *c, const char *lists, struct record *r,
                        struct err *err)
{
    const struct {
        const char *what;
        int64_t n;
    } all[] = {{"rows", c->rows}, {"stages", c->stages},   {"masked", c->masked},
               {"half", c->half}, {"longest", c->longest}, {"shortest", c->shortest}};
    char name[METRIC_NAME];
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(name, sizeof name, "work_%s@%s", all[i].what, lists);
        TRY(record_metric(r, name, (double)all[i].n, err));
    }
out:
    return rc;
}

int work_record(const struct mask_work *w, int64_t d, struct record *r, struct err *err)
{
    bool wide = d == 64;
    int rc = 0;
    if (!w->unit_q || w->lost)
        return 0;
    if (w->unit_q % 64 || w->unit_k % 64) {
        TRY(record_lists(w->of + WORK_BITS, "bits", r, err));
        return record_lists(w->of + WORK_GATHER, "gather", r, err);
    }
    if (w->unit_q % 128)
        return record_lists(w->of + WORK_64x64, "64x64", r, err);
    if (w->unit_k % 128)
        return record_lists(w->of + (wide ? WORK_WIDE_128x64 : WORK_128x64), "128x64", r, err);
    return record_lists(w->of + (wide ? WORK_WIDE_128x128 : WORK_128x128), "128x128", r, err);
out:
    return rc;
}
