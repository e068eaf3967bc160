/*
 * quantise.cuh - the operands of SageAttention from q, k and v: integers with a scale per group of
 * tokens, values in fp16 that hold fp16 or e4m3 numbers, or in e4m3 by channel. What the reference
 * (sim/blocks/quant.c) rounds is rounded here at the same places and in the same way.
 *
 * A thread block reads whole groups of q and k into registers, so that each token is read once.
 */
#pragma once

#include "core/ownrule.h"
#include "cuda/attn/attn.h"
#include "cuda/warp.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

#define SUM_ROWS 256   /* tokens of a thread block in sums and maxima over them */
#define QUANT_ROWS 128 /* of one that quantises; they are whole groups unless there is one */

struct quantised_args {
    const __nv_bfloat16 *q, *k, *v;
    __nv_bfloat16 *out;
    float *lse;
    int64_t nq, nk, padded; /* padded: nk rounded up to 128 */
    int heads, kv_heads, per_kv, d, causal, chunks;
    struct own_quantised rule;
    float scale, q_factor, score_scale; /* q_factor: on q before it is quantised */
    double *part;                       /* [2][kv_heads][chunks][d] of sums and maxima of tokens */
    unsigned *arrived;                  /* [2][kv_heads] 0 between launches */
    float *k_mean, *v_mean;             /* [kv_heads][d] */
    unsigned *q_max, *k_max;  /* bits of floats: [heads] and [kv_heads], where there is one group */
    int8_t *qi, *ki;          /* [heads][nq][d], [kv_heads][nk][d] */
    float *q_scale, *k_scale; /* [heads][nq], [kv_heads][padded] by token; q's hold the scale
                               * of scores */
    float *dot;               /* [heads][nq] scale q . mean of k */
    __half *vh;               /* [kv_heads][nk][d]; NULL: vt */
    uint8_t *vt;              /* [kv_heads][d][padded] e4m3 as attn8_job_init takes it */
    float *v_scale, *v_factor; /* [kv_heads][d]: of e4m3, and what values are multiplied by */
};

static __device__ __forceinline__ float round_to(enum dtype t, float x)
{
    return t == DT_BF16  ? __bfloat162float(__float2bfloat16_rn(x))
           : t == DT_F16 ? __half2float(__float2half_rn(x))
                         : x;
}

/* What fp16 has no number for becomes its largest one. */
static __device__ __forceinline__ float fp16_range(float x)
{
    return fminf(fmaxf(x, -65504.f), 65504.f);
}

/* Group of token i of QUANT_ROWS, counted from the first one's (quant_group_of of
 * sim/blocks/quant.c). */
static __device__ __forceinline__ int group_of(const own_quantised &r, bool keys, unsigned i)
{
    unsigned block = keys ? r.bk : r.bq, warp = keys ? r.bk : r.warp;
    switch (r.gran) {
    case OWN_BY_BLOCK:
        return i / block;
    case OWN_BY_WARP:
        return i / warp;
    case OWN_BY_THREAD:
        return keys ? i / block * 4 + i % 8 / 2 : i / warp * 8 + i % 8;
    case OWN_BY_TOKEN:
        return i;
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
    float sum[8], most = 0;
    uint32_t bytes[2];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] = fmaf(x[i], factor, shift);
        most = fmaxf(most, fabsf(fmaf(x[i], factor, shift - sum[i])));
    }
    if (most > 0.4999f || delta < SMALLEST) {
        float grow = delta < SMALLEST ? GROWTH : 1, least = r.levels * delta * grow;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float z = fminf(fmaxf(x[i] * grow, -least), least), y = __fmul_rn(z, factor);
            z = fmaf(-y, delta * grow, z);
            y = r.round == OWN_RNE ? rintf(y)
                                   : truncf(__fadd_rn(fmaf(z, factor, y), copysignf(0.5f, y)));
            sum[i] = y + shift;
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        bytes[i] = __byte_perm(
            __byte_perm(__float_as_uint(sum[4 * i]), __float_as_uint(sum[4 * i + 1]), 0x0040),
            __byte_perm(__float_as_uint(sum[4 * i + 2]), __float_as_uint(sum[4 * i + 3]), 0x0040),
            0x5410);
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

/* What is found over the tokens of a head, channel by channel. */
enum token_statistic { SUM_KEYS, SUM_VALUES, MAX_VALUES };

/* Sums or largest |x| of the thread block's tokens, for each row of threads. HALF: of numbers that
 * the rule has as fp16. */
template <int D, bool MAX, bool CENTRED, bool HALF = false>
static __device__ __forceinline__ void
reduce_tokens(const quantised_args &a, const __nv_bfloat16 *x, double (&by)[token_grid<D>::STEP][D])
{
    using G = token_grid<D>;
    int64_t t0 = blockIdx.x * (int64_t)SUM_ROWS, t1 = min(t0 + SUM_ROWS, a.nk);
    float mean[8], top[8] = {};
    double sum[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i++)
        mean[i] = CENTRED ? a.v_mean[blockIdx.y * (int64_t)D + G::channel() + i] : 0;
#pragma unroll 8
    for (int64_t t = t0 + G::row(); t < t1; t += G::STEP) {
        float y[8];
        unpack(*(const uint4 *)(x + (blockIdx.y * a.nk + t) * D + G::channel()), y);
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (CENTRED)
                top[i] = fmaxf(top[i], fabsf(__fsub_rn(round_to(a.rule.values_as, y[i]), mean[i])));
            else if (MAX)
                top[i] = fmaxf(top[i], fabsf(y[i]));
            else
                sum[i] += HALF ? round_to(DT_F16, fp16_range(y[i])) : y[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        by[G::row()][G::channel() + i] = MAX ? top[i] : sum[i];
}

/* Grid (chunks, kv_heads, 1 or 2), 256 threads. The last thread block of a head puts the parts of
 * all together, in their order. */
template <int D>
static __global__ void __launch_bounds__(256)
    find_statistics(const quantised_args a, token_statistic first, token_statistic second)
{
    __shared__ double by[token_grid<D>::STEP][D];
    __shared__ bool last;
    token_statistic what = blockIdx.z ? second : first;
    int64_t head = blockIdx.z * (int64_t)a.kv_heads + blockIdx.y;
    double *part = a.part + head * a.chunks * D + threadIdx.x, all = 0;

    if (what != MAX_VALUES && a.rule.inputs_as == DT_F16)
        reduce_tokens<D, false, false, true>(a, what == SUM_KEYS ? a.k : a.v, by);
    else if (what != MAX_VALUES)
        reduce_tokens<D, false, false>(a, what == SUM_KEYS ? a.k : a.v, by);
    else if (a.rule.smooth_v)
        reduce_tokens<D, true, true>(a, a.v, by);
    else
        reduce_tokens<D, true, false>(a, a.v, by);
    __syncthreads();
    for (int r = 0; r < token_grid<D>::STEP && threadIdx.x < D; r++)
        all = what == MAX_VALUES ? fmax(all, by[r][threadIdx.x]) : all + by[r][threadIdx.x];
    if (threadIdx.x < D)
        part[blockIdx.x * (int64_t)D] = all;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicInc(a.arrived + head, a.chunks - 1) == (unsigned)a.chunks - 1;
    __syncthreads();
    if (!last || threadIdx.x >= D)
        return;
    all = 0;
#pragma unroll 16
    for (int i = 0; i < a.chunks; i++) {
        double x = __ldcg(part + i * (int64_t)D);
        all = what == MAX_VALUES ? fmax(all, x) : all + x;
    }
    int64_t channel = blockIdx.y * (int64_t)D + threadIdx.x;
    if (what == MAX_VALUES) {
        float most = a.rule.smooth_v ? (float)all : round_to(a.rule.values_as, (float)all);
        a.v_scale[channel] = __fdiv_rn(most, a.rule.v_top);
        a.v_factor[channel] = most > 0 ? __fdiv_rn(a.rule.v_top, most) : 0;
    } else {
        float *to = what == SUM_KEYS ? a.k_mean : a.v_mean;
        to[channel] =
            round_to(what == SUM_KEYS ? a.rule.mean_as : DT_F32, (float)(all / (double)a.nk));
    }
}

/* ---- q and k -------------------------------------------------------------------------------- */

/* Eight channels of a token as they are quantised. CENTRED: raw keys have lost their mean. HALF:
 * the rule has inputs as fp16. */
template <bool KEYS, bool CENTRED, bool HALF>
static __device__ __forceinline__ void channels_of(const quantised_args &a, const uint4 &raw,
                                                   const float (&mean)[8], float (&x)[8])
{
    unpack(raw, x);
#pragma unroll
    for (int i = 0; i < 8 && HALF; i++)
        x[i] = round_to(DT_F16, fp16_range(x[i]));
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (!KEYS)
            x[i] = __fmul_rn(x[i], a.q_factor);
        else if (!CENTRED)
            x[i] = __fsub_rn(x[i], mean[i]);
    if (KEYS && !CENTRED && a.rule.smooth_k && a.rule.keys_as != DT_F32)
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = round_to(a.rule.keys_as, HALF ? fp16_range(x[i]) : x[i]);
}

/* Do bf16 numbers hold the keys less their mean, and this? */
static __device__ __forceinline__ bool centres_in_bf16(const own_quantised &r)
{
    return r.smooth_k && r.keys_as == DT_BF16 && r.mean_as == DT_BF16;
}

/* x - mean in bf16, rounded once. A float has 16 bits more: through one the result is the same. */
static __device__ __forceinline__ void centre(uint4 &x, const float (&mean)[8])
{
    __nv_bfloat162 *pairs = (__nv_bfloat162 *)&x;
#pragma unroll
    for (int i = 0; i < 4; i++)
        pairs[i] = __hsub2_rn(pairs[i], __floats2bfloat162_rn(mean[2 * i], mean[2 * i + 1]));
}

/* The groups of a thread block's tokens. */
struct quant_groups {
    int of[QUANT_ROWS];        /* of a token, counted from the block's first one */
    unsigned most[QUANT_ROWS]; /* largest |x|, as bits */
    float delta[QUANT_ROWS], factor[QUANT_ROWS];
};

/* The largest |x| of the groups. */
template <int D, bool KEYS, bool CENTRED, bool HALF, int N>
static __device__ __forceinline__ void find_maxima(const quantised_args &a, const uint4 (&raw)[N],
                                                   const float (&mean)[8], int64_t t0, int64_t n,
                                                   quant_groups &groups)
{
    using G = token_grid<D>;
    int i0 = threadIdx.x;
    if (i0 < QUANT_ROWS) {
        groups.of[i0] = group_of(a.rule, KEYS, i0);
        groups.most[i0] = 0;
    }
    __syncthreads();
    bool one = groups.of[0] == groups.of[QUANT_ROWS - G::STEP]; /* of a thread's tokens */
    float most = 0;
#pragma unroll
    for (int i = 0; i < N; i++) {
        int row = G::row() + i * G::STEP;
        float x[8], top = 0;
        channels_of<KEYS, CENTRED, HALF>(a, raw[i], mean, x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            top = fmaxf(top, fabsf(x[c]));
        top = fmaxf(t0 + row < n ? top : 0, one ? most : 0);
        most = top;
        if (one && i < N - 1)
            continue;
#pragma unroll
        for (int lanes = 1; lanes < G::LANES; lanes *= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
        if (G::channel() == 0)
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

/* Integers and scales of QUANT_ROWS tokens of q, or of k with those of the padded keys, which are
 * 0. Where all tokens are one group, `find` its maximum first. */
template <int D, bool KEYS, bool CENTRED, bool HALF>
static __device__ __forceinline__ void quantise_tokens(const quantised_args &a, int64_t head,
                                                       int64_t t0, bool find)
{
    using G = token_grid<D>;
    constexpr int N = QUANT_ROWS / G::STEP;
    __shared__ quant_groups groups;
    int64_t n = KEYS ? a.nk : a.nq, at = head * n + t0 + G::row();
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
#pragma unroll
    for (int i = 0; i < N && CENTRED; i++)
        centre(raw[i], mean);
    find_maxima<D, KEYS, CENTRED, HALF>(a, raw, mean, t0, n, groups);
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
        channels_of<KEYS, CENTRED, HALF>(a, raw[i], mean, x);
        uint2 bytes = integers_of(a.rule, groups.delta[group], groups.factor[group], x);
        float dot = KEYS || !a.rule.smooth_k ? 0 : dot_of<D>(a, raw[i], mean);
        if (t0 + row < n)
            *(uint2 *)(to + i * G::STEP * D) = bytes;
        if (!KEYS && G::channel() == 0 && t0 + row < n)
            a.dot[head * n + t0 + row] = dot;
    }
}

/* ---- v -------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float e4m3_of(float x)
{
    return __half2float(__half(
        __nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3), __NV_E4M3)));
}

/* QUANT_ROWS tokens in float16. */
template <int D>
static __device__ __forceinline__ void quantise_values(const quantised_args &a, int64_t head,
                                                       int64_t t0)
{
    using G = token_grid<D>;
    int64_t channel = head * D + G::channel();
    float mean[8], factor[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        mean[i] = a.rule.smooth_v ? a.v_mean[channel + i] : 0;
        factor[i] = a.rule.e4m3 ? a.v_factor[channel + i] : 1;
        if (t0 == 0 && G::row() == 0 && !a.rule.e4m3)
            a.v_scale[channel + i] = 1;
    }
#pragma unroll 4
    for (int64_t t = t0 + G::row(); t < min(t0 + QUANT_ROWS, a.nk); t += G::STEP) {
        int64_t at = (head * a.nk + t) * D + G::channel();
        float x[8];
        __align__(16) __half2 y[4];
        unpack(*(const uint4 *)(a.v + at), x);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = a.rule.inputs_as == DT_F16 ? fp16_range(x[i]) : x[i];
            x[i] = __fsub_rn(round_to(a.rule.values_as, x[i]), mean[i]);
            x[i] = a.rule.e4m3 ? e4m3_of(__fmul_rn(x[i], factor[i])) : x[i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = __floats2half2_rn(x[2 * i], x[2 * i + 1]);
        *(uint4 *)(a.vh + at) = *(const uint4 *)y;
    }
}

/* Four numbers in e4m3, the first in the lowest byte. */
static __device__ __forceinline__ uint32_t e4m3_word(float a, float b, float c, float d)
{
    uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    uint32_t hi = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return lo | hi << 16;
}

#define VALUE_ROWS(D) (128 * 128 / (D)) /* tokens of a thread block that transposes */

/* VALUE_ROWS tokens in e4m3, with the keys of a channel side by side. A warp has 128 keys of 16
 * channels, a thread 16 keys of four: it reads four channels of a key, and writes 16 keys of a
 * channel, at a time, and its warp whole lines. PLAIN: values are neither rounded nor centred
 * first. */
template <int D, bool PLAIN>
static __device__ __forceinline__ void transpose_values(const quantised_args &a, int64_t head,
                                                        int64_t t0)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int channel = warp % (D / 16) * 16 + lane / 8 * 4;
    t0 += warp / (D / 16) * 128 + lane % 8 * 16;
    const __nv_bfloat16 *from = a.v + (head * a.nk + t0) * D + channel;
    int64_t of_head = head * D + channel;
    uint2 raw[16];
    if (t0 >= a.padded)
        return;
#pragma unroll
    for (int i = 0; i < 16; i++)
        raw[i] = t0 + i < a.nk ? *(const uint2 *)(from + i * D) : make_uint2(0, 0);
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float factor = a.v_factor[of_head + c], x[16];
        float mean = a.rule.smooth_v ? a.v_mean[of_head + c] : 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            uint32_t pair = c / 2 ? raw[i].y : raw[i].x;
            x[i] = __uint_as_float(c % 2 ? pair & 0xffff0000u : pair << 16);
            if (!PLAIN)
                x[i] = t0 + i < a.nk ? __fsub_rn(round_to(a.rule.values_as, x[i]), mean) : 0;
            x[i] = __fmul_rn(x[i], factor);
        }
        *(uint4 *)(a.vt + (of_head + c) * a.padded + t0) =
            make_uint4(e4m3_word(x[0], x[1], x[8], x[9]), e4m3_word(x[2], x[3], x[10], x[11]),
                       e4m3_word(x[4], x[5], x[12], x[13]), e4m3_word(x[6], x[7], x[14], x[15]));
    }
}

/* ---- all ------------------------------------------------------------------------------------ */

/* Thread blocks of 256 threads for q, k and v of a head. */
template <int D> static __host__ __device__ __forceinline__ int3 blocks_of(const quantised_args &a)
{
    int rows = a.vt ? VALUE_ROWS(D) : QUANT_ROWS;
    return make_int3((int)((a.nq + QUANT_ROWS - 1) / QUANT_ROWS), (int)(a.padded / QUANT_ROWS),
                     (int)((a.padded + rows - 1) / rows));
}

/* Grid: those of q of all heads, then of k and, unless `find`, of v, from the end, of which k and v
 * may still be in L2. */
template <int D>
static __global__ void __launch_bounds__(256, 3)
    quantise_operands(const quantised_args a, bool find)
{
    const bool half = a.rule.inputs_as == DT_F16;
    int3 n = blocks_of<D>(a);
    int i = gridDim.x - 1 - blockIdx.x;
    if (i < n.x * a.heads) {
        int64_t head = i / n.x, t0 = i % n.x * (int64_t)QUANT_ROWS;
        if (half)
            quantise_tokens<D, false, false, true>(a, head, t0, find);
        else
            quantise_tokens<D, false, false, false>(a, head, t0, find);
        return;
    }
    i -= n.x * a.heads;
    if (i < n.y * a.kv_heads) {
        int64_t head = i / n.y, t0 = i % n.y * (int64_t)QUANT_ROWS;
        if (half)
            quantise_tokens<D, true, false, true>(a, head, t0, find);
        else if (centres_in_bf16(a.rule))
            quantise_tokens<D, true, true, false>(a, head, t0, find);
        else
            quantise_tokens<D, true, false, false>(a, head, t0, find);
        return;
    }
    i -= n.y * a.kv_heads;
    int64_t head = i / n.z, block = i % n.z;
    if (!a.vt)
        quantise_values<D>(a, head, block * QUANT_ROWS);
    else if (a.rule.smooth_v || a.rule.values_as == DT_F16)
        transpose_values<D, false>(a, head, block * VALUE_ROWS(D));
    else
        transpose_values<D, true>(a, head, block * VALUE_ROWS(D));
}
