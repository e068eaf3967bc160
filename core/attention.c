/*
 * attention.c - exact attention in two precisions (attention.h); the tiles are in
 * attention_kernel.inc.
 */
#include "core/attention.h"

#include "core/mem.h"
#include "core/simd.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows and keys of a tile: large enough that packing them is small beside the product, small enough
 * that scores stay in L2. */
#define ROWS 256
#define TILE 512

/* ---- float ---------------------------------------------------------------------------------- */
#define REAL float
#define SUF(name) name##_f32
#define GEMM cblas_sgemm
#define EXP_BITS uint32_t
#define EXP_SHIFT 23
#define EXP_ONE 0x3f800000u
#define EXP_MAGIC 12582912.0f /* 1.5 * 2^23 */
#define EXP_MIN (-87.0f)
#define EXP_LN2_HI 0.693359375f
#define EXP_LN2_LO (-2.12194440e-4f)
#define EXP_POLY(r)                                                                               \
    (1 + (r) * (1 + (r) * (1.0f / 2 + (r) * (1.0f / 6 + (r) * (1.0f / 24 + (r) * (1.0f / 120 +    \
     (r) * (1.0f / 720 + (r) * (1.0f / 5040))))))))
#include "core/attention_kernel.inc"
#undef REAL
#undef SUF
#undef GEMM
#undef EXP_BITS
#undef EXP_SHIFT
#undef EXP_ONE
#undef EXP_MAGIC
#undef EXP_MIN
#undef EXP_LN2_HI
#undef EXP_LN2_LO
#undef EXP_POLY

/* ---- double --------------------------------------------------------------------------------- */
#define REAL double
#define SUF(name) name##_f64
#define GEMM cblas_dgemm
#define EXP_BITS uint64_t
#define EXP_SHIFT 52
#define EXP_ONE 0x3ff0000000000000ull
#define EXP_MAGIC 6755399441055744.0 /* 1.5 * 2^52 */
#define EXP_MIN (-708.0)
#define EXP_LN2_HI 6.93147180369123816490e-01
#define EXP_LN2_LO 1.90821492927058770002e-10
#define EXP_HIGH(r)                                                                               \
    (1.0 / 5040 + (r) * (1.0 / 40320 + (r) * (1.0 / 362880 + (r) * (1.0 / 3628800 + (r) *         \
     (1.0 / 39916800 + (r) * (1.0 / 479001600 + (r) * (1.0 / 6227020800.0)))))))
#define EXP_POLY(r)                                                                               \
    (1 + (r) * (1 + (r) * (1.0 / 2 + (r) * (1.0 / 6 + (r) * (1.0 / 24 + (r) * (1.0 / 120 + (r) *  \
     (1.0 / 720 + (r) * EXP_HIGH(r))))))))
#include "core/attention_kernel.inc"

int attn_prepare(struct attn_ops *ops, const struct attn_in *in, enum precision prec,
                 struct err *err)
{
    int rc = 0;
    memset(ops, 0, sizeof *ops);
    ops->in = *in;
    ops->prec = prec;
    if (prec == PREC_F32)
        return 0;
    TRY(mem_alloc(&ops->k64, in->nk * in->d, sizeof(double), "keys in double", err));
    for (int64_t i = 0; i < in->nk * in->d; i++)
        ops->k64[i] = in->k[i];
    if (in->v) {
        TRY(mem_alloc(&ops->v64, in->nk * in->dv, sizeof(double), "values in double", err));
        for (int64_t i = 0; i < in->nk * in->dv; i++)
            ops->v64[i] = in->v[i];
    }
out:
    if (rc)
        attn_release(ops);
    return rc;
}

void attn_release(struct attn_ops *ops)
{
    free(ops->k64);
    free(ops->v64);
    memset(ops, 0, sizeof *ops);
}

/* Rows that share work: a whole list group where groups are tall enough; few rows where each row
 * has its own keys, so that the union stays small. */
static int64_t block_rows(const struct mask *m)
{
    if (m->form == MASK_LISTS && m->bq >= 16)
        return m->bq < ROWS ? m->bq : m->bq % ROWS == 0 ? ROWS : m->bq % 64 == 0 ? 64 : 16;
    return m->form == MASK_FULL ? ROWS : 64;
}

int attn_rows(const struct attn_ops *ops, const struct mask *m, double *out, double *lse,
              struct err *err)
{
    const struct attn_in *in = &ops->in;
    int64_t               rows = block_rows(m);
    return ops->prec == PREC_F32
               ? attn_rows_f32(in, in->k, in->v, m, rows, out, lse, err)
               : attn_rows_f64(in, ops->k64, ops->v64, m, rows, out, lse, err);
}

int attn_scores(const struct attn_ops *ops, int64_t r0, int64_t r1, int64_t k0, int64_t k1,
                double *s, struct err *err)
{
    return ops->prec == PREC_F32
               ? attn_scores_f32(&ops->in, ops->in.k, r0, r1, k0, k1, s, err)
               : attn_scores_f64(&ops->in, ops->k64, r0, r1, k0, k1, s, err);
}

int attn_probs(const struct attn_ops *ops, int64_t r0, int64_t r1, const double *lse, double *p,
               struct err *err)
{
    const struct attn_in *in = &ops->in;
    int                   rc = attn_scores(ops, r0, r1, 0, in->nk, p, err);
    if (rc)
        return rc;
    for (int64_t r = r0; r < r1; r++) {
        double *row = p + (r - r0) * in->nk;
        int64_t limit = in->causal ? r + in->nk - in->nq + 1 : in->nk;
        limit = limit < 0 ? 0 : limit > in->nk ? in->nk : limit;
        if (limit > 0)
            exp_shift_sum_f64(row, limit, lse[r - r0]);
        memset(row + limit, 0, (size_t)(in->nk - limit) * sizeof *row);
    }
    return 0;
}
