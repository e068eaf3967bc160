/*
 * attention.h - exact softmax attention over the pairs of a mask, in tiles, without N x N storage.
 *
 *   s_ij = cap(scale q_i . k_j) + b_ij       cap(x) = c tanh(x / c), or x
 *   LSE_i = ln sum_{j kept} e^{s_ij}         O_i = sum_j e^{s_ij} v_j / (e^{LSE_i} + e^z)
 *
 * Most models have no cap, no bias b and no sink z (struct score_mods).
 *
 * The same code serves dense attention (MASK_FULL), masked replay and capture. PREC_F64 does
 * products and sums in double; it is the reference of doc/records.md. PREC_F32 does products in
 * float through BLAS and row sums in double: fast, about 1e-6 relative from the other. One call
 * uses one thread; callers run heads or row ranges in parallel.
 */
#pragma once

#include "core/err.h"
#include "core/mask.h"

#include <stdbool.h>
#include <stdint.h>

enum precision { PREC_F64, PREC_F32 };

/* Rows of a full mask that attn_rows computes together, counted from its first row: the bits of a
 * row depend on which of them stand in its block. */
#define ATTN_ROWS 256

/* A bias of rows and keys: b_ij = b[(p - p0) ld + j] for the row at position p. b NULL: none. */
struct pair_bias {
    const float *b;
    int64_t ld, p0;
};

/* What a head's attention adds to the softmax of scaled products; zeroed: nothing. */
struct score_mods {
    double softcap;   /* c > 0: soft-capping; 0: none */
    double alibi;     /* m: b_ij = -m |p - j| for the row at position p (Press et al., ALiBi) */
    const float *rel; /* b_ij = rel[j - p], -nk < j - p < nk: relative bias as of T5; or NULL. Not
                       * together with alibi */
    struct pair_bias pair; /* b_ij of every row and key; not together with the others */
    bool has_sink; /* an attention sink: a logit z that no key and no value belong to. LSE is over
                    * the keys alone, so that recall stays a share of what the keys get */
    double sink;   /* z */
};

/* The bias of key j for the row at position p. */
static inline double pair_bias_at(const struct pair_bias *b, int64_t p, int64_t j)
{
    return b->b ? (double)b->b[(p - b->p0) * b->ld + j] : 0;
}

static inline bool score_has_bias(const struct score_mods *s)
{
    return s->alibi != 0 || s->rel || s->pair.b;
}

struct accel_operands;

/* Key and value matrices of one head in the working precision, contiguous [n][d]. */
struct attn_in {
    int64_t nq, nk;
    int d;                  /* head dim of q and k */
    int dv;                 /* head dim of v */
    const float *q, *k, *v; /* [nq][d], [nk][d], [nk][dv]; v may be NULL with out = NULL */
    double scale;
    bool causal;
    struct reach reach;     /* keys around a row; with one, nq <= nk */
    struct score_mods mods; /* cap, bias, sink */
    const struct accel_operands
        *on_device; /* the same on a device (core/accel.h); NULL: only here */
};

static inline struct head_shape attn_shape(const struct attn_in *in)
{
    return (struct head_shape){in->nq, in->nk, in->causal, in->reach};
}

/* The first key that row i may see, and one past the last. */
static inline int64_t attn_first(const struct attn_in *in, int64_t i)
{
    return reach_first(&in->reach, i + in->nk - in->nq);
}

static inline int64_t attn_limit(const struct attn_in *in, int64_t i)
{
    return reach_limit(&in->reach, i + in->nk - in->nq, key_limit(in->nq, in->nk, in->causal, i));
}

/* Allowed pairs |A| of the head. */
static inline int64_t attn_pairs(const struct attn_in *in)
{
    struct head_shape shape = attn_shape(in);
    return pairs_within(&shape, 0, in->nq, 0, in->nk);
}

/* Does the head have more than scaled products and causality? */
static inline bool attn_is_plain(const struct attn_in *in)
{
    return !reach_any(&in->reach) && in->mods.softcap == 0 && !score_has_bias(&in->mods) &&
           !in->mods.has_sink;
}

/* Every allowed pair of the rows [row0, row1). */
void attn_full_mask(const struct attn_in *in, int64_t row0, int64_t row1, struct mask *m);

/* Share of a row's softmax that its keys get beside the sink: 1 / (1 + e^(z - lse)), 1 without a
 * sink, 0 for a row without keys. */
double attn_key_share(const struct attn_in *in, double lse);

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

/* Some rows of a head: scores [rows][ld], -inf where not allowed, outputs and log-sum-exps. */
struct scored_rows {
    const struct attn_in *in;
    double *s, *out, *lse;
};

/* Dense attention of the rows [r0, r1) of n heads with the keys, values and window of ops; ld
 * covers the keys of the last row. */
int attn_scored_rows(const struct attn_ops *ops, const struct scored_rows *heads, int n, int64_t r0,
                     int64_t r1, int64_t ld, struct err *err);

/* Exact probabilities of the rows [r0, r1) against all keys: p [r1-r0][nk] (0 where not allowed),
 * given their dense lse [r1-r0]. They add up to 1 whether there is a sink or not: p is a share of
 * what the keys get. */
int attn_probs(const struct attn_ops *ops, int64_t r0, int64_t r1, const double *lse, double *p,
               struct err *err);

/* The same from the scores of the rows against all keys, in place. */
void attn_exp(const struct attn_in *in, int64_t r0, int64_t r1, const double *lse, double *p);

/* Scores s_ij of rows [r0, r1) against keys [k0, k1): s [r1-r0][k1-k0], not masked. */
int attn_scores(const struct attn_ops *ops, int64_t r0, int64_t r1, int64_t k0, int64_t k1,
                double *s, struct err *err);

/* Add what every key gets of the exact softmax of the rows [r0, r1), p_ij = exp(s_ij) / (exp(LSE_i)
 * + exp(z)), without the sink exp(s_ij - LSE_i), to sum [nk]; in double, row by row in ascending
 * order. */
int attn_column_sums(const struct attn_ops *ops, int64_t r0, int64_t r1, bool sink, double *sum,
                     struct err *err);

/* ---- the inner loops of a softmax row, in float and in double (softmax.c) ------------------- */

/* Largest of n values; -inf when n is 0. */
float row_max_f32(const float *s, int64_t n);
double row_max_f64(const double *s, int64_t n);

/* s_j <- e^(s_j - m); returns the sum, in double and in a fixed order. Needs m >= all s_j. Values
 * below e^-87 (float) and e^-708 (double), and -inf, become 0. */
double exp_sum_f32(float *s, int64_t n, float m);
double exp_sum_f64(double *s, int64_t n, double m);

/* The same with 2^(s_j - m); values at or below 2^-126 and 2^-1022 become 0. */
double exp2_sum_f32(float *s, int64_t n, float m);
double exp2_sum_f64(double *s, int64_t n, double m);

/* z_j <- e^(z_j - max) / sum, with the exponential of the C library: where published code is
 * imitated and its rounding is what matters. n >= 1. */
void softmax_f64(double *z, int64_t n);

/* ---- pooled maps, which a trace stores instead of N x N probabilities ----------------------- */

/* Compute the sum and the maximum of p over each cell (a, b) of pool x pool query-key pairs. Pairs
 * outside of the matrix, and in a causal head pairs that are not allowed, do not count:
 *
 *   sum_ab = sum p_ij        max_ab = max p_ij        p_ij = exp(s_ij) / (exp(LSE_i) + exp(z))
 *
 * with s_ij of core/attention.h; without a sink there is no exp(z). sum and max are
 * [ceil(nq / pool)][ceil(nk / pool)]. A row of `sum` adds up to the number of its query rows minus
 * the sink's share. lse [nq] is the dense LSE (attn_rows over MASK_FULL). Time O(nq nk d), memory
 * a few rows of nk doubles. */
int pool_map(const struct attn_ops *ops, const double *lse, int64_t pool, float *sum, float *max,
             struct err *err);
