/*
 * metrics_tiles.c - which tiles of 256 x 128 a metrics pass visits, cut into items of about equal
 * length (metrics.h).
 */
#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ITEMS_PER_SM 32 /* what the last item leaves idle is then 1 to 2 % */
#define ITEM_MIN 32     /* tiles: a shorter one does not pay for its queries */
#define ITEM_MAX 4096   /* tiles: counters of 16 bits */

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

/* Rows longer than `most` become pieces of equal length. */
static int cut_items(const int64_t *len, int64_t rows, int64_t most, struct metrics_plan *plan,
                     struct err *err)
{
    int64_t cap = 0;
    int rc = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t pieces = ceil_div(len[r], most);
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

int metrics_plan_make(const struct attn_problem *p, int sms, struct metrics_plan *plan,
                      struct err *err)
{
    int64_t rows = ceil_div(p->nq, METRICS_BM), total = 0, most;
    int64_t *len = NULL;
    int rc = 0;

    memset(plan, 0, sizeof *plan);
    if (p->nk > INT32_MAX / 4 || p->nq > INT32_MAX / 4)
        FAIL(err, ERR_RUN, "metrics of %lld x %lld tokens are too large for one pass",
             (long long)p->nq, (long long)p->nk);
    TRY(mem_alloc(&len, rows, sizeof *len, "tiles per row", err));
    for (int64_t r = 0; r < rows; r++)
        total += len[r] = allowed_tiles(p, r);
    most = ceil_div(total, (int64_t)sms * ITEMS_PER_SM);
    most = most < ITEM_MIN ? ITEM_MIN : most > ITEM_MAX ? ITEM_MAX : most;
    TRY(cut_items(len, rows, most, plan, err));
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

double metrics_kept(double lse, double dense_lse)
{
    double kept = lse == -INFINITY ? 0 : exp(lse - dense_lse);
    return kept > 1 ? 1 : kept; /* NaN stays */
}

void metrics_norm(double lse, float norm[2])
{
    double exact = lse * M_LOG2E;
    norm[0] = lse == -INFINITY ? INFINITY : (float)exact;
    norm[1] = lse == -INFINITY ? 0 : (float)exp2((double)norm[0] - exact);
}
