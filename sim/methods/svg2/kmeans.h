/*
 * kmeans.h - Lloyd's k-means from given centroids, in the arithmetic of a 32-bit kernel on tensors
 * of a narrower type.
 *
 *   assign  label = centroid of the smallest max(0, |x|^2 + |c|^2 - 2 x.c) in float, ties to the
 *           lower index
 *   update  mean of the tokens of a cluster, rounded to the tensors' type; an empty one stays
 *
 * Labels do not depend on the processor: BLAS finds the centroids that come into question, and
 * products with additions in one order decide among them.
 */
#ifndef LACUNA_KMEANS_H
#define LACUNA_KMEANS_H

#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

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

#endif
