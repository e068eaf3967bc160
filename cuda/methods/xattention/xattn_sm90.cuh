/*
 * xattn_sm90.cuh - the numbers that the kernels of xattention share, and the launch of its scores
 * on Hopper (xattn_sm90.cu).
 */
#pragma once

#include "cuda/select/method.cuh"

#include <cuda.h>

#define BLOCK 128 /* tokens of a mask unit, both ways */
#define TILE 128  /* reduced rows and columns of a thread block that multiplies by mma.sync */

struct xattn_args : head_args {
    int64_t shift;                  /* query row q stands at position q + shift */
    int profile, stride, per_block; /* per_block: reduced rows of a block, 128 / S */
    int rows, keys;                 /* reduced rows and columns with a real token */
    int tiles, pitch;               /* tops and sums of a reduced row */
    int block_shift, top_shift;     /* log2 of per_block; of column blocks that share a top */
    int cols;                       /* column blocks, padded ones included */
    int chunk_blocks;               /* row blocks of a pass, official */
    double tau;
    float factor; /* temperature * log2 e */

    float *top; /* [heads][rows][tiles]: largest score of some column blocks, in base 2 */
    float *sum; /* [heads][rows][pitch]: of a column block, of 2^(score - top) */
};

/* Reduced columns that reduced row r may see, padded ones included. */
static __host__ __device__ __forceinline__ int columns(const xattn_args &a, int r)
{
    int n = a.profile == XATTN_OFFICIAL ? a.cols * a.per_block : a.keys;
    int limit = (r * a.stride + a.stride - 1 + (int)a.shift) / a.stride + 1;
    return !a.causal || limit > n ? n : limit;
}

#define XATTN_COLUMNS 256 /* reduced columns of a tile there */

/* What the launch needs beside xattn_args. */
struct xattn_sm90 {
    CUtensorMap q, k; /* of rows of S D channels, boxes of 64 channels */
    int2 *tiles;      /* on the device: {head << 16 | rows of tiles, copies of keys << 24 | tile of
                         columns} */
    int n, blocks;    /* tiles; thread blocks, which take one after the other */
    int *taken;       /* on the device: tiles taken beside the first of each block, blocks that have
                       * ended; 0 between launches */
    uint4 *padded[2]; /* q and k with whole runs of S tokens; NULL where they have them */
};

/* Memory and descriptors. */
int xattn_sm90_init(struct gpu *g, const xattn_args &a, xattn_sm90 *s, struct err *err);

/* Fill a.top and a.sum. */
int xattn_sm90_launch(struct gpu *g, const xattn_args &a, const xattn_sm90 &s, struct err *err);
