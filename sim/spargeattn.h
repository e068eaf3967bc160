/*
 * spargeattn.h - the parts of SpargeAttn (sim/methods/spargeattn.c): parameters, filter 1, search
 * of per-head parameters. Notation: query block i of bq rows, key block j of bk keys, p(X) the mean
 * of block X, s(X) its self-similarity.
 */
#ifndef LACUNA_SPARGEATTN_H
#define LACUNA_SPARGEATTN_H

#include "core/method.h"
#include "sim/quant.h"
#include "sim/tileattn.h"

enum sparge_profile { SPARGE_OFFICIAL, SPARGE_PAPER };
enum sparge_arch { SPARGE_SM80, SPARGE_SM89, SPARGE_SM90 };
enum sparge_select { SPARGE_CDF, SPARGE_TOPK };
enum sparge_arith { SPARGE_EXACT, SPARGE_SAGE1, SPARGE_SAGE2 };
enum sparge_search { SPARGE_BISECT, SPARGE_GRID };
enum sparge_bin { SPARGE_BIN_SUM, SPARGE_BIN_MEAN };

/* Unset: -1 for enums, NAN, INT64_MIN. */
struct sparge_params {
    int profile, arch, tile, select;
    bool judge;
    double theta, tau, topk, pv, lambda;
    int pv_scope;
    int64_t pv_tail;
    bool sink, smooth_k;
    int map_dtype, cdf_dtype, arith, quant, v_max, dead, permute;
    bool dense;
    /* search of per-head parameters only */
    int search, bin;
    double l1, l2;
    bool tune_pv;
};

extern const struct opt sparge_options[];

int sparge_validate(void *params, struct err *err);

/* Parameters with presets and profile filled in, for head dimension d. */
struct sparge_rules {
    bool paper, topk_cut, dense, sink, smooth_k;
    int64_t bq, bk, scope;
    int tail;
    double theta, tau, topk, pv;
    bool map_input; /* round pooled values to the input dtype */
    enum dtype cdf; /* DT_F32, DT_F16, DT_BF16 */
    enum sparge_arith arith;
    enum sparge_arch arch;
    float v_max;
    bool dead_mean;
};

void sparge_resolve(const struct sparge_params *p, int d, struct sparge_rules *r);

/* Blocks of one side of the head. */
struct sparge_blocks {
    int64_t n;
    float *mean;   /* [n][d], owned */
    double *s;     /* [n], owned */
    bool *whole;   /* [n] full block without a zero row (official: others are never similar) */
    bool *similar; /* [n] by the current theta */
};

/* One query block's buffers for filter 1. */
struct sparge_row;

/* A head prepared for any theta, tau, pv. */
struct sparge {
    struct sparge_rules rules;
    struct head_in in;
    int64_t nq_blocks, nk_blocks;
    float *q_owned;  /* q in the input dtype where that differs, or NULL */
    const float *q;  /* [nq][d] */
    float *k, *kbar; /* [nk][d] smoothed, [d]; owned */
    enum dtype map;  /* grid of pooled values */
    struct sparge_blocks qb, kb;
    struct quant qi, ki; /* quantised arithmetic only */
    float *v, *v_scale;  /* owned, the same */
    struct tile_attn tile;
    struct sparge_row *row;
    /* counts over the rows selected so far */
    int64_t kept, dead_rows, cut_rows;
    double cut_mass, tiles_pv;
};

/* in is copied (views stay the caller's). ops may be NULL while no attention is computed. */
int sparge_new(const struct sparge_params *p, const struct head_in *in, struct sparge **out,
               struct err *err);
void sparge_free(struct sparge *s); /* accepts NULL */

/* Change what a search varies. theta decides again which blocks are similar; true when that changed
 * any of them. */
bool sparge_set_theta(struct sparge *s, double theta);
void sparge_set_tau(struct sparge *s, double tau);
void sparge_set_pv(struct sparge *s, double pv);

/* ---- filter 1 ------------------------------------------------------------------------------- */

/* Key block j holds a key at or before the last row of query block i (of full blocks). */
static inline bool sparge_admissible(const struct sparge_rules *r, bool causal, int64_t i,
                                     int64_t j)
{
    return !causal || j * r->bk < (i + 1) * r->bq;
}

bool sparge_similar(const struct sparge_rules *r, double s, bool whole);

/* Number of leading blocks of a row of coarse probabilities p [n], sorted descending, that the cut
 * takes. *mass (may be NULL) becomes their sum. */
int64_t sparge_cut(const struct sparge_rules *r, const float *p, int64_t n, double *mass);

/* Sort [n] entries by probability descending, ties: lower block first. */
struct sparge_entry {
    float p;
    int32_t j;
};
void sparge_sort(struct sparge_entry *e, int64_t n);

int sparge_row_new(int64_t n, struct sparge_row **out, struct err *err);
void sparge_row_free(struct sparge_row *w);

/* Kept key blocks of query block i, ascending, into col [nk_blocks]; returns their number. *mass =
 * coarse probability taken by the cut, -1 when the block was not judged. */
int64_t sparge_list(const struct sparge *s, struct sparge_row *w, int64_t i, int32_t *col,
                    double *mass);

/* Tiles that hold an allowed pair. */
int64_t sparge_tiles(int64_t nq_blocks, int64_t nk_blocks, const struct sparge_rules *r,
                     bool causal);

/* What the official code divides the kept tiles by: causal n_q floor((n_k + 2) / 2). */
int64_t sparge_native_tiles(int64_t nq_blocks, int64_t nk_blocks, bool causal);

/* ---- per-head search (spargeattn_calibrate.c) ----------------------------------------------- */

/* One evaluated setting. */
struct sparge_point {
    double theta, tau, pv, sparsity;
};

/* Relative L1 and sparsity of a setting; the theta is already set. */
typedef int sparge_eval_fn(void *ctx, double tau, double pv, double *l1, double *sparsity,
                           struct err *err);

/* Smallest tau that keeps L1 under the bound, and the sparsity of the last setting evaluated. */
int sparge_bisect_tau(sparge_eval_fn *eval, void *ctx, double l1, double *tau, double *sparsity,
                      struct err *err);
int sparge_bisect_pv(sparge_eval_fn *eval, void *ctx, double l2, double tau, double *pv,
                     struct err *err);

/* The bin of theta (two grid values each) with the largest sum (or mean) of sparsity, the first in
 * the order of the points on a tie; *best gets the largest theta, tau and pv of its points and
 * their mean sparsity. n >= 1. */
void sparge_pick(const struct sparge_point *points, int64_t n, enum sparge_bin how,
                 struct sparge_point *best);

/* Number of samples from `first` on that are judged as one input: calls of the same step, no branch
 * twice (the guidance branches of a step). */
int sparge_input_size(const struct head_in *samples, int n, int first);

int sparge_calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err);

#endif
