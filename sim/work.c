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
    uint64_t *any[2], *missing; /* [words] */
    struct span *spans;         /* room for those of a row */
};

/* ---- a row of tiles ------------------------------------------------------------------------- */

static void add_row(struct work_counts *c, int64_t whole, int64_t half, int64_t masked)
{
    int64_t all = whole + half;
    struct work_counts row = {1, whole, MIN(masked, all), half, all, all};
    if (all)
        work_counts_join(c, &row);
}

/* Count the row in the bitmaps and clear them. seen: keys that its first row sees; limit: the last
 * one. */
static void count_row(struct mask_work *w, struct counter *c, int64_t seen, int64_t limit)
{
    int64_t blocks = 0, own[2] = {0, 0}, late = 0, keys = 0;
    int64_t tiles = 0, late_tiles = 0, partial = 0, beyond = 0;
    for (int64_t t = 0; t < c->words / 2; t++) {
        bool any = false, lacks = false;
        for (int64_t i = 2 * t; i < 2 * t + 2; i++) {
            uint64_t a = c->any[0][i], b = c->any[1][i];
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
    add_row(&w->of[WORK_64x64], ceil_div(blocks, 2) - half, half, ceil_div(late, 2));
    add_row(&w->of[WORK_WIDE_128x128], ceil_div(2 * tiles - beyond, 3), 0,
            ceil_div(2 * late_tiles, 3));
    add_row(&w->of[WORK_WIDE_128x64], ceil_div(blocks, 3), 0, ceil_div(late, 3));
    add_row(&w->of[WORK_BITS], tiles, 0, partial);
    add_row(&w->of[WORK_GATHER], ceil_div(keys, TILE), 0, 0);
}

/* Rows [from, to) of one half of a tile. */
static void add_rows(struct counter *c, const struct mask *m, int64_t from, int64_t to)
{
    while (from < to) {
        int64_t end = from + 1, next = mask_first(m, from);
        while (end < to && mask_rows_uniform(m, from, end + 1))
            end++;
        int64_t n = mask_row_spans(m, end - 1, c->spans);
        for (int64_t i = 0; i < n; i++) {
            mask_mark_run(c->any[from / 64 % 2], c->spans[i].lo, c->spans[i].hi);
            mask_mark_run(c->missing, next, c->spans[i].lo);
            next = c->spans[i].hi;
        }
        mask_mark_run(c->missing, next, mask_limit(m, end - 1));
        from = end;
    }
}

/* The same of a map of units that are whole blocks; what is missing does not count then. */
static void add_mapped(struct counter *c, const struct mask *m, const struct accel_units *u,
                       int64_t from, int64_t to)
{
    const uint32_t *map = u->map + from / u->bq * u->words;
    int64_t limit = mask_limit(m, to - 1);
    for (int64_t w = 0; w < u->words; w++)
        for (uint32_t left = map[w]; left; left &= left - 1) {
            int64_t key = (w * 32 + __builtin_ctz(left)) * u->bk;
            mask_mark_run(c->any[from / 64 % 2], key, MIN(key + u->bk, limit));
        }
}

/* ---- masks ---------------------------------------------------------------------------------- */

static int count(struct mask_work *w, const struct mask *m, const struct accel_units *u,
                 struct err *err)
{
    struct counter c = {.words = ceil_div(m->nk, TILE) * 2};
    int rc = 0;
    TRY(mem_zalloc(&c.any[0], 3 * c.words, sizeof *c.missing, "work of a mask", err));
    TRY(mem_zalloc(&c.spans, u ? 1 : mask_max_spans(m), sizeof *c.spans, "mask spans", err));
    c.any[1] = c.any[0] + c.words;
    c.missing = c.any[1] + c.words;
    for (int64_t row = m->row0; row < m->row1; row += TILE) {
        int64_t end = MIN(row + TILE, m->row1);
        for (int64_t from = row; from < end; from += TILE / 2) {
            int64_t to = MIN(from + TILE / 2, end);
            if (u)
                add_mapped(&c, m, u, from, to);
            else
                add_rows(&c, m, from, to);
        }
        count_row(w, &c, mask_limit(m, row), mask_limit(m, end - 1));
    }
out:
    free(c.any[0]);
    free(c.spans);
    return rc;
}

int work_add(struct mask_work *w, const struct mask *m, const struct accel_units *u,
             struct err *err)
{
    bool full = !u && m->form == MASK_FULL, band = !u && m->form == MASK_BAND;
    w->unit_q = gcd(full ? 0 : band ? 1 : u ? u->bq : m->bq, w->unit_q);
    w->unit_k = gcd(full ? 0 : band ? 1 : u ? u->bk : m->bk, w->unit_k);
    if (!u || (u->map && !u->tile_rows))
        return count(w, m, u, err);
    w->lost |= !u->tile_rows;
    for (int64_t i = 0; u->tile_rows && i < ceil_div(m->nq, TILE); i++) {
        const struct accel_tile_row *t = u->tile_rows + i;
        add_row(&w->of[WORK_BITS], t->tiles, 0, t->partial);
        add_row(&w->of[WORK_GATHER], ceil_div(t->keys, TILE), 0, 0);
    }
    return 0;
}

void work_join(struct mask_work *w, const struct mask_work *more)
{
    w->unit_q = gcd(more->unit_q, w->unit_q);
    w->unit_k = gcd(more->unit_k, w->unit_k);
    w->lost |= more->lost;
    for (int i = 0; i < WORK_LISTS; i++)
        work_counts_join(w->of + i, more->of + i);
}

int work_record(const struct mask_work *w, int64_t d, struct record *r, struct err *err)
{
    static const char *const names[WORK_LISTS] = {
        [WORK_128x128] = "128x128",    [WORK_128x64] = "128x64", [WORK_WIDE_128x128] = "128x128",
        [WORK_WIDE_128x64] = "128x64", [WORK_64x64] = "64x64",   [WORK_BITS] = "bits",
        [WORK_GATHER] = "gather"};
    bool bits = w->unit_q % 64 || w->unit_k % 64;
    int first = bits              ? WORK_BITS
                : w->unit_q % 128 ? WORK_64x64
                : w->unit_k % 128 ? d == 64 ? WORK_WIDE_128x64 : WORK_128x64
                : d == 64         ? WORK_WIDE_128x128
                                  : WORK_128x128;
    int rc = 0;
    for (int i = first; i <= first + bits && w->unit_q && !w->lost; i++) {
        int64_t n[WORK_COUNTS];
        memcpy(n, w->of + i, sizeof n);
        for (int k = 0; k < WORK_COUNTS; k++) {
            char name[METRIC_NAME];
            snprintf(name, sizeof name, "work_%s@%s", work_names[k], names[i]);
            TRY(record_metric(r, name, (double)n[k], err));
        }
    }
out:
    return rc;
}
