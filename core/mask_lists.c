/*
 * mask_lists.c - parts of a mask's lists, and how far two masks differ (mask.h).
 */
#include "core/mask.h"

int mask_lists_rows(const struct mask *m, int64_t row0, int64_t row1, struct mask *out,
                    struct err *err)
{
    int64_t g0 = (row0 - m->row0) / m->bq;
    int rc = 0;
    TRY(mask_lists_init(out, m->nq, m->nk, row0, row1, m->causal, m->bq, m->bk, err));
    for (int64_t g = 0; g < out->ngroups; g++) {
        int64_t from = m->ptr[g0 + g];
        TRY(mask_lists_add_all(out, g, m->col + from, m->ptr[g0 + g + 1] - from, err));
    }
    mask_lists_finish(out);
out:
    return rc;
}

int64_t list_differ(const int32_t *a, int64_t na, const int32_t *b, int64_t nb)
{
    int64_t i = 0, j = 0, both = 0;
    while (i < na && j < nb) {
        int32_t x = a[i], y = b[j];
        both += x == y;
        i += x <= y;
        j += y <= x;
    }
    return na + nb - 2 * both;
}

int64_t mask_lists_differ(const struct mask *a, const struct mask *b)
{
    int64_t n = 0;
    for (int64_t g = 0; g < a->ngroups; g++)
        n += list_differ(a->col + a->ptr[g], a->ptr[g + 1] - a->ptr[g], b->col + b->ptr[g],
                         b->ptr[g + 1] - b->ptr[g]);
    return n;
}
