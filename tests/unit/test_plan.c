/*
 * test_plan.c - the work items of the attention kernels (cuda/attn/plan.c), which need no GPU:
 * whatever is asked for is covered once, and splitting rows never makes a plan longer.
 */
#include "core/rng.h"
#include "cuda/attn/plan.h"
#include "tests/harness/suite.h"

#include <stdlib.h>

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

START_TEST(every_block_once)
{
    static const struct attn_tile tiles[] = {{128, 176, 1}, {128, 128, 1}, {192, 128, 1}};
    static const struct attn_tile listed[][2] = {{{128, 128, 1}, {128, 192, 3}},
                                                 {{128, 128, 2}, {128, 192, 3}},
                                                 {{128, 128, 2}, {128, 128, 2}},
                                                 {{128, 128, 1}, {128, 128, 1}},
                                                 {{128, 128, 1}, {128, 128, 1}}};
    struct err err = {0};

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
            p.lists == ATTN_DENSE ? tiles + k / 4 % 3 : &listed[p.lists - ATTN_128x128][k / 4 % 2];
        struct attn_plan whole, split;
        int64_t *ptr = NULL;
        int32_t *col = NULL;
        if (p.lists != ATTN_DENSE)
            make_lists(&p, t, 0.02 * (k % 5), true, (uint64_t)k, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = p.lists == ATTN_GATHER ? NULL : col},
                        *lists = ptr ? &csr : NULL;
        int sms = 4 + 9 * (k % 3);
        assert_ok(attn_plan_make(&p, t, lists, sms, false, &whole, &err), &err);
        assert_ok(attn_plan_make(&p, t, lists, sms, true, &split, &err), &err);
        ck_assert_int_eq(whole.n_splits, 0);
        check_covered(&whole, &split, p.heads);
        ck_assert_double_le(split.balance, whole.balance);
        attn_plan_free(&whole);
        attn_plan_free(&split);
        free(ptr);
        free(col);
    }
}
END_TEST

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

/* With a filter both warpgroups find their lists in the stages of a row of tiles. */
START_TEST(filtered_lists)
{
    struct err err = {0};
    for (int k = 0; k < 24; k++) {
        enum attn_lists lists = k % 2 ? ATTN_64x128 : ATTN_128x64;
        struct attn_problem p = {2, 1, 64, 61 + 237 * (k % 7), 1000 + 333 * k, 0.1, false, lists};
        struct attn_tile t = {128, 128, k % 2 ? 1 : 2};
        struct attn_plan plan;
        int64_t *ptr, of_head = (p.nq + (k % 2 ? 63 : 127)) / (k % 2 ? 64 : 128), found = 0;
        int32_t *col;
        int tail = k % 3;
        make_lists(&p, &t, 0.1 * (k % 6), true, (uint64_t)k, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = col};
        assert_ok(attn_plan_filtered(&p, &t, &csr, tail, 7, &plan, &err), &err);
        ck_assert_int_eq(plan.n_splits, 0);
        ck_assert_int_eq(plan.blocks, ptr[2 * of_head]);
        ck_assert_int_eq(plan.n_items + plan.n_empty, 2 * plan.q_blocks);
        for (int32_t i = 0; i < plan.n_items; i++) {
            const struct attn_item *it = plan.items + i;
            int64_t head = it->row / plan.q_blocks, row = it->row % plan.q_blocks;
            for (int w = 0; w < 2; w++) {
                int64_t list = k % 2 ? 2 * row + w : row;
                const int64_t *r = ptr + head * of_head + list;
                int64_t n = list < of_head ? r[1] - r[0] : 0;
                check_filtered_list(&plan, it, w, n ? col + r[0] : NULL, n, tail);
                found += k % 2 || w == 0 ? n : 0;
            }
        }
        ck_assert_int_eq(found, plan.blocks);
        attn_plan_free(&plan);
        free(ptr);
        free(col);
    }
}
END_TEST

/* 2048 rows of tiles on 132 multiprocessors are 15.5 waves: pieces fill the last one; so do those
 * of 1024 rows, 7.8 waves. 512 rows are 3.9 waves of short rows, where pieces would cost more than
 * they balance. */
START_TEST(last_wave)
{
    static const struct attn_tile t = {128, 176, 1};
    struct attn_problem p = {16, 16, 128, 16384, 16384, 0.1, false, ATTN_DENSE};
    struct attn_plan plan;
    struct err err = {0};

    assert_ok(attn_plan_make(&p, &t, NULL, 132, false, &plan, &err), &err);
    ck_assert_double_gt(plan.balance, 1.03);
    attn_plan_free(&plan);
    assert_ok(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err);
    ck_assert_double_lt(plan.balance, 1.005);
    ck_assert_int_eq(plan.n_splits, 2048 - 15 * 132);
    attn_plan_free(&plan);
    p.nq = p.nk = 8192;
    assert_ok(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err);
    ck_assert_double_lt(plan.balance, 1.01);
    ck_assert_int_eq(plan.n_splits, 1024 - 7 * 132);
    attn_plan_free(&plan);
    p.nq = p.nk = 4096;
    assert_ok(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err);
    ck_assert_int_eq(plan.n_splits, 0);
    attn_plan_free(&plan);
}
END_TEST

/* Random lists of 31 rows per multiprocessor: exchanges at the end balance them, without a cut. */
START_TEST(fitted_end)
{
    static const struct attn_tile tile = {128, 128, 1};
    static const double shares[] = {0.5, 0.25, 0.1};
    struct err err = {0};

    for (int k = 0; k < 3; k++) {
        struct attn_problem p = {16, 16, 128, 32768, 32768, 0.1, false, ATTN_128x128};
        struct attn_plan plan;
        int64_t *ptr;
        int32_t *col;
        make_lists(&p, &tile, shares[k], false, 6, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = col};
        assert_ok(attn_plan_make(&p, &tile, &csr, 132, true, &plan, &err), &err);
        ck_assert_int_eq(plan.n_splits, 0);
        ck_assert_double_le(plan.balance, 1.0015); /* without exchanges 1.006 to 1.01 */
        attn_plan_free(&plan);
        free(ptr);
        free(col);
    }
}
END_TEST

/* Plans by rows, as a GPU makes them: pieces are no shorter than they may be, differ by one unit,
 * and fill the end about as well as exchanges do. */
START_TEST(plans_by_rows)
{
    static const struct attn_tile tile = {128, 128, 1};
    static const struct {
        double share, most;
        bool skewed;
    } cases[] = {{1, 1.006, false}, {0.25, 1.008, false}, {0.05, 1.03, true}, {0, 1, false}};
    struct err err = {0};

    for (int k = 0; k < 4; k++) {
        struct attn_problem p = {12, 6, 128, 24576, 24576, 0.1, false, ATTN_BITS};
        struct attn_plan whole, rows;
        int64_t *ptr;
        int32_t *col;
        make_lists(&p, &tile, cases[k].share, cases[k].skewed, 6, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = col};
        assert_ok(attn_plan_make(&p, &tile, &csr, 132, false, &whole, &err), &err);
        assert_ok(attn_plan_rows(&p, &tile, &csr, -1, 132, &rows, &err), &err);
        check_covered(&whole, &rows, p.heads);
        ck_assert_double_le(rows.balance, cases[k].most);
        ck_assert_int_eq(rows.n_empty, whole.n_empty);
        for (int32_t i = 0; i + 1 < rows.n_items; i++) {
            const struct attn_item *it = rows.items + i;
            if (it->slot < 0)
                continue;
            ck_assert_int_ge(it->end - it->beg, MIN_PIECE / 2);
            if (it[1].row == it->row)
                ck_assert_int_le(abs(it->end - it->beg - (it[1].end - it[1].beg)), 1);
        }
        attn_plan_free(&whole);
        attn_plan_free(&rows);
        free(ptr);
        free(col);
    }
}
END_TEST

/* Entries of a row in two plans of block lists; `room` is of `b`. */
static void check_entries(const struct attn_plan *a, const struct attn_plan *b, int per_block,
                          int64_t room)
{
    for (int32_t i = 0; i < a->n_items; i++) {
        const struct attn_item *it = a->items + i;
        int64_t n = (it->end - it->beg + per_block - 1) / per_block;
        ck_assert_mem_eq(a->cols + it->beg / per_block, b->cols + it->row * room,
                         (size_t)n * sizeof *a->cols);
    }
}

/* Borders of pieces lie at whole stages from the row's room on; pieces of a row differ by one stage
 * at most and are no shorter than half of what they may be. */
static void check_pieces(const struct attn_plan *plan, int per_block, int64_t room)
{
    int units = plan->tile.units;
    for (int32_t s = 0; s < plan->n_splits; s++) {
        int64_t least = INT64_MAX, most = 0;
        for (int32_t i = 0; i < plan->n_items; i++) {
            const struct attn_item *it = plan->items + i;
            int32_t piece = it->slot - plan->splits[s].slot;
            if (it->slot < 0 || piece < 0 || piece >= plan->splits[s].n)
                continue;
            int64_t from = it->beg - it->row * room * per_block, n = it->end - it->beg;
            ck_assert_int_eq(it->row, plan->splits[s].row);
            ck_assert_int_eq(from % units, 0);
            ck_assert(piece == 0 || n % units == 0); /* the first of a row is at its end */
            least = (n + units - 1) / units < least ? (n + units - 1) / units : least;
            most = (n + units - 1) / units > most ? (n + units - 1) / units : most;
        }
        ck_assert_int_le(most - least, 1);
        ck_assert_int_ge(least, MIN_PIECE / 2);
    }
}

/* Plans of block lists by rows: what the other plans cover, with the same entries. */
START_TEST(blocks_by_rows)
{
    static const struct {
        enum attn_lists lists;
        struct attn_tile tile;
        int per_block, tail;
    } kinds[] = {{ATTN_128x128, {128, 128, 1}, 1, -1}, {ATTN_128x128, {128, 192, 3}, 2, -1},
                 {ATTN_128x64, {128, 128, 2}, 1, -1},  {ATTN_128x64, {128, 192, 3}, 1, -1},
                 {ATTN_64x64, {128, 128, 2}, 1, -1},   {ATTN_64x64, {64, 64, 1}, 1, -1},
                 {ATTN_128x64, {128, 128, 2}, 1, 2},   {ATTN_64x128, {128, 128, 1}, 1, 0}};
    struct err err = {0};
    int cut = 0;

    for (int k = 0; k < 80; k++) {
        int kind = k % 8, per_block = kinds[kind].per_block, tail = kinds[kind].tail;
        const struct attn_tile *t = &kinds[kind].tile;
        struct attn_problem p = {3,
                                 1,
                                 64,
                                 61 + 1237 * (k % 5),
                                 61 + 2011 * (k / 8 % 4),
                                 0.1,
                                 k % 3 == 0,
                                 kinds[kind].lists};
        struct attn_plan whole, rows;
        int64_t *ptr;
        int32_t *col;
        p.nk = p.causal ? p.nq : p.nk;
        make_lists(&p, t, 0.1 * (k / 8 % 7), k % 2, (uint64_t)k, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = col};
        if (tail < 0)
            assert_ok(attn_plan_make(&p, t, &csr, 9, false, &whole, &err), &err);
        else
            assert_ok(attn_plan_filtered(&p, t, &csr, tail, 9, &whole, &err), &err);
        assert_ok(attn_plan_rows(&p, t, &csr, tail, 9, &rows, &err), &err);
        check_covered(&whole, &rows, p.heads);
        check_entries(&whole, &rows, per_block, attn_row_room(&p, t));
        check_pieces(&rows, per_block, attn_row_room(&p, t));
        ck_assert_int_eq(rows.masked_units, whole.masked_units);
        ck_assert_int_eq(rows.n_empty, whole.n_empty);
        ck_assert(tail < 0 || rows.n_splits == 0);
        cut += rows.n_splits > 0;
        attn_plan_free(&whole);
        attn_plan_free(&rows);
        free(ptr);
        free(col);
    }
    ck_assert_int_gt(cut, 20);
}
END_TEST

/* Random lists of 32K without exchanges at the end, which come within 0.1 % (fitted_end): each
 * piece costs as much as a stage, which counts where rows are short. */
START_TEST(balance_of_blocks_by_rows)
{
    static const struct {
        enum attn_lists lists;
        struct attn_tile tile;
        double share, most;
    } cases[] = {
        {ATTN_128x128, {128, 128, 1}, 0.5, 1.006}, {ATTN_128x128, {128, 128, 1}, 0.1, 1.015},
        {ATTN_128x128, {128, 192, 3}, 0.5, 1.006}, {ATTN_128x128, {128, 192, 3}, 0.1, 1.015},
        {ATTN_128x64, {128, 128, 2}, 0.1, 1.015},  {ATTN_64x64, {128, 128, 2}, 0.1, 1.01}};
    struct err err = {0};

    for (int k = 0; k < 6; k++) {
        struct attn_problem p = {8, 8, 64, 32768, 32768, 0.1, false, cases[k].lists};
        struct attn_plan rows;
        int64_t *ptr;
        int32_t *col;
        make_lists(&p, &cases[k].tile, cases[k].share, false, 6, &ptr, &col);
        struct attn_csr csr = {.ptr = ptr, .col = col};
        assert_ok(attn_plan_rows(&p, &cases[k].tile, &csr, -1, 132, &rows, &err), &err);
        ck_assert_double_le(rows.balance, cases[k].most);
        attn_plan_free(&rows);
        free(ptr);
        free(col);
    }
}
END_TEST

/* The first rows of a causal problem with more queries than keys see none: where the diagonal cuts
 * a tile is a matter of the rows behind them. */
START_TEST(diagonal_of_late_rows)
{
    static const struct attn_tile t = {128, 128, 1};
    static const int64_t shapes[][2] = {{129, 129}, {20000, 129}, {40000, 1000}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct attn_problem p = {1, 1, 128, shapes[i][0], shapes[i][1], 0.1, true, ATTN_DENSE};
        struct attn_plan plan;
        struct err err = {0};
        assert_ok(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err);
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
        attn_plan_free(&plan);
    }
}
END_TEST

/* A tile's head and query block share a word in the kernels: what does not fit is refused. */
START_TEST(word_of_a_tile)
{
    static const struct attn_tile t = {128, 128, 1};
    struct attn_problem p = {32767, 32767, 128, 64, 64, 0.1, false, ATTN_DENSE};
    struct attn_plan plan;
    struct err err = {0};

    assert_ok(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err);
    ck_assert_int_eq(plan.n_items, 32767);
    attn_plan_free(&plan);
    p.heads = p.kv_heads = 32768;
    assert_fails(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err, ERR_RUN,
                 "32768 heads");
    p.heads = p.kv_heads = 1;
    p.nq = 65536 * 128;
    assert_ok(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err);
    attn_plan_free(&plan);
    p.nq++;
    assert_fails(attn_plan_make(&p, &t, NULL, 132, true, &plan, &err), &err, ERR_RUN,
                 "8388608 queries");
}
END_TEST

/* Stages of three units of 64 keys, blocks of 128: what a list has over whole stages makes its
 * first stage, in a row as in a piece, so that every other piece is whole stages; units past the
 * last key belong to nobody. */
START_TEST(stages_across_blocks)
{
    static const struct attn_tile t = {128, 192, 3};
    struct attn_problem p = {2, 1, 64, 1024, 16384 - 70, 0.1, false, ATTN_128x128};
    int64_t *ptr = NULL;
    int32_t *col = NULL;
    struct attn_plan whole, split;
    struct err err = {0};

    make_lists(&p, &t, 0.5, true, 7, &ptr, &col);
    struct attn_csr csr = {.ptr = ptr, .col = col};
    assert_ok(attn_plan_make(&p, &t, &csr, 12, false, &whole, &err), &err);
    ck_assert_int_eq(whole.masked_units, 1);
    for (int32_t i = 0; i < whole.n_items; i++) {
        int32_t row = whole.items[i].row;
        ck_assert_int_eq(whole.items[i].beg, 2 * ptr[row]);
        bool ragged = col[ptr[row + 1] - 1] == 127; /* of its 128 keys 58 exist */
        ck_assert_int_eq(whole.items[i].end, 2 * ptr[row + 1] - ragged);
    }
    assert_ok(attn_plan_make(&p, &t, &csr, 12, true, &split, &err), &err);
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
    attn_plan_free(&whole);
    attn_plan_free(&split);
    free(ptr);
    free(col);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("plan");
    TCase *tc = tcase_create("plan");
    tcase_add_test(tc, every_block_once);
    tcase_add_test(tc, filtered_lists);
    tcase_add_test(tc, last_wave);
    tcase_add_test(tc, fitted_end);
    tcase_add_test(tc, plans_by_rows);
    tcase_add_test(tc, blocks_by_rows);
    tcase_add_test(tc, balance_of_blocks_by_rows);
    tcase_add_test(tc, diagonal_of_late_rows);
    tcase_add_test(tc, word_of_a_tile);
    tcase_add_test(tc, stages_across_blocks);
    suite_add_tcase(s, tc);
    return s;
}
