/*
 * sparge_blocks.cuh - the pass over q or k for SpargeAttn: per block its mean, self-similarity and,
 * if wanted, its integers. A block of 64 or 128 rows stays in the registers of a thread block, so
 * that memory is read once. Beside memory, the number of instructions limits the pass; therefore
 * the lanes of a row share the work on its norm.
 *
 * Sums are in float: first over the eight rows of a thread, then over the warps.
 */
#ifndef LACUNA_SPARGE_BLOCKS_CUH
#define LACUNA_SPARGE_BLOCKS_CUH

#include "cuda/select/means.cuh"
#include "cuda/warp.cuh"

#include <cuda_bf16.h>

struct block_args {
    const uint4 *x;    /* [heads][n][d] */
    const float *kbar; /* [heads][d] or NULL */
    int64_t n, blocks;
    const double *theta; /* [heads][judges] */
    int judges;          /* query heads that judge a head's blocks, each by its own theta */
    int paper;
    float *mean;   /* [heads][blocks][d] */
    uint8_t *like; /* [heads][judges][blocks] */
    uint2 *q8;     /* [heads][n][d], NULL: not quantised */
    float *scale;  /* [heads][blocks] */
};

#define JUDGE_ROWS 8 /* of a thread, 8 channels each */

/* A thread has rows row, row + STEP, ... of a block, of the LANES that share a row one each. */
template <int D, int BLOCK> struct judge_shape {
    static constexpr int LANES = D / 8, STEP = BLOCK / JUDGE_ROWS, SIZE = STEP * LANES,
                         WARPS = SIZE / 32;
};

/* Each warp's part of a block: sums of its rows and of its rows scaled to length 1, the largest |x|
 * and |x|^2. */
template <int D, int BLOCK> struct judge_shared {
    static constexpr int WARPS = judge_shape<D, BLOCK>::WARPS;
    alignas(16) float sum[WARPS][D];
    alignas(16) float unit[WARPS][D];
    float top[WARPS], longest[WARPS];
};

/* Sums over the lanes of a row of 8 values each, one per row: lane l gets that of row l % 8. */
template <int LANES> static __device__ __forceinline__ float share_rows(const float (&n)[8])
{
    int lane = threadIdx.x;
    float a[4], b[2], c;
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = (lane & 1 ? n[2 * i + 1] : n[2 * i]) +
               __shfl_xor_sync(~0u, lane & 1 ? n[2 * i] : n[2 * i + 1], 1);
#pragma unroll
    for (int i = 0; i < 2; i++)
        b[i] = (lane & 2 ? a[2 * i + 1] : a[2 * i]) +
               __shfl_xor_sync(~0u, lane & 2 ? a[2 * i] : a[2 * i + 1], 2);
    c = (lane & 4 ? b[1] : b[0]) + __shfl_xor_sync(~0u, lane & 4 ? b[0] : b[1], 4);
    if (LANES == 16)
        c += __shfl_xor_sync(~0u, c, 8);
    return c;
}

/* A row's eight channels in float, of keys minus the token mean. */
template <bool KEYS>
static __device__ __forceinline__ void judge_row(const uint4 &raw, const float (&kbar)[8],
                                                 float (&x)[8])
{
    unpack(raw, x);
    if (KEYS)
#pragma unroll
        for (int c = 0; c < 8; c++)
            x[c] -= kbar[c];
}

/* Add the values of the lanes of a warp that hold the same channels, and store them with the warps'
 * sums. */
template <int D> static __device__ __forceinline__ void judge_columns(float (&a)[8], float *to)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int step = D / 8; step < 32; step *= 2)
#pragma unroll
        for (int c = 0; c < 8; c++)
            a[c] += __shfl_xor_sync(~0u, a[c], step);
    if (lane < D / 8) {
        *(float4 *)(to + lane * 8) = make_float4(a[0], a[1], a[2], a[3]);
        *(float4 *)(to + lane * 8 + 4) = make_float4(a[4], a[5], a[6], a[7]);
    }
}

/* Channels 4 * lane of D of the sums of WARPS warps. */
template <int D, int WARPS>
static __device__ __forceinline__ float4 judge_total(const float (&part)[WARPS][D], int lane)
{
    float4 all = make_float4(0, 0, 0, 0);
    if (lane * 4 < D)
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float4 a = *(const float4 *)&part[w][lane * 4];
            all.x += a.x, all.y += a.y, all.z += a.z, all.w += a.w;
        }
    return all;
}

/* Mean of the block, by one warp. */
template <int D, int WARPS>
static __device__ __forceinline__ void judge_mean(const float (&part)[WARPS][D], int rows, int lane,
                                                  float *mean)
{
    float4 m = judge_total<D, WARPS>(part, lane);
    if (lane * 4 < D)
        *(float4 *)(mean + lane * 4) = make_float4(__fdiv_rn(m.x, rows), __fdiv_rn(m.y, rows),
                                                   __fdiv_rn(m.z, rows), __fdiv_rn(m.w, rows));
}

/* Self-similarity of block number `block` of a head, by one warp: |mean of unit rows|^2; as in the
 * paper, |mean|^2 / |longest row|^2. */
template <int D, int WARPS>
static __device__ __forceinline__ void
judge_like(const block_args &a, const float (&part)[WARPS][D], const float (&longest)[WARPS],
           int rows, int lane, bool whole, int64_t head, int64_t block)
{
    float4 u = judge_total<D, WARPS>(part, lane);
    double s =
        warp_add((double)u.x * u.x + (double)u.y * u.y + (double)u.z * u.z + (double)u.w * u.w);
    if (lane)
        return;
    s /= (double)rows * rows;
    if (a.paper) {
        float top = 0;
        for (int w = 0; w < WARPS; w++)
            top = fmaxf(top, longest[w]);
        s = top > 0 ? s / top : 1;
    }
    s = fmin(s, 1.0);
    for (int64_t i = head * a.judges; i < (head + 1) * a.judges; i++)
        a.like[i * a.blocks + block] = a.paper ? s >= a.theta[i] : whole && s > a.theta[i];
}

/* Place of a thread's rows. Past the end of x the last row is read again, which changes no maximum.
 */
template <int D, int BLOCK> struct judge_place {
    static constexpr int STEP = judge_shape<D, BLOCK>::STEP;
    const uint4 *from;
    int left; /* rows from the thread's first to the end of the block */
    __device__ __forceinline__ judge_place(const block_args &a, int64_t head, int64_t block)
    {
        int row = threadIdx.x / (D / 8);
        int64_t row0 = block * BLOCK;
        left = (int)min((int64_t)BLOCK, a.n - row0) - row;
        from = a.x + (head * a.n + row0) * (D / 8) + threadIdx.x;
    }
    __device__ __forceinline__ bool real(int i) const
    {
        return i * STEP < left;
    }
    __device__ __forceinline__ uint4 load(int i) const
    {
        return from[min(i * STEP, left - 1) * (D / 8)];
    }
    __device__ __forceinline__ void load(uint4 (&raw)[8]) const
    {
        if (real(JUDGE_ROWS - 1)) {
#pragma unroll
            for (int i = 0; i < 8; i++)
                raw[i] = from[i * STEP * (D / 8)];
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                raw[i] = load(i);
        }
    }
};

/* 1 / |x| of the row threadIdx.x % 8 of the thread's, given |x|^2; 0 of a zero row. *square becomes
 * |x|^2, -1 of a zero row. Where squares leave the range of float a row is read again and scaled.
 */
template <int D, int BLOCK, bool KEYS>
static __device__ __forceinline__ float judge_norm(const judge_place<D, BLOCK> &place,
                                                   const float (&kbar)[8], float *square)
{
    float n2 = *square, inverse = rsqrtf(n2);
    if (__all_sync(~0u, n2 >= 1e-24f && n2 <= 1e30f))
        return inverse;
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        float x[8];
        judge_row<KEYS>(place.load(i), kbar, x);
#pragma unroll 1
        for (int t = 0; t < 2; t++) {
            float up = t ? 0x1p-64f : 0x1p+64f, down = t ? 0x1p+64f : 0x1p-64f, scaled = 0;
#pragma unroll
            for (int c = 0; c < 8; c++)
                scaled = fmaf(x[c] * up, x[c] * up, scaled);
#pragma unroll
            for (int step = 1; step < D / 8; step *= 2)
                scaled += __shfl_xor_sync(~0u, scaled, step);
            if ((threadIdx.x & 7) == i && (t ? n2 > 1e30f : n2 < 1e-24f)) {
                inverse = scaled > 0 ? up * rsqrtf(scaled) : 0;
                *square = scaled > 0 ? scaled * down * down : -1;
            }
        }
    }
    return inverse;
}

/* The token mean of the thread's channels. */
template <int D>
static __device__ __forceinline__ void judge_kbar(const block_args &a, int64_t head,
                                                  float (&kbar)[8])
{
    const float4 *mean = (const float4 *)(a.kbar + head * D) + threadIdx.x % (D / 8) * 2;
    float4 low = mean[0], high = mean[1];
    kbar[0] = low.x, kbar[1] = low.y, kbar[2] = low.z, kbar[3] = low.w;
    kbar[4] = high.x, kbar[5] = high.y, kbar[6] = high.z, kbar[7] = high.w;
}

/* The largest of float x >= 0 in a warp. */
static __device__ __forceinline__ float judge_max(float x)
{
    return __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(x)));
}

/* Sums, maxima and norms of the rows in `raw`, the first two into `sh`. Returns 1 / |x| of the row
 * threadIdx.x % 8 of the thread's; *zero says that it is a zero row. */
template <int D, int BLOCK, bool KEYS, bool QUANT>
static __device__ __forceinline__ float
judge_rows(const block_args &a, const judge_place<D, BLOCK> &place, const float (&kbar)[8],
           const uint4 (&raw)[8], judge_shared<D, BLOCK> &sh, bool *zero)
{
    int warp = threadIdx.x >> 5;
    float sum[8] = {0}, n[8], amax = 0;
    __nv_bfloat162 top = __floats2bfloat162_rn(0, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x[8], once = place.real(i) ? 1 : 0;
        judge_row<KEYS>(raw[i], kbar, x);
        n[i] = 0;
#pragma unroll
        for (int c = 0; c < 8; c++) {
            n[i] = fmaf(x[c], x[c], n[i]);
            sum[c] = fmaf(x[c], once, sum[c]);
            if (QUANT && KEYS)
                amax = fmaxf(amax, fabsf(x[c]));
        }
        if (QUANT && !KEYS) { /* as bf16, two at a time */
            const uint32_t w[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
#pragma unroll
            for (int c = 0; c < 4; c++)
                top = __hmax2(top, __habs2(*(const __nv_bfloat162 *)&w[c]));
        }
    }
    float square = share_rows<D / 8>(n);
    judge_columns<D>(sum, sh.sum[warp]);
    float inverse = judge_norm<D, BLOCK, KEYS>(place, kbar, &square);
    bool real = place.real(threadIdx.x & 7);
    amax = judge_max(KEYS ? amax : fmaxf(__low2float(top), __high2float(top)));
    float longest = a.paper ? judge_max(fmaxf(square, 0)) : 0;
    if ((threadIdx.x & 31) == 0) {
        sh.top[warp] = amax;
        sh.longest[warp] = longest;
    }
    *zero = real && square < 0;
    return real ? inverse : 0;
}

/* round(x / delta) of 8 channels, given 1 / delta: adding 1.5 2^23 leaves the integer in the low
 * bits. The reference divides and rounds halves away from zero; a quotient within 1e-5 of a half
 * can come out one apart. */
static __device__ __forceinline__ uint2 judge_integers(const float (&x)[8], float inverse)
{
    uint32_t n[8];
#pragma unroll
    for (int c = 0; c < 8; c++)
        n[c] = __float_as_uint(fmaf(x[c], inverse, 12582912.0f));
    return make_uint2(
        __byte_perm(__byte_perm(n[0], n[1], 0x40), __byte_perm(n[2], n[3], 0x40), 0x5410),
        __byte_perm(__byte_perm(n[4], n[5], 0x40), __byte_perm(n[6], n[7], 0x40), 0x5410));
}

/* Second step over the rows, when the largest magnitude of the block is known: their integers with
 * delta = amax/127 + 1e-7, and the sums of rows scaled to length 1 into `sh`. `mine`: the result of
 * judge_rows. */
template <int D, int BLOCK, bool KEYS, bool QUANT>
static __device__ __forceinline__ void
judge_units(const block_args &a, int64_t head, int64_t block, const judge_place<D, BLOCK> &place,
            const float (&kbar)[8], const uint4 (&raw)[8], float mine, judge_shared<D, BLOCK> &sh)
{
    typedef judge_shape<D, BLOCK> S;
    float unit[8] = {0}, amax = 0, inverse = 0;
    uint2 *to = NULL;
    if (QUANT) {
#pragma unroll
        for (int w = 0; w < S::WARPS; w++)
            amax = fmaxf(amax, sh.top[w]);
        float delta = __fdividef(amax, 127.0f) + 1e-7f;
        inverse = __fdividef(1, delta);
        to = a.q8 + (head * a.n + block * BLOCK) * S::LANES + threadIdx.x;
        if (threadIdx.x == 0)
            a.scale[head * a.blocks + block] = delta;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float x[8], weight = __shfl_sync(~0u, mine, (threadIdx.x & 24) + i);
        judge_row<KEYS>(raw[i], kbar, x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            unit[c] = fmaf(x[c], weight, unit[c]);
        if (QUANT && place.real(i))
            __stcs(to + i * S::SIZE, judge_integers(x, inverse));
    }
    judge_columns<D>(unit, sh.unit[threadIdx.x >> 5]);
}

/* Mean, self-similarity and integers (QUANT) of a block. Grid (blocks, heads); keys are walked from
 * the end, where their mean was taken last. 32 warps per multiprocessor leave 64 registers to each
 * thread, which are too few for keys that are quantised. */
template <int D, int BLOCK, bool KEYS, bool QUANT>
static __global__ void __launch_bounds__(judge_shape<D, BLOCK>::SIZE,
                                         (KEYS && QUANT ? 28 : 32) / judge_shape<D, BLOCK>::WARPS)
    judge_blocks(const block_args a)
{
    constexpr int WARPS = judge_shape<D, BLOCK>::WARPS;
    __shared__ judge_shared<D, BLOCK> sh;
    int64_t block = KEYS ? a.blocks - 1 - blockIdx.x : blockIdx.x;
    int64_t head = KEYS ? gridDim.y - 1 - blockIdx.y : blockIdx.y, at = head * a.blocks + block;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int rows = (int)min((int64_t)BLOCK, a.n - block * BLOCK);
    judge_place<D, BLOCK> place(a, head, block);
    float kbar[8] = {0};
    uint4 raw[8];
    bool zero;

    place.load(raw);
    if (KEYS)
        judge_kbar<D>(a, head, kbar);
    float mine = judge_rows<D, BLOCK, KEYS, QUANT>(a, place, kbar, raw, sh, &zero);
    bool whole = !__syncthreads_or(zero) && rows == BLOCK;
#pragma unroll
    for (int i = 0; i < 8; i++) /* unpacked again: as floats they would not fit into registers */
        asm volatile("" : "+r"(raw[i].x), "+r"(raw[i].y), "+r"(raw[i].z), "+r"(raw[i].w));
    judge_units<D, BLOCK, KEYS, QUANT>(a, head, block, place, kbar, raw, mine, sh);
    __syncthreads();
    if (warp == 1)
        judge_mean<D, WARPS>(sh.sum, rows, lane, a.mean + at * D);
    else if (warp == 0)
        judge_like<D, WARPS>(a, a.paper ? sh.sum : sh.unit, sh.longest, rows, lane, whole, head,
                             block);
}

#endif
