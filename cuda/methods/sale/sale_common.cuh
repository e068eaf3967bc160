/*
 * sale_common.cuh - what the parts of SALE's choice on the GPU share: arguments, regions, rounding.
 */
#ifndef LACUNA_SALE_COMMON_CUH
#define LACUNA_SALE_COMMON_CUH

#include "cuda/select/maprows.cuh"
#include "cuda/select/select.h"

#include <cuda_fp16.h>
#include <limits.h>
#include <stdint.h>

#define BQ 64
#define BK 32
#define LEVELS 7.0f
#define SUM_ROWS 256      /* of a partial sum of tokens */
#define PITCH 128         /* bytes of a row of integers, whatever d is: a row of a swizzled tile */
#define TILE 128          /* queries and keys of a tile of the test */
#define MAGIC 12582912.0f /* 1.5 2^23: adding it rounds to a whole number */

struct sale_args {
    const uint4 *q, *k;
    int64_t n, npad; /* tokens; rounded up to 128 */
    int heads, kv_heads, per_kv, groups, units, words, local, chunks, strict, causal_stats;
    double scale;
    double *tau;     /* [heads] */
    double *part;    /* [heads + kv_heads][chunks][d] sums of tokens */
    __half *mean;    /* [heads + kv_heads][d] */
    __half *k16;     /* [kv_heads][npad][d] smoothed keys; channels as sale_operands.cuh says */
    int e4m3;        /* bytes are e4m3 numbers (Hopper), not integers */
    int8_t *qi, *ki; /* [heads][npad][PITCH], [kv_heads][npad][PITCH]; channels in the same order */
    float2 *q_scale; /* [heads][npad / 2] by query group: scale and fp16(1 / scale) */
    __half *k_scale; /* [kv_heads][npad / 8] by key group; those of a lane of 128 keys together */
    __half *k_scale1; /* the same of tiles of 128 keys that begin with the second block */
    __half *corr;     /* [heads][npad]; 32 keys in the order of their groups */
    int *q_norm;      /* [heads][npad / 2] by query group: largest sum of squares of a row */
    float *thr;       /* [heads][npad] */
    int *k_norm; /* [kv_heads] largest sum of squares of a key; with the next two in one place */
    unsigned *corr_max; /* [heads] bits of the largest |corr| */
    int *inexact;       /* some rows are left for sale_sm90.cu */
    map_rows map;
};

struct regions {
    int n, mid; /* key blocks that a query block sees; the last one that is tested */
};

static __device__ __forceinline__ regions regions_of(const sale_args &a, int m)
{
    int n = min(2 * (m + 1), (int)((a.n + BK - 1) / BK)), segments = (n + 2) / 4;
    int rest = n - 1 - 4 * segments, left = a.local - rest;
    int kept = left > 0 ? (left + 3) / 4 : -(-left / 4);
    return {n, segments > kept ? 4 * (segments - kept) : 0};
}

/* Nearest fp16 value, without infinities. */
static __device__ __forceinline__ float fl16(float x)
{
    return __half2float(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

static __device__ __forceinline__ __half2 clamp16(__half2 x)
{
    const __half2 most = __half2half2(__ushort_as_half(0x7bff)); /* 65504 */
    return __hmin2(__hmax2(x, __hneg2(most)), most);
}

#endif
