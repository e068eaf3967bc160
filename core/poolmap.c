/*
 * poolmap.c - pooled maps: a few rows of probabilities at a time are computed and added to their
 * cells.
 *
 * Sums are carried in double over all rows of a cell and rounded once, so that the stored map does
 * not depend on how the rows were grouped.
 */
#include "core/poolmap.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

#define ROWS 32 /* rows of probabilities in memory */

/* Add one row of probabilities to the cells of its cell row; `share` is what a sink leaves. */
static void fold(const double *p, double share, int64_t nk, int64_t pool, double *sum, double *max)
{
    for (int64_t c = 0, k = 0; k < nk; c++) {
        double s = sum[c], m = max[c];
        int64_t end = MIN(k + pool, nk);
        for (; k < end; k++) {
            double x = p[k] * share;
            s += x;
            m = x > m ? x : m;
        }
        sum[c] = s;
        max[c] = m;
    }
}

int pool_map(const struct attn_ops *ops, const double *lse, int64_t pool, float *sum, float *max,
             struct err *err)
{
    int64_t nq = ops->in.nq, nk = ops->in.nk, cells = pool > 0 ? (nk + pool - 1) / pool : 0;
    double *p = NULL, *s = NULL, *m = NULL;
    int rc = 0;

    if (pool < 1)
        return err_set(err, ERR_USAGE, "pool size %lld of an attention map", (long long)pool);
    TRY(mem_alloc(&p, ROWS * nk, sizeof *p, "rows of probabilities", err));
    TRY(mem_alloc(&s, cells, sizeof *s, "cells of a map", err));
    TRY(mem_alloc(&m, cells, sizeof *m, "cells of a map", err));
    for (int64_t top = 0; top < nq; top += pool, sum += cells, max += cells) {
        int64_t bottom = MIN(top + pool, nq);
        memset(s, 0, (size_t)cells * sizeof *s);
        memset(m, 0, (size_t)cells * sizeof *m);
        for (int64_t r = top; r < bottom; r += ROWS) {
            int64_t end = MIN(r + ROWS, bottom);
            TRY(attn_probs(ops, r, end, lse + r, p, err));
            for (int64_t i = r; i < end; i++)
                fold(p + (i - r) * nk, attn_key_share(&ops->in, lse[i]), nk, pool, s, m);
        }
        for (int64_t c = 0; c < cells; c++) {
            sum[c] = (float)s[c];
            max[c] = (float)m[c];
        }
    }
out:
    free(p);
    free(s);
    free(m);
    return rc;
}
