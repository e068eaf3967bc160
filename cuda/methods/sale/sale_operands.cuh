/*
 * sale_operands.cuh - SALE's low-bit operands and the thresholds of its rows
 * (sim/methods/sale/sale_quant.c and sale_select.c have the rules).
 */
#ifndef LACUNA_SALE_OPERANDS_CUH
#define LACUNA_SALE_OPERANDS_CUH

#include "cuda/methods/sale/sale_common.cuh"
#include "cuda/mma.cuh"
#include "cuda/select/means.cuh"
#include "cuda/warp.cuh"

/* ---- operands ------------------------------------------------------------------------------- */

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

/* Rows r and r + 8 of 16 share a scale: a warp each. Grid (npad / 16, heads), 256 threads. */
template <int D> static __global__ void __launch_bounds__(256) quantise_queries(const sale_args a)
{
    constexpr int N = D / 32;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, head = blockIdx.y;
    int64_t row0 = blockIdx.x * 16LL + warp, group = head * (a.npad / 2) + blockIdx.x * 8LL + warp;
    const uint16_t *q = (const uint16_t *)a.q + head * a.n * D;
    float x[2][N], most = 0;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < N; c++) {
            int64_t row = row0 + 8 * i, to = (head * a.npad + row) * D + lane + 32 * c;
            float v = row < a.n ? fl16_of_bf16(q[row * D + lane + 32 * c]) : 0;
            a.q16[to] = __float2half_rn(v);
            x[i][c] = row < a.n ? fl16(v - a.q_mean[head * D + lane + 32 * c]) : 0;
            most = fmaxf(most, fabsf(x[i][c]));
        }
    most = warp_max(most);
    float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int c = 0; c < N; c++)
            a.qi[(head * a.npad + row0 + 8 * i) * PITCH + lane + 32 * c] =
                (int8_t)__float2int_rn(__fmul_rn(x[i][c], mul));
    if (lane == 0) {
        float scale = most > 0 ? fl16(__fdiv_rn(most, LEVELS)) : 0;
        a.q_scale[group] = make_float2(scale, scale > 0 ? fl16(__fdiv_rn(1, scale)) : 0);
    }
}

/* The eight keys t of 32 with (t mod 8) / 2 = c share a scale: a warp each. Grid (npad / 32,
 * kv_heads), 128 threads. */
template <int D> static __global__ void __launch_bounds__(128) quantise_keys(const sale_args a)
{
    constexpr int N = D / 32;
    int lane = threadIdx.x & 31, c = threadIdx.x >> 5, head = blockIdx.y;
    int64_t t0 = blockIdx.x * 32LL + 2 * c, group = head * (a.npad / 8) + blockIdx.x * 4LL + c;
    const uint16_t *k = (const uint16_t *)a.k + head * a.n * D;
    float x[8][N], most = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < N; e++) {
            int64_t t = t0 + i / 2 * 8 + i % 2;
            int at = lane + 32 * e;
            x[i][e] = t < a.n ? fl16(fl16_of_bf16(k[t * D + at]) - a.k_mean[head * D + at]) : 0;
            a.k16[(head * a.npad + t) * D + at] = __float2half_rn(x[i][e]);
            most = fmaxf(most, fabsf(x[i][e]));
        }
    most = warp_max(most);
    float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < N; e++)
            a.ki[(head * a.npad + t0 + i / 2 * 8 + i % 2) * PITCH + lane + 32 * e] =
                (int8_t)__float2int_rn(__fmul_rn(x[i][e], mul));
    if (lane == 0) {
        a.k_mul[group] = mul;
        a.k_scale[group] = most > 0 ? fl16(__fdiv_rn(1, mul)) : 0;
    }
}

/* Correction for the mean of Q: products and sums one by one in the order of the channels. Grid
 * (npad / 128, heads), 128 threads. */
template <int D> static __global__ void __launch_bounds__(128) correct_keys(const sale_args a)
{
    constexpr int STEP = D + 2; /* rows in different banks */
    __shared__ __half keys[128 * STEP];
    __shared__ float mean[D];
    int head = blockIdx.y, kv = head / a.per_kv, t = threadIdx.x;
    int64_t t0 = blockIdx.x * 128LL, key = t0 + t;
    const uint32_t *from = (const uint32_t *)(a.k16 + (kv * a.npad + t0) * D);
    for (int e = t; e < 128 * D / 2; e += 128)
        ((uint32_t *)keys)[e / (D / 2) * (STEP / 2) + e % (D / 2)] = from[e];
    for (int e = t; e < D; e += 128)
        mean[e] = a.q_mean[head * D + e];
    __syncthreads();
    float dot = 0;
    for (int e = 0; e < D; e++)
        dot = __fadd_rn(dot, __fmul_rn(mean[e], __half2float(keys[t * STEP + e])));
    dot = __fmul_rn(dot, a.k_mul[kv * (a.npad / 8) + key / BK * 4 + key % 8 / 2]);
    dot = fl16(dot);
    a.corr[head * a.npad + key] = __float2half_rn(dot);
    unsigned most = __reduce_max_sync(~0u, __float_as_uint(fabsf(dot)));
    if ((t & 31) == 0)
        atomicMax(a.corr_max + head, most);
}

/* ---- thresholds ----------------------------------------------------------------------------- */

static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
    MMA_16X8X16("f16", d, a, b0, b1);
}

/* Largest score of a row so far and the sum of e^(score - largest). */
struct online {
    float top;
    double sum;

    __device__ __forceinline__ void add(float x, float factor)
    {
        if (x > top) {
            sum *= exp2f((top - x) * factor);
            top = x;
        }
        sum += exp2f((x - top) * factor);
    }
    __device__ __forceinline__ void merge(int bit, float factor)
    {
        float other = __shfl_xor_sync(~0u, top, bit), most = fmaxf(top, other);
        double theirs = __shfl_xor_sync(~0u, sum, bit);
        sum = sum == 0 ? 0 : sum * exp2f((top - most) * factor);
        sum += theirs == 0 ? 0 : theirs * exp2f((other - most) * factor);
        top = most;
    }
};

/* Thresholds of a query block from its sink and local blocks, a warp for 16 rows. Grid (groups,
 * heads), 128 threads. */
template <int D> static __global__ void __launch_bounds__(128) find_thresholds(const sale_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int m = blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t q = shared_addr(shared), k = q + BQ * D * 2;
    const uint4 *keys = (const uint4 *)a.k16 + head / a.per_kv * a.npad * (D / 8);
    float factor = (float)(a.scale * 1.4426950408889634);
    regions g = regions_of(a, m);
    online s[2] = {{-INFINITY, 0}, {-INFINITY, 0}};

    if (g.mid == 0)
        return;
    copy_tile<D, BQ, 128>(q, (const uint4 *)a.q16 + head * a.npad * (D / 8), m * BQ, a.npad);
    for (int j = 0; j < g.n; j = j == 0 ? g.mid + 1 : j + 1) {
        float acc[4][4] = {{0}};
        copy_tile<D, BK, 128>(k, keys, j * BK, a.npad);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
#pragma unroll
        for (int c = 0; c < D / 16; c++) {
            uint32_t x[4], y[4];
            load_a<D>(q, 16 * warp, c, x);
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                load_b<D>(k, 8 * i, c, y);
                mma_f16(acc[i], x, y[0], y[1]);
                mma_f16(acc[i + 1], x, y[2], y[3]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int64_t row = m * BQ + 16 * warp + (lane >> 2) + 8 * (e / 2);
                int64_t key = j * BK + 8 * i + 2 * (lane & 3) + e % 2;
                if (key < a.n && (!a.causal_stats || key <= row))
                    s[e / 2].add(acc[i][e], factor);
            }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        s[r].merge(1, factor);
        s[r].merge(2, factor);
        if ((lane & 3) == 0) {
            float l = (float)s[r].sum;
            double thr =
                log2(a.tau * (double)l) / (a.scale * 1.4426950408889634) + (double)s[r].top;
            a.thr[head * a.npad + m * BQ + 16 * warp + (lane >> 2) + 8 * r] = fl16((float)thr);
        }
    }
}

#endif
