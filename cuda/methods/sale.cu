/*
 * sale.cu - SALE's choice of 64 x 32 blocks on the GPU (arXiv:2505.24179, algorithm 1): 4-bit
 * operands, exact statistics of the sink-local region, a low-bit test of every other pair. The
 * rules and the reference are sim/methods/sale/sale_quant.c and sale_select.c.
 *
 * What the reference rounds is rounded here at the same places and in the same way, so that
 * integers, scales and corrections are equal; sums of the statistics differ in their order.
 *
 * In an m16n8k32 product the two columns of a lane lie in one of SALE's key groups and its two rows
 * in one of the query groups: a lane has the eight scores of a (row, group) by itself.
 *
 * O(N^2 d / 2) integer products; N d (1 + 2) bytes of operands per head.
 */
#include "cuda/mma.cuh"
#include "cuda/select/lists.h"
#include "cuda/select/maprows.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/select.h"
#include "cuda/warp.cuh"

#include <cuda_fp16.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define BQ 64
#define BK 32
#define LEVELS 7.0f
#define SUM_ROWS 256 /* of a partial sum of tokens */

struct sale_args {
    const uint4 *q, *k;
    int64_t n, npad; /* tokens; rounded up to 128 */
    int heads, kv_heads, per_kv, groups, units, words, local, chunks, strict, causal_stats;
    double tau, scale;
    double *q_part, *k_part; /* [heads][chunks][d] sums of tokens */
    float *q_mean, *k_mean;  /* [heads][d], [kv_heads][d], values of fp16 */
    __half *q16, *k16;       /* [heads][npad][d] queries; [kv_heads][npad][d] smoothed keys */
    int8_t *qi, *ki;         /* the same shapes */
    float2 *q_scale;         /* [heads][npad / 2] by query group: scale and fp16(1 / scale) */
    float *k_scale, *k_mul;  /* [kv_heads][npad / 8] by key group: scale, and 7 / largest */
    __half *corr;            /* [heads][npad] */
    unsigned *corr_max;      /* [heads] bits of the largest |corr| */
    float *thr;              /* [heads][npad] */
    map_rows map;
};

struct regions {
    int n, mid; /* key blocks that a query block sees; the last one that is tested */
};

static __device__ __forceinline__ regions regions_of(const sale_args &a, int m)
{
    int n = min(2 * (m + 1), (int)((a.n + BK - 1) / BK)), segments = (n + 2) / 4;
    int rest = n - 1 - 4 * segments, left = a.local - rest;
    int kept = left > 0 ? (left + 3) / 4 : -(-left / 4);
    return {n, segments > kept ? 4 * (segments - kept) : 0};
}

/* Nearest fp16 value, without infinities. */
static __device__ __forceinline__ float fl16(float x)
{
    return __half2float(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

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
            float v =
                row < a.n ? fl16(__uint_as_float((uint32_t)q[row * D + lane + 32 * c] << 16)) : 0;
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
            a.qi[(head * a.npad + row0 + 8 * i) * D + lane + 32 * c] =
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
            x[i][e] = t < a.n ? fl16(fl16(__uint_as_float((uint32_t)k[t * D + at] << 16)) -
                                     a.k_mean[head * D + at])
                              : 0;
            a.k16[(head * a.npad + t) * D + at] = __float2half_rn(x[i][e]);
            most = fmaxf(most, fabsf(x[i][e]));
        }
    most = warp_max(most);
    float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
#pragma unroll
        for (int e = 0; e < N; e++)
            a.ki[(head * a.npad + t0 + i / 2 * 8 + i % 2) * D + lane + 32 * e] =
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
    constexpr int PITCH = D + 2; /* rows in different banks */
    __shared__ __half keys[128 * PITCH];
    __shared__ float mean[D];
    int head = blockIdx.y, kv = head / a.per_kv, t = threadIdx.x;
    int64_t t0 = blockIdx.x * 128LL, key = t0 + t;
    const uint32_t *from = (const uint32_t *)(a.k16 + (kv * a.npad + t0) * D);
    for (int e = t; e < 128 * D / 2; e += 128)
        ((uint32_t *)keys)[e / (D / 2) * (PITCH / 2) + e % (D / 2)] = from[e];
    for (int e = t; e < D; e += 128)
        mean[e] = a.q_mean[head * D + e];
    __syncthreads();
    float dot = 0;
    for (int e = 0; e < D; e++)
        dot = __fadd_rn(dot, __fmul_rn(mean[e], __half2float(keys[t * PITCH + e])));
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

/* ---- the test ------------------------------------------------------------------------------- */

#define TILE 128 /* queries and keys */
#define THREADS 256

static __device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                              uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 128 rows of D bytes; a pitch of D + 16 keeps the eight rows of a matrix in different banks. */
template <int D> struct byte_tile {
    static constexpr int PITCH = D + 16, BYTES = TILE * PITCH, CHUNKS = D / 16;

    /* Where a thread's part of a tile comes from, and lies in it. */
    static __device__ __forceinline__ int from()
    {
        return threadIdx.x * 16;
    }
    static __device__ __forceinline__ int to()
    {
        return threadIdx.x / CHUNKS * PITCH + threadIdx.x % CHUNKS * 16;
    }
    static __device__ __forceinline__ void copy(uint32_t to, const int8_t *from)
    {
        constexpr int ROWS = THREADS / CHUNKS;
#pragma unroll
        for (int r = 0; r < TILE; r += ROWS)
            copy_async(to + r * PITCH, from + r * D, true);
    }
};

/* What a tile of keys brings beside its integers. */
struct key_side {
    __half corr[TILE];
    float scale[TILE / 8];
};

/* A lane's two rows, which are in one query group. */
struct row_side {
    float scale, inverse; /* of the group: scale, and fp16(1 / scale) */
    float thr[2];
    bool flat; /* an all-zero query group */
};

static __device__ __forceinline__ bool passes(const sale_args &a, float x, float thr)
{
    return a.strict ? x > thr : x >= thr;
}

static __device__ __forceinline__ __half2 clamp16(__half2 x)
{
    const __half2 most = __half2half2(__ushort_as_half(0x7bff)); /* 65504 */
    return __hmin2(__hmax2(x, __hneg2(most)), most);
}

/* The estimate of an all-zero query group is the correction alone. */
static __device__ bool test_flat(const sale_args &a, const __half *corr, float k_scale,
                                 const row_side &r)
{
    bool keep = false;
    for (int i = 0; i < 8; i++) {
        float x = fl16(__fmul_rn(__half2float(corr[i / 2 * 8 + i % 2]), k_scale));
        keep |= passes(a, x, r.thr[0]) || passes(a, x, r.thr[1]);
    }
    return keep;
}

/* Does one of the lane's 2 x 8 pairs of a 32-key block pass? dot: by strip of 8 keys. Corrections
 * are rounded to whole numbers by adding 1.5 2^23; they are compared with that added, as integers.
 * CLAMP: a correction may be larger than fp16 has. */
template <bool CLAMP>
static __device__ __forceinline__ bool test_pairs(const sale_args &a, const int (&dot)[4][4],
                                                  const __half *corr, float k_scale,
                                                  const row_side &r)
{
    constexpr float MAGIC = 12582912.0f;
    int best[2] = {INT_MIN, INT_MIN};
    __half2 inverse = __float2half2_rn(r.inverse);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        __half2 x = __hmul2_rn(*(const __half2 *)(corr + 8 * i), inverse);
        float2 y = __half22float2(CLAMP ? clamp16(x) : x);
        int add[2] = {__float_as_int(y.x + MAGIC), __float_as_int(y.y + MAGIC)};
#pragma unroll
        for (int e = 0; e < 2; e++) {
            best[0] = max(best[0], dot[i][e] + add[e]);
            best[1] = max(best[1], dot[i][2 + e] + add[e]);
        }
    }
    float scale = fl16(__fmul_rn(r.scale, k_scale));
    __half2 whole =
        __floats2half2_rn(__int_as_float(best[0]) - MAGIC, __int_as_float(best[1]) - MAGIC);
    __half2 value = clamp16(__hmul2_rn(clamp16(whole), __float2half2_rn(scale)));
    return passes(a, __low2float(value), r.thr[0]) || passes(a, __high2float(value), r.thr[1]);
}

/* Keys of one head as the test reads them, a tile at a time. */
template <int D> struct key_source {
    const int8_t *ki; /* this thread's part of the next tile */
    const char *side; /* of its corrections or scales; NULL: it copies none */
    int step;         /* bytes of `side` per tile */
    uint32_t to, side_to;

    __device__ __forceinline__ key_source(const sale_args &a, int head, uint32_t tiles,
                                          const key_side *sides)
    {
        int kv = head / a.per_kv, t = threadIdx.x;
        bool corr = t < TILE / 8, scale = !corr && t < TILE / 8 + TILE / 32;
        ki = a.ki + kv * a.npad * D + byte_tile<D>::from();
        to = tiles + byte_tile<D>::to();
        side = corr    ? (const char *)(a.corr + head * a.npad + 8 * t)
               : scale ? (const char *)(a.k_scale + kv * (a.npad / 8) + 4 * (t - TILE / 8))
                       : NULL;
        step = corr ? TILE * 2 : TILE / 8 * 4;
        side_to = shared_addr(sides) + 16 * t; /* scales follow corrections */
    }

    __device__ __forceinline__ void load(int stage)
    {
        byte_tile<D>::copy(to + stage * byte_tile<D>::BYTES, ki);
        if (side) {
            copy_async(side_to + stage * (int)sizeof(key_side), side, true);
            side += step;
        }
        copy_commit();
        ki += TILE * D;
    }
};

static __device__ __forceinline__ row_side row_side_of(const sale_args &a, int head, int64_t row,
                                                       bool tests)
{
    float2 scale = a.q_scale[head * (a.npad / 2) + row / 16 * 8 + row % 8];
    row_side r = {scale.x, scale.y, {INFINITY, INFINITY}, !(scale.x > 0)};
#pragma unroll
    for (int i = 0; i < 2; i++) /* rows past the end have no vote */
        if (tests && row + 8 * i < a.n)
            r.thr[i] = a.thr[head * a.npad + row + 8 * i];
    return r;
}

/* Products of a warp's 16 rows with 32 keys: by strip of 8 keys. */
template <int D>
static __device__ __forceinline__ void multiply(const uint32_t (&rows)[D / 32][4], uint32_t keys,
                                                int (&dot)[4][4])
{
    keys += (threadIdx.x & 7) * byte_tile<D>::PITCH + 16 * ((threadIdx.x & 31) >> 3);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            uint32_t y[4];
            load_matrices(keys + 8 * i * byte_tile<D>::PITCH + 64 * c, y);
            mma_s8(dot[i], rows[2 * c], y[0], y[1]);
            mma_s8(dot[i], rows[2 * c + 1], y[2], y[3]);
        }
}

/* Bits in shared memory that other warps may be setting. */
static __device__ __forceinline__ unsigned shared_bits(unsigned *bits)
{
    unsigned x = (threadIdx.x & 31) == 0 ? atomicOr(bits, 0) : 0;
    return __shfl_sync(~0u, x, 0);
}

/* 128 queries against all keys that one of their two blocks tests, a warp for 16 of them. Grid
 * (npad / 128, heads), from the end, where most keys are. The four warps of a query block begin
 * with different key blocks and leave out those that another one has kept already. */
template <int D> static __global__ void __launch_bounds__(THREADS, 3) test_blocks(const sale_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(16) key_side side[2];
    __shared__ unsigned kept[2][2]; /* by stage and query block: bits of key blocks */
    constexpr int BYTES = byte_tile<D>::BYTES, PITCH = byte_tile<D>::PITCH;
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, lane = threadIdx.x & 31;
    int warp = threadIdx.x >> 5, m = 2 * tile + warp / 4;
    int mid = m < a.groups ? regions_of(a, m).mid : 0;
    int most = max(regions_of(a, 2 * tile).mid,
                   2 * tile + 1 < a.groups ? regions_of(a, 2 * tile + 1).mid : 0);
    int n_tiles = most == 0 ? 0 : most / 4 + 1;
    uint32_t base = shared_addr(shared), rows[D / 32][4];
    uint32_t *map = a.map.map + (head * (int64_t)a.groups + m) * a.map.words;

    if (n_tiles == 0)
        return;
    key_source<D> keys(a, head, base + BYTES, side);
    byte_tile<D>::copy(base + byte_tile<D>::to(),
                       a.qi + (head * a.npad + tile * TILE) * D + byte_tile<D>::from());
    keys.load(0);
    row_side r = row_side_of(a, head, tile * (int64_t)TILE + 16 * warp + (lane >> 2), mid > 0);
    bool any_flat = __any_sync(~0u, r.flat);
    bool large = __any_sync(~0u, __uint_as_float(a.corr_max[head]) * r.inverse > 65000.0f);
    if (threadIdx.x < 4)
        kept[threadIdx.x / 2][threadIdx.x % 2] = 0;
    for (int s = 0; s < n_tiles; s++) {
        if (s + 1 < n_tiles) {
            keys.load((s + 1) % 2);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        if (s == 0)
#pragma unroll
            for (int c = 0; c < D / 32; c++)
                load_matrices(base + (16 * warp + (lane & 15)) * PITCH + 32 * c + 16 * (lane >> 4),
                              rows[c]);
        const key_side &here = side[s % 2];
        unsigned *done = &kept[s % 2][warp / 4];
#pragma unroll 1
        for (int turn = 0; turn < 4; turn++) {
            int b = (turn + warp) % 4, j = 4 * s + b, dot[4][4] = {{0}};
            if (j < 1 || j > mid || (shared_bits(done) >> b & 1))
                continue;
            multiply<D>(rows, base + BYTES * (1 + s % 2) + 32 * b * PITCH, dot);
            const __half *corr = here.corr + 32 * b + 2 * (lane & 3);
            float k_scale = here.scale[4 * b + (lane & 3)];
            bool keep = large ? test_pairs<true>(a, dot, corr, k_scale, r)
                              : test_pairs<false>(a, dot, corr, k_scale, r);
            if (any_flat)
                keep = r.flat ? test_flat(a, corr, k_scale, r) : keep;
            if (__any_sync(~0u, keep) && lane == 0)
                atomicOr(done, 1u << b);
        }
        __syncthreads();
        if (lane == 0 && warp % 4 == 0) { /* four bits of a word that is this warp's alone */
            unsigned bits = *done;
            *done = 0;
            if (bits)
                map[s / 8] |= bits << 4 * (s % 8);
        }
    }
}

/* The blocks that are always kept, and the number of all. A warp per row of the map. */
static __global__ void add_kept_blocks(const sale_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= (int64_t)a.heads * a.groups)
        return;
    regions g = regions_of(a, (int)(row % a.groups));
    fill_row_words(a.map, row, [&](int w) {
        uint32_t word = a.map.map[row * a.map.words + w];
        for (int b = 0; b < 32; b++) {
            int j = 32 * w + b;
            word |= j < g.n && (j == 0 || j > g.mid) ? 1u << b : 0;
        }
        return word;
    });
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D> static int launch_means(struct gpu *g, const sale_args &a, struct err *err)
{
    dim3 queries((unsigned)a.chunks, (unsigned)a.heads);
    dim3 keys((unsigned)a.chunks, (unsigned)a.kv_heads);
    int rc = 0;
    sum_tokens<D><<<queries, 256, 0, g->stream>>>(a.q, a.n, a.chunks, a.q_part);
    CU_LAUNCHED(err);
    sum_tokens<D><<<keys, 256, 0, g->stream>>>(a.k, a.n, a.chunks, a.k_part);
    CU_LAUNCHED(err);
    mean_tokens<D><<<a.heads, D, 0, g->stream>>>(a.q_part, a.n, a.chunks, a.q_mean);
    CU_LAUNCHED(err);
    mean_tokens<D><<<a.kv_heads, D, 0, g->stream>>>(a.k_part, a.n, a.chunks, a.k_mean);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int D> static int launch_operands(struct gpu *g, const sale_args &a, struct err *err)
{
    unsigned n = (unsigned)a.npad, heads = (unsigned)a.heads, kv_heads = (unsigned)a.kv_heads;
    int rc = 0;
    TRY(launch_means<D>(g, a, err));
    quantise_queries<D><<<dim3(n / 16, heads), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    quantise_keys<D><<<dim3(n / 32, kv_heads), 128, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    TRY(gpu_zero(g, a.corr_max, a.heads * 4, err));
    correct_keys<D><<<dim3(n / 128, heads), 128, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int D>
static int launch_all(struct gpu *g, const sale_args &a, const struct select_lists *l,
                      struct err *err)
{
    int rc = 0, stats = (BQ + BK) * D * 2, test = 3 * byte_tile<D>::BYTES;
    CU(err, cudaFuncSetAttribute((const void *)test_blocks<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, test));
    TRY(launch_operands<D>(g, a, err));
    find_thresholds<D><<<dim3((unsigned)a.groups, (unsigned)a.heads), 128, stats, g->stream>>>(a);
    CU_LAUNCHED(err);
    TRY(gpu_zero(g, l->map, l->rows * l->words * 4, err));
    test_blocks<D>
        <<<dim3((unsigned)(a.npad / TILE), (unsigned)a.heads), THREADS, test, g->stream>>>(a);
    CU_LAUNCHED(err);
    add_kept_blocks<<<(unsigned)((l->rows + 7) / 8), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    TRY(lists_make(g, l, err));
out:
    return rc;
}

/* ---- the table's functions ------------------------------------------------------------------ */

static bool fits(const struct select_problem *p, char why[160])
{
    if (!p->rule || !p->causal || p->nq != p->nk)
        snprintf(why, 160, "whole causal prompts only");
    else if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "the GPU side has head dimensions 64 and 128, not %d", p->d);
    else
        return true;
    return false;
}

static int alloc_operands(struct gpu *g, const struct select_problem *p, sale_args *a,
                          struct err *err)
{
    int64_t q = p->heads, k = p->kv_heads, d = p->d;
    int rc = 0;
    TRY(gpu_alloc(g, q * a->chunks * d * 8, &a->q_part, err));
    TRY(gpu_alloc(g, k * a->chunks * d * 8, &a->k_part, err));
    TRY(gpu_alloc(g, q * d * 4, &a->q_mean, err));
    TRY(gpu_alloc(g, k * d * 4, &a->k_mean, err));
    TRY(gpu_alloc(g, q * a->npad * d * 2, &a->q16, err));
    TRY(gpu_alloc(g, k * a->npad * d * 2, &a->k16, err));
    TRY(gpu_alloc(g, q * a->npad * d, &a->qi, err));
    TRY(gpu_alloc(g, k * a->npad * d, &a->ki, err));
    TRY(gpu_alloc(g, q * a->npad / 2 * 8, &a->q_scale, err));
    TRY(gpu_alloc(g, k * a->npad / 8 * 4, &a->k_scale, err));
    TRY(gpu_alloc(g, k * a->npad / 8 * 4, &a->k_mul, err));
    TRY(gpu_alloc(g, q * a->npad * 2, &a->corr, err));
    TRY(gpu_alloc(g, q * 4, &a->corr_max, err));
    TRY(gpu_alloc(g, q * a->npad * 4, &a->thr, err));
out:
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct sale_rule *r = &p->rule->sale;
    sale_args *a = (sale_args *)calloc(1, sizeof *a);
    int rc = 0;

    job->state = a;
    if (!a)
        FAIL(err, ERR_NOMEM, "sale on the GPU: out of memory");
    TRY(select_lists_init(g, job, BQ, BK, err));
    a->q = (const uint4 *)p->q;
    a->k = (const uint4 *)p->k;
    a->n = p->nq;
    a->npad = (p->nq + TILE - 1) / TILE * TILE;
    a->heads = p->heads;
    a->kv_heads = p->kv_heads;
    a->per_kv = p->heads / p->kv_heads;
    a->groups = (int)job->lists.groups;
    a->units = (int)job->lists.units;
    a->words = (int)job->lists.words;
    a->chunks = (int)((p->nq + SUM_ROWS - 1) / SUM_ROWS);
    a->local = (int)r->local_blocks;
    a->strict = r->strict;
    a->causal_stats = r->causal_stats;
    a->tau = r->tau;
    a->scale = r->scale;
    a->map = map_rows_of(&job->lists);
    TRY(alloc_operands(g, p, a, err));
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const sale_args &a = *(const sale_args *)job->state;
    return job->problem.d == 128 ? launch_all<128>(g, a, &job->lists, err)
                                 : launch_all<64>(g, a, &job->lists, err);
}

extern "C" const struct select_method select_sale = {
    "sale", fits, init, launch, NULL, NULL, false, NULL,
};
