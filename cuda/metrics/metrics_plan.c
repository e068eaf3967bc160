/*
 * metrics_plan.c - the tiles of 256 x 128 of a metrics pass and their work items, which are those
 * of a dense attention launch over the same tiles (metrics_plan.h).
 */
#include "cuda/metrics/metrics_plan.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define ITEM_MAX 4096 /* tiles: counters of 16 bits */

/* An item in as few pieces as it must have. */
static void add_item(struct metrics_plan *plan, const struct attn_item *it)
{
    int64_t n = it->end - it->beg, pieces = ceil_div(n, ITEM_MAX);
    for (int64_t i = 0; i < pieces; i++)
        plan->items[plan->n_items++] =
            (struct metrics_item){it->row, (int32_t)(it->beg + i * n / pieces),
                                  (int32_t)(it->beg + (i + 1) * n / pieces), 0};
}

int metrics_plan_make(const struct attn_problem *p, int sms, struct metrics_plan *plan,
                      struct err *err)
{
    const struct attn_tile tile = {METRICS_BM, METRICS_BN, 1};
    struct attn_problem head = *p;
    struct attn_plan dense = {0};
    int64_t n = 0;
    int rc = 0;

    memset(plan, 0, sizeof *plan);
    head.heads = head.kv_heads = 1;
    head.lists = ATTN_DENSE;
    if (p->nk > INT32_MAX / 4 || p->nq > INT32_MAX / 4)
        FAIL(err, ERR_RUN, "metrics of %lld x %lld tokens are too large for one pass",
             (long long)p->nq, (long long)p->nk);
    TRY(attn_plan_make(&head, &tile, NULL, sms, &dense, err));
    for (int32_t i = 0; i < dense.n_items; i++)
        n += ceil_div(dense.items[i].end - dense.items[i].beg, ITEM_MAX);
    TRY(mem_alloc(&plan->items, n, sizeof *plan->items, "work items", err));
    for (int32_t i = 0; i < dense.n_items; i++)
        add_item(plan, dense.items + i);
out:
    attn_plan_free(&dense);
    return rc;
}

void metrics_plan_free(struct metrics_plan *plan)
{
    free(plan->items);
    memset(plan, 0, sizeof *plan);
}
