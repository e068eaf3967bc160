/*
 * simhead.c - see simhead.h.
 */
#include "sim/simhead.h"

#include "core/mem.h"
#include "core/permute.h"

#include <stdlib.h>
#include <string.h>

void sim_head_ready(struct sim_head *h, enum precision prec)
{
    h->in.x.q = h->q;
    h->in.x.k = h->k;
    h->in.x.v = h->v;
    h->in.x.on_device = NULL; /* a device has the head as it was, if at all */
    exact_init(&h->exact, &h->in.x, prec);
    h->in.exact = &h->exact;
}

void sim_head_free(struct sim_head *h)
{
    exact_free(&h->exact);
    free(h->q);
    if (!h->borrows_kv) {
        free(h->k);
        free(h->v);
    }
    free(h->perm);
    free(h->rel);
    memset(h, 0, sizeof *h);
}

int rows_permuted(float **to, const float *x, int64_t n, int64_t d, const int64_t *perm,
                  const char *what, struct err *err)
{
    int rc = mem_alloc(to, n * d, sizeof **to, what, err);
    if (!rc)
        permute_rows(x, n, d, perm, *to);
    return rc;
}

/* Rows of the head that *self comes from: moved, not computed again. */
static int moved_dense(void *self, int64_t row0, int64_t row1, double *out, double *lse,
                       struct err *err)
{
    const struct sim_head *h = self;
    const int64_t *perm = h->perm + row0, n = h->in.x.nq, dv = h->in.x.dv, rows = row1 - row0;
    const double *all;
    int rc = 0;

    if (out) {
        TRY(exact_out(h->from, 0, n, &all, err));
        permute_rows_f64(all, rows, dv, perm, out + row0 * dv);
    }
    TRY(exact_lse(h->from, 0, n, &all, err));
    permute_rows_f64(all, rows, 1, perm, lse + row0);
out:
    return rc;
}

int sim_head_reorder(const struct head_in *in, const char *order, uint64_t seed, struct sim_head *h,
                     struct err *err)
{
    const struct attn_in *x = &in->x;
    int64_t n = x->nq;
    int rc = 0;

    memset(h, 0, sizeof *h);
    if (x->causal || x->nq != x->nk)
        FAIL(err, ERR_USAGE,
             "token order '%s' needs bidirectional attention of a sequence with itself", order);
    TRY(permute_make(order, &in->geom, n, seed, &h->perm, err));
    h->in = *in;
    TRY(rows_permuted(&h->q, x->q, n, x->d, h->perm, "queries", err));
    TRY(rows_permuted(&h->k, x->k, n, x->d, h->perm, "keys", err));
    TRY(rows_permuted(&h->v, x->v, n, x->dv, h->perm, "values", err));
    h->in.order = strcmp(order, "row") == 0 ? NULL : order;
    h->in.moved = order;
    h->from = in->exact;
    sim_head_ready(h, in->exact->prec);
    exact_dense_from(&h->exact, moved_dense, h);
out:
    if (rc)
        sim_head_free(h);
    return rc;
}
