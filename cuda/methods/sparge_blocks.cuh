/*
 * sparge_blocks.cuh - the passes over q and k of SpargeAttn: token mean of k, and per block its
 * mean, self-similarity and, if wanted, its integers. Sums in double, or in float over the few rows
 * of a thread.
 */
#ifndef LACUNA_SPARGE_BLOCKS_CUH
#define LACUNA_SPARGE_BLOCKS_CUH

#include "cuda/means.cuh"

#define THREADS 256
#define MEAN_GROUPS 8
#define MEAN_ROWS 512 /* keys of a thread block's share of the token mean */

/* ---- token mean ----------------------------------------------------------------------------- */

/* Sum of a[] over the threads of a block that hold the same 8 channels; the first D threads get one
 * channel each. Lanes of a channel group are apart by D / 8. */
template <int D, class T> static __device__ T sum_columns(T (&a)[8], T *shared)
{
    constexpr int LANES = D / 8;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
            a[i] += __shfl_xor_sync(~0u, a[i], step);
    __syncthreads();
    if (lane < LANES)
#pragma unroll
        for (int i = 0; i < 8; i++)
            shared[warp * D + lane * 8 + i] = a[i];
    __syncthreads();
    T sum = 0;
    if (threadIdx.x < D)
        for (int w = 0; w < THREADS / 32; w++)
            sum += shared[w * D + threadIdx.x];
    return sum;
}

/* Two rows are added in float, which is exact for bf16 unless they are 2^16 apart, and the pairs in
 * double. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    sum_keys(const uint4 *k, int64_t nk, int64_t shares, double *partial)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES;
    __shared__ double shared[THREADS / 32 * D];
    int64_t head = blockIdx.y, row0 = blockIdx.x * (int64_t)MEAN_ROWS;
    const uint4 *at = k + (head * nk + row0) * LANES + threadIdx.x;
    int rows = (int)min((int64_t)MEAN_ROWS, nk - row0);
    int row = threadIdx.x / LANES;
    double sum[8] = {0};

    for (int r = row; r < rows; r += 4 * STEP, at += 4 * STEP * LANES) {
        uint4 raw[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            raw[i] = r + i * STEP < rows ? at[i * STEP * LANES] : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            float x[8], y[8];
            unpack(raw[i], x);
            unpack(raw[i + 1], y);
#pragma unroll
            for (int c = 0; c < 8; c++)
                sum[c] += x[c] + y[c];
        }
    }
    double total = sum_columns<D>(sum, shared);
    if (threadIdx.x < D)
        partial[(head * shares + blockIdx.x) * D + threadIdx.x] = total;
}

/* D x MEAN_GROUPS threads; the groups' sums are added in order. Also clears the maxima of V, which
 * later kernels raise. */
template <int D>
static __global__ void __launch_bounds__(D *MEAN_GROUPS)
    finish_mean(const double *partial, int64_t shares, int64_t nk, int smooth, float *kbar,
                unsigned *v_max)
{
    __shared__ double shared[MEAN_GROUPS][D];
    int c = threadIdx.x % D, group = threadIdx.x / D;
    double sum = 0;
    for (int64_t s = group; s < shares && smooth; s += MEAN_GROUPS)
        sum += partial[(blockIdx.x * shares + s) * D + c];
    shared[group][c] = sum;
    __syncthreads();
    if (group > 0)
        return;
    for (int i = 1; i < MEAN_GROUPS; i++)
        sum += shared[i][c];
    kbar[blockIdx.x * D + c] = (float)(sum / (double)nk);
    v_max[blockIdx.x * D + c] = 0;
}

/* ---- blocks --------------------------------------------------------------------------------- */

struct block_args {
    const uint4 *x;    /* [heads][n][d] */
    const float *kbar; /* [heads][d] or NULL */
    int64_t n, blocks;
    double theta;
    int paper;
    float *mean;   /* [heads][blocks][d] */
    uint8_t *like; /* [heads][blocks] */
    uint2 *q8;     /* [heads][n][d], NULL: not quantised */
    float *scale;  /* [heads][blocks] */
};

/* round(x / (amax/127 + 1e-7)) of the rows of a block: adding 1.5 2^23 leaves the integer in the
 * low bits. The reference divides and rounds halves away from zero; a quotient within 1e-5 of a
 * half can come out one apart. */
template <int D, int ROWS, bool KEYS>
static __device__ __forceinline__ void quantise_block(const block_args &a, const uint4 (&raw)[ROWS],
                                                      float amax, int64_t head, int64_t first,
                                                      int rows, int64_t at)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES;
    float delta = __fdividef(amax, 127.0f) + 1e-7f, inverse = __fdividef(1, delta), kbar[8] = {0};
    if (KEYS) /* read again: registers are scarce */
#pragma unroll
        for (int c = 0; c < 8; c++)
            kbar[c] = a.kbar[head * D + threadIdx.x % LANES * 8 + c];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int r = threadIdx.x / LANES + i * STEP;
        if (r >= rows)
            break;
        float x[8];
        uint32_t n[8];
        unpack(raw[i], x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            n[c] = __float_as_uint(fmaf(x[c] - kbar[c], inverse, 12582912.0f));
        a.q8[(first + r) * LANES + threadIdx.x % LANES] = make_uint2(
            __byte_perm(__byte_perm(n[0], n[1], 0x40), __byte_perm(n[2], n[3], 0x40), 0x5410),
            __byte_perm(__byte_perm(n[4], n[5], 0x40), __byte_perm(n[6], n[7], 0x40), 0x5410));
    }
    if (threadIdx.x == 0)
        a.scale[at] = delta;
}

/* |x|^2 over the D / 8 lanes of a row, times up^2: away from where squares leave the range of
 * float up is 1. */
template <int D> static __device__ __forceinline__ float row_norm2(const float (&x)[8], float &up)
{
    float n2 = 0;
#pragma unroll
    for (int c = 0; c < 8; c++)
        n2 = fmaf(x[c], x[c], n2);
#pragma unroll
    for (int step = 1; step < D / 8; step *= 2)
        n2 += __shfl_xor_sync(~0u, n2, step);
    up = 1;
    if (n2 < 1e-24f || n2 > 1e30f) {
        up = n2 > 1 ? 0x1p-64f : 0x1p+64f;
        n2 = 0;
#pragma unroll
        for (int c = 0; c < 8; c++)
            n2 = fmaf(x[c] * up, x[c] * up, n2);
        uint32_t lanes = D == 128 ? 0xffffu << (threadIdx.x & 16) : 0xffu << (threadIdx.x & 24);
#pragma unroll
        for (int step = 1; step < D / 8; step *= 2)
            n2 += __shfl_xor_sync(lanes, n2, step);
    }
    return n2;
}

/* Mean and self-similarity of one block; its integers with QUANT. A thread adds its rows in float,
 * the warps' sums are added in double. */
template <int D, int BLOCK, bool KEYS, bool QUANT>
static __global__ void __launch_bounds__(THREADS, (BLOCK == 64 ? 4 : 3) - QUANT)
    judge_blocks(const block_args a)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES, ROWS = BLOCK / STEP, WARPS = THREADS / 32;
    __shared__ float sums[WARPS][D], units[WARPS][D], tops[2][WARPS];
    __shared__ double square[WARPS];
    int64_t block = KEYS ? a.blocks - 1 - blockIdx.x : blockIdx.x; /* the mean ended there */
    int64_t head = KEYS ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
    int64_t first = head * a.n + block * BLOCK, at = head * a.blocks + block;
    int rows = (int)min((int64_t)BLOCK, a.n - block * BLOCK);
    int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, warp = threadIdx.x >> 5;
    uint4 raw[ROWS];
    float kbar[8] = {0}, unit[8] = {0}, sum[8] = {0}, amax = 0, longest = 0;
    bool zero = false;

#pragma unroll
    for (int i = 0; i < ROWS; i++)
        raw[i] = row + i * STEP < rows ? a.x[(first + row + i * STEP) * LANES + lane]
                                       : make_uint4(0, 0, 0, 0);
    if (KEYS)
#pragma unroll
        for (int c = 0; c < 8; c++)
            kbar[c] = a.kbar[head * D + lane * 8 + c];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        bool real = row + i * STEP < rows;
        float x[8], up;
        unpack(raw[i], x);
        if (KEYS && real)
#pragma unroll
            for (int c = 0; c < 8; c++)
                x[c] -= kbar[c];
        float n2 = row_norm2<D>(x, up), inverse = n2 > 0 ? up * rsqrtf(n2) : 0;
        zero = zero || (n2 == 0 && real);
        if (a.paper) {
            float down = up == 1 ? 1 : up > 1 ? 0x1p-64f : 0x1p+64f;
            longest = fmaxf(longest, n2 * down * down);
        }
#pragma unroll
        for (int c = 0; c < 8; c++) {
            unit[c] = fmaf(x[c], inverse, unit[c]);
            sum[c] += x[c];
            if (QUANT)
                amax = fmaxf(amax, fabsf(x[c]));
        }
    }
#pragma unroll
    for (int step = LANES; step < 32; step *= 2)
#pragma unroll
        for (int c = 0; c < 8; c++) {
            unit[c] += __shfl_xor_sync(~0u, unit[c], step);
            sum[c] += __shfl_xor_sync(~0u, sum[c], step);
        }
    if (QUANT || a.paper)
        for (int step = 16; step; step /= 2) {
            amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, step));
            longest = fmaxf(longest, __shfl_xor_sync(~0u, longest, step));
        }
    if ((threadIdx.x & 31) < LANES)
#pragma unroll
        for (int c = 0; c < 8; c += 4) {
            *(float4 *)&sums[warp][lane * 8 + c] =
                make_float4(sum[c], sum[c + 1], sum[c + 2], sum[c + 3]);
            *(float4 *)&units[warp][lane * 8 + c] =
                make_float4(unit[c], unit[c + 1], unit[c + 2], unit[c + 3]);
        }
    if ((threadIdx.x & 31) == 0) {
        tops[0][warp] = amax;
        tops[1][warp] = longest;
    }
    int whole = !__syncthreads_or(zero) && rows == BLOCK;
    if (QUANT) {
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            amax = fmaxf(amax, tops[0][w]);
        quantise_block<D, ROWS, KEYS>(a, raw, amax, head, first, rows, at);
    }
    double s = 0;
    if (threadIdx.x < D) {
        double total = 0, direction = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            total += sums[w][threadIdx.x];
            direction += units[w][threadIdx.x];
        }
        a.mean[at * D + threadIdx.x] = (float)(total / rows);
        s = a.paper ? total * total : direction * direction;
        for (int step = 16; step; step /= 2)
            s += __shfl_xor_sync(~0u, s, step);
        square[warp] = s;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < D / 32; w++)
            s += square[w];
        s /= (double)rows * rows;
        if (a.paper) {
            for (int w = 1; w < WARPS; w++)
                longest = fmaxf(longest, tops[1][w]);
            s = longest > 0 ? s / longest : 1;
        }
        s = fmin(s, 1.0);
        a.like[at] = a.paper ? s >= a.theta : whole && s > a.theta;
    }
}

#endif
