/*
 * test_copies.c - how often a launch holds a head that it times (cuda/operands.c), which needs no
 * GPU.
 */
#include "cuda/operands.h"
#include "tests/harness/suite.h"

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

TEST(as_many_as_are_asked_for)
{
    ck_assert_int_eq(copies(5, 32, 4096, 4096), 5);
    ck_assert_int_eq(copies(1, 32, 4096, 4096), 1);
    ck_assert_int_eq(copies(100, 32, 1 << 20, 1 << 20), 100);
}

TEST(as_many_as_the_call_has)
{
    ck_assert_int_eq(copies(0, 8, 16384, 16384), 8); /* 128 rows of tiles each */
    ck_assert_int_eq(copies(0, 32, 300, 300), 32);
    ck_assert_int_eq(copies(0, 0, 300, 300), 1);
}

TEST(no_more_than_keep_it_busy)
{
    ck_assert_int_eq(copies(0, 32, 32768, 32768), 9);   /* 132 * 16 / 256 */
    ck_assert_int_eq(copies(0, 32, 131072, 131072), 3); /* 132 * 16 / 1024 */
    ck_assert_int_eq(copies(0, 32, 1 << 24, 1 << 24), 1);
    ck_assert_int_eq(copies(0, 32, 0, 0), 1);
}

TEST(no_more_than_fit)
{
    const int64_t k = 1 << 20; /* 0.5 GB of keys, values */
    assert_copies(copies_in(INT64_C(1) << 37, 0, 32, 32, 128, k), 31, 31);
    assert_copies(copies_in(INT64_C(1) << 34, 0, 32, 32, 128, k), 3, 3);
    assert_copies(copies_in(INT64_C(1) << 30, 0, 32, 32, 128, k), 1, 1);
    assert_copies(copies_in(INT64_C(1) << 34, 0, 32, 8, 128, k), 12, 3);
    assert_copies(copies_in(INT64_C(1) << 32, 0, 32, 8, 128, k), 1, 1);
    assert_copies(copies_in(0, 0, 32, 32, 128, k), 1, 1);
}

/* Keys and values are read once per group in a call. */
TEST(groups_share_keys)
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
