/*
 * spargeattn.cu - filter 1 of SpargeAttn (arXiv 2502.18137, section 3.3) and its 8-bit operands.
 *
 *   mean of K over the tokens; per block of Q and of K minus that mean: mean and self-similarity;
 *   scores of the means, their softmax per query block, and the largest up to a sum of tau
 *
 * The CPU side is sim/spargeattn_select.c, and the order of its arithmetic is followed where a
 * threshold decides: means are sums in double rounded to float, scores, softmax and running sums
 * are in double, ties go to the lower block. Sums run in another order, which moves a mean by at
 * most the last bit of a float; norms of rows are in float.
 *
 * Bytes: K twice and Q once for the selection (K for its mean first), 0.2 ms for 32 heads of 32K x
 * 128 at 4 TB/s; the quantised operands are written in the same passes, V is read twice.
 */
#include "cuda/cut.cuh"
#include "cuda/lists.h"
#include "cuda/means.cuh"

#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <math.h>
#include <stdio.h>

#define THREADS 256
#define MEAN_GROUPS 8
#define MEAN_ROWS 512 /* keys of a thread block's share of the token mean */
#define ROW_WARPS 8
#define MAX_UNITS 24576 /* of a row whose probabilities fit into shared memory */

struct sparge_state {
    bool paper, topk_cut, dense, sink, smooth_k;
    int bq, bk;
    double theta, tau, topk;
    float v_top;
    int64_t shares;           /* of the token mean */
    double *partial;          /* [kv_heads][shares][d] */
    float *kbar;              /* [kv_heads][d] */
    float *q_mean, *k_mean;   /* [heads][groups][d], [kv_heads][units][d] */
    uint8_t *q_like, *k_like; /* self-similar */
    double *score;            /* [heads][groups][units] */
    unsigned *v_max;          /* [kv_heads][d]: bits of max |v| */
};

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

/* ---- rows ----------------------------------------------------------------------------------- */

struct row_args {
    const double *score;
    const uint8_t *q_like, *k_like;
    int groups, units, per_kv, causal, bq, bk;
    int paper, topk_cut, dense, sink;
    float tau;
    double tau_wide;
    int top; /* entries of select=topk */
    int64_t rows, words;
    uint32_t *map;
    int32_t *count;
};

/* Probabilities over the judged, admissible blocks, rounded to float; false when there is none. Of
 * a row in registers, lane l has the blocks l, l + 32, ... */
template <int N>
static __device__ bool coarse_row(const row_args &a, int64_t row, int i, const uint8_t *k_like,
                                  list_registers<N> &p)
{
    int lane = threadIdx.x & 31;
    double top = -INFINITY, sum = 0;
#pragma unroll
    for (int u = 0; u < N; u++) {
        int j = u * 32 + lane;
        bool judged =
            j < a.units && k_like[j] && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
        p.v[u] = judged ? a.score[row * a.units + j] : -INFINITY;
        top = p.v[u] > top ? p.v[u] : top;
    }
    top = warp_max(top);
    if (top == -INFINITY)
        return false;
#pragma unroll
    for (int u = 0; u < N; u++) {
        p.v[u] = p.v[u] == -INFINITY ? 0 : exp(p.v[u] - top);
        sum += p.v[u];
    }
    sum = warp_add(sum);
#pragma unroll
    for (int u = 0; u < N; u++)
        p.v[u] = u * 32 + lane < a.units ? (float)(p.v[u] / sum) : -1;
    return true;
}

/* The same in shared memory. */
static __device__ bool coarse_row(const row_args &a, int64_t row, int i, const uint8_t *k_like,
                                  double *p)
{
    int lane = threadIdx.x & 31;
    double top = -INFINITY, sum = 0;
    for (int j = lane; j < a.units; j += 32) {
        bool judged = k_like[j] && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
        p[j] = judged ? a.score[row * a.units + j] : -INFINITY;
        top = p[j] > top ? p[j] : top;
    }
    top = warp_max(top);
    if (top == -INFINITY)
        return false;
    for (int j = lane; j < a.units; j += 32) {
        p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - top);
        sum += p[j];
    }
    sum = warp_add(sum);
    for (int j = lane; j < a.units; j += 32)
        p[j] = (float)(p[j] / sum);
    return true;
}

/* The cut of a row: sorted by (probability descending, block ascending), the longest prefix whose
 * sum, as a float, stays at or below the bound; or the `top` largest. */
template <class L> static __device__ __forceinline__ cut cut_row(const row_args &a, const L &p)
{
    int number, equal;
    double mass = cut_mass(p, 0, true, &number);
    float bound = a.paper ? (float)(a.tau_wide * mass) : a.tau;
    if (!a.topk_cut && (float)mass <= bound)
        return {-0.5, 0};
    double guess = a.topk_cut ? 0 : (mass - bound) / a.units;
    double t = cut_find(
        p, guess, [&](double sum, int n) { return a.topk_cut ? n >= a.top : (float)sum > bound; });
    cut_mass(p, t, true, &equal);
    mass = cut_mass(p, t, false, &number);
    equal -= number;
    if (a.topk_cut)
        return {t, a.top - number};
    int m = t > 0 ? (int)fmin((bound - mass) / t, (double)equal) : equal;
    m = max(m, 0);
    while (m < equal && (float)(mass + (m + 1) * t) <= bound)
        m++;
    while (m > 0 && (float)(mass + m * t) > bound)
        m--;
    return {t, number + m == 0 && !a.paper ? 1 : m};
}

/* 32 blocks of a row, from j0 on: what is kept, into the map. `p` is the lane's probability, cut
 * says that the row was cut at all. */
static __device__ __forceinline__ void keep_blocks(const row_args &a, int64_t row, int i, int j0,
                                                   const uint8_t *k_like, bool all, bool judged,
                                                   const cut &c, double p, int *seen, int *kept)
{
    int j = j0 + (threadIdx.x & 31);
    bool in = j < a.units && (!a.causal || (int64_t)j * a.bk < (int64_t)(i + 1) * a.bq);
    bool taken = cut_has(c, p, judged && j < a.units, seen);
    bool keep = in && (all || taken || !k_like[j] || (a.sink && j == 0));
    uint32_t word = __ballot_sync(~0u, keep);
    *kept += __popc(word);
    if ((threadIdx.x & 31) == 0)
        a.map[row * a.words + j0 / 32] = word;
}

/* A warp per row of up to 32 N blocks; N = 0: of any number, in shared memory. */
template <int N>
static __global__ void __launch_bounds__(32 * ROW_WARPS) select_rows(const row_args a)
{
    extern __shared__ double shared[];
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    if (row >= a.rows)
        return;
    int head = (int)(row / a.groups), i = (int)(row % a.groups), seen = 0, kept = 0;
    const uint8_t *k_like = a.k_like + (int64_t)(head / a.per_kv) * a.units;
    bool all = a.dense || !a.q_like[row], judged = false;
    cut c = {0, 0};
    if constexpr (N > 0) {
        list_registers<N> p;
        judged = !all && coarse_row(a, row, i, k_like, p);
        if (judged)
            c = cut_row(a, p);
#pragma unroll
        for (int u = 0; u < N; u++)
            if (u * 32 < a.units)
                keep_blocks(a, row, i, u * 32, k_like, all, judged, c, judged ? p.v[u] : 0, &seen,
                            &kept);
    } else {
        double *p = shared + (int64_t)(threadIdx.x >> 5) * a.units;
        judged = !all && coarse_row(a, row, i, k_like, p);
        if (judged)
            c = cut_row(a, list_shared{p, a.units});
        for (int j0 = 0; j0 < a.units; j0 += 32) {
            int j = j0 + (threadIdx.x & 31);
            keep_blocks(a, row, i, j0, k_like, all, judged, c, judged && j < a.units ? p[j] : 0,
                        &seen, &kept);
        }
    }
    if ((threadIdx.x & 31) == 0)
        a.count[row] = kept;
}

/* ---- values --------------------------------------------------------------------------------- */

template <int D>
static __global__ void __launch_bounds__(THREADS)
    max_values(const uint4 *v, int64_t nk, unsigned *v_max)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES;
    __shared__ float shared[THREADS / 32][D];
    int64_t row0 = blockIdx.x * (int64_t)MEAN_ROWS;
    int rows = (int)min((int64_t)MEAN_ROWS, nk - row0);
    int lane = threadIdx.x & 31;
    float top[8] = {0};
    for (int r = threadIdx.x / LANES; r < rows; r += STEP) {
        float x[8];
        unpack(v[(blockIdx.y * nk + row0 + r) * LANES + threadIdx.x % LANES], x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            top[c] = fmaxf(top[c], fabsf(x[c]));
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
            top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], step));
    if (lane < LANES)
#pragma unroll
        for (int c = 0; c < 8; c++)
            shared[threadIdx.x >> 5][lane * 8 + c] = top[c];
    __syncthreads();
    if (threadIdx.x < D) {
        float most = 0;
        for (int w = 0; w < THREADS / 32; w++)
            most = fmaxf(most, shared[w][threadIdx.x]);
        atomicMax(v_max + blockIdx.y * D + threadIdx.x, __float_as_uint(most));
    }
}

/* 128 keys: V transposed, in e4m3, the keys of each 16 in the order 0,1,8,9,2,3,10,11, ... that an
 * 8-bit A operand made of score accumulators has. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    quantise_values(const uint4 *v, int64_t nk, int64_t v_keys, float v_top, const unsigned *v_max,
                    uint8_t *out, float *scale)
{
    constexpr int LANES = D / 8;
    __shared__ alignas(16) uint16_t tile[128][D]; /* 16-byte chunks XORed with the key's sixteen */
    int64_t row0 = blockIdx.x * 128ll, head = blockIdx.y;
    int rows = (int)min((int64_t)128, nk - row0);
#pragma unroll
    for (int e = threadIdx.x; e < 128 * LANES; e += THREADS) {
        int r = e / LANES, c = e % LANES;
        *(uint4 *)&tile[r][(c ^ (r >> 4)) * 8] =
            r < rows ? v[(head * nk + row0 + r) * LANES + c] : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < D * 8; e += THREADS) {
        int c = e / 8, part = e % 8, at = (c / 8 ^ part) * 8 + c % 8;
        float most = __uint_as_float(v_max[head * D + c]);
        float factor = most > 0 ? v_top / most : 0;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[4];
#pragma unroll
            for (int u = 0; u < 4; u++)
                x[u] = factor *
                       __uint_as_float((uint32_t)tile[part * 16 + 2 * i + u % 2 + u / 2 * 8][at]
                                       << 16);
            w[i] = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, __NV_E4M3) |
                   (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE,
                                                      __NV_E4M3)
                       << 16;
        }
        *(uint4 *)(out + (head * D + c) * v_keys + row0 + part * 16) =
            make_uint4(w[0], w[1], w[2], w[3]);
    }
    if (blockIdx.x == 0 && threadIdx.x < D)
        scale[head * D + threadIdx.x] = __uint_as_float(v_max[head * D + threadIdx.x]) / v_top;
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D, bool KEYS>
static int launch_blocks(struct gpu *g, int heads, int block, const block_args &a, struct err *err)
{
    int rc = 0;
    dim3 grid((unsigned)a.blocks, heads);
    if (block == 64 && a.q8)
        judge_blocks<D, 64, KEYS, true><<<grid, THREADS, 0, g->stream>>>(a);
    else if (block == 64)
        judge_blocks<D, 64, KEYS, false><<<grid, THREADS, 0, g->stream>>>(a);
    else if (a.q8)
        judge_blocks<D, 128, KEYS, true><<<grid, THREADS, 0, g->stream>>>(a);
    else
        judge_blocks<D, 128, KEYS, false><<<grid, THREADS, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int D>
static int launch_pooling(struct gpu *g, const struct select_job *job, bool quantise,
                          struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    const struct select_operands *o = &job->operands;
    const sparge_state *s = (const sparge_state *)job->state;
    int rc = 0;
    block_args q = {(const uint4 *)p->q, NULL,      p->nq,
                    l->groups,           s->theta,  s->paper,
                    s->q_mean,           s->q_like, quantise ? (uint2 *)o->q : NULL,
                    o->q_scale};
    block_args k = {(const uint4 *)p->k,
                    s->kbar,
                    p->nk,
                    l->units,
                    s->theta,
                    s->paper,
                    s->k_mean,
                    s->k_like,
                    quantise ? (uint2 *)o->k : NULL,
                    o->k_scale};
    if (s->smooth_k)
        sum_keys<D><<<dim3((unsigned)s->shares, p->kv_heads), THREADS, 0, g->stream>>>(
            (const uint4 *)p->k, p->nk, s->shares, s->partial);
    CU_LAUNCHED(err);
    finish_mean<D><<<p->kv_heads, D * MEAN_GROUPS, 0, g->stream>>>(s->partial, s->shares, p->nk,
                                                                   s->smooth_k, s->kbar, s->v_max);
    CU_LAUNCHED(err);
    TRY((launch_blocks<D, true>(g, p->kv_heads, s->bk, k, err)));
    TRY((launch_blocks<D, false>(g, p->heads, s->bq, q, err)));
    if (!quantise)
        goto out;
    max_values<D><<<dim3((unsigned)s->shares, p->kv_heads), THREADS, 0, g->stream>>>(
        (const uint4 *)p->v, p->nk, s->v_max);
    CU_LAUNCHED(err);
    quantise_values<D><<<dim3((unsigned)(o->v_keys / 128), p->kv_heads), THREADS, 0, g->stream>>>(
        (const uint4 *)p->v, p->nk, o->v_keys, s->v_top, s->v_max, o->v, o->v_scale);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch_select(struct gpu *g, const row_args &a, struct err *err)
{
    int rc = 0, warps = ROW_WARPS;
    unsigned blocks = (unsigned)((a.rows + ROW_WARPS - 1) / ROW_WARPS);
    if (a.units <= 256) {
        select_rows<8><<<blocks, 32 * ROW_WARPS, 0, g->stream>>>(a);
    } else if (a.units <= 512) {
        select_rows<16><<<blocks, 32 * ROW_WARPS, 0, g->stream>>>(a);
    } else {
        while (warps > 1 && warps * a.units * 8 > 48 * 1024)
            warps /= 2;
        CU(err,
           cudaFuncSetAttribute((const void *)select_rows<0>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, warps * a.units * 8));
        select_rows<0><<<(unsigned)((a.rows + warps - 1) / warps), 32 * warps, warps * a.units * 8,
                         g->stream>>>(a);
    }
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch_rows(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    const sparge_state *s = (const sparge_state *)job->state;
    int rc = 0, n = (int)l->units, per_kv = p->heads / p->kv_heads;
    int64_t top = (int64_t)((float)s->topk * (float)n);
    row_args a = {s->score, s->q_like,     s->k_like,   (int)l->groups,
                  n,        per_kv,        p->causal,   s->bq,
                  s->bk,    s->paper,      s->topk_cut, s->dense,
                  s->sink,  (float)s->tau, s->tau,      (int)(top < 1 ? 1 : top > n ? n : top),
                  l->rows,  l->words,      l->map,      l->count};
    if (!s->dense)
        score_means<<<dim3((n + SCORE_TILE - 1) / SCORE_TILE,
                           ((unsigned)l->groups + SCORE_TILE - 1) / SCORE_TILE, p->heads),
                      128, 0, g->stream>>>(s->q_mean, s->k_mean, p->d, (int)l->groups, n, per_kv,
                                           p->scale, p->causal, s->bq, s->bk, s->score);
    CU_LAUNCHED(err);
    TRY(launch_select(g, a, err));
    TRY(lists_make(g, l, err));
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    int rc = job->problem.d == 128 ? launch_pooling<128>(g, job, false, err)
                                   : launch_pooling<64>(g, job, false, err);
    return rc ? rc : launch_rows(g, job, err);
}

static int launch_quantised(struct gpu *g, const struct select_job *job, struct err *err)
{
    int rc = job->problem.d == 128 ? launch_pooling<128>(g, job, true, err)
                                   : launch_pooling<64>(g, job, true, err);
    return rc ? rc : launch_rows(g, job, err);
}

/* ---- set-up --------------------------------------------------------------------------------- */

/* Tile of the official kernels (sim/spargeattn_head.c). */
static void tile_of(const struct select_problem *p, int *bq, int *bk)
{
    const char *tile = select_word(p, "tile");
    bool wide = tile ? tile[0] == '6' : select_is(p, "arch", "sm90");
    *bq = wide ? 64 : 128;
    *bk = wide ? 128 : 64;
}

static bool fits(const struct select_problem *p, char why[160])
{
    int bq, bk;
    tile_of(p, &bq, &bk);
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (!select_is(p, "map_dtype", "f32") || !select_is(p, "cdf_dtype", "f32"))
        snprintf(why, 160, "the GPU side has map_dtype=f32 and cdf_dtype=f32");
    else if ((p->nk + bk - 1) / bk > MAX_UNITS || p->nq > INT32_MAX / 2)
        snprintf(why, 160, "the GPU side takes rows of up to %d blocks", MAX_UNITS);
    else
        return true;
    return false;
}

static int init_operands(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    struct select_operands *o = &job->operands;
    int rc = 0;
    o->v_keys = (p->nk + 127) / 128 * 128;
    TRY(gpu_alloc(g, p->heads * p->nq * p->d, &o->q, err));
    TRY(gpu_alloc(g, p->kv_heads * p->nk * p->d, &o->k, err));
    TRY(gpu_alloc(g, p->heads * l->groups * 4, &o->q_scale, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * 4, &o->k_scale, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * o->v_keys, &o->v, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &o->v_scale, err));
out:
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    sparge_state *s = (sparge_state *)calloc(1, sizeof *s);
    int rc = 0;

    job->state = s;
    if (!s)
        FAIL(err, ERR_NOMEM, "spargeattn on the GPU: out of memory");
    tile_of(p, &s->bq, &s->bk);
    s->paper = select_is(p, "profile", "paper");
    s->topk_cut = select_is(p, "select", "topk");
    s->dense = select_flag(p, "dense");
    s->sink = select_flag(p, "sink");
    s->smooth_k = select_flag(p, "smooth_k");
    s->theta = select_num(p, "theta");
    if (isnan(s->theta))
        s->theta = s->topk_cut ? -0.1 : 0.6;
    if (!select_flag(p, "judge"))
        s->theta = -1;
    s->tau = select_num(p, "tau");
    s->topk = select_num(p, "topk");
    s->v_top = select_is(p, "v_max", "2.25") ? 2.25f : 448.0f;
    s->shares = (p->nk + MEAN_ROWS - 1) / MEAN_ROWS;
    TRY(select_lists_init(g, job, s->bq, s->bk, err));
    TRY(gpu_alloc(g, p->kv_heads * s->shares * p->d * 8, &s->partial, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &s->kbar, err));
    TRY(gpu_alloc(g, l->rows * p->d * 4, &s->q_mean, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * p->d * 4, &s->k_mean, err));
    TRY(gpu_alloc(g, l->rows, &s->q_like, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units, &s->k_like, err));
    TRY(gpu_alloc(g, l->rows * l->units * 8, &s->score, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &s->v_max, err));
    TRY(init_operands(g, job, err));
out:
    return rc;
}

extern "C" const struct select_method select_spargeattn = {
    "spargeattn", fits, init, launch, launch_quantised, NULL, false,
};
