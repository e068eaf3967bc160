/*
 * test_copies.c - a head several times over in one launch (cuda/copies.c), which needs no GPU: how
 * often, and that its lists are those of every copy.
 */
#include "cuda/copies.h"
#include "tests/harness/suite.h"

enum { GROUPS = 3, BLOCKS = 4 };

static const int64_t ptr[GROUPS + 1] = {0, 1, 1, BLOCKS};
static const int32_t col[BLOCKS] = {0, 0, 1, 2}, bits[BLOCKS] = {-1, 1, -1, 0};
static const uint64_t words[2 * ACCEL_TILE_WORDS];

/* Of 132 multiprocessors, head dim 128. */
static struct accel_heads copies_in(int64_t memory, int wanted, int heads, int kv, int64_t nq,
                                    int64_t nk)
{
    struct attn_in x = {.nq = nq, .nk = nk, .d = 128, .dv = 128};
    return copies_of(wanted, (struct accel_heads){heads, kv}, &x, 132, memory);
}

/* With 128 GB, of heads with keys and values of their own. */
static int copies(int wanted, int heads, int64_t nq, int64_t nk)
{
    struct accel_heads n = copies_in(INT64_C(1) << 37, wanted, heads, heads, nq, nk);
    ck_assert_int_eq(n.kv, n.q);
    return n.q;
}

static void assert_copies(struct accel_heads n, int q, int kv)
{
    ck_assert_int_eq(n.q, q);
    ck_assert_int_eq(n.kv, kv);
}

START_TEST(as_many_as_are_asked_for)
{
    ck_assert_int_eq(copies(5, 32, 4096, 4096), 5);
    ck_assert_int_eq(copies(1, 32, 4096, 4096), 1);
    ck_assert_int_eq(copies(100, 32, 1 << 20, 1 << 20), 100);
}
END_TEST

START_TEST(as_many_as_the_call_has)
{
    ck_assert_int_eq(copies(0, 8, 16384, 16384), 8); /* 128 rows of tiles each */
    ck_assert_int_eq(copies(0, 32, 300, 300), 32);
    ck_assert_int_eq(copies(0, 0, 300, 300), 1);
}
END_TEST

START_TEST(no_more_than_keep_it_busy)
{
    ck_assert_int_eq(copies(0, 32, 32768, 32768), 9);   /* 132 * 16 / 256 */
    ck_assert_int_eq(copies(0, 32, 131072, 131072), 3); /* 132 * 16 / 1024 */
    ck_assert_int_eq(copies(0, 32, 1 << 24, 1 << 24), 1);
    ck_assert_int_eq(copies(0, 32, 0, 0), 1);
}
END_TEST

START_TEST(no_more_than_fit)
{
    const int64_t k = 1 << 20; /* 0.5 GB of keys, values */
    assert_copies(copies_in(INT64_C(1) << 37, 0, 32, 32, 128, k), 31, 31);
    assert_copies(copies_in(INT64_C(1) << 34, 0, 32, 32, 128, k), 3, 3);
    assert_copies(copies_in(INT64_C(1) << 30, 0, 32, 32, 128, k), 1, 1);
    assert_copies(copies_in(INT64_C(1) << 34, 0, 32, 8, 128, k), 12, 3);
    assert_copies(copies_in(INT64_C(1) << 32, 0, 32, 8, 128, k), 1, 1);
    assert_copies(copies_in(0, 0, 32, 32, 128, k), 1, 1);
}
END_TEST

/* Keys and values are read once per group in a call. */
START_TEST(groups_share_keys)
{
    const int64_t all = INT64_C(1) << 37, n = 16384;
    assert_copies(copies_in(all, 0, 8, 2, n, n), 8, 2);
    assert_copies(copies_in(all, 0, 64, 8, n, n), 16, 2);        /* 17 keep it busy */
    assert_copies(copies_in(all, 0, 64, 8, 131072, n), 3, 1);    /* part of a group */
    assert_copies(copies_in(all, 0, 28, 4, 2 * n, 2 * n), 7, 1); /* 9 do */
    assert_copies(copies_in(all, 3, 8, 2, n, n), 3, 1);
    assert_copies(copies_in(all, 6, 8, 2, n, n), 6, 2); /* 4 does not divide them, 3 does */
    assert_copies(copies_in(all, 7, 8, 2, n, n), 7, 7);
    assert_copies(copies_in(all, 1, 8, 2, n, n), 1, 1);
    assert_copies(copies_in(all, 0, 0, 0, n, n), 1, 1);
    assert_copies(copies_in(all, 5, 0, 0, n, n), 5, 5);
}
END_TEST

START_TEST(lists_of_each_copy)
{
    int32_t keys[BLOCKS * ACCEL_TILE];
    struct accel_head h = {
        .ptr = ptr, .col = col, .bits = bits, .words = words, .n_bits = 2, .keys = keys};
    struct copied_lists l;
    struct err err = {0};

    for (int i = 0; i < BLOCKS * ACCEL_TILE; i++)
        keys[i] = 3 * i;
    assert_ok(copied_lists_make(&h, GROUPS, 3, &l, &err), &err);
    for (int c = 0; c < 3; c++) {
        for (int g = 0; g < GROUPS; g++) {
            int64_t beg = l.csr.ptr[c * GROUPS + g], end = l.csr.ptr[c * GROUPS + g + 1];
            ck_assert_int_eq(beg, c * BLOCKS + ptr[g]);
            ck_assert_int_eq(end - beg, ptr[g + 1] - ptr[g]);
        }
        ck_assert_mem_eq(l.csr.col + c * BLOCKS, col, sizeof col);
        ck_assert_mem_eq(l.csr.bits + c * BLOCKS, bits, sizeof bits);
        ck_assert_mem_eq(l.csr.keys + c * BLOCKS * ACCEL_TILE, keys, sizeof keys);
    }
    ck_assert(l.csr.words == words && l.csr.n_bits == 2);
    copied_lists_free(&l);
}
END_TEST

START_TEST(one_copy_is_the_head)
{
    struct accel_head h = {.ptr = ptr, .col = col}, dense = {.ptr = NULL};
    struct copied_lists l;
    struct err err = {0};

    assert_ok(copied_lists_make(&h, GROUPS, 1, &l, &err), &err);
    ck_assert(l.csr.ptr == ptr && l.csr.col == col && !l.csr.bits && !l.csr.keys);
    copied_lists_free(&l);
    assert_ok(copied_lists_make(&dense, GROUPS, 7, &l, &err), &err);
    ck_assert(!l.csr.ptr);
    copied_lists_free(&l);
}
END_TEST

/* What a launch of the copies multiplies is that of one, n times. */
START_TEST(a_plan_of_copies)
{
    struct attn_problem p = {1, 1, 128, GROUPS * 128, GROUPS * 128, 0.1, false, ATTN_128x128};
    struct attn_tile tile = {128, 128, 1};
    struct accel_head h = {.ptr = ptr, .col = col};
    struct attn_plan plan;
    struct copied_lists l;
    struct err err = {0};

    for (int n = 1; n <= 5; n += 4) {
        assert_ok(copied_lists_make(&h, GROUPS, n, &l, &err), &err);
        p.heads = p.kv_heads = n;
        assert_ok(attn_plan_make(&p, &tile, &l.csr, 132, true, &plan, &err), &err);
        ck_assert_int_eq(plan.blocks, n * BLOCKS);
        ck_assert_int_eq(plan.n_empty, n); /* the second row of each */
        attn_plan_free(&plan);
        copied_lists_free(&l);
    }
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("copies");
    TCase *tc = tcase_create("copies");
    tcase_add_test(tc, as_many_as_are_asked_for);
    tcase_add_test(tc, as_many_as_the_call_has);
    tcase_add_test(tc, no_more_than_keep_it_busy);
    tcase_add_test(tc, no_more_than_fit);
    tcase_add_test(tc, groups_share_keys);
    tcase_add_test(tc, lists_of_each_copy);
    tcase_add_test(tc, one_copy_is_the_head);
    tcase_add_test(tc, a_plan_of_copies);
    suite_add_tcase(s, tc);
    return s;
}
