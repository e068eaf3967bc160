/*
 * sale_operands.cuh - SALE's low-bit operands (sim/methods/sale/sale_quant.c has the rules).
 */
#ifndef LACUNA_SALE_OPERANDS_CUH
#define LACUNA_SALE_OPERANDS_CUH

#include "cuda/methods/sale/sale_common.cuh"
#include "cuda/select/means.cuh"

#include <cuda_fp8.h>

/* Sums of SUM_ROWS tokens per channel. Grid (chunks, heads), 256 threads. */
template <int D>
static __global__ void __launch_bounds__(256)
    sum_tokens(const uint4 *x, int64_t n, int chunks, double *part)
{
    constexpr int LANES = D / 8, STEP = 256 / LANES;
    __shared__ double shared[STEP][D + 1];
    int lane = threadIdx.x % LANES, at = threadIdx.x / LANES;
    int64_t r0 = blockIdx.x * (int64_t)SUM_ROWS, r1 = min(r0 + SUM_ROWS, n);
    double sum[8] = {0}, all = 0;
    for (int64_t r = r0 + at; r < r1; r += STEP) {
        float v[8];
        unpack(x[(blockIdx.y * n + r) * LANES + lane], v);
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += fl16(v[c]);
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        shared[at][lane * 8 + c] = sum[c];
    __syncthreads();
    if (threadIdx.x >= D)
        return;
    for (int i = 0; i < STEP; i++)
        all += shared[i][threadIdx.x];
    part[(blockIdx.y * (int64_t)chunks + blockIdx.x) * D + threadIdx.x] = all;
}

/* Grid (heads), D threads. */
template <int D>
static __global__ void mean_tokens(const double *part, int64_t n, int chunks, float *mean)
{
    double sum = 0;
    for (int i = 0; i < chunks; i++)
        sum += part[(blockIdx.x * (int64_t)chunks + i) * D + threadIdx.x];
    mean[blockIdx.x * D + threadIdx.x] = fl16((float)(sum / (double)n));
}

/* Consecutive bf16 values. */
static __device__ __forceinline__ void read_bf16(const uint16_t *from, float (&x)[4])
{
    uint2 raw = *(const uint2 *)from;
    x[0] = __uint_as_float(raw.x << 16);
    x[1] = __uint_as_float(raw.x & 0xffff0000u);
    x[2] = __uint_as_float(raw.y << 16);
    x[3] = __uint_as_float(raw.y & 0xffff0000u);
}

static __device__ __forceinline__ void read_bf16(const uint16_t *from, float (&x)[2])
{
    uint32_t raw = *(const uint32_t *)from;
    x[0] = __uint_as_float(raw << 16);
    x[1] = __uint_as_float(raw & 0xffff0000u);
}

/* x mul rounded to whole numbers as bytes, two at a time; the sum of their squares. */
template <int N>
static __device__ __forceinline__ int put_bytes(const sale_args &a, int8_t *to, const float (&x)[N],
                                                float mul)
{
    float norm = 0;
#pragma unroll
    for (int c = 0; c < N; c += 2) {
        float2 y = make_float2(__fmul_rn(x[c], mul) + MAGIC - MAGIC,
                               __fmul_rn(x[c + 1], mul) + MAGIC - MAGIC);
        if (a.e4m3)
            *(__nv_fp8x2_storage_t *)(to + c) =
                __nv_cvt_float2_to_fp8x2(y, __NV_SATFINITE, __NV_E4M3);
        else
            *(char2 *)(to + c) = make_char2((signed char)y.x, (signed char)y.y);
        norm += y.x * y.x + y.y * y.y;
    }
    return (int)norm;
}

/* Rows r and r + 8 of 16 share a scale: a warp each. Grid (npad / 16, heads), 256 threads. */
template <int D> static __global__ void __launch_bounds__(256) quantise_queries(const sale_args a)
{
    constexpr int N = D / 32;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y, norm = 0;
    int64_t row0 = blockIdx.x * 16LL + warp, group = head * (a.npad / 2) + blockIdx.x * 8LL + warp;
    const uint16_t *q = (const uint16_t *)a.q + head * a.n * D + N * lane;
    const float *mean = a.q_mean + head * D + N * lane;
    float x[2][N] = {{0}}, most = 0;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (row0 + 8 * i < a.n)
            read_bf16(q + (row0 + 8 * i) * D, x[i]);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < N; c++) {
            x[i][c] = row0 + 8 * i < a.n ? fl16(fl16(x[i][c]) - mean[c]) : 0;
            most = fmaxf(most, fabsf(x[i][c]));
        }
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int8_t *to = a.qi + (head * a.npad + row0 + 8 * i) * PITCH + N * lane;
        norm = max(norm, __reduce_add_sync(~0u, put_bytes<N>(a, to, x[i], mul)));
    }
    if (lane == 0) {
        float scale = most > 0 ? fl16(__fdiv_rn(most, LEVELS)) : 0;
        a.q_norm[group] = norm;
        a.q_scale[group] = make_float2(scale, scale > 0 ? fl16(__fdiv_rn(1, scale)) : 0);
    }
}

/* The eight keys t of 32 with (t mod 8) / 2 = c share a scale: a warp each. Grid (npad / 32,
 * kv_heads), 128 threads. */
template <int D> static __global__ void __launch_bounds__(128) quantise_keys(const sale_args a)
{
    constexpr int N = D / 32;
    int lane = threadIdx.x & 31, c = threadIdx.x >> 5, head = blockIdx.y, norm = 0;
    int64_t t0 = blockIdx.x * 32LL + 2 * c, group = head * (a.npad / 8) + blockIdx.x * 4LL + c;
    const uint16_t *k = (const uint16_t *)a.k + head * a.n * D + N * lane;
    const float *mean = a.k_mean + head * D + N * lane;
    float x[8][N] = {{0}}, most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (t0 + i / 2 * 8 + i % 2 < a.n)
            read_bf16(k + (t0 + i / 2 * 8 + i % 2) * D, x[i]);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int64_t t = t0 + i / 2 * 8 + i % 2;
        __half2 *to = (__half2 *)(a.k16 + (head * a.npad + t) * D + N * lane);
#pragma unroll
        for (int e = 0; e < N; e++) {
            x[i][e] = t < a.n ? fl16(fl16(x[i][e]) - mean[e]) : 0;
            most = fmaxf(most, fabsf(x[i][e]));
        }
#pragma unroll
        for (int e = 0; e < N; e += 2)
            to[e / 2] = __floats2half2_rn(x[i][e], x[i][e + 1]);
    }
    most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int8_t *to = a.ki + (head * a.npad + t0 + i / 2 * 8 + i % 2) * PITCH + N * lane;
        norm = max(norm, __reduce_add_sync(~0u, put_bytes<N>(a, to, x[i], mul)));
    }
    if (lane == 0) {
        atomicMax(a.k_norm + head, norm);
        a.k_mul[group] = mul;
        a.k_scale[head * (a.npad / 8) + blockIdx.x / 4 * 16 + 4 * c + blockIdx.x % 4] =
            __float2half_rn(most > 0 ? fl16(__fdiv_rn(1, mul)) : 0);
    }
}

/* Corrections for the mean of Q of 128 keys and all heads that read them: products and sums one by
 * one in the order of the channels. Grid (npad / 128, kv_heads), 128 threads. */
template <int D> static __global__ void __launch_bounds__(128) correct_keys(const sale_args a)
{
    constexpr int STEP = D + 2; /* rows in different banks */
    __shared__ __align__(16) __half keys[128 * STEP];
    __shared__ __align__(16) float mean[D][4];
    int kv = blockIdx.y, t = threadIdx.x;
    int64_t t0 = blockIdx.x * 128LL, key = t0 + t;
    /* as a lane of the test reads them: two of each strip of 8 */
    int64_t to = t0 + t / BK * BK + t % 8 / 2 * 8 + t % BK / 8 * 2 + t % 2;
    const uint32_t *from = (const uint32_t *)(a.k16 + (kv * a.npad + t0) * D);
    float mul = a.k_mul[kv * (a.npad / 8) + key / BK * 4 + key % 8 / 2];
    for (int e = t; e < 128 * D / 2; e += 128)
        ((uint32_t *)keys)[e / (D / 2) * (STEP / 2) + e % (D / 2)] = from[e];
    for (int h0 = 0; h0 < a.per_kv; h0 += 4) {
        float dot[4] = {0};
        __syncthreads();
        for (int e = t; e < 4 * D; e += 128)
            mean[e / 4][e % 4] = a.q_mean[min(kv * a.per_kv + h0 + e % 4, a.heads - 1) * D + e / 4];
        __syncthreads();
#pragma unroll 4
        for (int e = 0; e < D; e += 2) {
            float2 two = __half22float2(*(const __half2 *)(keys + t * STEP + e));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float4 m = *(const float4 *)mean[e + i];
                float x = i ? two.y : two.x;
                dot[0] = __fadd_rn(dot[0], __fmul_rn(m.x, x));
                dot[1] = __fadd_rn(dot[1], __fmul_rn(m.y, x));
                dot[2] = __fadd_rn(dot[2], __fmul_rn(m.z, x));
                dot[3] = __fadd_rn(dot[3], __fmul_rn(m.w, x));
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int head = kv * a.per_kv + h0 + i;
            if (h0 + i >= a.per_kv)
                break;
            float corr = fl16(__fmul_rn(dot[i], mul));
            a.corr[head * a.npad + to] = __float2half_rn(corr);
            unsigned most = __reduce_max_sync(~0u, __float_as_uint(fabsf(corr)));
            if ((t & 31) == 0)
                atomicMax(a.corr_max + head, most);
        }
    }
}

#endif
