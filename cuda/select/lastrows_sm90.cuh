/*
 * lastrows_sm90.cuh - what the kernels of lastrows.cuh share, and those for Hopper
 * (lastrows_sm90.cu).
 */
#pragma once

#include "cuda/device.h"
#include "cuda/select/select.h"

#include <stdint.h>

/* The last `rows` queries before n keys, or each `step`th of them, from the last one back. */
struct last_rows {
    int64_t n, nq;
    int step;
    int heads, per_kv, rows; /* query heads, query heads of a kv head */
    int tall;                /* height of the tiles: 64 or 128 */
    int sm90;                /* lastrows_sm90.cuh */
    int tiles;               /* of keys */
    int each, ranges;        /* tiles of a thread block; ceil(tiles / each) */
    int64_t end;             /* end of the rows of a pass, which has at most `tall` rows */
    int add;                 /* add to the sums of the pass before */
    int both;                /* rows see all keys; a distance stands for both sides */
    float scale_log2;
    double divide; /* sums are divided by it: 1, or rows for means */
    const uint4 *q, *k;
    float2 *part;      /* [heads][ranges][tall]: largest in base 2, sum */
    float *lse;        /* [heads][tall], base 2 */
    float *diag_part;  /* [heads][tiles][LAST_DIAGS], or see lastrows_sm90.cuh */
    double *ver, *sla; /* [heads][n]: mass per key, per distance; sla NULL: not wanted */
};

/* Position of row 0 of a pass over B rows. */
template <int B> static __device__ __forceinline__ int64_t first_row(const last_rows &a)
{
    return a.end - 1 - (B - 1) * (int64_t)a.step;
}

/* A pass over the tiles of keys; d is 64 or 128. Largest and sum of the rows over each range of
 * tiles, into a.part; or, when a.lse is there, sums per key into a.ver and of parts of diagonals
 * into a.diag_part. */
int last_sm90_launch(struct gpu *g, const last_rows &a, int d, bool sums, struct err *err);

/* Parts of diagonals: [heads][ranges][4 warps][last_sm90_length]. A warp has the rows 16 w + i and,
 * of tiles with 128 rows, 64 + 16 w + i. Its element y is the diagonal whose key of row 0 is y -
 * last_sm90_shift - 16 w, counted from the first key of the range. */
static __host__ __device__ __forceinline__ int last_sm90_shift(const last_rows &a)
{
    return a.tall - 64 + 8 + 7;
}

static __host__ __device__ __forceinline__ int64_t last_sm90_length(const last_rows &a)
{
    return (int64_t)8192 / a.tall * (a.each + a.tall / 64);
}

/* Floats of a head in diag_part. */
static inline int64_t last_sm90_diags(const last_rows &a)
{
    return a.ranges * 4 * last_sm90_length(a);
}

/* Sum of a diagonal over the ranges that have its keys; x is its first key, may be negative. */
static __device__ __forceinline__ double last_sm90_diagonal(const last_rows &a, int64_t head,
                                                            int64_t x)
{
    int64_t keys = 8192 / a.tall, width = keys * a.each, length = last_sm90_length(a);
    int64_t last = a.ranges - 1, from = max(x, (int64_t)0) / width;
    int64_t to = min((x + a.tall - 1) / width, last);
    double sum = 0;
    for (int64_t r = from; r <= to && x + a.tall > 0; r++) {
        int64_t tiles = min((int64_t)a.each, a.tiles - r * a.each);
        for (int w = 0; w < 4; w++) {
            int64_t y = x - r * width + last_sm90_shift(a) + 16 * w;
            if (y >= 0 && y < keys * (tiles + a.tall / 64))
                sum += a.diag_part[((head * a.ranges + r) * 4 + w) * length + y];
        }
    }
    return sum;
}
