/*
 * xattn_common.cuh - the numbers that the kernels of xattention share.
 */
#ifndef LACUNA_XATTN_COMMON_CUH
#define LACUNA_XATTN_COMMON_CUH

#include "cuda/select/maprows.cuh"

#include <stdint.h>

#define BLOCK 128 /* tokens of a mask unit, both ways */
#define TILE 128  /* reduced rows and columns of a thread block of xattn_portable.cuh */

struct xattn_args {
    int64_t nq, nk, shift;                /* query row q stands at position q + shift */
    int heads, per_kv, stride, per_block; /* per_block: reduced rows of a block, 128 / S */
    int profile, causal;
    int rows, keys;                   /* reduced rows and columns with a real token */
    int tiles, pitch;                 /* tops and sums of a reduced row */
    int block_shift, top_shift;       /* log2 of per_block; of column blocks that share a top */
    int row_blocks, key_blocks, cols; /* cols: column blocks, padded ones included */
    int chunk_blocks;                 /* row blocks of a pass, official */
    double tau;
    float factor; /* temperature * log2 e */

    const uint4 *q, *k;
    float *top; /* [heads][rows][tiles]: largest score of some column blocks, in base 2 */
    float *sum; /* [heads][rows][pitch]: of a column block, of 2^(score - top) */
    map_rows map;
};

/* Reduced columns that reduced row r may see, padded ones included. */
static __host__ __device__ __forceinline__ int columns(const xattn_args &a, int r)
{
    int n = a.profile == XATTN_OFFICIAL ? a.cols * a.per_block : a.keys;
    int limit = (r * a.stride + a.stride - 1 + (int)a.shift) / a.stride + 1;
    return !a.causal || limit > n ? n : limit;
}

#endif
