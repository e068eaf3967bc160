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

static void add_row(struct work_counts *c, int64_t whole, int64_t half, int64_t masked)
{
    int64_t all = whole + half;
    if (all)
        work_counts_join(c, &(struct work_counts){1, whole, MIN(masked, all), half, all, all});
}

/* Blocks of a pair of rows that either wants: n, those past what the first row sees, those that
 * either wants by itself. */
struct pair_count {
    int64_t n, late, own[2];
};

/* A block that ends at key `end`. */
static void add_block(struct pair_count *c, bool a, bool b, int64_t end, int64_t seen)
{
    c->n += a || b;
    c->late += (a || b) && end > seen;
    c->own[0] += a && !b;
    c->own[1] += b && !a;
}

/* `per` blocks are a stage. */
static void add_pair(struct work_counts *to, const struct pair_count *c, int64_t per)
{
    int64_t half = c->own[0] / per + c->own[1] / per;
    add_row(to, ceil_div(c->n, per) - half, half, ceil_div(c->late, per));
}

/* Count the row in the bitmaps and clear them. seen: keys that its first row sees; limit: the last
 * one. Blocks have 64 keys: [0] those of wanted tiles, [1] wanted ones. */
static void count_row(struct mask_work *w, struct counter *c, int64_t seen, int64_t limit)
{
    struct pair_count pair = {0}, slim = {0};
    int64_t n[2] = {0, 0}, late[2] = {0, 0}, tile = -1, partial = 0, keys = 0;
    for (int64_t i = 0; i < c->words; i++) {
        uint64_t a = c->any[0][i], b = c->any[1][i];
        if (!a && !b)
            continue;
        add_block(&pair, a, b, (i + 1) * 64, seen);
        add_block(&slim, (uint32_t)a, (uint32_t)b, i * 64 + 32, seen);
        add_block(&slim, a >> 32, b >> 32, (i + 1) * 64, seen);
        keys += __builtin_popcountll(a | b);
        if (tile == i / 2)
            continue;
        tile = i / 2;
        n[0] += 2;
        late[0] += (tile + 1) * TILE > seen ? 2 : 0;
        partial += c->missing[2 * tile] || c->missing[2 * tile + 1];
    }
    memset(c->any[0], 0, (size_t)(3 * c->words) * sizeof *c->missing);
    work_add_tiles(w, &(struct accel_tile_row){(int32_t)n[0] / 2, partial, keys}, 1);
    n[1] = pair.n;
    late[1] = pair.late;
    n[0] -= 2 * tile + 2 == c->words && tile * TILE + 64 >= limit; /* no key in its second block */
    for (int i = WORK_128x128; i <= WORK_WIDE_128x64; i++) {
        int64_t per = i < WORK_WIDE_128x128 ? 2 : 3;
        add_row(w->of + i, ceil_div(n[i % 2], per), 0, ceil_div(late[i % 2], per));
    }
    add_pair(&w->of[WORK_64x64], &pair, 2);
    add_pair(&w->of[WORK_64x32], &slim, 4);
}

/* Mark rows [from, to), of one half of a tile. */
static void mark_rows(struct counter *c, const struct mask *m, int64_t from, int64_t to)
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

int work_add(struct mask_work *w, const struct mask *m, struct err *err)
{
    struct counter c = {.words = ceil_div(m->nk, TILE) * 2};
    bool full = m->form == MASK_FULL, lists = m->form == MASK_LISTS;
    int rc = 0;
    w->unit_q = gcd(lists ? m->bq : !full, w->unit_q);
    w->unit_k = gcd(lists ? m->bk : !full, w->unit_k);
    TRY(mem_zalloc(&c.any[0], 3 * c.words, sizeof *c.missing, "work of a mask", err));
    TRY(mem_zalloc(&c.spans, mask_max_spans(m), sizeof *c.spans, "mask spans", err));
    c.any[1] = c.any[0] + c.words;
    c.missing = c.any[1] + c.words;
    for (int64_t row = m->row0; row < m->row1; row += TILE) {
        int64_t middle = MIN(row + TILE / 2, m->row1), end = MIN(row + TILE, m->row1);
        mark_rows(&c, m, row, middle);
        mark_rows(&c, m, middle, end);
        count_row(w, &c, mask_limit(m, row), mask_limit(m, end - 1));
    }
out:
    free(c.any[0]);
    free(c.spans);
    return rc;
}

void work_add_tiles(struct mask_work *w, const struct accel_tile_row *t, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++) {
        add_row(&w->of[WORK_BITS], t[i].tiles, 0, t[i].partial);
        add_row(&w->of[WORK_GATHER], ceil_div(t[i].keys, TILE), 0, 0);
    }
}

void work_join(struct mask_work *w, const struct mask_work *more)
{
    w->unit_q = gcd(more->unit_q, w->unit_q);
    w->unit_k = gcd(more->unit_k, w->unit_k);
    for (int i = 0; i < WORK_LISTS; i++)
        work_counts_join(w->of + i, more->of + i);
}

int work_record(const struct mask_work *w, int64_t d, struct record *r, struct err *err)
{
    static const char *const lists[WORK_LISTS] = {"128x128", "128x64", "128x128", "128x64",
                                                  "64x64",   "64x32",  "bits",    "gather"};
    bool fine = w->unit_q % 64 || w->unit_k % 64;
    bool slim = fine && w->unit_q % 64 == 0 && w->unit_k % 32 == 0 && (d == 64 || d == 128);
    int first = slim              ? WORK_64x32
                : fine            ? WORK_BITS
                : w->unit_q % 128 ? WORK_64x64
                                  : (w->unit_k % 128 != 0) + (d == 64 ? WORK_WIDE_128x128 : 0);
    for (int i = first; i <= first + fine && w->unit_q; i++) {
        double n[WORK_COUNTS];
        memcpy(n, w->of + i, sizeof n);
        for (int k = 0; k < WORK_COUNTS; k++) {
            char name[METRIC_NAME];
            snprintf(name, sizeof name, "work_%s@%s", work_names[k], lists[i]);
            PASS_ON(record_metric(r, name, n[k], err));
        }
    }
    return 0;
}
