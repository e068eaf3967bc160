/* test_greedy.c - list scheduling (core/greedy.h) against a search for the first free worker, and
 * the orders that an interchange finds against the bound. */
#include "core/greedy.h"
#include "core/rng.h"
#include "tests/harness/suite.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int64_t place_slowly(int64_t *free_at, int workers, int64_t cost)
{
    int first = 0;
    for (int i = 1; i < workers; i++)
        first = free_at[i] < free_at[first] ? i : first;
    return free_at[first] += cost;
}

START_TEST(as_by_search)
{
    static const int workers[] = {1, 2, 3, 7, 132};
    for (size_t k = 0; k < sizeof workers / sizeof *workers; k++) {
        int64_t heap[132] = {0}, plain[132] = {0};
        for (uint64_t i = 0; i < 2000; i++) {
            int64_t cost = 1 + (int64_t)(100 * rng_uniform(5, (uint64_t)workers[k], i));
            ck_assert_int_eq(greedy_place(heap, workers[k], cost),
                             place_slowly(plain, workers[k], cost));
        }
    }
}
END_TEST

#define JOBS 3000

/* When jobs in this order end. */
static int64_t ends_in_order(const int64_t *cost, const int32_t *order, int n, int workers)
{
    int64_t free_at[132] = {0}, latest = 0;
    for (int i = 0; i < n; i++) {
        int64_t end = place_slowly(free_at, workers, cost[order ? order[i] : i]);
        latest = end > latest ? end : latest;
    }
    return latest;
}

/* Every job once, those before the tail where they were; its end is that of a greedy grid, and not
 * later than before. Returns how much earlier. */
static int64_t check_order(const int64_t *cost, int n, int workers, int tail)
{
    static int32_t order[JOBS];
    static bool seen[JOBS];
    struct err err = {0};
    int64_t end, before = ends_in_order(cost, NULL, n, workers);

    assert_ok(greedy_interchange(cost, n, workers, tail, order, &end, &err), &err);
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < n; i++) {
        ck_assert(order[i] >= 0 && order[i] < n && !seen[order[i]]);
        seen[order[i]] = true;
        if (i < n - tail)
            ck_assert_int_eq(order[i], i);
    }
    ck_assert_int_eq(end, ends_in_order(cost, order, n, workers));
    ck_assert_int_le(end, before);
    return before - end;
}

static int by_length(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return (*a < *b) - (*a > *b);
}

/* Jobs of any lengths, none among them, fewer than workers among them. */
START_TEST(interchange_of_any_jobs)
{
    static const int workers[] = {1, 2, 3, 7, 132};
    static const int jobs[] = {0, 1, 2, 100, 131, 132, 133, 1000, JOBS};
    static int64_t cost[JOBS];
    int64_t gained = 0;

    for (size_t w = 0; w < sizeof workers / sizeof *workers; w++)
        for (size_t k = 0; k < sizeof jobs / sizeof *jobs; k++) {
            for (int i = 0; i < jobs[k]; i++)
                cost[i] = (int64_t)(rng_uniform(9, w, (uint64_t)i) * (k % 2 ? 3 : 500));
            if (k % 3 == 0)
                qsort(cost, (size_t)jobs[k], sizeof *cost, by_length);
            for (int tail = 0; tail <= 8; tail += 4)
                gained += check_order(cost, jobs[k], workers[w], tail * workers[w]);
        }
    ck_assert_int_gt(gained, 0);
}
END_TEST

/* Rows of random lists, sections of 512 with the longest first: greedily half a per cent too long,
 * with the last eight jobs of each worker exchanged within one of the bound. */
START_TEST(interchange_of_lists)
{
    static int64_t cost[2048];
    int32_t order[2048];
    struct err err = {0};
    int64_t total = 0, end;

    for (int i = 0; i < 2048; i++) {
        cost[i] = 1;
        for (int b = 0; b < 256; b++)
            cost[i] += rng_uniform(4, (uint64_t)i, (uint64_t)b) < 0.1;
        total += cost[i];
    }
    for (int section = 0; section < 4; section++)
        qsort(cost + 512 * section, 512, sizeof *cost, by_length);
    int64_t bound = (total + 131) / 132;
    ck_assert_int_ge(ends_in_order(cost, NULL, 2048, 132), bound + 3);
    assert_ok(greedy_interchange(cost, 2048, 132, 8 * 132, order, &end, &err), &err);
    ck_assert_int_le(end, bound + 1);
}
END_TEST

/* What no exchange can mend stays as it is. */
START_TEST(interchange_of_equal_jobs)
{
    static int64_t cost[134];
    int32_t order[134];
    struct err err = {0};
    int64_t end;

    for (int i = 0; i < 134; i++)
        cost[i] = 10;
    assert_ok(greedy_interchange(cost, 134, 132, 134, order, &end, &err), &err);
    ck_assert_int_eq(end, 20);
    for (int i = 0; i < 134; i++)
        ck_assert_int_eq(order[i], i);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("greedy");
    TCase *tc = tcase_create("greedy");
    tcase_add_test(tc, as_by_search);
    tcase_add_test(tc, interchange_of_any_jobs);
    tcase_add_test(tc, interchange_of_lists);
    tcase_add_test(tc, interchange_of_equal_jobs);
    suite_add_tcase(s, tc);
    return s;
}
