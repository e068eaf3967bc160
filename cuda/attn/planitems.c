/*
 * planitems.c - rows of tiles to work items, and the entries that kernels read of block lists:
 * unions of the lists of two rows, with who wants each block (planitems.h).
 */
#include "cuda/attn/planitems.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

/* Keys that a row of tiles sees some of. */
static int64_t keys_of(const struct attn_problem *p, const struct attn_tile *t, int64_t block)
{
    int64_t last = (block + 1) * t->bm < p->nq ? (block + 1) * t->bm : p->nq;
    int64_t keys = p->causal ? last + p->nk - p->nq : p->nk;
    return keys < 0 ? 0 : keys > p->nk ? p->nk : keys;
}

void plan_add_item(struct attn_plan *plan, int32_t row, int64_t beg, int64_t end)
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
            plan_add_item(plan, h * plan->q_blocks + b, 0, n);
        }
}

int32_t plan_units_per_block(const struct attn_problem *p, const struct attn_tile *t)
{
    return attn_block_keys(p->lists, t) * t->units / t->bn;
}

int32_t plan_masked_units(const struct attn_problem *p, const struct attn_plan *plan)
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
    return most * plan_units_per_block(p, &plan->tile);
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
    int rc = 0;
    *x = (struct pairing){.words = ceil_div(blocks, 64)};
    for (int i = 0; i < 2 && !rc; i++)
        rc = mem_zalloc(&x->wants[i], x->words, sizeof(uint64_t), "block lists", err);
    for (int k = 0; k < 3 && !rc; k++)
        rc = mem_alloc(&x->kinds[k], blocks, sizeof(int32_t), "block lists", err);
    return rc;
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

/* Order the entries of a pair list, `n` of them, so that the two blocks of a stage are wanted by
 * the same warpgroups as far as possible: a stage that is wanted in part costs a warpgroup as much
 * as a full one. Stages for one warpgroup alternate with stages for the other, so that both have
 * work. The last `fixed` entries stay where they are: only they may need masking. */
static void arrange_pairs(struct pairing *x, int32_t *e, int64_t n, int64_t fixed)
{
    int64_t count[3] = {0, 0, 0}, at = 0;
    struct kind kinds[3];
    n -= fixed;
    if (n <= 0)
        return;
    n -= n & 1;
    for (int64_t i = 0; i < n; i++) {
        int k = (int)((uint32_t)e[i] >> 30) - 1;
        x->kinds[k][count[k]++] = e[i];
    }
    for (int k = 0; k < 3; k++)
        kinds[k] = (struct kind){x->kinds[k], count[k]};
    while (kinds[2].n > 1)
        at += take(&kinds[2], 2, e + at);
    while (kinds[0].n > 1 || kinds[1].n > 1) {
        at += kinds[0].n > 1 ? take(&kinds[0], 2, e + at) : 0;
        at += kinds[1].n > 1 ? take(&kinds[1], 2, e + at) : 0;
    }
    for (int k = 0; k < 3; k++)
        at += take(&kinds[k], count[k], e + at);
}

static int pair_items(const struct attn_problem *p, const struct attn_csr *csr,
                      struct attn_plan *plan, struct err *err)
{
    int64_t blocks = ceil_div(p->nq, 64), n = csr->ptr[p->heads * blocks], at = 0;
    int32_t fixed = plan_masked_units(p, plan);
    struct pairing x;
    int rc = pairing_init(&x, ceil_div(p->nk, 64), err);
    if (!rc)
        rc = mem_alloc(&plan->cols, n, sizeof(int32_t), "block lists", err);
    for (int32_t h = 0; h < p->heads && !rc; h++)
        for (int32_t b = 0; b < plan->q_blocks; b++) {
            const int64_t *r = csr->ptr + h * blocks + 2 * b;
            const int32_t *rows[3] = {csr->col + r[0], csr->col + r[1],
                                      csr->col + (2 * b + 1 < blocks ? r[2] : r[1])};
            int64_t got = merge_pair(&x, rows, plan->cols + at);
            arrange_pairs(&x, plan->cols + at, got, fixed);
            plan_add_item(plan, h * plan->q_blocks + b, at, at + got);
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
    int64_t n = csr->ptr[(int64_t)p->heads * plan->q_blocks];
    int32_t units = plan_units_per_block(p, &plan->tile);
    bool col = csr->col && !csr->on_device;
    if (col) {
        int rc = mem_alloc(&plan->cols, n, sizeof(int32_t), "block lists", err);
        if (rc)
            return rc;
        memcpy(plan->cols, csr->col, (size_t)n * sizeof(int32_t));
        plan->n_cols = n;
    }
    for (int32_t r = 0; r < p->heads * plan->q_blocks; r++) {
        int64_t beg = csr->ptr[r] * units, end = csr->ptr[r + 1] * units;
        if (end > beg && col)
            end -= units_beyond(p, &plan->tile, r % plan->q_blocks, csr->col[csr->ptr[r + 1] - 1]);
        plan_add_item(plan, r, beg, end);
    }
    return 0;
}

int plan_items(const struct attn_problem *p, const struct attn_csr *csr, struct attn_plan *plan,
               struct err *err)
{
    if (csr && p->lists == ATTN_64x64 && plan->tile.bm == 128)
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

int plan_filtered_items(const struct attn_problem *p, const struct attn_csr *csr, int tail,
                        struct attn_plan *plan, struct err *err)
{
    int rows = attn_block_rows(p->lists, &plan->tile);
    int64_t lists = ceil_div(p->nq, rows), at = 0;

    int rc = mem_alloc(&plan->cols, plan->blocks, sizeof(int32_t), "block lists", err);
    if (rc)
        return rc;
    for (int32_t i = 0; i < p->heads * plan->q_blocks; i++) {
        int64_t h = i / plan->q_blocks, b = i % plan->q_blocks * (plan->tile.bm / rows);
        const int64_t *r = csr->ptr + h * lists + b;
        int64_t second = rows == plan->tile.bm ? 0 : 1;
        int64_t last = b + second < lists ? second + 1 : 1;
        int64_t got = filtered_row(csr->col + r[0], csr->col + r[1], csr->col + r[second],
                                   csr->col + r[last], tail, plan->cols + at);
        plan_add_item(plan, i, at, at + got);
        at += got;
    }
    plan->n_cols = at;
    return 0;
}
