/*
 * quantise.cuh - the operands of SageAttention from q, k and v: integers with a scale per group of
 * tokens, values in fp16 that hold fp16 or e4m3 numbers, or in e4m3 by channel. What the reference
 * (sim/blocks/quant.c) rounds is rounded here at the same places and in the same way.
 *
 * A thread block reads whole groups of q and k into registers, so that each token is read once.
 */
#ifndef LACUNA_QUANTISE_CUH
#define LACUNA_QUANTISE_CUH

#include "core/ownrule.h"
#include "cuda/attn/attn.h"
#include "cuda/warp.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#define SUM_ROWS 256 /* tokens of a thread block in sums and maxima over them */

struct quantised_args {
    const __nv_bfloat16 *q, *k, *v;
    __nv_bfloat16 *out;
    float *lse;
    int64_t nq, nk, padded; /* padded: nk rounded up to 128 */
    int heads, kv_heads, per_kv, d, causal, chunks;
    struct own_quantised rule;
    float scale, fold, score_scale;  /* fold: on q before it is quantised */
    double *part;                    /* [kv_heads][chunks][d] sums of tokens */
    float *k_mean, *v_mean;          /* [kv_heads][d] */
    unsigned *q_max, *k_max, *v_max; /* bits of floats: [heads] and [kv_heads], where there is one
                                      * group; [kv_heads][d] */
    int8_t *qi, *ki;                 /* [heads][nq][d], [kv_heads][nk][d] */
    float *q_scale, *k_scale;        /* [heads][nq], [kv_heads][padded] by token; q's hold the scale
                                      * of scores */
    float *dot;                      /* [heads][nq] scale q . mean of k */
    __half *vh;                      /* [kv_heads][nk][d]; NULL: vt */
    uint8_t *vt;                     /* [kv_heads][d][padded] e4m3 as attn8_job_init takes it */
    float *v_scale;                  /* [kv_heads][d] */
};

static __device__ __forceinline__ float round_to(enum dtype t, float x)
{
    return t == DT_BF16  ? __bfloat162float(__float2bfloat16_rn(x))
           : t == DT_F16 ? __half2float(__float2half_rn(x))
                         : x;
}

/* quant_group_of (sim/blocks/quant.c). */
static __device__ __forceinline__ int64_t group_of(const own_quantised &r, bool keys, int64_t t)
{
    switch (r.gran) {
    case OWN_BY_BLOCK:
        return t / (keys ? r.bk : r.bq);
    case OWN_BY_WARP:
        return t / (keys ? r.bk : r.warp);
    case OWN_BY_THREAD:
        return keys ? t / r.bk * 4 + t % 8 / 2 : t / r.warp * 8 + t % 8;
    case OWN_BY_TOKEN:
        return t;
    default:
        return 0;
    }
}

/* quant_delta and quant_value. */
static __device__ __forceinline__ float delta_of(const own_quantised &r, float amax)
{
    float l = (float)r.levels;
    return r.round == OWN_RHA_EPS ? __fadd_rn(__fdiv_rn(amax, l), 1e-7f)
           : r.round == OWN_RHA   ? __fdiv_rn(amax, l)
                                  : __fdiv_rn(fmaxf(amax, 1e-7f), l);
}

/* What x is multiplied by to be quantised. Deltas below SMALLEST, whose reciprocals may be
 * infinite, are scaled by GROWTH first. */
#define SMALLEST 0x1p-100f
#define GROWTH 0x1p100f

static __device__ __forceinline__ float factor_of(const own_quantised &r, float amax, float delta)
{
    if (r.round == OWN_RNE)
        return __fdiv_rn((float)r.levels, fmaxf(amax, 1e-7f));
    return delta == 0 ? 0 : __fdiv_rn(1, delta < SMALLEST ? delta * GROWTH : delta);
}

/* Eight integers as bytes: x times the factor, rounded. That product and x / delta differ by less
 * than 127 2^-22, so the quotient is made exact next to ties only: one step of Newton's from the
 * rounded reciprocal gives the rounded quotient (P. Markstein, IBM J. Res. Dev. 34, 1990). */
static __device__ __forceinline__ uint2 integers_of(const own_quantised &r, float delta,
                                                    float factor, float (&x)[8])
{
    const float shift = 12582912; /* 1.5 2^23: the low bits of a sum with it are an integer */
    uint32_t bytes[2] = {0, 0};
    if (r.round != OWN_RNE && delta < SMALLEST) {
        delta *= GROWTH;
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = fminf(fmaxf(x[i] * GROWTH, -r.levels * delta), r.levels * delta);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float sum = fmaf(x[i], factor, shift), y = __fmul_rn(x[i], factor);
        if (fabsf(y - (sum - shift)) > 0.4999f) {
            if (r.round == OWN_RNE)
                y = rintf(y);
            else
                y = truncf(__fadd_rn(fmaf(fmaf(-y, delta, x[i]), factor, y), copysignf(0.5f, y)));
            sum = y + shift;
        }
        bytes[i / 4] |= (__float_as_uint(sum) & 255) << i % 4 * 8;
    }
    return make_uint2(bytes[0], bytes[1]);
}

/* ---- tokens --------------------------------------------------------------------------------- */

/* Kernels over tokens have 256 threads. A thread has eight neighbouring channels of every STEP-th
 * token, so that D / 8 neighbouring lanes have a token. */
template <int D> struct token_grid {
    static constexpr int LANES = D / 8, STEP = 256 / LANES;
    static __device__ __forceinline__ int channel()
    {
        return threadIdx.x % LANES * 8;
    }
    static __device__ __forceinline__ int row()
    {
        return threadIdx.x / LANES;
    }
};

static __device__ __forceinline__ void unpack(const uint4 &raw, float (&x)[8])
{
    const uint32_t pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) { /* a bf16 number is the upper half of a float */
        x[2 * i] = __uint_as_float(pairs[i] << 16);
        x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
}

/* Sums of k or v. Grid (chunks, kv_heads). */
template <int D>
static __global__ void __launch_bounds__(256)
    sum_tokens(const quantised_args a, const __nv_bfloat16 *x)
{
    using G = token_grid<D>;
    __shared__ double sums[G::STEP][D];
    int64_t t0 = blockIdx.x * (int64_t)SUM_ROWS, t1 = min(t0 + SUM_ROWS, a.nk);
    double sum[8] = {};
#pragma unroll 4
    for (int64_t t = t0 + G::row(); t < t1; t += G::STEP) {
        float y[8];
        unpack(*(const uint4 *)(x + (blockIdx.y * a.nk + t) * D + G::channel()), y);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[i] += y[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        sums[G::row()][G::channel() + i] = sum[i];
    __syncthreads();
    if (threadIdx.x >= D)
        return;
    double all = 0;
    for (int r = 0; r < G::STEP; r++)
        all += sums[r][threadIdx.x];
    a.part[(blockIdx.y * (int64_t)a.chunks + blockIdx.x) * D + threadIdx.x] = all;
}

/* Grid (kv_heads), d threads. */
static __global__ void mean_tokens(const quantised_args a, enum dtype as, float *mean)
{
    double sum = 0;
#pragma unroll 8
    for (int i = 0; i < a.chunks; i++)
        sum += a.part[(blockIdx.x * (int64_t)a.chunks + i) * a.d + threadIdx.x];
    mean[blockIdx.x * a.d + threadIdx.x] = round_to(as, (float)(sum / (double)a.nk));
}

/* ---- q and k -------------------------------------------------------------------------------- */

#define QUANT_ROWS 128 /* tokens of a thread block, which are whole groups unless there is one */

/* Eight channels of a token as they are quantised. */
template <bool KEYS>
static __device__ __forceinline__ void channels_of(const quantised_args &a, const uint4 &raw,
                                                   const float (&mean)[8], float (&x)[8])
{
    unpack(raw, x);
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (!KEYS)
            x[i] = a.rule.fold_scale ? __fmul_rn(x[i], a.fold) : x[i];
        else
            x[i] = a.rule.smooth_k ? __fsub_rn(x[i], mean[i]) : x[i];
    enum dtype as = KEYS && a.rule.smooth_k ? a.rule.keys_as : DT_F32;
    if (as == DT_BF16)
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = round_to(DT_BF16, x[i]);
    else if (as == DT_F16)
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = round_to(DT_F16, x[i]);
}

/* The groups of a thread block's tokens. */
struct quant_groups {
    int of[QUANT_ROWS];        /* of a token, counted from the block's first one */
    unsigned most[QUANT_ROWS]; /* largest |x|, as bits */
    float delta[QUANT_ROWS], factor[QUANT_ROWS];
};

/* The largest |x| of the groups. */
template <int D, bool KEYS, int N>
static __device__ __forceinline__ void find_maxima(const quantised_args &a, const uint4 (&raw)[N],
                                                   const float (&mean)[8], int64_t t0, int64_t n,
                                                   quant_groups &groups)
{
    using G = token_grid<D>;
    int i0 = threadIdx.x;
    if (i0 < QUANT_ROWS) {
        groups.of[i0] = (int)(group_of(a.rule, KEYS, t0 + i0) - group_of(a.rule, KEYS, t0));
        groups.most[i0] = 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        int row = G::row() + i * G::STEP;
        float x[8], top = 0;
        channels_of<KEYS>(a, raw[i], mean, x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            top = fmaxf(top, fabsf(x[c]));
#pragma unroll
        for (int lanes = 1; lanes < G::LANES; lanes *= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
        if (G::channel() == 0 && t0 + row < n)
            atomicMax(&groups.most[groups.of[row]], __float_as_uint(top));
    }
    __syncthreads();
}

/* scale q . mean of k for a token, in all of its lanes. */
template <int D>
static __device__ __forceinline__ float dot_of(const quantised_args &a, const uint4 &raw,
                                               const float (&mean)[8])
{
    float x[8], dot = 0;
    unpack(raw, x);
#pragma unroll
    for (int i = 0; i < 8; i++)
        dot += x[i] * mean[i];
#pragma unroll
    for (int lanes = 1; lanes < token_grid<D>::LANES; lanes *= 2)
        dot += __shfl_xor_sync(~0u, dot, lanes);
    return a.scale * dot;
}

/* Integers and scales of q, or of k with those of the padded keys, which are 0. Grid (n /
 * QUANT_ROWS, heads). Where all tokens are one group, `find` its maximum first. */
template <int D, bool KEYS>
static __global__ void __launch_bounds__(256, 2) quantise_tokens(const quantised_args a, bool find)
{
    using G = token_grid<D>;
    constexpr int N = QUANT_ROWS / G::STEP;
    __shared__ quant_groups groups;
    int64_t n = KEYS ? a.nk : a.nq, t0 = blockIdx.x * (int64_t)QUANT_ROWS;
    int64_t head = blockIdx.y, at = head * n + t0 + G::row();
    const __nv_bfloat16 *from = (KEYS ? a.k : a.q) + at * D + G::channel();
    int8_t *to = (KEYS ? a.ki : a.qi) + at * D + G::channel();
    unsigned *one = (KEYS ? a.k_max : a.q_max) + head;
    float mean[8];
    uint4 raw[N];

#pragma unroll
    for (int i = 0; i < N; i++) {
        raw[i] = make_uint4(0, 0, 0, 0);
        if (t0 + G::row() + i * G::STEP < n)
            raw[i] = *(const uint4 *)(from + i * G::STEP * D);
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        mean[i] =
            a.rule.smooth_k ? a.k_mean[(KEYS ? head : head / a.per_kv) * D + G::channel() + i] : 0;
    find_maxima<D, KEYS>(a, raw, mean, t0, n, groups);
    if (find) {
        if (threadIdx.x == 0)
            atomicMax(one, groups.most[0]);
        return;
    }
    if (threadIdx.x < QUANT_ROWS) {
        if (a.rule.gran == OWN_BY_TENSOR)
            groups.most[threadIdx.x] = *one;
        float amax = __uint_as_float(groups.most[threadIdx.x]), delta = delta_of(a.rule, amax);
        groups.delta[threadIdx.x] = delta;
        groups.factor[threadIdx.x] = factor_of(a.rule, amax, delta);
    }
    __syncthreads();
    if (threadIdx.x < QUANT_ROWS) {
        int64_t t = t0 + threadIdx.x;
        float delta = groups.delta[groups.of[threadIdx.x]];
        if (KEYS)
            a.k_scale[head * a.padded + t] = t < n ? delta : 0;
        else if (t < n)
            a.q_scale[head * n + t] = __fmul_rn(a.score_scale, delta);
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        int row = G::row() + i * G::STEP, group = groups.of[row];
        float x[8];
        channels_of<KEYS>(a, raw[i], mean, x);
        uint2 bytes = integers_of(a.rule, groups.delta[group], groups.factor[group], x);
        float dot = KEYS || !a.rule.smooth_k ? 0 : dot_of<D>(a, raw[i], mean);
        if (t0 + row < n)
            *(uint2 *)(to + i * G::STEP * D) = bytes;
        if (!KEYS && G::channel() == 0 && t0 + row < n)
            a.dot[head * n + t0 + row] = dot;
    }
}

/* ---- v -------------------------------------------------------------------------------------- */

/* Grid (chunks, kv_heads), 256 threads. */
template <int D>
static __global__ void __launch_bounds__(256) find_value_maxima(const quantised_args a)
{
    using G = token_grid<D>;
    __shared__ unsigned most[D];
    int64_t t0 = blockIdx.x * (int64_t)SUM_ROWS, t1 = min(t0 + SUM_ROWS, a.nk);
    int64_t channels = blockIdx.y * (int64_t)D;
    float mean[8], top[8] = {};
    if (threadIdx.x < D)
        most[threadIdx.x] = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        mean[i] = a.rule.smooth_v ? a.v_mean[channels + G::channel() + i] : 0;
    __syncthreads();
#pragma unroll 4
    for (int64_t t = t0 + G::row(); t < t1; t += G::STEP) {
        float x[8];
        unpack(*(const uint4 *)(a.v + (blockIdx.y * a.nk + t) * D + G::channel()), x);
#pragma unroll
        for (int i = 0; i < 8; i++)
            top[i] = fmaxf(top[i], fabsf(__fsub_rn(round_to(a.rule.values_as, x[i]), mean[i])));
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        atomicMax(&most[G::channel() + i], __float_as_uint(top[i]));
    __syncthreads();
    if (threadIdx.x < D)
        atomicMax(a.v_max + channels + threadIdx.x, most[threadIdx.x]);
}

static __device__ __forceinline__ uint8_t e4m3_bits(float x)
{
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ float e4m3_of(float x)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(e4m3_bits(x), __NV_E4M3)));
}

/* Grid (chunks, kv_heads), 256 threads. */
template <int D>
static __global__ void __launch_bounds__(256) quantise_values(const quantised_args a)
{
    using G = token_grid<D>;
    int64_t t0 = blockIdx.x * (int64_t)SUM_ROWS, t1 = min(t0 + SUM_ROWS, a.nk);
    int64_t channel = blockIdx.y * (int64_t)D + G::channel();
    float mean[8], factor[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float amax = a.rule.e4m3 ? __uint_as_float(a.v_max[channel + i]) : 0;
        mean[i] = a.rule.smooth_v ? a.v_mean[channel + i] : 0;
        factor[i] = amax > 0 ? __fdiv_rn(a.rule.v_top, amax) : 0;
        if (blockIdx.x == 0 && G::row() == 0)
            a.v_scale[channel + i] = a.rule.e4m3 ? __fdiv_rn(amax, a.rule.v_top) : 1;
    }
#pragma unroll 4
    for (int64_t t = t0 + G::row(); t < t1; t += G::STEP) {
        int64_t at = (blockIdx.y * a.nk + t) * D + G::channel();
        float x[8];
        __align__(16) __half2 y[4];
        unpack(*(const uint4 *)(a.v + at), x);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = __fsub_rn(round_to(a.rule.values_as, x[i]), mean[i]);
            x[i] = a.rule.e4m3 ? e4m3_of(__fmul_rn(x[i], factor[i])) : x[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
        *(uint4 *)(a.vh + at) = *(const uint4 *)y;
    }
}

/* The same with the keys of a channel side by side. Grid (padded / 128, kv_heads), 256 threads: a
 * thread reads eight channels of tokens, and then writes 16 keys of a channel at a time. A tile's
 * line is four bytes longer than its keys, which spreads channels over the banks. */
template <int D>
static __global__ void __launch_bounds__(256) transpose_values(const quantised_args a)
{
    using G = token_grid<D>;
    constexpr int N = 128 / G::STEP, LINE = 132;
    __shared__ __align__(4) uint8_t tile[D * LINE];
    __shared__ float factor[D];
    int64_t t0 = blockIdx.x * 128LL, head = blockIdx.y, channels = head * D;
    const __nv_bfloat16 *from = a.v + (head * a.nk + t0 + G::row()) * D + G::channel();
    float mean[8];
    uint4 raw[N];

    if (threadIdx.x < D) {
        float amax = __uint_as_float(a.v_max[channels + threadIdx.x]);
        factor[threadIdx.x] = amax > 0 ? __fdiv_rn(a.rule.v_top, amax) : 0;
        if (blockIdx.x == 0)
            a.v_scale[channels + threadIdx.x] = __fdiv_rn(amax, a.rule.v_top);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        raw[i] = make_uint4(0, 0, 0, 0);
        if (t0 + G::row() + i * G::STEP < a.nk)
            raw[i] = *(const uint4 *)(from + i * G::STEP * D);
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        mean[c] = a.rule.smooth_v ? a.v_mean[channels + G::channel() + c] : 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int row = G::row() + i * G::STEP, place = row / 16 * 16 + attn8_place(row % 16);
        float x[8];
        unpack(raw[i], x);
#pragma unroll
        for (int c = 0; c < 8; c++) {
            float y = __fsub_rn(round_to(a.rule.values_as, x[c]), mean[c]);
            y = t0 + row < a.nk ? __fmul_rn(y, factor[G::channel() + c]) : 0;
            tile[(G::channel() + c) * LINE + place] = e4m3_bits(y);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < D * 8; i += 256) {
        const uint32_t *line = (const uint32_t *)(tile + i / 8 * LINE + i % 8 * 16);
        *(uint4 *)(a.vt + (channels + i / 8) * a.padded + t0 + i % 8 * 16) =
            make_uint4(line[0], line[1], line[2], line[3]);
    }
}

#endif
