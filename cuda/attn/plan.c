/*
 * plan.c - the order of work items and how they are cut (plan.h). O(n log n) in the number of rows
 * of tiles.
 */
#include "cuda/attn/plan.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/attn/planitems.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the keys and values of a section: half of the 60 MB L2 of an H200. The other half is for
 * queries, outputs and the next section. */
#define SECTION_BYTES (32LL << 20)

int attn_block_rows(enum attn_lists lists, const struct attn_tile *tile)
{
    bool half = lists == ATTN_64x64 || lists == ATTN_64x128;
    return lists == ATTN_DENSE ? tile->bm : half ? 64 : 128;
}

int attn_block_keys(enum attn_lists lists, const struct attn_tile *tile)
{
    bool wide =
        lists == ATTN_128x128 || lists == ATTN_BITS || lists == ATTN_GATHER || lists == ATTN_64x128;
    return lists == ATTN_DENSE ? tile->bn : wide ? 128 : 64;
}

static int32_t stages_of(const struct attn_plan *plan, const struct attn_item *it)
{
    return (it->end - it->beg + plan->tile.units - 1) / plan->tile.units;
}

/* ---- order ---------------------------------------------------------------------------------- */

struct order_key {
    int32_t section, stages, place;
    struct attn_item item;
};

static int by_order(const void *x, const void *y)
{
    const struct order_key *a = x, *b = y;
    if (a->section != b->section)
        return a->section < b->section ? -1 : 1;
    if (a->stages != b->stages)
        return a->stages > b->stages ? -1 : 1;
    return a->place < b->place ? -1 : a->place > b->place;
}

int64_t attn_section_rows(const struct attn_problem *p, int32_t q_blocks)
{
    int64_t kv = SECTION_BYTES / (p->nk * p->d * 4);
    kv = kv < 1 || (p->lists == ATTN_DENSE && !p->causal) ? 1 : kv;
    return kv * (p->heads / p->kv_heads) * q_blocks;
}

/* Items from `from` on, the longest of each section first. */
static int order_items(struct attn_plan *plan, int32_t from, int64_t section_rows, struct err *err)
{
    struct attn_item *items = plan->items + from;
    int32_t n = plan->n_items - from;
    struct order_key *keys = NULL;
    int rc = mem_alloc(&keys, n, sizeof *keys, "work items", err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < n; i++)
        keys[i] = (struct order_key){(int32_t)(items[i].row / section_rows),
                                     stages_of(plan, items + i), i, items[i]};
    qsort(keys, (size_t)n, sizeof *keys, by_order);
    for (int32_t i = 0; i < n; i++)
        items[i] = keys[i].item;
    free(keys);
    return 0;
}

/* ---- cuts ----------------------------------------------------------------------------------- */

static int64_t cost_of(const struct attn_plan *plan, const struct attn_item *it)
{
    return stages_of(plan, it) + ITEM_COST;
}

static int64_t total_cost(const struct attn_plan *plan)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < plan->n_items; i++)
        sum += cost_of(plan, plan->items + i);
    return sum;
}

/* The first item that would end late, n_items: there is none; *left: cost of all from it on. */
static int32_t first_late(const struct attn_plan *plan, int sms, int64_t *left)
{
    int64_t before = total_cost(plan), last = 0;
    *left = before;
    for (int32_t i = 0; i < plan->n_items; i++) {
        int64_t own = cost_of(plan, plan->items + i);
        if (attn_row_late(i, own, last, *left, before, sms))
            return i;
        before = i % sms ? before : *left;
        *left -= own;
        last = own;
    }
    return plan->n_items;
}

/* An item's pieces, from its end to its beginning. */
static void add_pieces(struct attn_plan *plan, struct attn_item it, struct attn_line line,
                       struct attn_cut cut)
{
    int64_t units = it.end - it.beg;
    for (int32_t k = cut.pieces - 1; k >= 0; k--) {
        int64_t beg = attn_piece_begin(line, cut, k, units, plan->tile.units);
        int64_t end = attn_piece_begin(line, cut, k + 1, units, plan->tile.units);
        int32_t slot = cut.pieces > 1 ? plan->n_slots + cut.pieces - 1 - k : -1;
        plan->items[plan->n_items++] =
            (struct attn_item){it.row, it.beg + (int32_t)beg, it.beg + (int32_t)end, slot};
    }
    if (cut.pieces > 1) {
        plan->splits[plan->n_splits++] = (struct attn_split){it.row, plan->n_slots, cut.pieces};
        plan->n_slots += cut.pieces;
    }
}

/* From the first item on that would end late: cut the rest, and order it by length alone. */
static int cut_items(struct attn_plan *plan, int sms, struct err *err)
{
    struct attn_item *whole = plan->items, *items = NULL;
    int64_t left, at = 0;
    int32_t n = plan->n_items, first = first_late(plan, sms, &left);
    int rc = 0;

    if (first == n)
        return 0;
    TRY(mem_alloc(&items, attn_most_items(n, sms), sizeof *items, "work items", err));
    TRY(mem_alloc(&plan->splits, n - first, sizeof *plan->splits, "split rows", err));
    memcpy(items, whole, (size_t)first * sizeof *items);
    plan->items = items;
    plan->n_items = first;
    struct attn_line line = attn_line_of(left - (n - first) * ITEM_COST, sms);
    for (int32_t i = first; i < n; i++) {
        int32_t stages = stages_of(plan, whole + i);
        add_pieces(plan, whole[i], line, attn_row_cut(line, at, stages));
        at += stages;
    }
    free(whole);
    items = NULL;
    TRY(order_items(plan, first, INT64_MAX, err));
out:
    free(items);
    return rc;
}

/* ---- balance -------------------------------------------------------------------------------- */

/* List scheduling (Graham 1966), as the grid does it: a job of this cost goes to the worker that is
 * free first. free_at[workers] is a binary heap. Returns when the job ends. */
static int64_t place(int64_t *free_at, int workers, int64_t cost)
{
    int64_t end = free_at[0] + cost;
    int i = 0;
    for (int child = 1; child < workers; child = 2 * i + 1) {
        if (child + 1 < workers && free_at[child + 1] < free_at[child])
            child++;
        if (free_at[child] >= end)
            break;
        free_at[i] = free_at[child];
        i = child;
    }
    free_at[i] = end;
    return end;
}

/* A cut row costs ITEM_COST for every piece; in the bound it does so once. */
int attn_plan_rate(struct attn_plan *plan, int sms, struct err *err)
{
    int64_t *free_at = NULL, latest = 0;
    int64_t cost = total_cost(plan) - (plan->n_slots - plan->n_splits) * ITEM_COST;
    int rc = 0;
    plan->balance = 1;
    if (plan->n_items == 0)
        return 0;
    TRY(mem_zalloc(&free_at, sms, sizeof *free_at, "schedule", err));
    for (int32_t i = 0; i < plan->n_items; i++) {
        int64_t end = place(free_at, sms, cost_of(plan, plan->items + i));
        latest = end > latest ? end : latest;
    }
    plan->balance = (double)latest / (double)ceil_div(cost, sms);
out:
    free(free_at);
    return rc;
}

/* ---- plans ---------------------------------------------------------------------------------- */

/* Counts are 32-bit, and kernels keep a tile's head and query block in one word. */
static int check_size(const struct attn_problem *p, int bm, int64_t rows,
                      const struct attn_csr *csr, int64_t lists, struct err *err)
{
    const int64_t max_queries = (UINT16_MAX + 1LL) * bm;
    if (p->heads > INT16_MAX || p->nq > max_queries)
        return err_set(
            err, ERR_RUN,
            "attention of %d heads over %lld queries is too large for one launch (at most "
            "%d heads, %lld queries)",
            p->heads, (long long)p->nq, INT16_MAX, (long long)max_queries);
    if (rows > INT32_MAX / 2 || p->nk > INT32_MAX / 4 || (csr && csr->ptr[lists] > INT32_MAX / 4))
        return err_set(err, ERR_RUN,
                       "attention of %d heads over %lld keys is too large for one launch", p->heads,
                       (long long)p->nk);
    return 0;
}

int attn_plan_begin(const struct attn_problem *p, const struct attn_tile *tile,
                    const struct attn_csr *csr, struct attn_plan *plan, struct err *err)
{
    int rc = 0;
    int64_t blocks = ceil_div(p->nq, tile->bm), rows;
    int64_t lists = csr ? p->heads * ceil_div(p->nq, attn_block_rows(p->lists, tile)) : 0;

    memset(plan, 0, sizeof *plan);
    plan->tile = *tile;
    rows = mul_ok(p->heads, blocks, &rows) ? rows : INT64_MAX;
    TRY(check_size(p, tile->bm, rows, csr, lists, err));
    plan->q_blocks = (int32_t)blocks;
    plan->masked_units = plan_masked_units(p, plan);
    if (csr) {
        plan->blocks = csr->ptr[lists];
        plan->lists = *csr;
    }
    TRY(mem_alloc(&plan->items, rows, sizeof *plan->items, "work items", err));
    TRY(mem_alloc(&plan->empty, rows, sizeof *plan->empty, "empty rows", err));
out:
    return rc;
}

int attn_plan_make(const struct attn_problem *p, const struct attn_tile *tile,
                   const struct attn_csr *csr, int sms, bool split, struct attn_plan *plan,
                   struct err *err)
{
    int rc = 0;

    TRY(attn_plan_begin(p, tile, csr, plan, err));
    TRY(plan_items(p, csr, plan, err));
    TRY(order_items(plan, 0, attn_section_rows(p, plan->q_blocks), err));
    if (split)
        TRY(cut_items(plan, sms, err));
    TRY(attn_plan_rate(plan, sms, err));
out:
    if (rc)
        attn_plan_free(plan);
    return rc;
}

int attn_plan_filtered(const struct attn_problem *p, const struct attn_tile *tile,
                       const struct attn_csr *csr, int tail, int sms, struct attn_plan *plan,
                       struct err *err)
{
    int rc = 0;

    TRY(attn_plan_begin(p, tile, csr, plan, err));
    plan->masked_units = 1;
    TRY(plan_filtered_items(p, csr, tail, plan, err));
    TRY(order_items(plan, 0, attn_section_rows(p, plan->q_blocks), err));
    TRY(attn_plan_rate(plan, sms, err));
out:
    if (rc)
        attn_plan_free(plan);
    return rc;
}

void attn_plan_free(struct attn_plan *plan)
{
    free(plan->items);
    free(plan->cols);
    free(plan->splits);
    free(plan->empty);
    memset(plan, 0, sizeof *plan);
}
