/*
 * accelattend.c - row chunks of a mask become one block list in the geometry of a kernel
 * (accelattend.h). Units that are larger than the kernel's blocks are cut; the pairs stay the same.
 */
#include "sim/accelattend.h"

#include "core/mem.h"
#include "core/method.h"

#include <stdio.h>
#include <stdlib.h>

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
    return (mask_limit(m, last - 1) + l->bk - 1) / l->bk;
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
    l->n_groups = (nq + l->bq - 1) / l->bq;
    TRY(mem_alloc(&l->ptr, l->n_groups + 1, sizeof *l->ptr, "block lists", err));
    TRY(mem_alloc(&l->col, walk(masks, n, l, false), sizeof *l->col, "block lists", err));
    walk(masks, n, l, true);
out:
    return rc;
}

/* The unit that all chunks share; full chunks fit any. False when there is none. */
static bool common_unit(const struct mask *masks, int64_t n, struct lists *l, char why[160])
{
    for (int64_t k = 0; k < n; k++) {
        const struct mask *m = masks + k;
        if (m->form == MASK_FULL)
            continue;
        if (m->form != MASK_LISTS) {
            snprintf(why, 160, "no CUDA kernel for window masks");
            return false;
        }
        if (l->bq && (l->bq != m->bq || l->bk != m->bk)) {
            snprintf(why, 160, "the mask changes its unit from rows to rows");
            return false;
        }
        l->bq = m->bq;
        l->bk = m->bk;
    }
    return true;
}

int accel_attend_masks(const struct accel *a, struct accel_session *s, const struct attn_in *x,
                       const struct mask *masks, int64_t n, struct accel_result *r, char why[160],
                       struct err *err)
{
    struct lists l = {0};
    struct accel_head h = {.x = x};
    int rc = 0;

    if (!common_unit(masks, n, &l, why))
        return METHOD_SKIP;
    bool full = l.bq == 0;
    int64_t bq = full ? 128 : l.bq, bk = full ? 128 : l.bk;
    if (!a->supports(s, x, &bq, &bk, why))
        return METHOD_SKIP;
    l.bq = h.bq = (int)bq;
    l.bk = h.bk = (int)bk;
    if (!full) {
        TRY(make_lists(masks, n, x->nq, &l, err));
        h.ptr = l.ptr;
        h.col = l.col;
    }
    TRY(a->attend(s, &h, r, err));
out:
    lists_free(&l);
    return rc;
}
