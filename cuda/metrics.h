/*
 * metrics.h - what a replay measures of one head, on the GPU and without N x N storage.
 *
 * 1. metrics_ref: dense attention with unrounded fp32 outputs, and per row the normaliser of p.
 * 2. metrics_pass: S = Q K^T again, tile by tile, p_ij = e^{s_ij - LSE_i}, and in the same pass
 *    the mass that a block mask keeps, shares of blocks and slices whose largest p is below c/N
 *    (sim/basemap.h has the same on the CPU), and maps of 64 x 64 sums and maxima.
 * 3. metrics_errors: sums over channels of the difference of two outputs, row by row.
 *
 * Operands are bf16, products accumulate in fp32, p is fp32; probabilities are multiplied with the
 * values in bf16. What is summed over rows or tiles is summed in double.
 */
#ifndef LACUNA_CUDA_METRICS_H
#define LACUNA_CUDA_METRICS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/kernel.h"
#include "cuda/attn.h"

/* ---- dense reference ------------------------------------------------------------------------ */

struct metrics_ref {
    struct attn_job job;
    void *rows;  /* device: first slot and number of pieces of a row of tiles */
    float *out;  /* device [nq][d] */
    double *lse; /* device [nq], natural log, -inf for a row without an allowed key */
    void *norm;  /* device: float2 [nq], see metrics_sm90.cuh */
};

/* One head (p->heads = 1, dense). x->out and x->lse are not written. Memory comes from the arena.
 */
int metrics_ref_init(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                     struct metrics_ref *r, struct err *err);
int metrics_ref_launch(struct gpu *g, const struct metrics_ref *r, struct err *err);
void metrics_ref_free(struct metrics_ref *r);

/* ---- second pass ---------------------------------------------------------------------------- */

#define METRICS_C 8 /* thresholds of one pass */
#define METRICS_CELL 64
#define METRICS_BM 256 /* queries and keys of a tile */
#define METRICS_BN 128

/* The mask: blocks of bq x bk (64 or 128) in lists as in core/kernel.h; ptr NULL = every pair. */
struct metrics_mask {
    int bq, bk;
    const int64_t *ptr;
    const int32_t *col;
};

struct metrics_pass {
    struct attn_problem problem;
    int n_c; /* 0: mass only, and only the listed tiles are visited */
    int grid;
    int32_t n_items;
    int32_t *item_rows;         /* host: row of tiles of an item, owned */
    void *args, *maps;          /* host, owned */
    void *parts;                /* device: float2 [items][METRICS_BM], sum and kept mass */
    void *counts;               /* device: struct metrics_counts */
    float *cell_sum, *cell_max; /* device, NULL without maps */
};

/* c[n_c] in units of 1/nk. cells: also maps. q and k as in attn_tensors. */
int metrics_pass_init(struct gpu *g, const struct attn_problem *p, const struct attn_tensors *x,
                      const struct metrics_ref *ref, const struct metrics_mask *mask,
                      const double *c, int n_c, bool cells, struct metrics_pass *pass,
                      struct err *err);
int metrics_pass_launch(struct gpu *g, const struct metrics_pass *pass, struct err *err);
void metrics_pass_free(struct metrics_pass *pass);

/* After a launch: per row the sum of p over the visited tiles (1 when all were), and over kept
 * blocks. sum, mass [nq] on the host; either may be NULL. */
int metrics_pass_mass(struct gpu *g, const struct metrics_pass *pass, double *sum, double *mass,
                      struct err *err);

/* Units (order of sim/basemap.h: blocks of 16, 32, 64, 128, slices of 16, 64, 128 rows) below the
 * thresholds, and their allowed pairs; needs n_c > 0. */
struct metrics_below {
    int64_t units[ACCEL_UNITS][METRICS_C], pairs[ACCEL_UNITS][METRICS_C];
    double p_max;
};
int metrics_pass_below(struct gpu *g, const struct metrics_pass *pass, struct metrics_below *out,
                       struct err *err);

/* sum, max [ceil(nq / pool)][ceil(nk / pool)] on the host, pool a multiple of METRICS_CELL; only
 * of a pass with cells. */
int metrics_pass_cells(struct gpu *g, const struct metrics_pass *pass, int64_t pool, float *sum,
                       float *max, struct err *err);

/* ---- errors --------------------------------------------------------------------------------- */

/* rows [nq] on the device: of out, bf16 [nq][d], against ref, fp32. */
int metrics_errors(struct gpu *g, int64_t nq, int d, const void *out, const float *ref,
                   struct accel_row *rows, struct err *err);

/* ---- host side, metrics_tiles.c ------------------------------------------------------------- */

/* Work of a pass. Item: x = row of tiles, [y, z) = its entries. An entry of `tiles` is a key tile
 * | kept 64 x 64 blocks << 24 (bit 2 * block of rows + block of keys); NULL = the entry is the key
 * tile and all is kept. */
struct metrics_plan {
    struct metrics_item {
        int32_t row, beg, end, pad;
    } * items;
    int32_t n_items;
    uint32_t *tiles;
    int64_t n_tiles;
};
int metrics_plan_make(const struct attn_problem *p, const struct metrics_mask *mask, bool all,
                      int sms, struct metrics_plan *plan, struct err *err);
void metrics_plan_free(struct metrics_plan *plan);

#ifdef __cplusplus
}
#endif

#endif
