/*
 * gpusum.h - sums in a 16-bit type as published GPU code forms them. Every addition is rounded, so
 * that the order of the additions decides: a sequence stands still once an entry is below half a
 * unit in the last place of the sum, the trees of a GPU go on.
 *
 * Running sums of a row (cumsum of PyTorch, aten/src/ATen/native/cuda/ScanUtils.cuh): T threads
 * take chunks of 2T columns. In the rounds s = 1, 2, 4, ..., T thread a adds entry (a div s) 2s + s
 * - 1 to entry (a div s) 2s + s + (a mod s); the last entry of a chunk is added to the first of the
 * next before that one starts.
 *
 * Sum over an axis (tl.sum of Triton 3.6): a thread adds its own entries in ascending order, then
 * the lanes of a warp are folded in half until one is left, then the warps.
 */
#pragma once

#include "core/dtype.h"

#include <stdint.h>

/* Columns of a chunk, 2T, for a tensor of `rows` rows of `columns` entries each:
 * T = 2^floor((9 + ceil(log2 columns) - ceil(log2 rows)) / 2), at least 16 and at most 512. */
int gpusum_chunk(int64_t columns, int64_t rows);

/* Number of leading running sums of x [n] that are at or below bound. Entries are rounded to t
 * first; they must not be negative, so that the sums never fall. n log2(2T) / 2 additions. */
int64_t gpusum_count(enum dtype t, int chunk, const float *x, int64_t n, float bound);

/* Fold s [warps][lanes], both powers of two, in bf16. s is overwritten. */
float gpusum_fold(float *s, int warps, int lanes);
