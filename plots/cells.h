/*
 * cells.h - attention maps and masks as grids of cells, pooled so that nothing thin is lost,
 * or computed.
 */
#pragma once

#include "core/mask.h"
#include "core/trace.h"

#include <stdint.h>

/* Queries [q0, q0 + n_q) and keys [k0, k0 + n_k): a part of a map. */
struct cells_span {
    int64_t q0, n_q, k0, n_k;
};

/* rows x cols cells over n_q x n_k tokens from q0, k0 on; every cell covers `tokens` x `tokens` of
 * them (those at the lower and right edge fewer). */
struct cells {
    int64_t n_q, n_k, rows, cols, tokens;
    float *v; /* [rows][cols], owned; NAN where no pair is allowed */
    int64_t q0, k0;
};

enum cells_pool {
    POOL_MAX, /* the largest value: a line one token wide stays visible */
    POOL_MEAN /* of allowed pairs, each weighing the same */
};

void cells_free(struct cells *c);

/* Cells of `factor` x `factor` cells of `m` ([rows][cols], `tokens` per cell): with POOL_MAX m
 * holds maxima; with POOL_MEAN m holds sums, and the result is the mean over allowed pairs. factor
 * 1 is allowed. */
int cells_from_map(const float *m, const struct head_shape *h, int64_t tokens, int64_t factor,
                   enum cells_pool pool, struct cells *out, struct err *err);

/* Share of the allowed pairs of each cell that a whole mask (row0 = 0, row1 = nq) keeps; of a part
 * of it, or all of it with NULL. */
int cells_from_mask(const struct mask *m, const struct cells_span *span, int64_t tokens,
                    struct cells *out, struct err *err);

/* The map of one stored head of a call, in cells of tokens x tokens, out of q and k. */
int map_compute(const struct trace *t, int64_t call, int head, const struct cells_span *span,
                int64_t tokens, bool mean, struct cells *out, struct err *err);

/* The same as stored, as cells of at most `most` per side. A trace without: ERR_INPUT. */
int map_stored(const struct trace *t, int64_t call, int head, bool mean, int64_t most,
               struct cells *out, struct err *err);

/* The cell of sample s of an axis of n tokens: the one that the sample ends in, so that every cell,
 * the last part of one too, has a sample of its own while there are as many samples as cells. */
int64_t cells_sample(int64_t s, int64_t samples, int64_t n, int64_t tokens);

/* Smallest factor that brings the longer side of rows x cols to at most `most` cells. */
int64_t cells_factor(int64_t rows, int64_t cols, int64_t most);
