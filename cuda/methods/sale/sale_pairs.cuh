/*
 * sale_pairs.cuh - the comparison of SALE's integer products with the thresholds of their rows, a
 * lane at a time.
 */
#ifndef LACUNA_SALE_PAIRS_CUH
#define LACUNA_SALE_PAIRS_CUH

#include "cuda/methods/sale/sale_common.cuh"

/* What a tile of keys brings beside its integers. */
struct key_side {
    __half corr[TILE];
    float scale[TILE / 8];
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

static __device__ __forceinline__ __half2 clamp16(__half2 x)
{
    const __half2 most = __half2half2(__ushort_as_half(0x7bff)); /* 65504 */
    return __hmin2(__hmax2(x, __hneg2(most)), most);
}

/* The estimate of an all-zero query group is the correction alone. */
static __device__ bool test_flat(const sale_args &a, const __half *corr, float k_scale,
                                 const row_side &r)
{
    bool keep = false;
    for (int i = 0; i < 8; i++) {
        float x = fl16(__fmul_rn(__half2float(corr[i / 2 * 8 + i % 2]), k_scale));
        keep |= passes(a, x, r.thr[0]) || passes(a, x, r.thr[1]);
    }
    return keep;
}

#define MAGIC 12582912.0f /* 1.5 2^23: adding it rounds to a whole number */

/* The largest dot products plus correction of the lane's two rows with the eight keys that it has
 * of a 32-key block, as the bits of float(MAGIC + sum). dot: by strip of 8 keys. CLAMP: a
 * correction may be larger than fp16 has. */
template <bool CLAMP>
static __device__ __forceinline__ void best_pairs(const int (&dot)[4][4], const __half *corr,
                                                  const row_side &r, int (&best)[2])
{
    __half2 inverse = __float2half2_rn(r.inverse);
    best[0] = best[1] = INT_MIN;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 x = __hmul2_rn(*(const __half2 *)(corr + 8 * i), inverse);
        float2 y = __half22float2(CLAMP ? clamp16(x) : x);
        int add[2] = {__float_as_int(y.x + MAGIC), __float_as_int(y.y + MAGIC)};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            best[0] = __viaddmax_s32(dot[i][e], add[e], best[0]);
            best[1] = __viaddmax_s32(dot[i][2 + e], add[e], best[1]);
        }
    }
}

/* Does one of the two pass? */
static __device__ __forceinline__ bool decide(const sale_args &a, const int (&best)[2],
                                              float k_scale, const row_side &r)
{
    float scale = fl16(__fmul_rn(r.scale, k_scale));
    __half2 whole =
        __floats2half2_rn(__int_as_float(best[0]) - MAGIC, __int_as_float(best[1]) - MAGIC);
    __half2 value = clamp16(__hmul2_rn(clamp16(whole), __float2half2_rn(scale)));
    return passes(a, __low2float(value), r.thr[0]) || passes(a, __high2float(value), r.thr[1]);
}

template <bool CLAMP>
static __device__ __forceinline__ bool test_pairs(const sale_args &a, const int (&dot)[4][4],
                                                  const __half *corr, float k_scale,
                                                  const row_side &r)
{
    int best[2];
    best_pairs<CLAMP>(dot, corr, r, best);
    return decide(a, best, k_scale, r);
}

/* Bounds for products best * scale that are not rounded.
 *
 *   value = fl16(fl16(best) fl16(scale)), scale clamped to 65504
 *
 * lies within 2^-9 |best scale| + 0.0041 of best scale while |best| is below 65504: three roundings
 * by 2^-11, and 2^-25 |best| where the scale is subnormal. What lies between the two bounds is for
 * `decide`. */
struct row_bounds {
    float low[2], high[2]; /* below low: no pair of the row passes; above high: one does */
};

static __device__ __forceinline__ row_bounds bounds_of(const row_side &r)
{
    constexpr float SHARE = 1 / 512.0f, STEP = 0.0041f;
    row_bounds b;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float low = r.thr[i] - STEP, high = r.thr[i] + STEP;
        b.low[i] = low / (low > 0 ? 1 + SHARE : 1 - SHARE);
        b.high[i] = high / (high > 0 ? 1 - SHARE : 1 + SHARE);
        if (fabsf(r.thr[i]) > 65000.0f) { /* values are clamped near there; INFINITY: no vote */
            b.low[i] = r.thr[i] == INFINITY ? INFINITY : -INFINITY;
            b.high[i] = INFINITY;
        }
    }
    return b;
}

static __device__ __forceinline__ row_side row_side_of(const sale_args &a, int head, int64_t row,
                                                       bool tests)
{
    float2 scale = a.q_scale[head * (a.npad / 2) + row / 16 * 8 + row % 8];
    row_side r = {scale.x, scale.y, {INFINITY, INFINITY}, !(scale.x > 0)};
#pragma unroll
    for (int i = 0; i < 2; i++) /* rows past the end have no vote */
        if (tests && row + 8 * i < a.n)
            r.thr[i] = a.thr[head * a.npad + row + 8 * i];
    return r;
}

#endif
