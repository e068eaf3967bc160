/*
 * reorder.c - see reorder.h. O(N d).
 */
#include "sim/reorder.h"

#include "core/mem.h"
#include "core/permute.h"

#include <stdlib.h>
#include <string.h>

static int moved(float **dst, const float *x, int64_t n, int64_t d, const int64_t *perm,
                 const char *what, struct err *err)
{
    int rc = mem_alloc(dst, n * d, sizeof **dst, what, err);
    if (!rc)
        permute_rows(x, n, d, perm, *dst);
    return rc;
}

static int moved_f64(double **dst, const double *x, int64_t n, int64_t d, const int64_t *perm,
                     const char *what, struct err *err)
{
    int rc = mem_alloc(dst, n * d, sizeof **dst, what, err);
    if (!rc)
        permute_rows_f64(x, n, d, perm, *dst);
    return rc;
}

int sim_head_reorder(const struct head_in *in, const char *order, uint64_t seed, struct sim_head *h,
                     struct err *err)
{
    const struct attn_in *x = &in->x;
    int64_t *perm = NULL, n = x->nq;
    int rc = 0;

    memset(h, 0, sizeof *h);
    if (x->causal || x->nq != x->nk)
        FAIL(err, ERR_USAGE,
             "token order '%s' needs bidirectional attention of a sequence with itself", order);
    TRY(permute_make(order, &in->geom, n, seed, &perm, err));
    h->in = *in;
    TRY(moved(&h->q, x->q, n, x->d, perm, "queries", err));
    TRY(moved(&h->k, x->k, n, x->d, perm, "keys", err));
    TRY(moved(&h->v, x->v, n, x->dv, perm, "values", err));
    h->in.x.q = h->q;
    h->in.x.k = h->k;
    h->in.x.v = h->v;
    if (in->out)
        TRY(moved_f64(&h->out, in->out, n, x->dv, perm, "dense output", err));
    if (in->lse)
        TRY(moved_f64(&h->lse, in->lse, n, 1, perm, "dense log-sum-exp", err));
    h->in.out = h->out;
    h->in.lse = h->lse;
    h->in.order = strcmp(order, "row") == 0 ? NULL : order;
    TRY(attn_prepare(&h->ops, &h->in.x, in->ops->prec, err));
    h->in.ops = &h->ops;
out:
    free(perm);
    if (rc)
        sim_head_free(h);
    return rc;
}
