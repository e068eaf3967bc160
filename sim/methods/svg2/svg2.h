/*
 * svg2.h - the key clusters that a query cluster keeps (Sparse VideoGen2, arXiv 2505.18875).
 *
 *   S_ab = scale cq_a . ck_b     P_ab = n_b e^(S_ab) / sum_b' n_b' e^(S_ab')
 *
 * n_b is the size of key cluster b. The largest P of a row are kept until their sum exceeds p.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Lloyd's k-means from given centroids, in the arithmetic of a 32-bit kernel on tensors of
 * a narrower type.
 *
 *   assign  label = centroid of the smallest max(0, |x|^2 + |c|^2 - 2 x.c) in float, ties to the
 *           lower index
 *   update  mean of the tokens of a cluster, rounded to the tensors' type; an empty one stays
 *
 * Labels do not depend on the processor: BLAS finds the centroids that come into question, and
 * products with additions in one order decide among them. */

struct kmeans {
    int64_t n, k; /* tokens, centroids */
    int d;
    enum dtype dtype; /* type of tokens and centroids: DT_F32, DT_BF16 or DT_F16 */
    bool bf16_norms;  /* |x|^2 and |c|^2 as the published bf16 kernel has them; set by the caller */
    float *centroids; /* [k][d], in and out */
    int32_t *labels;  /* [n], of the last assignment */
    int64_t *sizes;   /* [k], of the last assignment */
    int64_t iterations;
    double shift; /* largest centroid movement of the last update */
};

/* Allocate for n tokens; centroids, labels and sizes are owned, release with kmeans_free. */
int kmeans_init(struct kmeans *m, int64_t n, int64_t k, int d, enum dtype dtype, struct err *err);
void kmeans_free(struct kmeans *m); /* also of a zeroed one */

/* Run up to `most` iterations on x [n][d], starting from m->centroids. When an update would move no
 * centroid by `tol` or more, it is dropped and the iterations end. 2 n k d multiply-adds per
 * iteration. */
int kmeans_run(struct kmeans *m, const float *x, int64_t most, double tol, struct err *err);

struct svg2_cut {
    double top_p;     /* mass to exceed; 1 keeps everything */
    double min_share; /* share of the clusters that is always kept */
    enum dtype dtype; /* P is rounded to it */
    bool bf16_scores; /* S is rounded to bf16 after the product and after the scale */
    bool bf16_sums;   /* the running sum is that of a GPU in bf16, and so is top_p */
    int chunk;        /* of that running sum (gpusum.h) */
};

/* P of one query cluster: p [k]. The row maximum is subtracted, the denominator is at least 1e-12.
 */
void svg2_weights(const float *query, const struct kmeans *keys, double scale,
                  const struct svg2_cut *cut, float *p);

/* Number of entries of a descending row that are kept: the shortest prefix whose running sum
 * exceeds top_p (all if none does), but at least int(min_share n). */
int64_t svg2_prefix(const struct svg2_cut *cut, const float *sorted, int64_t n);

/* map [queries->k][keys->k], 1 = kept. Ties go to the lower key cluster. *map is malloc'd. */
int svg2_map(const struct kmeans *queries, const struct kmeans *keys, double scale,
             const struct svg2_cut *cut, uint8_t **map, struct err *err);
