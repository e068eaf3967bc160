/*
 * test_plan.c - the work items of the attention kernels and of a metrics pass (cuda/attn/plan.c),
 * which need no GPU: whatever is asked for is covered once, rows are cut where that makes a plan
 * shorter, and multiprocessors end together.
 */
#include "core/intmath.h"
#include "core/rng.h"
#include "cuda/attn/plan.h"
#include "tests/harness/suite.h"

#include <stdlib.h>
#include <string.h>

/* Random lists of a problem: about a share of the blocks, and every 16th row full if `skewed`. */
static void make_lists(const struct attn_problem *p, const struct attn_tile *t, double share,
                       bool skewed, uint64_t seed, int64_t **ptr, int32_t **col)
{
    int bq = attn_block_rows(p->lists, t), bk = attn_block_keys(p->lists, t);
    int64_t rows = p->heads * ((p->nq + bq - 1) / bq), blocks = (p->nk + bk - 1) / bk, at = 0;

    *ptr = malloc((size_t)(rows + 1) * sizeof **ptr);
    *col = malloc((size_t)(rows * blocks) * sizeof **col);
    ck_assert(*ptr && *col);
    for (int64_t r = 0; r < rows; r++) {
        (*ptr)[r] = at;
        for (int64_t b = 0; b < blocks; b++)
            if ((skewed && r % 16 == 3) || rng_uniform(seed, (uint64_t)r, (uint64_t)b) < share)
                (*col)[at++] = (int32_t)b;
    }
    (*ptr)[rows] = at;
}

/* Blocks of row `row`: how many work items and empty rows cover, or -1 when a piece overlaps
 * another, lies outside, or stands in a slot that its row does not own. */
static int64_t covered(const struct attn_plan *plan, int32_t row)
{
    int64_t sum = 0;
    int32_t next_end = -1;

    for (int32_t i = 0; i < plan->n_empty; i++)
        if (plan->empty[i] == row)
            return 0;
    for (int32_t s = 0; s < plan->n_splits; s++) {
        if (plan->splits[s].row != row)
            continue;
        for (int32_t k = 0; k < plan->splits[s].n; k++) {
            int32_t slot = plan->splits[s].slot + k, found = 0;
            for (int32_t i = 0; i < plan->n_items; i++) {
                const struct attn_item *it = plan->items + i;
                if (it->slot != slot)
                    continue;
                if (it->row != row || it->end <= it->beg || (k && it->end != next_end))
                    return -1;
                next_end = it->beg; /* the slots of a row go from its end to its beginning */
                sum += it->end - it->beg;
                found++;
            }
            if (found != 1)
                return -1;
        }
        return sum;
    }
    for (int32_t i = 0; i < plan->n_items; i++)
        if (plan->items[i].row == row) {
            if (plan->items[i].slot != -1 || sum)
                return -1;
            sum = plan->items[i].end - plan->items[i].beg;
        }
    return sum;
}

static void check_covered(const struct attn_plan *whole, const struct attn_plan *split, int heads)
{
    int32_t slots = 0;
    for (int32_t row = 0; row < heads * whole->q_blocks; row++) {
        int64_t want = covered(whole, row);
        ck_assert_int_ge(want, 0);
        ck_assert_int_eq(covered(split, row), want);
    }
    for (int32_t i = 0; i < split->n_items; i++)
        slots += split->items[i].slot >= 0;
    ck_assert_int_eq(slots, split->n_slots);
    ck_assert_int_eq(split->blocks, whole->blocks);
}

/* Every piece begins at a whole stage from the row's beginning on, and has MIN_PIECE stages or
 * more; each share of the rest begins in one row at most. */
static void check_pieces(const struct attn_plan *plan, int heads, int sms)
{
    int units = plan->tile.units, rows = heads * plan->q_blocks;
    OWN(free_at) int32_t *beg = malloc((size_t)rows * sizeof *beg);
    ck_assert(beg);
    for (int32_t r = 0; r < rows; r++)
        beg[r] = INT32_MAX;
    for (int32_t i = 0; i < plan->n_items; i++) {
        const struct attn_item *it = plan->items + i;
        beg[it->row] = it->beg < beg[it->row] ? it->beg : beg[it->row];
    }
    for (int32_t i = 0; i < plan->n_items; i++) {
        const struct attn_item *it = plan->items + i;
        ck_assert_int_eq((it->beg - beg[it->row]) % units, 0);
        ck_assert(it->slot < 0 || (it->end - it->beg + units - 1) / units >= MIN_PIECE);
    }
    ck_assert_int_le(plan->n_slots - plan->n_splits, sms);
}

/* The balance, with a search for the multiprocessor that is free first. */
static double slow_balance(const struct attn_plan *plan, int sms)
{
    int64_t free_at[132] = {0}, sum = 0, latest = 0;
    for (int32_t i = 0; i < plan->n_items; i++) {
        int units = plan->items[i].end - plan->items[i].beg, first = 0;
        int64_t cost = (units + plan->tile.units - 1) / plan->tile.units + ITEM_COST;
        for (int w = 1; w < sms; w++)
            first = free_at[w] < free_at[first] ? w : first;
        free_at[first] += cost;
        sum += cost;
        latest = free_at[first] > latest ? free_at[first] : latest;
    }
    sum -= ITEM_COST * (plan->n_slots - plan->n_splits);
    return sum ? (double)latest / (double)((sum + sms - 1) / sms) : 1;
}

TEST(every_block_once)
{
    static const struct attn_tile tiles[] = {{128, 176, 1}, {128, 128, 1}, {192, 128, 1}};
    static const struct attn_tile listed[][3] = {
        {{128, 128, 1}, {128, 192, 3}, {128, 64, 1}}, {{128, 128, 2}, {128, 192, 3}, {128, 64, 1}},
        {{128, 128, 2}, {128, 128, 2}, {128, 64, 1}}, {{128, 128, 4}, {128, 128, 4}, {128, 64, 2}},
        {{128, 128, 1}, {128, 128, 1}, {128, 64, 1}}, {{128, 128, 1}, {128, 128, 1}, {128, 64, 1}}};

    for (int k = 0; k < 48; k++) {
        struct attn_problem p = {3,
                                 1,
                                 128,
                                 700 + 517 * (k % 9),
                                 1000 + 3011 * (k % 7),
                                 0.1,
                                 k % 2,
                                 (enum attn_lists)(k % ATTN_LISTS_COUNT)};
        const struct attn_tile *t =
            p.lists == ATTN_DENSE ? tiles + k / 4 % 3 : &listed[p.lists - ATTN_128x128][k / 4 % 3];
        OWN(attn_plan_free) struct attn_plan whole, split;
        OWN(free_at) int64_t *ptr = NULL;
        OWN(free_at) int32_t *col = NULL;
        if (p.lists != ATTN_DENSE)
            make_lists(&p, t, 0.02 * (k % 5), true, (uint64_t)k, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = p.lists == ATTN_GATHER ? NULL : col},
                        *lists = ptr ? &csr : NULL;
        int sms = 4 + 9 * (k % 3);
        MUST(attn_plan_make(&p, t, lists, 1, &whole, ERR));
        MUST(attn_plan_rate(&whole, sms, ERR));
        MUST(attn_plan_make(&p, t, lists, sms, &split, ERR));
        ck_assert_int_eq(whole.n_splits, 0);
        check_covered(&whole, &split, p.heads);
        check_pieces(&split, p.heads, sms);
        ck_assert_double_eq(split.balance, slow_balance(&split, sms));
        ck_assert_double_le(split.balance, whole.balance);
    }
}

/* The entries of warpgroup w of a row of tiles, against its list: all of it in order, the last
 * `tail` exempt. */
static void check_filtered_list(const struct attn_plan *plan, const struct attn_item *it, int w,
                                const int32_t *col, int64_t n, int tail)
{
    int64_t at = 0;
    int32_t before = -1;
    for (int32_t i = it->beg; i < it->end; i++) {
        uint32_t e = (uint32_t)plan->cols[i];
        int32_t block = (int32_t)(e & FILTER_BLOCK);
        bool exempt = e >> (FILTER_EXEMPT + w) & 1;
        ck_assert_int_gt(block, before);
        ck_assert(e >> FILTER_WANTED & 3);
        before = block;
        if (e >> (FILTER_WANTED + w) & 1) {
            ck_assert_int_lt(at, n);
            ck_assert_int_eq(block, col[at++]);
            ck_assert_int_eq(exempt, at > n - tail);
        } else {
            ck_assert(!exempt);
        }
    }
    ck_assert_int_eq(at, n);
}

/* With a filter both warpgroups find their lists in the stages of a row of tiles, which may be half
 * as high as the blocks. */
TEST(filtered_lists)
{
    for (int k = 0; k < 48; k++) {
        enum attn_lists lists = k % 2 ? ATTN_64x128 : ATTN_128x64;
        int bm = k < 24 ? 128 : 64, rows = k % 2 ? 64 : 128;
        struct attn_problem p = {2, 1, 64, 61 + 237 * (k % 7), 1000 + 333 * k, 0.1, false, lists};
        struct attn_tile t = {bm, 128, k % 2 ? 1 : 2};
        OWN(attn_plan_free) struct attn_plan plan;
        int64_t *ptr, of_head = (p.nq + rows - 1) / rows, found = 0;
        OWN(free_at) int32_t *col;
        int tail = k % 3;
        make_lists(&p, &t, 0.1 * (k % 6), true, (uint64_t)k, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = col};
        MUST(attn_plan_filtered(&p, &t, &csr, tail, 7, &plan, ERR));
        ck_assert_int_eq(plan.n_splits, 0);
        ck_assert_int_eq(plan.blocks, ptr[2 * of_head]);
        ck_assert_int_eq(plan.n_items + plan.n_empty, 2 * plan.q_blocks);
        for (int32_t i = 0; i < plan.n_items; i++) {
            const struct attn_item *it = plan.items + i;
            int64_t head = it->row / plan.q_blocks, row0 = it->row % plan.q_blocks * bm;
            for (int w = 0; w < bm / 64; w++) {
                int64_t list = (row0 + 64 * w) / rows;
                const int64_t *r = ptr + head * of_head + list;
                int64_t n = list < of_head ? r[1] - r[0] : 0;
                check_filtered_list(&plan, it, w, n ? col + r[0] : NULL, n, tail);
                found += (row0 + 64 * w) % rows == 0 ? n : 0;
            }
        }
        ck_assert_int_eq(found, plan.blocks);
        free(ptr);
        int32_t row = plan.n_items ? plan.items[0].row : 0, none = plan.n_empty ? *plan.empty : 0;
        attn_plan_move(&plan, (const int[]){5, 2}); /* heads of a problem of more */
        ck_assert(!plan.n_items ||
                  plan.items[0].row == row + (row < plan.q_blocks ? 5 : 1) * plan.q_blocks);
        ck_assert(!plan.n_empty ||
                  plan.empty[0] == none + (none < plan.q_blocks ? 5 : 1) * plan.q_blocks);
    }
}

/* 2048 rows of tiles on 132 multiprocessors are 15.5 waves: pieces fill the last one; so do those
 * of 1024 rows, 7.8 waves. 512 rows are 3.9 waves of short rows, where pieces would cost more than
 * they balance. */
TEST(last_wave)
{
    static const struct attn_tile t = {128, 176, 1};
    struct attn_problem p = {16, 16, 128, 16384, 16384, 0.1, false, ATTN_DENSE};
    struct attn_plan plan;

    MUST(attn_plan_make(&p, &t, NULL, 1, &plan, ERR));
    MUST(attn_plan_rate(&plan, 132, ERR));
    ck_assert_double_gt(plan.balance, 1.03);
    attn_plan_free(&plan);
    MUST(attn_plan_make(&p, &t, NULL, 132, &plan, ERR));
    ck_assert_double_lt(plan.balance, 1.005);
    ck_assert_int_eq(plan.n_splits, 2048 - 15 * 132);
    attn_plan_free(&plan);
    p.nq = p.nk = 8192;
    MUST(attn_plan_make(&p, &t, NULL, 132, &plan, ERR));
    ck_assert_double_lt(plan.balance, 1.01);
    ck_assert_int_eq(plan.n_splits, 1024 - 7 * 132);
    attn_plan_free(&plan);
    p.nq = p.nk = 4096;
    MUST(attn_plan_make(&p, &t, NULL, 132, &plan, ERR));
    ck_assert_int_eq(plan.n_splits, 0);
    attn_plan_free(&plan);
}

/* Lists of all kernels, in one piece and cut: what both cover, with the same entries. */
TEST(pieces_of_lists)
{
    static const struct {
        enum attn_lists lists;
        struct attn_tile tile;
    } kinds[] = {
        {ATTN_128x128, {128, 128, 1}}, {ATTN_128x128, {128, 192, 3}}, {ATTN_128x64, {128, 128, 2}},
        {ATTN_128x64, {128, 192, 3}},  {ATTN_64x64, {128, 128, 2}},   {ATTN_64x64, {64, 64, 1}},
        {ATTN_64x32, {128, 128, 4}},   {ATTN_BITS, {128, 128, 1}},    {ATTN_GATHER, {128, 128, 1}},
        {ATTN_64x128, {64, 128, 1}},   {ATTN_128x64, {64, 128, 2}},   {ATTN_64x32, {64, 128, 4}}};
    const int n = (int)(sizeof kinds / sizeof *kinds);
    int cut = 0;

    for (int k = 0; k < 10 * n; k++) {
        const struct attn_tile *t = &kinds[k % n].tile;
        struct attn_problem p = {3,
                                 1,
                                 64,
                                 61 + 1237 * (k % 5),
                                 61 + 2011 * (k / n % 4),
                                 0.1,
                                 k % 3 == 0,
                                 kinds[k % n].lists};
        OWN(attn_plan_free) struct attn_plan whole, split;
        int sms = 9 + 31 * (k % 3);
        OWN(free_at) int64_t *ptr;
        OWN(free_at) int32_t *col;
        p.nk = p.causal ? p.nq : p.nk;
        make_lists(&p, t, 0.1 * (k / n % 7), k % 2, (uint64_t)k, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = p.lists == ATTN_GATHER ? NULL : col};
        MUST(attn_plan_make(&p, t, &csr, 1, &whole, ERR));
        MUST(attn_plan_make(&p, t, &csr, sms, &split, ERR));
        check_covered(&whole, &split, p.heads);
        check_pieces(&split, p.heads, sms);
        ck_assert_int_eq(split.n_cols, whole.n_cols);
        ck_assert(split.n_cols == 0 ||
                  memcmp(split.cols, whole.cols, (size_t)whole.n_cols * sizeof *whole.cols) == 0);
        ck_assert_int_eq(split.masked_units, whole.masked_units);
        ck_assert_int_eq(split.n_empty, whole.n_empty);
        cut += split.n_splits > 0;
    }
    ck_assert_int_gt(cut, 10);
}

/* How late plans of lists end, of 32K tokens: every 16th row full (skewed), or random. */
TEST(balance_of_lists)
{
    static const struct {
        enum attn_lists lists;
        struct attn_tile tile;
        int heads;
        double share, most;
        bool skewed;
    } cases[] = {{ATTN_BITS, {128, 128, 1}, 12, 1, 1.001, false},
                 {ATTN_BITS, {128, 128, 1}, 12, 0, 1, false},
                 {ATTN_128x128, {128, 128, 1}, 4, 0.02, 1.02, true},
                 {ATTN_128x128, {128, 128, 1}, 16, 0.5, 1.01, false},
                 {ATTN_128x128, {128, 128, 1}, 16, 0.25, 1.01, false},
                 {ATTN_128x128, {128, 128, 1}, 16, 0.1, 1.01, false},
                 {ATTN_128x128, {128, 192, 3}, 16, 0.5, 1.01, false},
                 {ATTN_128x128, {128, 192, 3}, 16, 0.1, 1.01, false},
                 {ATTN_128x64, {128, 128, 2}, 16, 0.1, 1.01, false},
                 {ATTN_64x64, {128, 128, 2}, 16, 0.1, 1.01, false}};

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct attn_problem p = {cases[k].heads, cases[k].heads, 64, 32768, 32768, 0.1,
                                 false,          cases[k].lists};
        OWN(attn_plan_free) struct attn_plan plan;
        OWN(free_at) int64_t *ptr;
        OWN(free_at) int32_t *col;
        make_lists(&p, &cases[k].tile, cases[k].share, cases[k].skewed, 6, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = col};
        MUST(attn_plan_make(&p, &cases[k].tile, &csr, 132, &plan, ERR));
        ck_assert_double_le(plan.balance, cases[k].most);
    }
}

/* Causal rows get shorter to the end, which balances them: none is cut, unless one alone is longer
 * than a share of the work. */
TEST(causal_rows)
{
    static const struct attn_tile tile = {128, 128, 1};
    static const struct {
        int heads;
        int64_t n;
        double most;
        bool cut;
    } cases[] = {{32, 4096, 1.01, false},
                 {32, 32768, 1.001, false},
                 {2, 32768, 1.012, false},
                 {1, 16384, 1.08, true}};

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct attn_problem p = {cases[k].heads, cases[k].heads, 128, cases[k].n, cases[k].n, 0.1,
                                 true,           ATTN_DENSE};
        OWN(attn_plan_free) struct attn_plan plan;
        MUST(attn_plan_make(&p, &tile, NULL, 132, &plan, ERR));
        ck_assert_int_eq(plan.n_splits > 0, cases[k].cut);
        ck_assert_double_le(plan.balance, cases[k].most);
    }
}

/* The first rows of a causal problem with more queries than keys see none: where the diagonal cuts
 * a tile is a matter of the rows behind them. */
TEST(diagonal_of_late_rows)
{
    static const struct attn_tile t = {128, 128, 1};
    static const int64_t shapes[][2] = {{129, 129}, {20000, 129}, {40000, 1000}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct attn_problem p = {1, 1, 128, shapes[i][0], shapes[i][1], 0.1, true, ATTN_DENSE};
        OWN(attn_plan_free) struct attn_plan plan;
        MUST(attn_plan_make(&p, &t, NULL, 132, &plan, ERR));
        int64_t rows = p.nq - p.nk, most = 1;
        for (int64_t b = 0; b < plan.q_blocks; b++) { /* stages from a tile's last key back */
            int64_t first = b * 128 - rows + 1, last = (b + 1) * 128 - rows;
            first = first < 0 ? 0 : first > p.nk ? p.nk : first;
            last = last < 0 ? 0 : last > p.nk ? p.nk : last;
            int64_t n = (last + 127) / 128 - first / 128;
            most = last > 0 && n > most ? n : most;
        }
        ck_assert_int_ge(plan.masked_units, most);
        ck_assert_int_le(plan.masked_units, 2);
    }
}

/* A tile's head and query block share a word in the kernels: what does not fit is refused. */
TEST(word_of_a_tile)
{
    static const struct attn_tile t = {128, 128, 1};
    struct attn_problem p = {32767, 32767, 128, 64, 64, 0.1, false, ATTN_DENSE};
    struct attn_plan plan;

    MUST(attn_plan_make(&p, &t, NULL, 132, &plan, ERR));
    ck_assert_int_eq(plan.n_items, 32767);
    attn_plan_free(&plan);
    p.heads = p.kv_heads = 32768;
    FAILS(attn_plan_make(&p, &t, NULL, 132, &plan, ERR), ERR_RUN, "32768 heads");
    p.heads = p.kv_heads = 1;
    p.nq = 65536 * 128;
    MUST(attn_plan_make(&p, &t, NULL, 132, &plan, ERR));
    attn_plan_free(&plan);
    p.nq++;
    FAILS(attn_plan_make(&p, &t, NULL, 132, &plan, ERR), ERR_RUN, "8388608 queries");
}

/* Stages of three units of 64 keys, blocks of 128: what a list has over whole stages makes its
 * first stage, in a row as in a piece, so that every other piece is whole stages; units past the
 * last key belong to nobody. */
TEST(stages_across_blocks)
{
    static const struct attn_tile t = {128, 192, 3};
    struct attn_problem p = {2, 1, 64, 1024, 16384 - 70, 0.1, false, ATTN_128x128};
    OWN(free_at) int64_t *ptr = NULL;
    OWN(free_at) int32_t *col = NULL;
    OWN(attn_plan_free) struct attn_plan whole, split;

    make_lists(&p, &t, 0.5, true, 7, &ptr, &col);
    struct attn_csr csr = {.ptr = ptr, .col = col};
    MUST(attn_plan_make(&p, &t, &csr, 1, &whole, ERR));
    ck_assert_int_eq(whole.masked_units, 1);
    for (int32_t i = 0; i < whole.n_items; i++) {
        int32_t row = whole.items[i].row;
        ck_assert_int_eq(whole.items[i].beg, 2 * ptr[row]);
        bool ragged = col[ptr[row + 1] - 1] == 127; /* of its 128 keys 58 exist */
        ck_assert_int_eq(whole.items[i].end, 2 * ptr[row + 1] - ragged);
    }
    MUST(attn_plan_make(&p, &t, &csr, 12, &split, ERR));
    ck_assert_int_gt(split.n_splits, 0);
    for (int32_t i = 0; i < split.n_items; i++) {
        const struct attn_item *it = split.items + i;
        bool first = true;
        for (int32_t s = 0; s < split.n_splits; s++)
            if (it->slot > split.splits[s].slot &&
                it->slot < split.splits[s].slot + split.splits[s].n)
                first = false;
        if (!first)
            ck_assert_int_eq((it->end - it->beg) % 3, 0);
    }
}

/* ---- of a metrics pass ---------------------------------------------------------------------- */

static const struct {
    int64_t nq, nk;
    bool causal;
    double most; /* end / bound; 0: not asked */
} cases[] = {{131072, 131072, false, 1.01},
             {131072, 131072, true, 1.01},
             {32768, 32768, false, 1.05},
             {32768, 32768, true, 1.05},
             {8192, 8192, false, 1.17},
             {8192, 8192, true, 1.76},
             {1, 1, true, 0},
             {300, 5000, true, 0},
             {5000, 300, true, 0},
             {4096, 1000000, false, 0}};
#define CASES (int)(sizeof cases / sizeof *cases)

static int64_t tiles_of(int64_t row, int64_t nq, int64_t nk, bool causal)
{
    int64_t last = (row + 1) * METRICS_BM, keys = nk;
    last = last < nq ? last : nq;
    if (causal)
        keys = last + nk - nq < 0 ? 0 : last + nk - nq;
    return ceil_div(keys < nk ? keys : nk, METRICS_BN);
}

TEST_N(metrics_tiles_once, CASES)
{
    struct attn_problem p = {1,         1, 128, cases[_i].nq, cases[_i].nk, 0.1, cases[_i].causal,
                             ATTN_DENSE};
    OWN(metrics_plan_free) struct metrics_plan plan;
    int64_t rows = ceil_div(p.nq, METRICS_BM), width = ceil_div(p.nk, METRICS_BN);
    OWN(free_at) uint8_t *visits = calloc((size_t)(rows * width), 1);

    ck_assert(visits);
    MUST(metrics_plan_make(&p, 132, &plan, ERR));
    for (int32_t i = 0; i < plan.n_items; i++) {
        const struct metrics_item *it = plan.items + i;
        ck_assert(it->row >= 0 && it->row < rows && it->beg >= 0 && it->beg < it->end);
        ck_assert_int_le(it->end, width);
        ck_assert_int_le(it->end - it->beg, 4096);
        for (int32_t t = it->beg; t < it->end; t++)
            visits[it->row * width + t]++;
    }
    for (int64_t r = 0; r < rows; r++)
        for (int64_t t = 0; t < width; t++)
            ck_assert_int_eq(visits[r * width + t], t < tiles_of(r, p.nq, p.nk, p.causal));
}

/* The end of a plan, with two tiles for the start of each item, after an equal share of all tiles.
 */
TEST_N(metrics_ends_together, CASES)
{
    struct attn_problem p = {1,         1, 128, cases[_i].nq, cases[_i].nk, 0.1, cases[_i].causal,
                             ATTN_DENSE};
    OWN(metrics_plan_free) struct metrics_plan plan;
    int64_t total = 0, latest = 0, free_at[132] = {0};

    MUST(metrics_plan_make(&p, 132, &plan, ERR));
    for (int32_t i = 0; i < plan.n_items; i++) {
        int64_t tiles = plan.items[i].end - plan.items[i].beg;
        int first = 0;
        for (int w = 1; w < 132; w++)
            first = free_at[w] < free_at[first] ? w : first;
        free_at[first] += tiles + 2;
        total += tiles;
        latest = free_at[first] > latest ? free_at[first] : latest;
    }
    if (cases[_i].most > 0)
        ck_assert_double_le((double)latest * 132 / (double)total, cases[_i].most);
}

TEST(metrics_too_large)
{
    struct attn_problem p = {1, 1, 128, 64, INT64_C(1) << 30, 0.1, false, ATTN_DENSE};
    struct metrics_plan plan;
    FAILS(metrics_plan_make(&p, 132, &plan, ERR), ERR_RUN, "too large");
}
