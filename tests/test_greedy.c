/* test_greedy.c - list scheduling (core/greedy.h) against a search for the first free worker. */
#include "core/greedy.h"
#include "core/rng.h"
#include "tests/suite.h"

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

Suite *make_suite(void)
{
    Suite *s = suite_create("greedy");
    TCase *tc = tcase_create("greedy");
    tcase_add_test(tc, as_by_search);
    suite_add_tcase(s, tc);
    return s;
}
