/*
 * simhead.h - a head with its own storage: q, k, v and the exact map made of them.
 */
#ifndef LACUNA_SIMHEAD_H
#define LACUNA_SIMHEAD_H

#include "core/method.h"
#include "sim/blocks/exact.h"

#include <stdint.h>

/* A head with its own storage. Not to be moved: h->in points into it. */
struct sim_head {
    struct head_in in;        /* views into the members below */
    struct exact exact;       /* in.exact */
    float *q, *k, *v;         /* owned */
    bool borrows_kv;          /* but for k and v, which are another head's of the group */
    struct row_sample sample; /* in.rows, where the trace has a sample */
    float *rel;               /* owned: relative bias [2 n_k - 1] of the trace, or NULL */

    /* Of a head in another token order (sim_head_reorder). */
    struct exact *from; /* that of the head it comes from, which outlives this one */
    int64_t *perm;      /* owned: row i is row perm[i] there */
};

/* Make the views and the exact map of a head whose q, k, v (owned by *h) and h->in, with shapes,
 * scale and causality, are in place. */
void sim_head_ready(struct sim_head *h, enum precision prec);
void sim_head_free(struct sim_head *h);

/* *to = x [n][d] with row i from row perm[i], owned by the caller. */
int rows_permuted(float **to, const float *x, int64_t n, int64_t d, const int64_t *perm,
                  const char *what, struct err *err);

/* Copy of a head with q, k, v in the token order `order` (permute.h). Dense rows of *h are moved
 * from in->exact, which has to outlive it, and not computed again. Needs a bidirectional head of a
 * video with nq = nk; otherwise ERR_USAGE. Release with sim_head_free. */
int sim_head_reorder(const struct head_in *in, const char *order, uint64_t seed, struct sim_head *h,
                     struct err *err);

#endif
