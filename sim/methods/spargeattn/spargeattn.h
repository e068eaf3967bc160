/*
 * spargeattn.h - the parts of SpargeAttn (sim/methods/spargeattn/spargeattn.c): parameters, filter
 * 1, search of per-head parameters. Notation: query block i of bq rows, key block j of bk keys,
 * p(X) the mean of block X, s(X) its self-similarity.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/tileattn.h"

enum sparge_profile { SPARGE_OFFICIAL, SPARGE_PAPER };
enum sparge_arch { SPARGE_SM80, SPARGE_SM89, SPARGE_SM90 };
enum sparge_select { SPARGE_CDF, SPARGE_TOPK };
enum sparge_arith { SPARGE_EXACT, SPARGE_SAGE1, SPARGE_SAGE2, SPARGE_AUTO };
enum sparge_search { SPARGE_BISECT, SPARGE_GRID };

/* A parameter that is not set: -1 for enums, else NAN or INT64_MIN. */
struct sparge_params {
    int bounds, profile, arch, tile, select;
    bool judge;
    double theta, tau, topk, pv, lambda;
    int pv_scope;
    int64_t pv_tail;
    bool sink, smooth_k;
    int map_dtype, cdf_dtype, arith, v_max, dead, permute;
    bool dense;
    /* search of per-head parameters only */
    int search;
    double l1, l2;
    bool tune_pv;
    double pv_min;
};

/* Parameters with presets, profile and arith=auto resolved, for head dimension d. */
struct sparge_rules {
    bool paper, topk_cut, dense, sink, smooth_k;
    int64_t bq, bk, scope;
    int tail;
    double theta, tau, topk, pv;
    bool map_input; /* round pooled values to the input dtype */
    enum dtype cdf; /* DT_F32, DT_F16, DT_BF16 */
    int chunk;      /* of the 16-bit running sum (gpusum.h) */
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
    struct tile_operands operands; /* quantised arithmetic only */
    struct tile_attn tile;
    struct sparge_row *row;
    bool ready;        /* what sparge_make makes is there, or a choice was taken: */
    struct mask given; /* then its mask, owned */
    /* counts over the rows selected so far */
    int64_t kept, dead_rows, cut_rows;
    double cut_mass, tiles_pv;
};

/* Copies `in`; its views stay the caller's. exact may be NULL if no attention is computed. */
int sparge_new(const struct sparge_params *p, const struct head_in *in, struct sparge **out,
               struct err *err);
void sparge_free(struct sparge *s); /* accepts NULL */

/* ---- filter 1 ------------------------------------------------------------------------------- */

/* True if key block j has a key at or before the last row of query block i, both taken as full
 * blocks. */
static inline bool sparge_admissible(const struct sparge_rules *r, bool causal, int64_t i,
                                     int64_t j)
{
    return !causal || j * r->bk < (i + 1) * r->bq;
}

bool sparge_similar(const struct sparge_rules *r, double s, bool whole);

/* Number of leading blocks that the cut takes from a row of coarse probabilities p [n], sorted
 * descending. *mass (may be NULL) receives their sum. */
int64_t sparge_cut(const struct sparge_rules *r, const float *p, int64_t n, double *mass);

/* Sort [n] entries by probability descending, ties: lower block first. */
struct sparge_entry {
    float p;
    int32_t j;
};
void sparge_sort(struct sparge_entry *e, int64_t n);

/* Kept key blocks of query block i, ascending, into col [nk_blocks]; returns their number. *mass =
 * coarse probability taken by the cut, -1 when the block was not judged. */
int64_t sparge_list(const struct sparge *s, struct sparge_row *w, int64_t i, int32_t *col,
                    double *mass);

/* Tiles that hold an allowed pair. */
int64_t sparge_tiles(int64_t nq_blocks, int64_t nk_blocks, const struct sparge_rules *r,
                     bool causal);

/* The number by which the official code divides the kept tiles; causal n_q floor((n_k + 2) / 2). */
int64_t sparge_native_tiles(int64_t nq_blocks, int64_t nk_blocks, bool causal);

/* ---- per-head search ------------------------------------------------------------------------ */

/* One evaluated setting. */
struct sparge_point {
    double theta, tau, pv, sparsity;
};

/* Compute relative L1 and sparsity of a setting, with the theta that is set. */
typedef int sparge_eval_fn(void *ctx, double tau, double pv, double *l1, double *sparsity,
                           struct err *err);

/* Smallest tau that keeps L1 under the bound, and the sparsity of the last setting evaluated. */
int sparge_bisect_tau(sparge_eval_fn *eval, void *ctx, double l1, double *tau, double *sparsity,
                      struct err *err);
int sparge_bisect_pv(sparge_eval_fn *eval, void *ctx, double l2, double tau, double *pv,
                     struct err *err);

/* Find the bin of theta (two grid values per bin) with the largest sum of sparsity; on a tie the
 * bin whose points come first. *best receives the largest theta, tau and pv of the bin's points and
 * their mean sparsity. n >= 1. */
void sparge_pick(const struct sparge_point *points, int64_t n, struct sparge_point *best);

/* Number of samples from `first` on that are judged as one input: the guidance branches of one
 * step, so calls of the same step and no branch twice. */
int sparge_input_size(const struct head_in *samples, int n, int first);

int sparge_calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                     int n, struct jw *w, struct err *err);
