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

/* Does one of the lane's 2 x 8 pairs of a 32-key block pass? dot: by strip of 8 keys. Corrections
 * are rounded to whole numbers by adding 1.5 2^23; they are compared with that added, as integers.
 * CLAMP: a correction may be larger than fp16 has. */
template <bool CLAMP>
static __device__ __forceinline__ bool test_pairs(const sale_args &a, const int (&dot)[4][4],
                                                  const __half *corr, float k_scale,
                                                  const row_side &r)
{
    constexpr float MAGIC = 12582912.0f;
    int best[2] = {INT_MIN, INT_MIN};
    __half2 inverse = __float2half2_rn(r.inverse);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 x = __hmul2_rn(*(const __half2 *)(corr + 8 * i), inverse);
        float2 y = __half22float2(CLAMP ? clamp16(x) : x);
        int add[2] = {__float_as_int(y.x + MAGIC), __float_as_int(y.y + MAGIC)};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            best[0] = max(best[0], dot[i][e] + add[e]);
            best[1] = max(best[1], dot[i][2 + e] + add[e]);
        }
    }
    float scale = fl16(__fmul_rn(r.scale, k_scale));
    __half2 whole =
        __floats2half2_rn(__int_as_float(best[0]) - MAGIC, __int_as_float(best[1]) - MAGIC);
    __half2 value = clamp16(__hmul2_rn(clamp16(whole), __float2half2_rn(scale)));
    return passes(a, __low2float(value), r.thr[0]) || passes(a, __high2float(value), r.thr[1]);
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
