/*
 * test_staticmasks.c - the store of static masks: one thread makes a mask and all get the same,
 * what nobody has goes when there is too much, a failed making is tried again.
 */
#include "core/intmath.h"
#include "core/pool.h"
#include "sim/staticmasks.h"
#include "tests/harness/suite.h"

#include <unistd.h>

enum { N = 256 };

/* What to make, and how often it was made. */
struct order {
    struct static_masks *store;
    int64_t keys;
    int made, fail;
    const struct static_mask *got[64];
};

static int make_lists(void *ctx, int64_t i, struct mask *m, struct err *err)
{
    struct order *o = ctx;
    int rc = mask_lists_init(m, N, N, i * N / 2, (i + 1) * N / 2, true, 1, 1, err);
    if (i == 0) {
        __atomic_add_fetch(&o->made, 1, __ATOMIC_RELAXED);
        usleep(1000);
        if (__atomic_sub_fetch(&o->fail, 1, __ATOMIC_RELAXED) >= 0)
            return err_set(err, ERR_RUN, "no mask today");
    }
    for (int64_t r = m->row0; r < m->row1 && !rc; r++)
        rc = mask_lists_add_run(m, r - m->row0, 0, (int32_t)MIN(r + 1, o->keys), err);
    mask_lists_finish(m);
    return rc;
}

static int take(struct order *o, const char *key, const struct static_mask **out, struct err *err)
{
    const struct static_maker maker = {make_lists, o, 2, true, &o->keys, sizeof o->keys};
    return static_masks_take(o->store, key, &maker, out, err);
}

static int take_one(void *ctx, int64_t i, int worker, struct err *err)
{
    struct order *o = ctx;
    return take(o, "key", o->got + i, err);
}

TEST(one_makes_it_and_all_get_it)
{
    struct order o = {.keys = 3};
    MUST(static_masks_new(1 << 20, 2, &o.store, ERR));
    MUST(pool_run(8, 64, take_one, &o, ERR));
    ck_assert_int_eq(o.made, 1);
    for (int i = 0; i < 64; i++)
        ck_assert_ptr_eq(o.got[i], o.got[0]);
    ck_assert_uint_ne(o.got[0]->id, 0);
    ck_assert_int_eq(o.got[0]->tally.counts.pairs_kept, 1 + 2 + (N - 2) * 3);
    ck_assert_int_eq(o.got[0]->tally.kept64, N / 64);
    ck_assert_int_eq(*(const int64_t *)o.got[0]->counted, 3);
    for (int i = 0; i < 64; i++)
        static_masks_return(o.store, o.got[i]);
    static_masks_free(&o.store);
    ck_assert_ptr_null(o.store);
}

TEST(a_failure_is_not_kept)
{
    struct order o = {.keys = 3, .fail = 1};
    const struct static_mask *m = NULL;
    struct err err = {0}, again = {0};
    assert_ok(static_masks_new(1 << 20, 2, &o.store, &err), &err);
    assert_fails(take(&o, "key", &m, &err), &err, ERR_RUN, "no mask today");
    assert_ok(take(&o, "key", &m, &again), &again);
    ck_assert_int_eq(o.made, 2);
    static_masks_return(o.store, m);
    static_masks_free(&o.store);
}

/* Room for one and a half of them. */
TEST(what_nobody_has_goes_first)
{
    struct order o = {.keys = 64};
    const struct static_mask *a, *b;
    MUST(static_masks_new(3 * N * 64 * 2, 2, &o.store, ERR));
    MUST(take(&o, "a", &a, ERR));
    MUST(take(&o, "b", &b, ERR));
    uint64_t first = a->id, second = b->id;
    ck_assert_uint_ne(first, second);
    static_masks_return(o.store, b); /* too much: b goes, a is still in use */
    MUST(take(&o, "a", &b, ERR));
    ck_assert_uint_eq(b->id, first);
    static_masks_return(o.store, a);
    static_masks_return(o.store, b);
    MUST(take(&o, "b", &b, ERR));
    ck_assert_int_eq(o.made, 3);
    ck_assert_uint_ne(b->id, second);
    static_masks_return(o.store, b);
    static_masks_free(&o.store);
}

TEST(heads_in_their_order_have_a_number)
{
    OWN(static_masks_free) struct static_masks *s = NULL;
    const uint64_t ids[] = {1, 2, 1}, turned[] = {2, 1, 1};
    uint64_t n[4];
    MUST(static_masks_new(0, 2, &s, ERR));
    MUST(static_masks_number(s, ids, 3, n, ERR));
    MUST(static_masks_number(s, turned, 3, n + 1, ERR));
    MUST(static_masks_number(s, ids, 2, n + 2, ERR));
    MUST(static_masks_number(s, ids, 3, n + 3, ERR));
    ck_assert_uint_eq(n[0], n[3]);
    ck_assert_uint_ne(n[0], n[1]);
    ck_assert_uint_ne(n[0], n[2]);
    ck_assert_uint_ne(n[1], n[2]);
    ck_assert_uint_ne(n[0], 0);
}
