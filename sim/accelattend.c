/*
 * accelattend.c - row chunks of a mask become one block list in the geometry of a kernel
 * (accelattend.h). Units that are larger than the kernel's blocks are cut; finer ones, and windows,
 * become tiles with bits (acceltiles.h). The pairs stay the same.
 */
#include "sim/accelattend.h"

#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "core/method.h"
#include "sim/acceltiles.h"

#include <stdlib.h>

/* Most bits of a head: what 192K x 192K tokens take when no tile is whole or empty. */
#define BITS_BYTES (9LL << 29)

struct lists {
    int64_t bq, bk; /* blocks of the kernel */
    int64_t *ptr;   /* owned */
    int32_t *col;   /* owned */
    int64_t n_groups;
};

static void lists_free(struct lists *l)
{
    free(l->ptr);
    free(l->col);
}

/* Blocks of keys that group g of the kernel may see. */
static int64_t allowed(const struct mask *m, const struct lists *l, int64_t g)
{
    int64_t last = (g + 1) * l->bq < m->nq ? (g + 1) * l->bq : m->nq;
    return ceil_div(mask_limit(m, last - 1), l->bk);
}

/* Blocks of group g, written to `col` unless it is NULL; returns their number. */
static int64_t group_blocks(const struct mask *m, const struct lists *l, int64_t g, int32_t *col)
{
    int64_t limit = allowed(m, l, g), n = 0;
    if (m->form == MASK_FULL) {
        for (; n < limit; n++)
            if (col)
                col[n] = (int32_t)n;
        return n;
    }
    int64_t from = (g * l->bq - m->row0) / m->bq, split = m->bk / l->bk;
    for (int64_t i = m->ptr[from]; i < m->ptr[from + 1]; i++)
        for (int64_t b = m->col[i] * split; b < (m->col[i] + 1) * split && b < limit; b++, n++)
            if (col)
                col[n] = (int32_t)b;
    return n;
}

/* Counting pass (col NULL) or filling pass over all chunks. */
static int64_t walk(const struct mask *masks, int64_t n, struct lists *l, bool fill)
{
    int64_t g = 0, total = 0;
    for (int64_t k = 0; k < n; k++)
        for (; g < l->n_groups && g * l->bq < masks[k].row1; g++) {
            l->ptr[g] = total;
            total += group_blocks(masks + k, l, g, fill ? l->col + total : NULL);
        }
    l->ptr[l->n_groups] = total;
    return total;
}

static int make_lists(const struct mask *masks, int64_t n, int64_t nq, struct lists *l,
                      struct err *err)
{
    int rc = 0;
    l->n_groups = ceil_div(nq, l->bq);
    TRY(mem_alloc(&l->ptr, l->n_groups + 1, sizeof *l->ptr, "block lists", err));
    TRY(mem_alloc(&l->col, walk(masks, n, l, false), sizeof *l->col, "block lists", err));
    walk(masks, n, l, true);
out:
    return rc;
}

/* The largest unit of which the masks of all chunks are made; 0 when every pair is kept. */
static void common_unit(const struct mask *masks, int64_t n, int64_t *bq, int64_t *bk)
{
    *bq = *bk = 0;
    for (int64_t k = 0; k < n; k++) {
        const struct mask *m = masks + k;
        if (m->form == MASK_FULL)
            continue;
        *bq = gcd(m->form == MASK_LISTS ? m->bq : 1, *bq);
        *bk = gcd(m->form == MASK_LISTS ? m->bk : 1, *bk);
    }
}

static int attend_lists(const struct accel *a, struct accel_session *s, struct accel_head *h,
                        const struct mask *masks, int64_t n, struct accel_result *r,
                        struct err *err)
{
    struct lists l = {.bq = h->bq, .bk = h->bk};
    double begin = clock_ns();
    int rc = 0;
    TRY(make_lists(masks, n, h->x->nq, &l, err));
    double made_ns = clock_ns() - begin;
    h->ptr = l.ptr;
    h->col = l.col;
    TRY(a->attend(s, h, r, err));
    r->host_plan_ns += made_ns;
out:
    lists_free(&l);
    return rc;
}

static int attend_tiles(const struct accel *a, struct accel_session *s, struct accel_head *h,
                        const struct mask *masks, int64_t n, struct accel_result *r, char why[160],
                        struct err *err)
{
    struct accel_tiles t = {0};
    double begin = clock_ns();
    int rc = 0;
    if ((rc = accel_tiles_make(masks, n, TILES_BEST, BITS_BYTES, &t, why, err)) != 0)
        goto out;
    double made_ns = clock_ns() - begin;
    h->ptr = t.ptr;
    h->col = t.col;
    h->bits = t.n_bits || t.keys ? t.bits : NULL;
    h->words = t.words;
    h->n_bits = t.n_bits;
    h->keys = t.keys;
    TRY(a->attend(s, h, r, err));
    r->host_plan_ns += made_ns;
out:
    accel_tiles_free(&t);
    return rc;
}

int accel_attend_masks(const struct accel *a, struct accel_session *s,
                       const struct accel_head *head, const struct mask *masks, int64_t n,
                       struct accel_result *r, char why[160], struct err *err)
{
    struct accel_head h = *head;
    const struct attn_in *x = h.x;
    const struct accel_filter *filter = h.filter;
    int64_t unit_q, unit_k;

    common_unit(masks, n, &unit_q, &unit_k);
    if (filter && (unit_q != filter->bq || unit_k != filter->bk))
        return err_set(err, ERR_RUN, "a filter on units of %lld x %lld, the mask has others",
                       (long long)filter->bq, (long long)filter->bk);
    if (filter && !a->filters) {
        snprintf(why, 160, "the back end has no filter on P V");
        return METHOD_SKIP;
    }
    if (filter && !a->filters(s, x, filter, why))
        return METHOD_SKIP;
    int64_t bq = unit_q ? unit_q : ACCEL_TILE, bk = unit_k ? unit_k : ACCEL_TILE;
    if (!a->supports(s, x, &bq, &bk, why))
        return METHOD_SKIP;
    if (filter) { /* decides tile by tile: its own, not pieces of them */
        bq = filter->bq;
        bk = filter->bk;
    }
    h.bq = (int)bq;
    h.bk = (int)bk;
    if (!unit_q)
        return a->attend(s, &h, r, err);
    if (unit_q % bq == 0 && unit_k % bk == 0)
        return attend_lists(a, s, &h, masks, n, r, err);
    return attend_tiles(a, s, &h, masks, n, r, why, err);
}
