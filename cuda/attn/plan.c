/*
 * plan.c - the order of work items, exchanges at the end, splitting (plan.h). O(n log n) in the
 * number of rows of tiles.
 */
#include "cuda/attn/plan.h"

#include "core/greedy.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/attn/planitems.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the keys and values of a section: half of the 60 MB L2 of an H200. The other half is for
 * queries, outputs and the next section. */
#define SECTION_BYTES (32LL << 20)

/* Cost of pieces besides their items, in stages: partial results go through memory, and another
 * launch combines them (measured on an H200: 100 rows of 47 stages in two pieces each). */
#define COMBINE_COST 6

/* Number of last items per multiprocessor that may change places. With eight, random lists with a
 * tenth of their blocks or more end at the bound; with five they miss it by up to 0.4 %. */
#define FITTED_ITEMS 8

/* A plan that ends at most this many stages after the bound keeps the order of lengths: costs in
 * whole stages are not more exact, and that order corrects by itself what takes longer than
 * planned. */
#define FIT_FROM 2

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
    int32_t section, stages;
    struct attn_item item;
};

static int by_order(const void *x, const void *y)
{
    const struct order_key *a = x, *b = y;
    if (a->section != b->section)
        return a->section < b->section ? -1 : 1;
    if (a->stages != b->stages)
        return a->stages > b->stages ? -1 : 1;
    return a->item.row < b->item.row ? -1 : a->item.row > b->item.row;
}

int64_t attn_section_rows(const struct attn_problem *p, int32_t q_blocks)
{
    int64_t kv = SECTION_BYTES / (p->nk * p->d * 4);
    kv = kv < 1 || (p->lists == ATTN_DENSE && !p->causal) ? 1 : kv;
    return kv * (p->heads / p->kv_heads) * q_blocks;
}

static int order_items(const struct attn_problem *p, struct attn_plan *plan, struct err *err)
{
    struct order_key *keys = NULL;
    int64_t per_section = attn_section_rows(p, plan->q_blocks);
    int rc = mem_alloc(&keys, plan->n_items, sizeof *keys, "work items", err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < plan->n_items; i++)
        keys[i] = (struct order_key){(int32_t)(plan->items[i].row / per_section),
                                     stages_of(plan, plan->items + i), plan->items[i]};
    qsort(keys, (size_t)plan->n_items, sizeof *keys, by_order);
    for (int32_t i = 0; i < plan->n_items; i++)
        plan->items[i] = keys[i].item;
    free(keys);
    return 0;
}

/* ---- balance -------------------------------------------------------------------------------- */

/* Greedy assignment in list order, as the grid does it. Returns the time at which the last
 * multiprocessor ends; finish[i] (may be NULL) = when item i ends. */
static int64_t assign(const struct attn_plan *plan, int sms, int64_t *heap, int64_t *finish)
{
    int64_t latest = 0;
    memset(heap, 0, (size_t)sms * sizeof *heap);
    for (int32_t i = 0; i < plan->n_items; i++) {
        int64_t end = greedy_place(heap, sms, stages_of(plan, plan->items + i) + ITEM_COST);
        if (finish)
            finish[i] = end;
        latest = end > latest ? end : latest;
    }
    return latest;
}

static int64_t total_cost(const struct attn_plan *plan)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < plan->n_items; i++)
        sum += stages_of(plan, plan->items + i) + ITEM_COST;
    return sum;
}

static int longer_first(const void *x, const void *y)
{
    const struct attn_item *a = x, *b = y;
    int32_t na = a->end - a->beg, nb = b->end - b->beg;
    if (na != nb)
        return na > nb ? -1 : 1;
    return a->slot < b->slot ? -1 : a->slot > b->slot;
}

static int earlier(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

/* State of the cut: what is left of the gap of multiprocessor `at`. */
struct gaps {
    const int64_t *free_at; /* ascending, one per multiprocessor */
    int64_t level, left;
    int at, sms;
};

static void next_gap(struct gaps *g)
{
    if (g->at < g->sms - 1)
        g->at++;
    g->left = g->level - g->free_at[g->at] - ITEM_COST;
    g->left = g->left < MIN_PIECE ? MIN_PIECE : g->left;
}

/* Cut an item from its end, where its order begins, into pieces that fill gap after gap. A rest too
 * short for a piece of its own goes with the piece before it. */
static void cut(struct attn_plan *plan, struct attn_item it, struct gaps *g, struct attn_item *to,
                int32_t *n)
{
    struct attn_split *s = plan->splits + plan->n_splits;
    *s = (struct attn_split){it.row, plan->n_slots, 0};
    for (int32_t end = it.end; end > it.beg;) {
        int32_t stages = (int32_t)ceil_div(end - it.beg, plan->tile.units);
        int32_t take_n = g->left + MIN_PIECE > stages ? stages : (int32_t)g->left;
        int32_t odd = (end - it.beg) % plan->tile.units; /* alone in the first stage */
        int32_t beg = end - take_n * plan->tile.units + (odd ? plan->tile.units - odd : 0);
        beg = beg < it.beg ? it.beg : beg;
        to[(*n)++] = (struct attn_item){it.row, beg, end, plan->n_slots + s->n++};
        end = beg;
        g->left -= take_n + ITEM_COST;
        if (g->left < MIN_PIECE)
            next_gap(g);
    }
    if (s->n == 1) {
        to[*n - 1].slot = -1;
        return;
    }
    plan->n_slots += s->n;
    plan->n_splits++;
}

/* When a plan ends; one that ends late after items at its end changed places, so that
 * multiprocessors end together without a cut. `heap` is scratch. */
static int fit_end(struct attn_plan *plan, int64_t bound, int sms, int64_t *heap, int64_t *ends,
                   struct err *err)
{
    struct attn_item *items = NULL;
    int64_t *cost = NULL;
    int32_t *order = NULL;
    int rc = 0;

    *ends = assign(plan, sms, heap, NULL);
    if (*ends <= bound + FIT_FROM)
        return 0;
    TRY(mem_alloc(&items, plan->n_items, sizeof *items, "work items", err));
    TRY(mem_alloc(&cost, plan->n_items, sizeof *cost, "schedule", err));
    TRY(mem_alloc(&order, plan->n_items, sizeof *order, "schedule", err));
    for (int32_t i = 0; i < plan->n_items; i++)
        cost[i] = stages_of(plan, plan->items + i) + ITEM_COST;
    TRY(greedy_interchange(cost, plan->n_items, sms, FITTED_ITEMS * sms, order, ends, err));
    for (int32_t i = 0; i < plan->n_items; i++)
        items[i] = plan->items[order[i]];
    memcpy(plan->items, items, (size_t)plan->n_items * sizeof *items);
out:
    free(items);
    free(cost);
    free(order);
    return rc;
}

/* Split every item that ends after the bound, so that the pieces fill what the others leave free of
 * each multiprocessor and `slack` stages more; they go last, longest first, but for what fit_end()
 * exchanges. *ends: when that ends. `heap` is scratch. */
static int split_late(struct attn_plan *plan, int64_t bound, const int64_t *finish, int sms,
                      int slack, int64_t *heap, struct attn_plan *out, int64_t *ends,
                      struct err *err)
{
    int rc = 0;
    int64_t work = 0, pieces = 0, late = 0;
    int32_t n_piece = 0;

    for (int32_t i = 0; i < plan->n_items; i++)
        if (finish[i] > bound) {
            int32_t n = stages_of(plan, plan->items + i);
            late++;
            work += n + ITEM_COST;
            pieces += n / MIN_PIECE + 1;
        }
    *out = *plan;
    out->items = NULL;
    out->splits = NULL;
    TRY(mem_alloc(&out->items, plan->n_items + pieces, sizeof *out->items, "work items", err));
    TRY(mem_alloc(&out->splits, late + 1, sizeof *out->splits, "split rows", err));
    out->n_items = 0;
    for (int32_t i = 0; i < plan->n_items; i++)
        if (finish[i] <= bound)
            out->items[out->n_items++] = plan->items[i];
    assign(out, sms, heap, NULL);
    qsort(heap, (size_t)sms, sizeof *heap, earlier); /* when whole items leave each free */
    for (int i = 0; i < sms; i++)
        work += heap[i];
    struct gaps g = {heap, ceil_div(work, sms) + slack, 0, -1, sms};
    next_gap(&g);
    for (int32_t i = 0; i < plan->n_items; i++)
        if (finish[i] > bound)
            cut(out, plan->items[i], &g, out->items + out->n_items, &n_piece);
    qsort(out->items + out->n_items, (size_t)n_piece, sizeof *out->items, longer_first);
    out->n_items += n_piece;
    TRY(fit_end(out, bound, sms, heap, ends, err));
out:
    if (rc) {
        free(out->items);
        free(out->splits);
    }
    return rc;
}

/* Fit the end of the plan, and take the split plan that ends first, if that pays for combining.
 * Each cut adds an item, and pieces are whole stages: how much slack lets the greedy order place
 * them all is found by trying. */
static int balance(struct attn_plan *plan, int sms, bool split, struct err *err)
{
    struct attn_plan best = *plan;
    int64_t *heap = NULL, *finish = NULL, ends;
    int rc = 0;

    plan->balance = 1;
    if (plan->n_items == 0)
        return 0;
    TRY(mem_alloc(&heap, sms, sizeof *heap, "schedule", err));
    TRY(mem_alloc(&finish, plan->n_items, sizeof *finish, "schedule", err));
    int64_t bound = ceil_div(total_cost(plan), sms);
    TRY(fit_end(plan, bound, sms, heap, &ends, err));
    int64_t first = ends - COMBINE_COST;
    if (split && first > bound)
        assign(plan, sms, heap, finish);
    for (int slack = 0; slack < 4 && split && first > bound; slack++) {
        struct attn_plan cand = {0};
        int64_t cand_ends;
        TRY(split_late(plan, bound, finish, sms, slack, heap, &cand, &cand_ends, err));
        bool better = cand_ends < first;
        struct attn_plan *worse = better ? &best : &cand;
        if (worse->items != plan->items) {
            free(worse->items);
            free(worse->splits);
        }
        if (better) {
            best = cand;
            ends = first = cand_ends;
        }
    }
    plan->balance = (double)ends / (double)bound;
out:
    if (best.items != plan->items) {
        best.balance = plan->balance;
        free(plan->items);
        free(plan->splits);
        *plan = best;
    }
    free(heap);
    free(finish);
    return rc;
}

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

/* A plan without items, with room for one of each row of tiles. */
static int begin_plan(const struct attn_problem *p, const struct attn_tile *tile,
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

    TRY(begin_plan(p, tile, csr, plan, err));
    TRY(plan_items(p, csr, plan, err));
    plan->masked_units = plan_masked_units(p, plan);
    TRY(order_items(p, plan, err));
    TRY(balance(plan, sms, split, err));
out:
    if (rc)
        attn_plan_free(plan);
    return rc;
}

/* ---- by rows -------------------------------------------------------------------------------- */

/* Piece k of an item of so many stages; pieces go from its end to its beginning. */
static struct attn_item piece_of(const struct attn_plan *plan, struct attn_item it, int32_t pieces,
                                 int32_t k, int32_t slot)
{
    int64_t units = it.end - it.beg, n = stages_of(plan, &it), from = pieces - 1 - k;
    int per_stage = plan->tile.units;
    return (struct attn_item){
        it.row, it.beg + (int32_t)attn_piece_begin(units, n, per_stage, pieces, from),
        it.beg + (int32_t)attn_piece_begin(units, n, per_stage, pieces, from + 1), slot};
}

/* Cut items, each into pieces that differ by one stage at most. */
static int cut_rows(struct attn_plan *plan, int sms, struct err *err)
{
    struct attn_item *whole = plan->items, *items = NULL;
    int64_t all = total_cost(plan), left = all;
    int32_t n_whole = plan->n_items;
    int rc = 0;

    TRY(mem_alloc(&items, attn_row_items(n_whole, sms), sizeof *items, "work items", err));
    TRY(mem_alloc(&plan->splits, n_whole, sizeof *plan->splits, "split rows", err));
    plan->n_items = 0;
    for (int32_t i = 0; i < n_whole; i++) {
        int64_t n = stages_of(plan, whole + i);
        int32_t pieces = attn_row_pieces(n, left, all, sms);
        for (int32_t k = 0; k < pieces; k++)
            items[plan->n_items++] =
                piece_of(plan, whole[i], pieces, k, pieces > 1 ? plan->n_slots + k : -1);
        if (pieces > 1) {
            plan->splits[plan->n_splits++] =
                (struct attn_split){whole[i].row, plan->n_slots, pieces};
            plan->n_slots += pieces;
        }
        left -= n + ITEM_COST;
    }
    free(whole);
    plan->items = items;
out:
    if (rc)
        free(items);
    return rc;
}

int64_t attn_row_room(const struct attn_problem *p, const struct attn_tile *tile)
{
    return ceil_div(p->nk, attn_block_keys(p->lists, tile));
}

int attn_plan_begin(const struct attn_problem *p, const struct attn_tile *tile,
                    const struct attn_csr *csr, struct attn_plan *plan, struct err *err)
{
    int rc = begin_plan(p, tile, csr, plan, err);
    if (rc)
        return rc;
    plan->masked_units = plan_masked_units(p, plan);
    if (csr) {
        plan->blocks = csr->ptr[(int64_t)p->heads * plan->q_blocks];
        plan->lists = *csr;
    }
    return 0;
}

/* A cut row costs ITEM_COST for every piece; in the bound it does so once. */
int attn_plan_rate(struct attn_plan *plan, int sms, struct err *err)
{
    int64_t *heap = NULL, cost = total_cost(plan) - (plan->n_slots - plan->n_splits) * ITEM_COST;
    int rc = 0;
    plan->balance = 1;
    if (plan->n_items == 0)
        return 0;
    TRY(mem_alloc(&heap, sms, sizeof *heap, "schedule", err));
    plan->balance = (double)assign(plan, sms, heap, NULL) / (double)ceil_div(cost, sms);
out:
    free(heap);
    return rc;
}

/* Give the entries of every row the same room. */
static int spread_rows(const struct attn_problem *p, struct attn_plan *plan, struct err *err)
{
    int64_t room = attn_row_room(p, &plan->tile), n = p->heads * plan->q_blocks * room;
    int32_t per_block = plan_units_per_block(p, &plan->tile), *cols = NULL;
    int rc = mem_zalloc(&cols, n, sizeof *cols, "block lists", err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < plan->n_items; i++) {
        struct attn_item *it = plan->items + i;
        int32_t units = it->end - it->beg;
        memcpy(cols + it->row * room, plan->cols + it->beg / per_block,
               (size_t)ceil_div(units, per_block) * sizeof *cols);
        it->beg = (int32_t)(it->row * room * per_block);
        it->end = it->beg + units;
    }
    free(plan->cols);
    plan->cols = cols;
    plan->n_cols = n;
    return 0;
}

int attn_plan_rows(const struct attn_problem *p, const struct attn_tile *tile,
                   const struct attn_csr *csr, int tail, int sms, struct attn_plan *plan,
                   struct err *err)
{
    int rc = 0;
    TRY(begin_plan(p, tile, csr, plan, err));
    if (tail < 0)
        TRY(plan_items(p, csr, plan, err));
    else
        TRY(plan_filtered_items(p, csr, tail, plan, err));
    plan->masked_units = tail < 0 ? plan_masked_units(p, plan) : 1;
    if (plan->cols)
        TRY(spread_rows(p, plan, err));
    TRY(order_items(p, plan, err));
    if (tail < 0)
        TRY(cut_rows(plan, sms, err));
    TRY(attn_plan_rate(plan, sms, err));
out:
    if (rc)
        attn_plan_free(plan);
    return rc;
}

/* ---- with a filter -------------------------------------------------------------------------- */

int attn_plan_filtered(const struct attn_problem *p, const struct attn_tile *tile,
                       const struct attn_csr *csr, int tail, int sms, struct attn_plan *plan,
                       struct err *err)
{
    int rc = 0;

    TRY(begin_plan(p, tile, csr, plan, err));
    plan->masked_units = 1;
    TRY(plan_filtered_items(p, csr, tail, plan, err));
    TRY(order_items(p, plan, err));
    TRY(balance(plan, sms, false, err));
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
