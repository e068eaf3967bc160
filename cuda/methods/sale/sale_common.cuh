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
#define SUM_ROWS 256 /* of a partial sum of tokens */
#define PITCH 128    /* bytes of a row of integers, whatever d is: a row of a swizzled tile */
#define TILE 128     /* queries and keys of a tile of the test */

struct sale_args {
    const uint4 *q, *k;
    int64_t n, npad; /* tokens; rounded up to 128 */
    int heads, kv_heads, per_kv, groups, units, words, local, chunks, strict, causal_stats;
    double tau, scale;
    double *q_part, *k_part; /* [heads][chunks][d] sums of tokens */
    float *q_mean, *k_mean;  /* [heads][d], [kv_heads][d], values of fp16 */
    __half *q16, *k16;       /* [heads][npad][d] queries; [kv_heads][npad][d] smoothed keys */
    int8_t *qi, *ki;         /* [heads][npad][PITCH], [kv_heads][npad][PITCH] */
    float2 *q_scale;         /* [heads][npad / 2] by query group: scale and fp16(1 / scale) */
    float *k_scale, *k_mul;  /* [kv_heads][npad / 8] by key group: scale, and 7 / largest */
    __half *corr;            /* [heads][npad] */
    unsigned *corr_max;      /* [heads] bits of the largest |corr| */
    float *thr;              /* [heads][npad] */
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

/* The same of a bf16 value, given by its bits. */
static __device__ __forceinline__ float fl16_of_bf16(uint16_t bits)
{
    return fl16(__uint_as_float((uint32_t)bits << 16));
}

#endif
