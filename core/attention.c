/*
 * attention.c - exact attention in two precisions (attention.h); the tiles are in
 * attention_kernel.inc.
 */
#include "core/attention.h"

#include "core/gemm.h"
#include "core/intmath.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows and keys of a tile: large enough that packing them is small beside the product, small enough
 * that scores stay in L2. */
#define ROWS ATTN_ROWS
#define TILE 512

/* c tanh(x / c) and bias of the keys [k0, k1), which stand in s[0 .. k1 - k0), for the row at
 * position p. */
#define MODIFY(s, x, p, k0, k1)                                                                    \
    do {                                                                                           \
        const struct score_mods *mods = &(x)->mods;                                                \
        for (int64_t j = (k0); mods->softcap > 0 && j < (k1); j++)                                 \
            (s)[j - (k0)] = (REAL)(mods->softcap * tanh((double)(s)[j - (k0)] / mods->softcap));   \
        for (int64_t j = (k0); mods->alibi != 0 && j < (k1); j++)                                  \
            (s)[j - (k0)] -= (REAL)(mods->alibi * (double)(j > (p) ? j - (p) : (p)-j));            \
        for (int64_t j = (k0); mods->rel && j < (k1); j++)                                         \
            (s)[j - (k0)] += (REAL)mods->rel[j - (p)];                                             \
        for (int64_t j = (k0); mods->pair.b && j < (k1); j++)                                      \
            (s)[j - (k0)] += (REAL)pair_bias_at(&mods->pair, (p), j);                              \
    } while (0)

/* ---- float ---------------------------------------------------------------------------------- */
#define REAL float
#define SUF(name) name##_f32
#define GEMM_NT gemm_nt_f32
#define GEMM_NN gemm_nn_f32
#include "core/attention_kernel.inc"
#undef REAL
#undef SUF
#undef GEMM_NT
#undef GEMM_NN

/* ---- double --------------------------------------------------------------------------------- */
#define REAL double
#define SUF(name) name##_f64
#define GEMM_NT gemm_nt_f64
#define GEMM_NN gemm_nn_f64
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
    int64_t rows = block_rows(m);
    return ops->prec == PREC_F32 ? attn_rows_f32(in, in->k, in->v, m, rows, out, lse, err)
                                 : attn_rows_f64(in, ops->k64, ops->v64, m, rows, out, lse, err);
}

int attn_scored_rows(const struct attn_ops *ops, const struct scored_rows *heads, int n, int64_t r0,
                     int64_t r1, int64_t ld, struct err *err)
{
    int rc = 0;
    for (int g = 0; g < n; g += ROWS) {
        int m = MIN(ROWS, n - g);
        for (int64_t a = r0, rows; a < r1 && !rc; a += rows) {
            rows = MIN(ROWS / m, r1 - a);
            rc = ops->prec == PREC_F32
                     ? scored_rows_f32(heads + g, m, ops->in.k, ops->in.v, r0, a, rows, ld, err)
                     : scored_rows_f64(heads + g, m, ops->k64, ops->v64, r0, a, rows, ld, err);
        }
    }
    return rc;
}

void attn_full_mask(const struct attn_in *in, int64_t row0, int64_t row1, struct mask *m)
{
    mask_full(m, in->nq, in->nk, row0, row1, in->causal);
    mask_within(m, &in->reach);
}

double attn_key_share(const struct attn_in *in, double lse)
{
    if (!in->mods.has_sink)
        return 1;
    return lse == -INFINITY ? 0 : 1 / (1 + exp(in->mods.sink - lse));
}

int attn_scores(const struct attn_ops *ops, int64_t r0, int64_t r1, int64_t k0, int64_t k1,
                double *s, struct err *err)
{
    return ops->prec == PREC_F32 ? attn_scores_f32(&ops->in, ops->in.k, r0, r1, k0, k1, s, err)
                                 : attn_scores_f64(&ops->in, ops->k64, r0, r1, k0, k1, s, err);
}

int attn_probs(const struct attn_ops *ops, int64_t r0, int64_t r1, const double *lse, double *p,
               struct err *err)
{
    PASS_ON(attn_scores(ops, r0, r1, 0, ops->in.nk, p, err));
    attn_exp(&ops->in, r0, r1, lse, p);
    return 0;
}

void attn_exp(const struct attn_in *in, int64_t r0, int64_t r1, const double *lse, double *p)
{
    for (int64_t r = r0; r < r1; r++) {
        double *row = p + (r - r0) * in->nk;
        int64_t first = attn_first(in, r), limit = attn_limit(in, r);
        if (limit > first)
            exp_sum_f64(row + first, limit - first, lse[r - r0]);
        memset(row, 0, (size_t)first * sizeof *row);
        memset(row + limit, 0, (size_t)(in->nk - limit) * sizeof *row);
    }
}

int attn_column_sums(const struct attn_ops *ops, int64_t r0, int64_t r1, bool sink, double *sum,
                     struct err *err)
{
    enum { AT_ONCE = 64 }; /* rows of probabilities in memory */
    const struct attn_in *in = &ops->in;
    OWN(free_at) double *s = NULL;

    PASS_ON(mem_alloc(&s, AT_ONCE * in->nk, sizeof *s, "rows of probabilities", err));
    for (int64_t a = r0; a < r1; a += AT_ONCE) {
        int64_t b = MIN(a + AT_ONCE, r1), keys = attn_limit(in, b - 1);
        PASS_ON(attn_scores(ops, a, b, 0, keys, s, err));
        for (int64_t r = a; r < b; r++) {
            int64_t first = attn_first(in, r), n = attn_limit(in, r) - first;
            double *row = s + (r - a) * keys + first, max = row_max_f64(row, n);
            double z = exp_sum_f64(row, n, max);
            double share = (sink ? attn_key_share(in, max + log(z)) : 1) / z;
            for (int64_t j = 0; j < n; j++)
                sum[first + j] += row[j] * share;
        }
    }
    return 0;
}

/* ---- pooled maps ------------------------------------------------------------------------------
 *
 * A few rows of probabilities at a time are computed and added to their cells. Sums are carried in
 * double over all rows of a cell and rounded once, so that the stored map does not depend on how
 * the rows were grouped. */

#define PROB_ROWS 32 /* rows of probabilities in memory */

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
    OWN(free_at) double *p = NULL, *s = NULL, *m = NULL;

    if (pool < 1)
        return err_set(err, ERR_USAGE, "pool size %lld of an attention map", (long long)pool);
    PASS_ON(mem_alloc(&p, PROB_ROWS * nk, sizeof *p, "rows of probabilities", err));
    PASS_ON(mem_alloc(&s, cells, sizeof *s, "cells of a map", err));
    PASS_ON(mem_alloc(&m, cells, sizeof *m, "cells of a map", err));
    for (int64_t top = 0; top < nq; top += pool, sum += cells, max += cells) {
        int64_t bottom = MIN(top + pool, nq);
        memset(s, 0, (size_t)cells * sizeof *s);
        memset(m, 0, (size_t)cells * sizeof *m);
        for (int64_t r = top; r < bottom; r += PROB_ROWS) {
            int64_t end = MIN(r + PROB_ROWS, bottom);
            PASS_ON(attn_probs(ops, r, end, lse + r, p, err));
            for (int64_t i = r; i < end; i++)
                fold(p + (i - r) * nk, attn_key_share(&ops->in, lse[i]), nk, pool, s, m);
        }
        for (int64_t c = 0; c < cells; c++) {
            sum[c] = (float)s[c];
            max[c] = (float)m[c];
        }
    }
    return 0;
}
