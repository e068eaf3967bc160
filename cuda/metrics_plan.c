/*
 * metrics_plan.c - which tiles of 256 x 128 a metrics pass visits, and into which items the rows of
 * tiles are cut (metrics_plan.h): as few as balance well, because each loads its queries.
 */
#include "core/greedy.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/metrics_plan.h"

#include <stdlib.h>
#include <string.h>

#define ITEM_MIN 16   /* tiles */
#define ITEM_COST 2   /* waiting for its queries, in tiles */
#define ITEM_MAX 4096 /* tiles: counters of 16 bits */

/* Key tiles that hold an allowed pair of row r of tiles. */
static int64_t allowed_tiles(const struct attn_problem *p, int64_t r)
{
    int64_t last = (r + 1) * METRICS_BM < p->nq ? (r + 1) * METRICS_BM : p->nq;
    int64_t keys = p->causal ? last + p->nk - p->nq : p->nk;
    keys = keys < 0 ? 0 : keys < p->nk ? keys : p->nk;
    return ceil_div(keys, METRICS_BN);
}

static int longer_first(const void *x, const void *y)
{
    const struct metrics_item *a = x, *b = y;
    int32_t na = a->end - a->beg, nb = b->end - b->beg;
    if (na != nb)
        return na > nb ? -1 : 1;
    return a->row != b->row ? (a->row < b->row ? -1 : 1) : (a->beg > b->beg) - (a->beg < b->beg);
}

/* How rows are cut. Rows are in the order of their lengths, the longest last: from row `whole` on
 * they stay as they are, before it none has an item of more than `most` tiles. */
struct cut {
    int64_t whole, most;
};

static int64_t pieces_of(const int64_t *len, int64_t r, const struct cut *cut)
{
    return ceil_div(len[r], r < cut->whole ? cut->most : ITEM_MAX);
}

static int cut_items(const int64_t *len, int64_t rows, const struct cut *cut,
                     struct metrics_plan *plan, struct err *err)
{
    int64_t cap = 0;
    int rc = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t pieces = pieces_of(len, r, cut);
        TRY(mem_grow(&plan->items, &cap, plan->n_items + pieces, sizeof *plan->items, "work items",
                     err));
        for (int64_t i = 0; i < pieces; i++)
            plan->items[plan->n_items++] =
                (struct metrics_item){(int32_t)r, (int32_t)(i * len[r] / pieces),
                                      (int32_t)((i + 1) * len[r] / pieces), 0};
    }
    if (plan->n_items)
        qsort(plan->items, (size_t)plan->n_items, sizeof *plan->items, longer_first);
out:
    return rc;
}

/* When the last multiprocessor ends, in tiles, with rows from the longest on. */
static int64_t ends(const int64_t *len, int64_t rows, const struct cut *cut, int sms,
                    int64_t *free_at)
{
    int64_t latest = 0;
    memset(free_at, 0, (size_t)sms * sizeof *free_at);
    for (int64_t r = rows - 1; r >= 0; r--) {
        int64_t pieces = pieces_of(len, r, cut);
        for (int64_t i = 0; i < pieces; i++) {
            int64_t end = greedy_place(free_at, sms, ceil_div(len[r], pieces) + ITEM_COST);
            latest = end > latest ? end : latest;
        }
    }
    return latest;
}

/* From which row on the longest rows make up this many tiles at most. */
static int64_t longest_rows(const int64_t *len, int64_t rows, double tiles)
{
    int64_t sum = 0, r = rows;
    while (r > 0 && (double)(sum += len[r - 1]) <= tiles)
        r--;
    return r;
}

/* The cut that ends first, of some: long rows stay whole, what is left fills the gaps. */
static int best_cut(const int64_t *len, int64_t rows, int sms, struct cut *best, struct err *err)
{
    static const double shares[] = {0, 0.5, 0.75, 0.9, 0.95};
    int64_t total = 0, first = INT64_MAX, *free_at = NULL;
    int rc = 0;

    for (int64_t r = 0; r < rows; r++)
        total += len[r];
    TRY(mem_alloc(&free_at, sms, sizeof *free_at, "schedule", err));
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++)
        for (int per_sm = 16; per_sm <= 144; per_sm *= 3) {
            int64_t most = ceil_div(total, (int64_t)sms * per_sm);
            most = most < ITEM_MIN ? ITEM_MIN : most > ITEM_MAX ? ITEM_MAX : most;
            struct cut cut = {longest_rows(len, rows, shares[k] * (double)total), most};
            int64_t end = ends(len, rows, &cut, sms, free_at);
            if (end < first)
                *best = cut;
            first = end < first ? end : first;
        }
out:
    free(free_at);
    return rc;
}

int metrics_plan_make(const struct attn_problem *p, int sms, struct metrics_plan *plan,
                      struct err *err)
{
    int64_t rows = ceil_div(p->nq, METRICS_BM), *len = NULL;
    struct cut cut = {0};
    int rc = 0;

    memset(plan, 0, sizeof *plan);
    if (p->nk > INT32_MAX / 4 || p->nq > INT32_MAX / 4)
        FAIL(err, ERR_RUN, "metrics of %lld x %lld tokens are too large for one pass",
             (long long)p->nq, (long long)p->nk);
    TRY(mem_alloc(&len, rows, sizeof *len, "tiles per row", err));
    for (int64_t r = 0; r < rows; r++)
        len[r] = allowed_tiles(p, r);
    TRY(best_cut(len, rows, sms, &cut, err));
    TRY(cut_items(len, rows, &cut, plan, err));
out:
    free(len);
    if (rc)
        metrics_plan_free(plan);
    return rc;
}

void metrics_plan_free(struct metrics_plan *plan)
{
    free(plan->items);
    memset(plan, 0, sizeof *plan);
}
