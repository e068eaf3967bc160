/*
 * metrics.h - the metrics of heads in a replay, on the GPU and without N x N storage.
 *
 * 1. metrics_ref: dense attention with unrounded fp32 outputs; per row the normaliser of p.
 * 2. metrics_compare: differences of other outputs from these, and the mass that a mask keeps of a
 *    row, from the log-sum-exps of both runs.
 * 3. metrics_pass: S = Q K^T again, tile by tile: shares of blocks and slices whose largest p_ij =
 *    e^{s_ij - LSE_i} is below c/N (sim/blocks/exact.h has the same on the CPU), sums of p over
 *    rows, and maps of 64 x 64 sums and maxima.
 *
 * Operands are bf16, products accumulate in fp32, p is fp32; probabilities are multiplied with the
 * values in bf16. Sums over rows or tiles are in double.
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "core/accel.h"
#include "cuda/attn/attn.h"

#include <cuda.h>

/* ---- dense reference ------------------------------------------------------------------------ */

struct metrics_ref {
    struct attn_job job;
    void *rows;       /* device: first slot and number of pieces of a row of tiles */
    int32_t q_blocks; /* rows of tiles of a head */
    float *out;       /* device [heads][nq][d], or NULL */
    double *lse;      /* device [heads][nq], natural log, -inf for a row without an allowed key */
    void *norm;       /* device: float2 [heads][nq], see metrics_pass.cuh */
};

/* Prepare the heads of p (dense). Does not write x->out and x->lse. Memory comes from the arena. */
int metrics_ref_init(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                     bool keep_out, struct metrics_ref *r, struct err *err);

int metrics_ref_launch(struct gpu *g, const struct metrics_ref *r, struct err *err);
void metrics_ref_free(struct metrics_ref *r);

/* Dense attention that stays on the device: out, lse and norm as in metrics_ref. */
struct metrics_dense {
    float *out;
    double *lse;
    void *norm;
};

/* Compute it. Only the results stay in the arena. */
int metrics_dense_make(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                       struct metrics_dense *d, struct err *err);

/* Outputs of all heads against it (metrics_compare.cu). */
struct metrics_outputs {
    const void *out;       /* bf16 [heads][nq][d] */
    const float *lse;      /* [heads][nq] of these outputs */
    const float *lse_mask; /* of the whole mask, where a filter left tiles out of lse; else lse */
    bool all;              /* the masks keep every allowed pair */
};

/* sums [heads] and, unless NULL, mass [heads][nq] on the host; `exp` of the sums is not set. The
 * sums over rows are in double and in one order.
 *
 * The mass is the sum of a row's dense p over the mask: (sum of e^s over the kept keys) / (sum over
 * all keys) = e^(lse_mask - dense lse). At most 1; 0 for a row that keeps nothing. Its error comes
 * from the LSEs: 1e-7 for sums in fp32, up to 6e-8 |LSE| where one of them is rounded to fp32. */
int metrics_compare(struct gpu *g, const struct attn_problem *p, const struct metrics_dense *d,
                    const struct metrics_outputs *o, struct accel_sums *sums, double *mass,
                    struct err *err);

/* Compute normalisers, float2 norm [n], from natural log-sum-exps in fp32, whose rounding changes p
 * by 6e-8 |LSE|. */
int metrics_norms_into(struct gpu *g, const float *lse, int64_t n, void *norm, struct err *err);

/* ---- second pass ---------------------------------------------------------------------------- */

#define METRICS_C 8 /* thresholds of one pass */
#define METRICS_CELL 64

/* Which slices of M rows x 1 key hold a p above the threshold, as bits. Keys [text0, text1) are
 * kept for all rows and, as rows, keep all keys; with causal attention every slice is kept that
 * lies at or after its first row. */
struct metrics_slices {
    int M;                /* 16, 32, 64 or 128 */
    int64_t text0, text1; /* equal: none */
    uint32_t *map;        /* device [ceil(nq / M)][words]; must be zero where no pair is allowed */
    int64_t words;        /* >= ceil(nk / 32) */
};

/* What a pass computes: thresholds, maps or both, or slices. */
struct metrics_ask {
    const double *c; /* thresholds, in units of 1/nk */
    int n_c;         /* thresholds alone need no exponential; a single one is the cheapest pass */
    bool cells;      /* maps */
    bool sums;       /* sums of p over rows and, with one threshold, the largest p; passes with maps
                      * always have them */
    const struct metrics_slices *slices; /* with one threshold and nothing else; NULL: none */
    enum attn_element element;           /* of q and k; a pass on float16 computes maps only */
};

struct metrics_kernel;
struct metrics_pass {
    struct attn_problem problem;
    const struct metrics_kernel *kernel;
    int n_c;
    bool sums;   /* the pass has sums over rows */
    bool p_max;  /* the pass has the largest p */
    double unit; /* unit of p inside the kernel */
    int grid;
    int32_t n_items;
    int32_t *item_rows;         /* host: row of tiles of an item, owned */
    void *args, *maps;          /* host, owned */
    void *parts;                /* device: float [items][METRICS_BM], sums of p; NULL without */
    void *counts;               /* device: struct metrics_counts */
    float *cell_sum, *cell_max; /* device, NULL without maps */
};

/* q and k as in attn_tensors, norm as in metrics_ref. */
int metrics_pass_init(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                      const void *norm, const struct metrics_ask *ask, struct metrics_pass *pass,
                      struct err *err);
int metrics_pass_launch(struct gpu *g, const struct metrics_pass *pass, struct err *err);
void metrics_pass_free(struct metrics_pass *pass);

/* After a launch of a pass with sums: the sum of p over all pairs of a row. sum [nq] on the host.
 */
int metrics_pass_sums(struct gpu *g, const struct metrics_pass *pass, double *sum, struct err *err);

/* Number of units below the thresholds, and of their allowed pairs, in the order of
 * sim/blocks/exact.h: blocks of 16, 32, 64, 128, slices of 16, 64, 128 rows. Needs n_c > 0. */
struct metrics_below {
    int64_t units[ACCEL_UNITS][METRICS_C], pairs[ACCEL_UNITS][METRICS_C];
    double p_max; /* NAN after a pass for one threshold without sums */
};
int metrics_pass_below(struct gpu *g, const struct metrics_pass *pass, struct metrics_below *out,
                       struct err *err);

/* sum, max [ceil(nq / pool)][ceil(nk / pool)] on the host, pool a multiple of METRICS_CELL; only
 * of a pass with cells. */
int metrics_pass_cells(struct gpu *g, const struct metrics_pass *pass, int64_t pool, float *sum,
                       float *max, struct err *err);

/* ---- kernels of a pass ---------------------------------------------------------------------- */

/* The table from which the host chooses and launches kernels of metrics_pass.cuh. */
enum metrics_kind {
    METRICS_SIGNS,  /* one threshold */
    METRICS_SUMS,   /* one threshold, sums of p */
    METRICS_MAPS,   /* maps, sums of p */
    METRICS_LEVELS, /* maps, sums of p, several thresholds */
    METRICS_TOPS,   /* several thresholds only */
    METRICS_SLICES, /* one threshold, bits of slices */
};

struct metrics_kernel {
    int d; /* 0 ends a table */
    enum metrics_kind kind;
    enum attn_element element;
    int smem;
    const void *entry;
    void (*launch)(int grid, cudaStream_t stream, const CUtensorMap *maps, const void *args);
};

/* metrics_half.cu: kernels for maps of float16 operands. */
extern const struct metrics_kernel metrics_half_maps[];

END_C
