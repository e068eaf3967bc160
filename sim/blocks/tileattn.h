/*
 * tileattn.h - attention over lists of key tiles with an online softmax, in the arithmetic of a GPU
 * kernel: exact, or the quantised one of SageAttention, with SpargeAttn's filter on P.V.
 *
 * A query block of bq rows walks over its kept tiles of bk keys in ascending order. Per row, with
 * scores s in log2 units and m = -inf, l = 0, O = 0 at the start:
 *
 *   m_loc = max over the visible keys of the tile      gap = m_loc - m
 *   m'    = max(m, m_loc);  l, O *= 2^(m - m');  P = 2^(s - m' + offset)
 *   l += sum P,  O += P V          unless no row of the scope has gap + pv > 0 (then neither, or
 *                                  only the first with keep_denominator)
 *   O / l at the end, times the channel scale, plus the channel mean
 *
 * Key t is visible to query i iff t < nk and, causal, t <= i + nk - nq.
 *
 * Quantised scores are integer dot products, computed by a float GEMM of the integers. This is
 * exact in any order while d * levels^2 < 2^24. Everything after the scores is float, with the
 * kernels' operations up to the order of sums.
 */
#pragma once

#include "core/dtype.h"
#include "core/mem.h"
#include "core/mask.h"
#include "sim/blocks/exact.h"
#include "sim/blocks/quant.h"

#include <stdbool.h>
#include <stdint.h>

/* Type of P (and V) in the P.V product. */
enum tile_p { TILE_P_EXACT, TILE_P_F16, TILE_P_E4M3 };

#define TILE_MAX_D 1024         /* 127^2 * 1024 < 2^24 */
#define TILE_E4M3_OFFSET 8.807f /* the published kernels: P up to 2^8.807 = 447.89 */

struct tile_attn {
    int64_t nq, nk;
    int d, dv;
    bool causal;
    int64_t bq, bk;

    struct exact *exact; /* operands of exact arithmetic; unquantised q and v in every case */

    /* Quantised arithmetic iff q is set: score = dot * (score_scale * delta_q * delta_k) + bias */
    const struct quant *q, *k;
    float score_scale;          /* softmax scale * log2 e; 1 when Q already holds it */
    const float *qbar, *k_bias; /* smoothed Q: block means [ceil(nq/bq)][d] and the keys
                                 * [nk][d] of bias = (qbar . k) * bias_scale; or NULL */
    float bias_scale;
    const float *v;                /* [nk][dv] as the product sees it (fp16 or e4m3 values) */
    const float *v_scale, *v_mean; /* [dv] or NULL: O * v_scale + v_mean */
    enum tile_p p_type;
    float p_offset; /* exponent offset of P, log2 units */
    float p_factor; /* factor on P after exp2; 1 = none */
    enum own_sum acc;
    int mma_keys;      /* keys of one MMA step: 16 (fp16), 32 (8 bit) */
    bool l_rounded;    /* l sums P after rounding */
    int together;      /* 2: two tiles are rounded relative to the largest score of both, as by
                        * GPU kernels; the first of an odd number is alone. 0: each by itself */
    const float *kbar; /* [d] subtracted from K before quantisation, or NULL: the
                        * log-sum-exp gets scale * (q . kbar) back */

    /* Filter on P.V */
    double pv;     /* distance in log2 units, INFINITY = never skip */
    int64_t scope; /* rows that vote together; divides bq */
    int tail;      /* last tiles of a list that are never skipped */
    bool keep_denominator;

    bool dead_mean;       /* row without a visible key: mean of V over its tiles */
    enum dtype out_dtype; /* output rounded to it; DT_NONE = not rounded */
};

/* What quantised arithmetic multiplies; released by tile_operands_free, also when zeroed. */
struct tile_operands {
    struct quant q, k;
    float *v, *v_scale, *v_mean; /* [nk][dv], [dv], [dv]; owned */
};

/* Quantise q [nq][d] and k [nk][d], which are rounded and smoothed, and x->v by the rule that a GPU
 * gets, and let *t, whose sizes are set, multiply them. kbar [d]: what k lost. *t points into *o
 * and to kbar. */
int tile_quantise(struct tile_attn *t, struct tile_operands *o, const struct own_quantised *r,
                  const struct attn_in *x, const float *q, const float *k, const float *kbar,
                  struct err *err);
void tile_operands_free(struct tile_operands *o);

/* Buffers for one caller. */
struct tile_work;
int tile_work_new(const struct tile_attn *t, struct tile_work **out, struct err *err);
void tile_work_free(struct tile_work *w); /* accepts NULL */
OWN_AT(tile_work_free, struct tile_work *)

/* One query block: rows [row0, row0 + rows), row0 a multiple of bq, tiles col[0..n) ascending.
 *   out [rows][dv], lse [rows] natural log (-inf for a dead row)
 *   *tiles_pv += share of scopes whose P.V was computed, summed over the tiles (may be NULL) */
void tile_attn_block(const struct tile_attn *t, struct tile_work *w, int64_t row0, int64_t rows,
                     const int32_t *col, int64_t n, double *out, double *lse, double *tiles_pv);

/* All rows of a mask whose unit is bq x bk (MASK_LISTS), or MASK_FULL. */
int tile_attn_rows(const struct tile_attn *t, const struct mask *m, double *out, double *lse,
                   double *tiles_pv, struct err *err);
