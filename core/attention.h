/*
 * attention.h - exact softmax attention over the pairs of a mask, in tiles, without N x N storage.
 *
 *   s_ij = scale q_i . k_j     LSE_i = ln sum_{j kept} e^{s_ij}     O_i = sum_j e^{s_ij - LSE_i}
 * v_j
 *
 * The same code serves dense attention (MASK_FULL), masked replay and capture. PREC_F64 does
 * products and sums in double; it is the reference of doc/records.md. PREC_F32 does products in
 * float through BLAS and row sums in double: fast, about 1e-6 relative from the other. One call
 * uses one thread; callers run heads or row ranges in parallel.
 */
#ifndef LACUNA_ATTENTION_H
#define LACUNA_ATTENTION_H

#include "core/err.h"
#include "core/mask.h"

#include <stdbool.h>
#include <stdint.h>

enum precision { PREC_F64, PREC_F32 };

/* Rows of a full mask that attn_rows computes together, counted from its first row: the bits of a
 * row depend on which of them stand in its block. */
#define ATTN_ROWS 256

/* Key and value matrices of one head in the working precision, contiguous [n][d]. */
struct attn_in {
    int64_t nq, nk;
    int d;                  /* head dim of q and k */
    int dv;                 /* head dim of v */
    const float *q, *k, *v; /* [nq][d], [nk][d], [nk][dv]; v may be NULL with out = NULL */
    double scale;
    bool causal;
};

/* One past the last key that row i may see. */
static inline int64_t attn_limit(const struct attn_in *in, int64_t i)
{
    return key_limit(in->nq, in->nk, in->causal, i);
}

/* Operands of one head, prepared once. PREC_F64 holds double copies of k and v, PREC_F32 borrows
 * the floats. Release with attn_release. */
struct attn_ops {
    struct attn_in in;
    enum precision prec;
    double *k64, *v64; /* owned, PREC_F64 only */
};
int attn_prepare(struct attn_ops *ops, const struct attn_in *in, enum precision prec,
                 struct err *err);
void attn_release(struct attn_ops *ops);

/* Attention of the rows m->row0 .. m->row1 over the pairs of m.
 *   out  [row1-row0][dv] double, may be NULL (then no P V product is done)
 *   lse  [row1-row0] double, natural log, -inf for an empty row (whose out is 0)
 */
int attn_rows(const struct attn_ops *ops, const struct mask *m, double *out, double *lse,
              struct err *err);

/* Exact probabilities of the rows [r0, r1) against all keys: p [r1-r0][nk] (0 where not allowed),
 * given their dense lse [r1-r0]. */
int attn_probs(const struct attn_ops *ops, int64_t r0, int64_t r1, const double *lse, double *p,
               struct err *err);

/* Scaled scores s_ij of rows [r0, r1) against keys [k0, k1): s [r1-r0][k1-k0], not masked. */
int attn_scores(const struct attn_ops *ops, int64_t r0, int64_t r1, int64_t k0, int64_t k1,
                double *s, struct err *err);

#endif
