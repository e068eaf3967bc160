/*
 * videometric.h - how far a clip is from another, and how much it flickers (doc/eval.md).
 *
 * Clips are [3][t][h][w] in [-1, 1]; numbers are of y = (clamped x + 1) / 2 in double, not rounded
 * to bytes.
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

struct clip_size {
    int64_t t, h, w;
};

struct clip_diff {
    double psnr;       /* mean over frames of 10 log10(1 / mse), +inf where equal */
    double psnr_clip;  /* of the mean mse */
    double ssim;       /* Wang et al. 2004: Gaussian 11 x 11, sigma 1.5; NAN for sides below 11 */
    double ssim_box11; /* uniform 11 x 11 with zero padding, as Sparse-VideoGen's code */
    double flicker, flicker_dense, flicker_ratio, flicker_diff; /* NAN for one frame */
};

/* x against the reference, on `jobs` threads; the numbers do not depend on how many. */
int clip_compare(const float *x, const float *ref, struct clip_size size, int jobs,
                 struct clip_diff *out, struct err *err);

/* ||x - ref|| / ||ref|| (0/0 = 0) and the cosine of the flattened values (1 if both are zero). */
void vector_compare(const float *x, const float *ref, int64_t n, double *l2, double *cosine);

/* One PNG: columns frames 0, T/4, T/2, 3T/4, T-1; rows the reference, x, 4 |difference|. */
int clip_strip(const char *path, const float *x, const float *ref, struct clip_size size,
               struct err *err);
