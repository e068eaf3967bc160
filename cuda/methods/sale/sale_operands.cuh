/*
 * sale_operands.cuh - what SALE makes of q and k before the test (sim/methods/sale/sale.c has
 * the rules): means of tokens, smoothed keys, low-bit keys and their corrections.
 *
 * A product does not depend on the order of its channels. They lie where loads and stores of 16
 * bytes have them: lane l of the four that share a row of a 16-row product has channels 32 b + 8 l
 * to 32 b + 8 l + 7 for every b (key_place, byte_place).
 */
#ifndef LACUNA_SALE_OPERANDS_CUH
#define LACUNA_SALE_OPERANDS_CUH

#include "cuda/methods/sale/sale_common.cuh"

#include <cuda_fp8.h>

static __device__ __forceinline__ __half2 half2_in(uint32_t bits)
{
    return *(const __half2 *)&bits;
}

static __device__ __forceinline__ uint32_t half2_bits(__half2 x)
{
    return *(const uint32_t *)&x;
}

/* Two bf16 values as fp16. */
static __device__ __forceinline__ __half2 two_fl16(uint32_t raw)
{
    return clamp16(
        __floats2half2_rn(__uint_as_float(raw << 16), __uint_as_float(raw & 0xffff0000u)));
}

/* Sums of SUM_ROWS tokens per channel, of queries and, from blockIdx.y = heads on, of keys. Grid
 * (chunks, heads + kv_heads), 256 threads. */
template <int D> static __global__ void __launch_bounds__(256) sum_tokens(const sale_args a)
{
    constexpr int LANES = D / 8, STEP = 256 / LANES;
    __shared__ double shared[STEP][D + 1];
    int lane = threadIdx.x % LANES, at = threadIdx.x / LANES;
    bool keys = blockIdx.y >= a.heads;
    int64_t head = keys ? blockIdx.y - a.heads : blockIdx.y;
    const uint4 *x = (keys ? a.k : a.q) + head * a.n * LANES + lane;
    int64_t r0 = blockIdx.x * (int64_t)SUM_ROWS, r1 = min(r0 + SUM_ROWS, a.n);
    double sum[8] = {0}, all = 0;
#pragma unroll 4
    for (int64_t r = r0 + at; r < r1; r += STEP) {
        uint4 raw = x[r * LANES];
        float2 v[4] = {__half22float2(two_fl16(raw.x)), __half22float2(two_fl16(raw.y)),
                       __half22float2(two_fl16(raw.z)), __half22float2(two_fl16(raw.w))};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            sum[2 * c] += v[c].x;
            sum[2 * c + 1] += v[c].y;
        }
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        shared[at][lane * 8 + c] = sum[c];
    __syncthreads();
    if (threadIdx.x >= D)
        return;
#pragma unroll
    for (int i = 0; i < STEP; i++)
        all += shared[i][threadIdx.x];
    a.part[(blockIdx.y * (int64_t)a.chunks + blockIdx.x) * D + threadIdx.x] = all;
}

#define MEAN_PARTS 8

/* Grid (heads + kv_heads), D x MEAN_PARTS threads. */
template <int D> static __global__ void mean_tokens(const sale_args a)
{
    __shared__ double shared[MEAN_PARTS][D];
    const double *part = a.part + blockIdx.x * (int64_t)a.chunks * D + threadIdx.x;
    double sum = 0;
#pragma unroll 4
    for (int i = threadIdx.y; i < a.chunks; i += MEAN_PARTS)
        sum += part[i * D];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0)
        return;
#pragma unroll
    for (int i = 1; i < MEAN_PARTS; i++)
        sum += shared[i][threadIdx.x];
    a.mean[blockIdx.x * D + threadIdx.x] = __float2half_rn(fl16((float)(sum / (double)a.n)));
}

/* fl16(x - mean): a float has 2 11 + 2 bits, so that rounding a float difference once more gives
 * what rounding the difference gives. */
static __device__ __forceinline__ __half2 smooth(__half2 x, __half2 mean)
{
    return clamp16(__hsub2_rn(x, mean));
}

static __device__ __forceinline__ __half2 larger(__half2 most, __half2 x)
{
    return __hmax2(most, __habs2(x));
}

static __device__ __forceinline__ float larger_of(__half2 x)
{
    return fmaxf(__low2float(x), __high2float(x));
}

/* Four values times mul, rounded to whole numbers, as bytes; their squares are added to norm. */
static __device__ __forceinline__ uint32_t four_bytes(const sale_args &a, __half2 x0, __half2 x1,
                                                      float mul, float &norm)
{
    float2 x[2] = {__half22float2(x0), __half22float2(x1)};
    uint32_t whole[2], e4m3[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float2 y = make_float2(__fmul_rn(x[i].x, mul) + MAGIC, __fmul_rn(x[i].y, mul) + MAGIC);
        whole[i] = __byte_perm(__float_as_uint(y.x), __float_as_uint(y.y), 0x0040);
        y.x -= MAGIC;
        y.y -= MAGIC;
        e4m3[i] = __nv_cvt_float2_to_fp8x2(y, __NV_SATFINITE, __NV_E4M3);
        norm += y.x * y.x + y.y * y.y;
    }
    return a.e4m3 ? e4m3[0] | e4m3[1] << 16 : __byte_perm(whole[0], whole[1], 0x5410);
}

/* Where channels 4 i and 4 i + 1 lie in a smoothed key, in pairs; the next two lie four pairs
 * further: a lane's part of 16 channels of a product. */
static __device__ __forceinline__ int key_place(int i)
{
    return i / 8 * 16 + i % 2 * 8 + i % 8 / 2;
}

/* Where the four channels lie in a row of low-bit integers. */
static __device__ __forceinline__ int byte_place(int i)
{
    return i / 16 * 64 + i % 8 / 2 * 16 + i / 8 % 2 * 8 + i % 2 * 4;
}

/* Sum over the LANES lanes of a row. */
template <int LANES> static __device__ __forceinline__ int sum_of_row(int x)
{
    if constexpr (LANES == 32) {
        return __reduce_add_sync(~0u, x);
    } else {
#pragma unroll
        for (int bit = LANES / 2; bit > 0; bit /= 2)
            x += __shfl_xor_sync(~0u, x, bit);
        return x;
    }
}

/* Smoothed and low-bit keys and the scale of group c of the 32 keys from t0 on: the eight keys t
 * with (t mod 8) / 2 = c. By a warp; keys is [128][STEP] of the thread block, in the order of the
 * channels. Returns the largest sum of squares of the lane's keys. */
template <int D, int STEP>
static __device__ __forceinline__ int quantise_group(const sale_args &a, int64_t t0, int c,
                                                     uint32_t *keys, float *shared_mul)
{
    constexpr int LANES = D / 4, AT_ONCE = 32 / LANES, ROWS = 8 / AT_ONCE;
    int lane = threadIdx.x & 31, i = lane % LANES, head = blockIdx.y, norm = 0;
    const uint2 *from = (const uint2 *)a.k + head * a.n * LANES + i;
    const uint2 mean = ((const uint2 *)(a.mean + (a.heads + head) * D))[i];
    __half2 x[ROWS][2];
    __half2 top = half2_in(0);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int e = r * AT_ONCE + lane / LANES;
        int64_t t = t0 + 2 * c + e / 2 * 8 + e % 2;
        uint2 raw = t < a.n ? from[t * LANES] : make_uint2(0, 0);
        x[r][0] = half2_in(raw.x);
        x[r][1] = half2_in(raw.y);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int e = r * AT_ONCE + lane / LANES;
        bool valid = t0 + 2 * c + e / 2 * 8 + e % 2 < a.n;
#pragma unroll
        for (int w = 0; w < 2; w++) {
            x[r][w] = smooth(two_fl16(half2_bits(x[r][w])), half2_in(w ? mean.y : mean.x));
            x[r][w] = valid ? x[r][w] : half2_in(0);
            top = larger(top, x[r][w]);
        }
    }
    float most = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(larger_of(top))));
    float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int e = r * AT_ONCE + lane / LANES, in_block = 2 * c + e / 2 * 8 + e % 2;
        int64_t row = head * a.npad + t0 + in_block;
        uint32_t *smoothed = (uint32_t *)a.k16 + row * (D / 2) + key_place(i);
        uint32_t *mine = keys + in_block * (STEP / 2) + 2 * i;
        float squares = 0;
#pragma unroll
        for (int w = 0; w < 2; w++)
            mine[w] = smoothed[4 * w] = half2_bits(x[r][w]);
        *(uint32_t *)(a.ki + row * PITCH + byte_place(i)) =
            four_bytes(a, x[r][0], x[r][1], mul, squares);
        norm = max(norm, sum_of_row<LANES>((int)squares));
    }
    if (lane == 0) {
        int64_t block = t0 / BK, of_head = head * (a.npad / 8) + 4 * c;
        __half scale = __float2half_rn(most > 0 ? fl16(__fdiv_rn(1, mul)) : 0);
        *shared_mul = mul;
        a.k_scale[of_head + block / 4 * 16 + block % 4] = scale;
        if (block > 0)
            a.k_scale1[of_head + (block - 1) / 4 * 16 + (block - 1) % 4] = scale;
    }
    return norm;
}

/* Corrections for the mean of Q of 128 keys, a thread for each, in four heads from h0 on: products
 * and sums one by one in the order of the channels. keys: this thread's. */
template <int D>
static __device__ __forceinline__ void correct_key(const sale_args &a, int h0, const uint32_t *key,
                                                   const float (*mean)[4], float mul, int64_t to)
{
    int kv = blockIdx.y;
    float dot[4] = {0};
#pragma unroll 4
    for (int e = 0; e < D; e += 2) {
        float2 two = __half22float2(half2_in(key[e / 2]));
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
        if ((threadIdx.x & 31) == 0)
            atomicMax(a.corr_max + head, most);
    }
}

/* All of 128 keys. Grid (npad / 128, kv_heads), 128 threads. */
template <int D> static __global__ void __launch_bounds__(128) prepare_keys(const sale_args a)
{
    constexpr int STEP = D + 2; /* rows in different banks */
    __shared__ uint32_t keys[128 * STEP / 2];
    __shared__ __align__(16) float mean[D][4];
    __shared__ float mul[16]; /* by block and group */
    int t = threadIdx.x, kv = blockIdx.y, norm = 0;
    int64_t t0 = blockIdx.x * 128LL;
#pragma unroll 1
    for (int g = t / 32; g < 16; g += 4)
        norm = max(norm, quantise_group<D, STEP>(a, t0 + g / 4 * BK, g % 4,
                                                 keys + g / 4 * BK * (STEP / 2), mul + g));
    norm = (int)__reduce_max_sync(~0u, (unsigned)norm);
    if (t % 32 == 0)
        atomicMax(a.k_norm + kv, norm);
    /* as a lane of the test reads them: two of each strip of 8 */
    int64_t to = t0 + t / BK * BK + t % 8 / 2 * 8 + t % BK / 8 * 2 + t % 2;
    for (int h0 = 0; h0 < a.per_kv; h0 += 4) {
        __syncthreads();
        for (int e = t; e < 4 * D; e += 128)
            mean[e / 4][e % 4] =
                __half2float(a.mean[min(kv * a.per_kv + h0 + e % 4, a.heads - 1) * D + e / 4]);
        __syncthreads();
        correct_key<D>(a, h0, keys + t * (STEP / 2), mean, mul[t / BK * 4 + t % 8 / 2], to);
    }
}

#endif
