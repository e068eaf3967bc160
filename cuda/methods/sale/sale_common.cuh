/*
 * sale_common.cuh - what the parts of SALE's choice on the GPU share: arguments, regions, rounding,
 * and the comparison of integer products with the thresholds of their rows, a lane at a time.
 */
#pragma once

#include "cuda/select/method.cuh"

#include <cuda.h>
#include <cuda_fp16.h>
#include <limits.h>

#define BQ 64
#define BK 32
#define LEVELS 7.0f
#define SUM_ROWS 256      /* of a partial sum of tokens */
#define TILE 128          /* queries and keys of a tile of the test */
#define MAGIC 12582912.0f /* 1.5 2^23: adding it rounds to a whole number */

struct sale_args : head_args {
    int64_t npad; /* tokens, rounded up to 128 */
    int local, chunks, strict, causal_stats;
    double scale;
    float *tau;      /* [heads] */
    double *part;    /* [heads + kv_heads][chunks][d] sums of tokens */
    __half *mean;    /* [heads + kv_heads][d] */
    __half *k16;     /* [kv_heads][npad][d] smoothed keys; channels as sale.cu says */
    int e4m3;        /* Hopper: bytes are e4m3 numbers, and tiles of keys begin with block 1 */
    int8_t *qi, *ki; /* [heads][npad][d], [kv_heads][npad][d]; channels in the same order */
    float2 *q_scale; /* [heads][npad / 2] by query group: scale and fp16(1 / scale) */
    __half *k_scale; /* [kv_heads][npad / 8] by key group; those of a lane of a tile together */
    __half *corr;    /* [heads][npad]; 32 keys in the order of their groups */
    int *q_norm;     /* [heads][npad / 2] by query group: largest sum of squares of a row */
    float *thr;      /* [heads][npad] */
    int *k_norm; /* [kv_heads] largest sum of squares of a key; with the next two in one place */
    unsigned *corr_max; /* [heads] bits of the largest |corr| */
    int *summed;        /* [heads + kv_heads] thread blocks whose sums of tokens are there */
};

struct regions {
    int n, mid; /* key blocks that a query block sees; the last one that is tested */
};

static __device__ __forceinline__ regions regions_of(const sale_args &a, int m)
{
    int n = min(2 * (m + 1), (int)((a.nk + BK - 1) / BK)), segments = (n + 2) / 4;
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

/* ---- pairs ---------------------------------------------------------------------------------- */

/* What a tile of keys brings beside its integers. */
struct key_side {
    __half corr[TILE];
    __half scale[TILE / 8]; /* 4 c + b: keys of lane c of block b */
};

/* A lane's two rows, which are in one query group. */
struct row_side {
    float scale, inverse; /* of the group: scale, and fp16(1 / scale) */
    float thr[2];
    bool flat; /* an all-zero query group */
};

static __device__ __forceinline__ bool passes(const sale_args &a, float x, float thr)
{
    return a.strict ? x > thr : x >= thr;
}

/* The estimate of an all-zero query group is the correction alone. */
static __device__ bool test_flat(const sale_args &a, const __half *corr, float k_scale,
                                 const row_side &r)
{
    bool keep = false;
    for (int i = 0; i < 8; i++) {
        float x = fl16(__fmul_rn(__half2float(corr[i]), k_scale));
        keep |= passes(a, x, r.thr[0]) || passes(a, x, r.thr[1]);
    }
    return keep;
}

/* The largest dot products plus correction of the lane's two rows with the eight keys that it has
 * of a 32-key block. dot: by strip of 8 keys. CLAMP: a correction may be larger than fp16 has. */
template <bool CLAMP>
static __device__ __forceinline__ void best_pairs(const int (&dot)[4][4], const __half *corr,
                                                  const row_side &r, float (&best)[2])
{
    __half2 inverse = __float2half2_rn(r.inverse);
    int most[2] = {INT_MIN, INT_MIN};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t two = *(const volatile uint32_t *)(corr + 2 * i); /* one by one: registers */
        __half2 x = __hmul2_rn(*(const __half2 *)&two, inverse);
        float2 y = __half22float2(CLAMP ? clamp16(x) : x);
        int add[2] = {__float_as_int(y.x + MAGIC), __float_as_int(y.y + MAGIC)};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            most[0] = __viaddmax_s32(dot[i][e], add[e], most[0]);
            most[1] = __viaddmax_s32(dot[i][2 + e], add[e], most[1]);
        }
    }
    best[0] = __int_as_float(most[0]) - MAGIC;
    best[1] = __int_as_float(most[1]) - MAGIC;
}

/* The same of products in float, which are whole numbers. */
template <bool CLAMP>
static __device__ __forceinline__ void best_pairs(const float (&dot)[4][4], const __half *corr,
                                                  const row_side &r, float (&best)[2])
{
    __half2 inverse = __float2half2_rn(r.inverse);
    best[0] = best[1] = -INFINITY;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 x = __hmul2_rn(*(const __half2 *)(corr + 2 * i), inverse);
        float2 y = __half22float2(CLAMP ? clamp16(x) : x);
        float add[2] = {y.x + MAGIC, y.y + MAGIC};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            best[0] = fmaxf(best[0], dot[i][e] + add[e]);
            best[1] = fmaxf(best[1], dot[i][2 + e] + add[e]);
        }
    }
    best[0] -= MAGIC;
    best[1] -= MAGIC;
}

/* Does one of the two pass? */
static __device__ __forceinline__ bool decide(const sale_args &a, const float (&best)[2],
                                              float k_scale, const row_side &r)
{
    float scale = fl16(__fmul_rn(r.scale, k_scale));
    __half2 whole = __floats2half2_rn(best[0], best[1]);
    __half2 value = clamp16(__hmul2_rn(clamp16(whole), __float2half2_rn(scale)));
    return passes(a, __low2float(value), r.thr[0]) || passes(a, __high2float(value), r.thr[1]);
}

template <bool CLAMP, class T>
static __device__ __forceinline__ bool test_pairs(const sale_args &a, const T (&dot)[4][4],
                                                  const __half *corr, float k_scale,
                                                  const row_side &r)
{
    float best[2];
    best_pairs<CLAMP>(dot, corr, r, best);
    return decide(a, best, k_scale, r);
}

static __device__ __forceinline__ row_side row_side_of(const sale_args &a, int head, int64_t row,
                                                       bool tests)
{
    float2 scale = a.q_scale[head * (a.npad / 2) + row / 16 * 8 + row % 8];
    row_side r = {scale.x, scale.y, {INFINITY, INFINITY}, !(scale.x > 0)};
#pragma unroll
    for (int i = 0; i < 2; i++) /* rows past the end have no vote */
        if (tests && row + 8 * i < a.nk)
            r.thr[i] = a.thr[head * a.npad + row + 8 * i];
    return r;
}

/* Are all sums of products, and those with the correction, whole numbers that float16 has (below
 * 2^11), and the thresholds of a warp's rows finite? |q k| <= |q| |k|. */
static __device__ __forceinline__ bool sums_are_exact(const sale_args &a, int head, int64_t row,
                                                      const row_side &r)
{
    float corr = __uint_as_float(a.corr_max[head]) * r.inverse;
    float norm = (float)a.q_norm[head * (a.npad / 2) + row / 16 * 8 + row % 8] *
                 (float)a.k_norm[head / a.per_kv];
    bool ok = !r.flat && corr < 500.0f && sqrtf(norm) + corr < 2040.0f;
#pragma unroll
    for (int i = 0; i < 2; i++)
        ok = ok && (r.thr[i] == INFINITY || fabsf(r.thr[i]) < 65000.0f);
    return __all_sync(~0u, ok);
}

/* ---- tests on Hopper (sale_sm90.cu) --------------------------------------------------------- */

/* Set the bits of the tested blocks that pass in a.map.map, which holds none of theirs yet. maps:
 * of qi, boxes of d bytes x 64 rows, and of ki, x 128 rows. */
int sale_test_sm90(struct gpu *g, const sale_args &a, const CUtensorMap *maps, struct err *err);
