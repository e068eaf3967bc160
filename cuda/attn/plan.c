/*
 * plan.c - rows of tiles become work items, with the entries that kernels read of block lists: of
 * two rows the union, with who wants each block. Then the order of the items and how they are cut
 * (plan.h). O(n log n) in the number of rows of tiles.
 */
#include "cuda/attn/plan.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of the keys and values of a section: half of the 60 MB L2 of an H200. The other half is for
 * queries, outputs and the next section. */
#define SECTION_BYTES (32LL << 20)

int attn_block_rows(enum attn_lists lists, const struct attn_tile *tile)
{
    bool half = lists == ATTN_64x64 || lists == ATTN_64x32 || lists == ATTN_64x128;
    return lists == ATTN_DENSE ? tile->bm : half ? 64 : 128;
}

int attn_block_keys(enum attn_lists lists, const struct attn_tile *tile)
{
    bool wide =
        lists == ATTN_128x128 || lists == ATTN_BITS || lists == ATTN_GATHER || lists == ATTN_64x128;
    return lists == ATTN_DENSE ? tile->bn : wide ? 128 : lists == ATTN_64x32 ? 32 : 64;
}

/* ---- items ---------------------------------------------------------------------------------- */

/* Keys that a row of tiles sees some of. */
static int64_t keys_of(const struct attn_problem *p, const struct attn_tile *t, int64_t block)
{
    int64_t last = (block + 1) * t->bm < p->nq ? (block + 1) * t->bm : p->nq;
    int64_t keys = p->causal ? last + p->nk - p->nq : p->nk;
    return keys < 0 ? 0 : keys > p->nk ? p->nk : keys;
}

/* An item of a row, or an empty row. `plan` has room for one of each row. */
static void add_item(struct attn_plan *plan, int32_t row, int64_t beg, int64_t end)
{
    if (beg == end)
        plan->empty[plan->n_empty++] = row;
    else
        plan->items[plan->n_items++] = (struct attn_item){row, (int32_t)beg, (int32_t)end, -1};
}

static void dense_items(const struct attn_problem *p, struct attn_plan *plan)
{
    for (int32_t h = 0; h < p->heads; h++)
        for (int32_t b = 0; b < plan->q_blocks; b++) {
            int32_t n = (int32_t)ceil_div(keys_of(p, &plan->tile, b), plan->tile.bn);
            plan->blocks += n;
            add_item(plan, h * plan->q_blocks + b, 0, n);
        }
}

int attn_units_per_block(const struct attn_problem *p, const struct attn_tile *t)
{
    return attn_block_keys(p->lists, t) * t->units / t->bn;
}

/* Units, from the end of a row's list, that may hold keys which some row of the tile does not see:
 * the ragged last one; causal, those of the blocks that the diagonal crosses. */
static int32_t masked_units(const struct attn_problem *p, const struct attn_plan *plan)
{
    int keys = attn_block_keys(p->lists, &plan->tile), most = 1;
    if (!p->causal)
        return 1;
    int64_t from = p->nq > p->nk ? (p->nq - p->nk) / plan->tile.bm : 0; /* rows with a key */
    for (int64_t b = from; b < plan->q_blocks && b < from + keys; b++) {
        int64_t first = b * plan->tile.bm + p->nk - p->nq + 1, last = first + plan->tile.bm - 2;
        if (last < 0)
            continue;
        int64_t blocks = last / keys - (first < 0 ? 0 : first / keys) + 1;
        most = blocks > most ? (int)blocks : most;
    }
    return most * attn_units_per_block(p, &plan->tile);
}

/* Where pairs of lists are put together: blocks that either row wants, a bit each, and room for the
 * entries of each kind. */
struct pairing {
    uint64_t *wants[2];
    int64_t words;
    int32_t *kinds[3];
};

static int pairing_init(struct pairing *x, int64_t blocks, struct err *err)
{
    *x = (struct pairing){.words = ceil_div(blocks, 64)};
    for (int i = 0; i < 2; i++)
        PASS_ON(mem_zalloc(&x->wants[i], x->words, sizeof(uint64_t), "block lists", err));
    for (int k = 0; k < 3; k++)
        PASS_ON(mem_alloc(&x->kinds[k], blocks, sizeof(int32_t), "block lists", err));
    return 0;
}

static void pairing_free(struct pairing *x)
{
    for (int i = 0; i < 2; i++)
        free(x->wants[i]);
    for (int k = 0; k < 3; k++)
        free(x->kinds[k]);
}

/* Union of the lists of two 64-row blocks, rows[i] to rows[i + 1]; bits 30 and 31 of an entry say
 * who wants it. By bits: which of two lists goes on is a branch that nothing predicts. */
static int64_t merge_pair(struct pairing *x, const int32_t *const rows[3], int32_t *out)
{
    int64_t n = 0;
    for (int i = 0; i < 2; i++)
        for (const int32_t *col = rows[i]; col < rows[i + 1]; col++)
            x->wants[i][*col / 64] |= UINT64_C(1) << *col % 64;
    for (int64_t w = 0; w < x->words; w++) {
        uint64_t first = x->wants[0][w], second = x->wants[1][w];
        for (uint64_t left = first | second; left; left &= left - 1) {
            int bit = __builtin_ctzll(left);
            uint32_t col = (uint32_t)(w * 64 + bit);
            out[n++] = (int32_t)(col | (uint32_t)(first >> bit & 1) << 30 |
                                 (uint32_t)(second >> bit & 1) << 31);
        }
        x->wants[0][w] = x->wants[1][w] = 0;
    }
    return n;
}

/* Entries of one kind that still have to be placed. */
struct kind {
    const int32_t *e;
    int64_t n;
};

static int64_t take(struct kind *k, int64_t n, int32_t *out)
{
    n = n < k->n ? n : k->n;
    memcpy(out, k->e, (size_t)n * sizeof *out);
    k->e += n;
    k->n -= n;
    return n;
}

/* Order the entries of a pair list, `n` of them, so that the `per` blocks of a stage are wanted by
 * the same warpgroups as far as possible: a stage that is wanted in part costs a warpgroup as much
 * as a full one. Stages for one warpgroup alternate with stages for the other, so that both have
 * work. The last `fixed` entries stay where they are: only they may need masking. */
static void arrange_pairs(struct pairing *x, int32_t *e, int64_t n, int64_t fixed, int per)
{
    int64_t count[3] = {0, 0, 0}, at = 0;
    struct kind kinds[3];
    n -= fixed;
    if (n <= 0)
        return;
    n -= n % per;
    for (int64_t i = 0; i < n; i++) {
        int k = (int)((uint32_t)e[i] >> 30) - 1;
        x->kinds[k][count[k]++] = e[i];
    }
    for (int k = 0; k < 3; k++)
        kinds[k] = (struct kind){x->kinds[k], count[k]};
    while (kinds[2].n >= per)
        at += take(&kinds[2], per, e + at);
    while (kinds[0].n >= per || kinds[1].n >= per) {
        at += kinds[0].n >= per ? take(&kinds[0], per, e + at) : 0;
        at += kinds[1].n >= per ? take(&kinds[1], per, e + at) : 0;
    }
    for (int k = 0; k < 3; k++)
        at += take(&kinds[k], count[k], e + at);
}

static int pair_items(const struct attn_problem *p, const struct attn_csr *csr,
                      struct attn_plan *plan, struct err *err)
{
    int64_t blocks = ceil_div(p->nq, 64), n = csr->ptr[p->heads * blocks], at = 0;
    int32_t fixed = masked_units(p, plan);
    struct pairing x;
    int rc = pairing_init(&x, ceil_div(p->nk, attn_block_keys(p->lists, &plan->tile)), err);
    if (!rc)
        rc = mem_alloc(&plan->cols, n, sizeof(int32_t), "block lists", err);
    for (int32_t h = 0; h < p->heads && !rc; h++)
        for (int32_t b = 0; b < plan->q_blocks; b++) {
            const int64_t *r = csr->ptr + h * blocks + 2 * b;
            const int32_t *rows[3] = {csr->col + r[0], csr->col + r[1],
                                      csr->col + (2 * b + 1 < blocks ? r[2] : r[1])};
            int64_t got = merge_pair(&x, rows, plan->cols + at);
            arrange_pairs(&x, plan->cols + at, got, fixed, plan->tile.units);
            add_item(plan, h * plan->q_blocks + b, at, at + got);
            at += got;
        }
    pairing_free(&x);
    plan->n_cols = at;
    return rc;
}

/* Units of a row's last block, `col`, that hold no key which some row of the tile sees. */
static int32_t units_beyond(const struct attn_problem *p, const struct attn_tile *t, int64_t block,
                            int64_t col)
{
    int64_t keys = attn_block_keys(p->lists, t), seen = keys_of(p, t, block) - keys * col;
    return seen >= keys || seen <= 0 ? 0 : (int32_t)((keys - seen) / (t->bn / t->units));
}

static int list_items(const struct attn_problem *p, const struct attn_csr *csr,
                      struct attn_plan *plan, struct err *err)
{
    int rows = attn_block_rows(p->lists, &plan->tile), bm = plan->tile.bm;
    int64_t lists = ceil_div(p->nq, rows), n = csr->ptr[p->heads * lists];
    int32_t units = attn_units_per_block(p, &plan->tile);
    bool col = csr->col && !csr->on_device;
    if (col) {
        PASS_ON(mem_alloc(&plan->cols, n, sizeof(int32_t), "block lists", err));
        memcpy(plan->cols, csr->col, (size_t)n * sizeof(int32_t));
        plan->n_cols = n;
    }
    for (int32_t r = 0; r < p->heads * plan->q_blocks; r++) {
        int64_t b = r % plan->q_blocks;
        const int64_t *list = csr->ptr + r / plan->q_blocks * lists + b * bm / rows;
        int64_t beg = list[0] * units, end = list[1] * units;
        if (end > beg && col)
            end -= units_beyond(p, &plan->tile, b, csr->col[list[1] - 1]);
        add_item(plan, r, beg, end);
    }
    return 0;
}

/* The items of all rows in their order, with the entries of block lists in plan->cols. csr NULL:
 * dense. */
static int row_items(const struct attn_problem *p, const struct attn_csr *csr,
                     struct attn_plan *plan, struct err *err)
{
    if (csr && attn_block_rows(p->lists, &plan->tile) < plan->tile.bm)
        return pair_items(p, csr, plan, err);
    if (csr)
        return list_items(p, csr, plan, err);
    dense_items(p, plan);
    return 0;
}

/* ---- with a filter -------------------------------------------------------------------------- */

/* The next entry of a list, if it is `col`: its bits for warpgroup w (plan.h). */
static uint32_t wanted_bits(const int32_t **at, const int32_t *end, int tail, int32_t col, int w)
{
    if (*at == end || **at != col)
        return 0;
    uint32_t exempt = end - (*at)++ <= tail;
    return 1u << (FILTER_WANTED + w) | exempt << (FILTER_EXEMPT + w);
}

/* Union of the lists of the two warpgroups, in order. */
static int64_t filtered_row(const int32_t *a, const int32_t *a_end, const int32_t *b,
                            const int32_t *b_end, int tail, int32_t *out)
{
    int64_t n = 0;
    while (a < a_end || b < b_end) {
        int32_t col = b == b_end || (a < a_end && *a < *b) ? *a : *b;
        uint32_t bits = wanted_bits(&a, a_end, tail, col, 0);
        bits |= wanted_bits(&b, b_end, tail, col, 1);
        out[n++] = (int32_t)((uint32_t)col | bits);
    }
    return n;
}

/* The same with the entries that kernels with a filter read (attn_plan_filtered). */
static int filtered_items(const struct attn_problem *p, const struct attn_csr *csr, int tail,
                          struct attn_plan *plan, struct err *err)
{
    int rows = attn_block_rows(p->lists, &plan->tile), bm = plan->tile.bm;
    int64_t lists = ceil_div(p->nq, rows), beg = 0, at = 0;

    PASS_ON(mem_alloc(&plan->cols, plan->blocks, sizeof(int32_t), "block lists", err));
    for (int32_t i = 0; i < p->heads * plan->q_blocks; i++) {
        int64_t h = i / plan->q_blocks, row0 = i % plan->q_blocks * bm, b = row0 / rows;
        const int64_t *r = csr->ptr + h * lists + b;
        int64_t second = rows < bm ? 1 : 0;
        int64_t last = b + second < lists ? second + 1 : 1;
        if (row0 % rows == 0) { /* else its list is that of the item before */
            beg = at;
            at += filtered_row(csr->col + r[0], csr->col + r[1], csr->col + r[second],
                               csr->col + r[last], tail, plan->cols + at);
        }
        add_item(plan, i, beg, at);
    }
    plan->n_cols = at;
    return 0;
}

/* ---- order ---------------------------------------------------------------------------------- */

static int32_t stages_of(const struct attn_plan *plan, const struct attn_item *it)
{
    return ceil_div(it->end - it->beg, plan->tile.units);
}

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
    int64_t kv = SECTION_BYTES / (p->nk * (p->d + attn_dv(p->d)) * 2);
    kv = kv < 1 || (p->lists == ATTN_DENSE && !p->causal) ? 1 : kv;
    return kv * (p->heads / p->kv_heads) * q_blocks;
}

/* Items from `from` on, the longest of each section first. */
static int order_items(struct attn_plan *plan, int32_t from, int64_t section_rows, struct err *err)
{
    struct attn_item *items = plan->items + from;
    int32_t n = plan->n_items - from;
    OWN(free_at) struct order_key *keys = NULL;
    PASS_ON(mem_alloc(&keys, n, sizeof *keys, "work items", err));
    for (int32_t i = 0; i < n; i++)
        keys[i] = (struct order_key){(int32_t)(items[i].row / section_rows),
                                     stages_of(plan, items + i), i, items[i]};
    qsort(keys, (size_t)n, sizeof *keys, by_order);
    for (int32_t i = 0; i < n; i++)
        items[i] = keys[i].item;
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
static int32_t first_late(const struct attn_plan *plan, int workers, int64_t *left)
{
    int64_t before = total_cost(plan), last = 0;
    *left = before;
    for (int32_t i = 0; i < plan->n_items; i++) {
        int64_t own = cost_of(plan, plan->items + i);
        if (attn_row_late(i, own, last, *left, before, workers))
            return i;
        before = i % workers ? before : *left;
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
static int cut_items(struct attn_plan *plan, int workers, struct err *err)
{
    OWN(free_at) struct attn_item *items = NULL;
    struct attn_item *whole = plan->items;
    int64_t left, at = 0;
    int32_t n = plan->n_items, first = first_late(plan, workers, &left);

    if (first == n)
        return 0;
    PASS_ON(mem_alloc(&items, attn_most_items(n, workers), sizeof *items, "work items", err));
    PASS_ON(mem_alloc(&plan->splits, n - first, sizeof *plan->splits, "split rows", err));
    memcpy(items, whole, (size_t)first * sizeof *items);
    plan->items = items;
    plan->n_items = first;
    struct attn_line line = attn_line_of(left - (n - first) * ITEM_COST, workers);
    for (int32_t i = first; i < n; i++) {
        int32_t stages = stages_of(plan, whole + i);
        add_pieces(plan, whole[i], line, attn_row_cut(line, at, stages));
        at += stages;
    }
    free(whole);
    items = NULL;
    return order_items(plan, first, INT64_MAX, err);
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

/* Planned time of the busiest worker. */
static int plan_end(const struct attn_plan *plan, int workers, int64_t *latest, struct err *err)
{
    int64_t *free_at = NULL;
    int rc = 0;
    *latest = 0;
    TRY(mem_zalloc(&free_at, workers, sizeof *free_at, "schedule", err));
    for (int32_t i = 0; i < plan->n_items; i++) {
        int64_t end = place(free_at, workers, cost_of(plan, plan->items + i));
        *latest = end > *latest ? end : *latest;
    }
out:
    free(free_at);
    return rc;
}

/* A cut row costs ITEM_COST for every piece; in the bound it does so once. */
int attn_plan_rate(struct attn_plan *plan, int workers, struct err *err)
{
    int64_t cost = total_cost(plan) - (plan->n_slots - plan->n_splits) * ITEM_COST, latest;
    int rc = plan_end(plan, workers, &latest, err);
    plan->balance = rc || plan->n_items == 0 ? 1 : (double)latest / (double)ceil_div(cost, workers);
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
    int64_t blocks = ceil_div(p->nq, tile->bm), rows;
    int64_t lists = csr ? p->heads * ceil_div(p->nq, attn_block_rows(p->lists, tile)) : 0;

    memset(plan, 0, sizeof *plan);
    plan->tile = *tile;
    rows = mul_ok(p->heads, blocks, &rows) ? rows : INT64_MAX;
    PASS_ON(check_size(p, tile->bm, rows, csr, lists, err));
    plan->q_blocks = (int32_t)blocks;
    plan->masked_units = masked_units(p, plan);
    if (csr) {
        plan->blocks = csr->ptr[lists];
        plan->lists = *csr;
    }
    PASS_ON(mem_alloc(&plan->items, rows, sizeof *plan->items, "work items", err));
    return mem_alloc(&plan->empty, rows, sizeof *plan->empty, "empty rows", err);
}

int attn_plan_make(const struct attn_problem *p, const struct attn_tile *tile,
                   const struct attn_csr *csr, int workers, struct attn_plan *plan, struct err *err)
{
    int rc = 0;

    TRY(attn_plan_begin(p, tile, csr, plan, err));
    TRY(row_items(p, csr, plan, err));
    TRY(order_items(plan, 0, attn_section_rows(p, plan->q_blocks), err));
    TRY(cut_items(plan, workers, err));
    TRY(attn_plan_rate(plan, workers, err));
out:
    if (rc)
        attn_plan_free(plan);
    return rc;
}

int attn_plan_filtered(const struct attn_problem *p, const struct attn_tile *tile,
                       const struct attn_csr *csr, int tail, int workers, struct attn_plan *plan,
                       struct err *err)
{
    int rc = 0;

    TRY(attn_plan_begin(p, tile, csr, plan, err));
    plan->masked_units = 1;
    TRY(filtered_items(p, csr, tail, plan, err));
    TRY(order_items(plan, 0, attn_section_rows(p, plan->q_blocks), err));
    TRY(attn_plan_rate(plan, workers, err));
out:
    if (rc)
        attn_plan_free(plan);
    return rc;
}

static void move_row(int32_t *row, int32_t q_blocks, const int *heads)
{
    *row = heads[*row / q_blocks] * q_blocks + *row % q_blocks;
}

void attn_plan_move(struct attn_plan *plan, const int *heads)
{
    for (int32_t i = 0; i < plan->n_items; i++)
        move_row(&plan->items[i].row, plan->q_blocks, heads);
    for (int32_t i = 0; i < plan->n_splits; i++)
        move_row(&plan->splits[i].row, plan->q_blocks, heads);
    for (int32_t i = 0; i < plan->n_empty; i++)
        move_row(plan->empty + i, plan->q_blocks, heads);
}

void attn_plan_free(struct attn_plan *plan)
{
    free(plan->items);
    free(plan->cols);
    free(plan->splits);
    free(plan->empty);
    memset(plan, 0, sizeof *plan);
}

/* ---- work of a metrics pass ----------------------------------------------------------------- */

#define ITEM_MAX 4096 /* tiles: counters of 16 bits */

/* Each item in the fewest equal pieces of at most `most` units, in the order of the items. */
static int cut_equally(struct attn_plan *plan, int64_t most, struct err *err)
{
    struct attn_item *items = NULL;
    int64_t n = 0;

    for (int32_t i = 0; i < plan->n_items; i++)
        n += ceil_div(plan->items[i].end - plan->items[i].beg, most);
    PASS_ON(mem_alloc(&items, n, sizeof *items, "work items", err));
    n = 0;
    for (int32_t i = 0; i < plan->n_items; i++) {
        struct attn_item it = plan->items[i];
        int64_t length = it.end - it.beg, pieces = ceil_div(length, most);
        for (int64_t k = 0; k < pieces; k++)
            items[n++] = (struct attn_item){it.row, (int32_t)(it.beg + k * length / pieces),
                                            (int32_t)(it.beg + (k + 1) * length / pieces), -1};
    }
    free(plan->items);
    plan->items = items;
    plan->n_items = (int32_t)n;
    return 0;
}

/* Each row in equal pieces of at most a multiprocessor's share, the longest first. */
static int equal_pieces(const struct attn_problem *p, const struct attn_tile *tile, int sms,
                        struct attn_plan *plan, struct err *err)
{
    PASS_ON(attn_plan_begin(p, tile, NULL, plan, err));
    dense_items(p, plan);
    PASS_ON(cut_equally(plan, plan->blocks ? ceil_div(plan->blocks, sms) : 1, err));
    return order_items(plan, 0, INT64_MAX, err);
}

/* No partial results are combined here, so pieces cost nothing but their start: where rows are few,
 * equal pieces of all rows end earlier than an attention launch's plan. */
int metrics_plan_make(const struct attn_problem *p, int sms, struct metrics_plan *plan,
                      struct err *err)
{
    const struct attn_tile tile = {METRICS_BM, METRICS_BN, 1};
    struct attn_problem head = *p;
    struct attn_plan dense = {0}, equal = {0};
    struct attn_plan *best;
    int64_t dense_end, equal_end;
    int rc = 0;

    memset(plan, 0, sizeof *plan);
    head.heads = head.kv_heads = 1;
    head.lists = ATTN_DENSE;
    if (p->nk > INT32_MAX / 4 || p->nq > INT32_MAX / 4)
        FAIL(err, ERR_RUN, "metrics of %lld x %lld tokens are too large for one pass",
             (long long)p->nq, (long long)p->nk);
    TRY(attn_plan_make(&head, &tile, NULL, sms, &dense, err));
    TRY(equal_pieces(&head, &tile, sms, &equal, err));
    TRY(plan_end(&dense, sms, &dense_end, err));
    TRY(plan_end(&equal, sms, &equal_end, err));
    best = equal_end < dense_end ? &equal : &dense;
    TRY(cut_equally(best, ITEM_MAX, err));
    TRY(mem_alloc(&plan->items, best->n_items, sizeof *plan->items, "work items", err));
    for (const struct attn_item *it = best->items; it < best->items + best->n_items; it++)
        plan->items[plan->n_items++] = (struct metrics_item){it->row, it->beg, it->end, 0};
out:
    attn_plan_free(&dense);
    attn_plan_free(&equal);
    return rc;
}

void metrics_plan_free(struct metrics_plan *plan)
{
    free(plan->items);
    memset(plan, 0, sizeof *plan);
}
