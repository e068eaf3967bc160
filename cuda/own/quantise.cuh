/*
 * quantise.cuh - the operands of SageAttention from q, k and v: integers with a scale per group of
 * tokens, values in fp16 that hold fp16 or e4m3 numbers, or in e4m3 by channel. What the reference
 * (sim/blocks/quant.c) rounds is rounded here at the same places and in the same way.
 *
 * A group's largest |x| is found in one pass over the tokens and used in a second one, whatever the
 * group is.
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
    int64_t q_groups, k_groups;      /* of a head */
    double *part;                    /* [kv_heads][chunks][d] sums of tokens */
    float *k_mean, *v_mean;          /* [kv_heads][d] */
    unsigned *q_max, *k_max, *v_max; /* bits of floats: [heads][q_groups], [kv_heads][k_groups],
                                      * [kv_heads][d] */
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

/* ---- means ---------------------------------------------------------------------------------- */

/* Grid (chunks, kv_heads), d threads. */
static __global__ void sum_tokens(const quantised_args a, const __nv_bfloat16 *x)
{
    int64_t t0 = blockIdx.x * (int64_t)SUM_ROWS, t1 = min(t0 + SUM_ROWS, a.nk);
    double sum = 0;
    for (int64_t t = t0; t < t1; t++)
        sum += __bfloat162float(x[(blockIdx.y * a.nk + t) * a.d + threadIdx.x]);
    a.part[(blockIdx.y * (int64_t)a.chunks + blockIdx.x) * a.d + threadIdx.x] = sum;
}

/* Grid (kv_heads), d threads. */
static __global__ void mean_tokens(const quantised_args a, enum dtype as, float *mean)
{
    double sum = 0;
    for (int i = 0; i < a.chunks; i++)
        sum += a.part[(blockIdx.x * (int64_t)a.chunks + i) * a.d + threadIdx.x];
    mean[blockIdx.x * a.d + threadIdx.x] = round_to(as, (float)(sum / (double)a.nk));
}

/* ---- q and k -------------------------------------------------------------------------------- */

/* A lane's part of a token before it is quantised: channels lane, lane + 32, ... */
template <int N, bool KEYS>
static __device__ __forceinline__ void token_of(const quantised_args &a, int head, int64_t t,
                                                float (&x)[N])
{
    const __nv_bfloat16 *from =
        (KEYS ? a.k + (head * a.nk + t) * a.d : a.q + (head * a.nq + t) * a.d);
#pragma unroll
    for (int i = 0; i < N; i++) {
        int c = (threadIdx.x & 31) + 32 * i;
        x[i] = __bfloat162float(from[c]);
        if (!KEYS)
            x[i] = a.rule.fold_scale ? __fmul_rn(x[i], a.fold) : x[i];
        else if (a.rule.smooth_k)
            x[i] = round_to(a.rule.keys_as, __fsub_rn(x[i], a.k_mean[head * a.d + c]));
    }
}

/* A warp per token. Grid (tokens / 8, heads), 256 threads. */
template <int N, bool KEYS>
static __global__ void __launch_bounds__(256) find_maxima(const quantised_args a)
{
    int64_t t = blockIdx.x * 8LL + (threadIdx.x >> 5), n = KEYS ? a.nk : a.nq;
    int head = blockIdx.y;
    float x[N], most = 0;
    if (t >= n)
        return;
    token_of<N, KEYS>(a, head, t, x);
#pragma unroll
    for (int i = 0; i < N; i++)
        most = fmaxf(most, fabsf(x[i]));
    most = warp_max(most);
    unsigned *to = KEYS ? a.k_max + head * a.k_groups : a.q_max + head * a.q_groups;
    if ((threadIdx.x & 31) == 0)
        atomicMax(to + group_of(a.rule, KEYS, t), __float_as_uint(most));
}

/* The same grid, for keys over the padded ones, whose scales become 0. */
template <int N, bool KEYS>
static __global__ void __launch_bounds__(256) quantise_tokens(const quantised_args a)
{
    int64_t t = blockIdx.x * 8LL + (threadIdx.x >> 5), n = KEYS ? a.nk : a.nq;
    int head = blockIdx.y, lane = threadIdx.x & 31;
    float x[N], dot = 0;
    if (t >= n) {
        if (KEYS && t < a.padded && lane == 0)
            a.k_scale[head * a.padded + t] = 0;
        return;
    }
    token_of<N, KEYS>(a, head, t, x);
    const unsigned *maxima = KEYS ? a.k_max + head * a.k_groups : a.q_max + head * a.q_groups;
    float amax = __uint_as_float(maxima[group_of(a.rule, KEYS, t)]), delta = delta_of(a.rule, amax);
    int8_t *to = KEYS ? a.ki + (head * a.nk + t) * a.d : a.qi + (head * a.nq + t) * a.d;
#pragma unroll
    for (int i = 0; i < N; i++)
        to[lane + 32 * i] = integer_of(a.rule, amax, delta, x[i]);
    if (!KEYS && a.rule.smooth_k) {
        const __nv_bfloat16 *q = a.q + (head * a.nq + t) * a.d;
#pragma unroll
        for (int i = 0; i < N; i++)
            dot += __bfloat162float(q[lane + 32 * i]) *
                   a.k_mean[head / a.per_kv * a.d + lane + 32 * i];
        dot = warp_add(dot);
    }
    if (lane != 0)
        return;
    if (KEYS) {
        a.k_scale[head * a.padded + t] = delta;
    } else {
        a.q_scale[head * a.nq + t] = __fmul_rn(a.score_scale, delta);
        a.dot[head * a.nq + t] = a.scale * dot;
    }
}

/* ---- v -------------------------------------------------------------------------------------- */

static __device__ __forceinline__ float value_of(const quantised_args &a, int64_t token)
{
    float x = __bfloat162float(a.v[(blockIdx.y * a.nk + token) * a.d + threadIdx.x]);
    return a.rule.smooth_v ? __fsub_rn(x, a.v_mean[blockIdx.y * a.d + threadIdx.x]) : x;
}

/* Both: grid (chunks, kv_heads), d threads. */
static __global__ void find_value_maxima(const quantised_args a)
{
    int64_t t0 = blockIdx.x * (int64_t)SUM_ROWS, t1 = min(t0 + SUM_ROWS, a.nk);
    float most = 0;
    for (int64_t t = t0; t < t1; t++)
        most = fmaxf(most, fabsf(value_of(a, t)));
    atomicMax(a.v_max + blockIdx.y * a.d + threadIdx.x, __float_as_uint(most));
}

static __device__ __forceinline__ uint8_t e4m3_bits(float x)
{
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ float e4m3_of(float x)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(e4m3_bits(x), __NV_E4M3)));
}

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
