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

static __device__ __forceinline__ int8_t integer_of(const own_quantised &r, float amax, float delta,
                                                    float x)
{
    float l = (float)r.levels, y;
    if (amax == 0)
        return 0;
    if (r.round == OWN_RNE)
        y = rintf(__fmul_rn(x, __fdiv_rn(l, fmaxf(amax, 1e-7f))));
    else
        y = truncf(__fadd_rn(__fdiv_rn(x, delta), copysignf(0.5f, x)));
    return (int8_t)fminf(fmaxf(y, -l), l);
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
        else if (a.rule.smooth_k)
            x[i] = round_to(a.rule.keys_as, __fsub_rn(x[i], mean[i]));
}

/* The largest |x| of the groups of a thread block's tokens. */
template <int D, bool KEYS, int N>
static __device__ __forceinline__ void find_maxima(const quantised_args &a, const uint4 (&raw)[N],
                                                   const float (&mean)[8], int64_t t0, int64_t n,
                                                   unsigned (&most)[QUANT_ROWS])
{
    using G = token_grid<D>;
    int64_t first = group_of(a.rule, KEYS, t0);
    if (threadIdx.x < QUANT_ROWS)
        most[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++) {
        int64_t t = t0 + G::row() + i * G::STEP;
        float x[8], top = 0;
        channels_of<KEYS>(a, raw[i], mean, x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            top = fmaxf(top, fabsf(x[c]));
#pragma unroll
        for (int lanes = 1; lanes < G::LANES; lanes *= 2)
            top = fmaxf(top, __shfl_xor_sync(~0u, top, lanes));
        if (G::channel() == 0 && t < n)
            atomicMax(&most[group_of(a.rule, KEYS, t) - first], __float_as_uint(top));
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
    __shared__ unsigned most[QUANT_ROWS];
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
    find_maxima<D, KEYS>(a, raw, mean, t0, n, most);
    if (find) {
        if (threadIdx.x == 0)
            atomicMax(one, most[0]);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        int64_t t = t0 + G::row() + i * G::STEP;
        int group = (int)(group_of(a.rule, KEYS, t) - group_of(a.rule, KEYS, t0));
        float amax = __uint_as_float(a.rule.gran == OWN_BY_TENSOR ? *one : most[group]);
        float delta = delta_of(a.rule, amax), x[8];
        uint32_t bytes[2] = {0, 0};
        channels_of<KEYS>(a, raw[i], mean, x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            bytes[c / 4] |= (uint32_t)(uint8_t)integer_of(a.rule, amax, delta, x[c]) << c % 4 * 8;
        float dot = KEYS || !a.rule.smooth_k ? 0 : dot_of<D>(a, raw[i], mean);
        if (t < n)
            *(uint2 *)(to + i * G::STEP * D) = make_uint2(bytes[0], bytes[1]);
        if (G::channel() != 0)
            continue;
        if (KEYS) {
            a.k_scale[head * a.padded + t] = t < n ? delta : 0;
        } else if (t < n) {
            a.q_scale[head * n + t] = __fmul_rn(a.score_scale, delta);
            a.dot[head * n + t] = dot;
        }
    }
}

/* ---- v -------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float value_of(const quantised_args &a, int64_t token)
{
    float x = __bfloat162float(a.v[(blockIdx.y * a.nk + token) * a.d + threadIdx.x]);
    return a.rule.smooth_v ? __fsub_rn(x, a.v_mean[blockIdx.y * a.d + threadIdx.x]) : x;
}

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
            top[i] = fmaxf(top[i], fabsf(__fsub_rn(x[i], mean[i])));
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

/* Grid (chunks, kv_heads), d threads. */
static __global__ void quantise_values(const quantised_args a)
{
    int64_t t0 = blockIdx.x * (int64_t)SUM_ROWS, t1 = min(t0 + SUM_ROWS, a.nk);
    int64_t channel = blockIdx.y * a.d + threadIdx.x;
    float amax = a.rule.e4m3 ? __uint_as_float(a.v_max[channel]) : 0;
    float mul = amax > 0 ? __fdiv_rn(a.rule.v_top, amax) : 0;
    for (int64_t t = t0; t < t1; t++) {
        float x = value_of(a, t);
        x = !a.rule.e4m3 ? x : amax > 0 ? e4m3_of(__fmul_rn(x, mul)) : 0;
        a.vh[(blockIdx.y * a.nk + t) * a.d + threadIdx.x] = __float2half_rn(x);
    }
    if (blockIdx.x == 0)
        a.v_scale[channel] = a.rule.e4m3 ? __fdiv_rn(amax, a.rule.v_top) : 1;
}

/* The same with the keys of a channel side by side. Grid (padded / 128, kv_heads), d threads: each
 * writes a line of 128 keys of its channel. */
static __global__ void transpose_values(const quantised_args a)
{
    int64_t channel = blockIdx.y * a.d + threadIdx.x;
    float amax = __uint_as_float(a.v_max[channel]);
    float mul = amax > 0 ? __fdiv_rn(a.rule.v_top, amax) : 0;
    for (int64_t t0 = blockIdx.x * 128LL; t0 < blockIdx.x * 128LL + 128; t0 += 16) {
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int r = 0; r < 16; r++) {
            float x = t0 + r < a.nk ? __fmul_rn(value_of(a, t0 + r), mul) : 0;
            words[attn8_place(r) / 4] |= (uint32_t)e4m3_bits(x) << attn8_place(r) % 4 * 8;
        }
        *(uint4 *)(a.vt + channel * a.padded + t0) =
            make_uint4(words[0], words[1], words[2], words[3]);
    }
    if (blockIdx.x == 0)
        a.v_scale[channel] = __fdiv_rn(amax, a.rule.v_top);
}

#endif
