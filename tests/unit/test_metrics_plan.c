/*
 * test_metrics_plan.c - the work items of a metrics pass (cuda/metrics/metrics_plan.c), which need
 * no GPU: every tile with an allowed pair once, and multiprocessors that end together.
 */
#include "core/intmath.h"
#include "cuda/metrics/metrics_plan.h"
#include "tests/harness/suite.h"

#include <stdlib.h>

static const struct {
    int64_t nq, nk;
    bool causal;
} cases[] = {{131072, 131072, false}, {131072, 131072, true}, {32768, 32768, false},
             {32768, 32768, true},    {1, 1, true},           {300, 5000, true},
             {5000, 300, true},       {4096, 1000000, false}};
#define CASES (int)(sizeof cases / sizeof *cases)

static int64_t tiles_of(int64_t row, int64_t nq, int64_t nk, bool causal)
{
    int64_t last = (row + 1) * METRICS_BM, keys = nk;
    last = last < nq ? last : nq;
    if (causal)
        keys = last + nk - nq < 0 ? 0 : last + nk - nq;
    return ceil_div(keys < nk ? keys : nk, METRICS_BN);
}

TEST_N(every_tile_once, CASES)
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

/* Plans of 128K tokens, with two tiles for each item: at most 1 % after the bound. */
TEST(ends_together)
{
    for (int c = 0; c < 2; c++) {
        struct attn_problem p = {1,         1, 128, cases[c].nq, cases[c].nk, 0.1, cases[c].causal,
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
        ck_assert_double_le((double)latest * 132 / (double)total, 1.01);
    }
}

TEST(too_large)
{
    struct attn_problem p = {1, 1, 128, 64, INT64_C(1) << 30, 0.1, false, ATTN_DENSE};
    struct metrics_plan plan;
    FAILS(metrics_plan_make(&p, 132, &plan, ERR), ERR_RUN, "too large");
}
