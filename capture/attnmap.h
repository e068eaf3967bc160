/*
 * attnmap.h - pooled attention maps: per head the sums and the maxima of the exact softmax over
 * cells of P x P (query, key) pairs (core/attention.h), from a second pass over the scores with the
 * known normalisers, for all heads of a layer in parallel.
 */
#ifndef LACUNA_ATTNMAP_H
#define LACUNA_ATTNMAP_H

#include "capture/nn.h"

/* Cells of all heads of a layer. Edge cells cover the pairs that exist. */
struct attnmap {
    int64_t pool, cells_q, cells_k;
    int heads;
    float *sum, *max; /* [heads][cells_q][cells_k], owned */
};

int attnmap_init(struct attnmap *m, int heads, int64_t n_q, int64_t n_k, int64_t pool,
                 struct err *err);
void attnmap_free(struct attnmap *m);

/* Fill the cell rows of the queries [row0, row0 + n): row0 is a multiple of the pool and the range
 * ends at one or at the last query. q [n][heads * d], keys: the first nk tokens of kv (causal: the
 * last of these queries sees the last of them), lse [heads][n] from nn_attention. */
int attnmap_rows(struct attnmap *m, const float *q, const struct nn_kv *kv, int64_t row0, int64_t n,
                 int64_t nk, double scale, bool causal, const double *lse, int jobs,
                 struct err *err);

#endif
