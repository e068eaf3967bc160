/*
 * sale.cu - SALE's choice of 64 x 32 blocks on the GPU (arXiv:2505.24179, algorithm 1): 4-bit
 * operands, exact statistics of the sink-local region, a low-bit test of every other pair. The
 * rules and the reference are sim/methods/sale/sale.c.
 *
 * What the reference rounds is rounded here at the same places and in the same way, so that
 * integers, scales and corrections are equal; sums of the statistics differ in their order.
 *
 * A product does not depend on the order of its channels. They lie where loads and stores of 16
 * bytes have them: lane l of the four that share a row of a 16-row product has channels 32 b + 8 l
 * to 32 b + 8 l + 7 for every b (key_place, byte_place).
 *
 * In an m16n8k32 product the two columns of a lane lie in one of SALE's key groups and its two rows
 * in one of the query groups: a lane has the eight scores of a (row, group) by itself. The four
 * lanes that have two rows of a 16-row product hold a query group: a warp reads its rows once, for
 * operands and thresholds.
 *
 * O(N^2 d / 2) integer products; N d (1 + 2) bytes of operands per head.
 */
#include "cuda/methods/sale/sale_common.cuh"
#include "cuda/mma.cuh"
#include "cuda/device.h"

#include <cuda_fp8.h>

#define THREADS 256
#define SUM_THREADS 256
#define QUERY_THREADS 256
#define THRESHOLD_BLOCKS(a) ((a).local + 4) /* most sink and local blocks of a query block */

/* ---- means and keys ------------------------------------------------------------------------- */

static __device__ __forceinline__ __half2 half2_in(uint32_t bits)
{
    return *(const __half2 *)&bits;
}

static __device__ __forceinline__ uint32_t half2_bits(__half2 x)
{
    return *(const uint32_t *)&x;
}

/* Two bf16 values as fp16, without infinities. */
static __device__ __forceinline__ __half2 two_fl16(uint32_t raw)
{
    uint32_t two;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;"
        : "=r"(two)
        : "f"(__uint_as_float(raw & 0xffff0000u)), "f"(__uint_as_float(raw << 16)));
    return half2_in(two);
}

/* Sum of a thread block's tokens, in the thread of each channel. */
template <int D>
static __device__ __forceinline__ double sum_of_chunk(const sale_args &a, double (*shared)[D + 1])
{
    constexpr int LANES = D / 8, STEP = SUM_THREADS / LANES;
    int lane = threadIdx.x % LANES, at = threadIdx.x / LANES;
    bool keys = blockIdx.y >= a.heads;
    int64_t head = keys ? blockIdx.y - a.heads : blockIdx.y;
    const uint4 *x = (keys ? a.k : a.q) + head * a.nk * LANES + lane;
    int64_t r0 = blockIdx.x * (int64_t)SUM_ROWS, r1 = min(r0 + SUM_ROWS, a.nk);
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
    if (threadIdx.x < D)
#pragma unroll
        for (int i = 0; i < STEP; i++)
            all += shared[i][threadIdx.x];
    return all;
}

/* Means of queries and, from blockIdx.y = heads on, of keys. A thread block sums SUM_ROWS tokens,
 * the last one of a head puts the sums together. Grid (chunks, heads + kv_heads). */
template <int D>
static __global__ void __launch_bounds__(SUM_THREADS) mean_tokens(const sale_args a)
{
    constexpr int PARTS = SUM_THREADS / D;
    __shared__ double shared[SUM_THREADS * 8 / D][D + 1];
    __shared__ bool last;
    double *part = a.part + blockIdx.y * (int64_t)a.chunks * D + threadIdx.x % D, sum = 0;
    double mine = sum_of_chunk<D>(a, shared);
    if (threadIdx.x < D) {
        part[blockIdx.x * (int64_t)D] = mine;
        __threadfence();
    }
    __syncthreads();
    if (threadIdx.x == 0)
        last = atomicAdd(a.summed + blockIdx.y, 1) == a.chunks - 1;
    __syncthreads();
    if (!last)
        return;
    __threadfence();
#pragma unroll 8
    for (int i = threadIdx.x / D; i < a.chunks; i += PARTS)
        sum += __ldcg(part + i * (int64_t)D);
    shared[threadIdx.x / D][threadIdx.x % D] = sum;
    __syncthreads();
    if (threadIdx.x >= D)
        return;
#pragma unroll
    for (int i = 1; i < PARTS; i++)
        sum += shared[i][threadIdx.x];
    a.mean[blockIdx.y * D + threadIdx.x] = __float2half_rn(fl16((float)(sum / (double)a.nk)));
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
        norm = fmaf(y.x, y.x, fmaf(y.y, y.y, norm));
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
    const uint2 *from = (const uint2 *)a.k + head * a.nk * LANES + i;
    const uint2 mean = ((const uint2 *)(a.mean + (a.heads + head) * D))[i];
    __half2 x[ROWS][2];
    __half2 top = half2_in(0);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int e = r * AT_ONCE + lane / LANES;
        int64_t t = t0 + 2 * c + e / 2 * 8 + e % 2;
        uint2 raw = t < a.nk ? from[t * LANES] : make_uint2(0, 0);
        x[r][0] = half2_in(raw.x);
        x[r][1] = half2_in(raw.y);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int e = r * AT_ONCE + lane / LANES;
        bool valid = t0 + 2 * c + e / 2 * 8 + e % 2 < a.nk;
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
        *(uint32_t *)(a.ki + row * D + byte_place(i)) =
            four_bytes(a, x[r][0], x[r][1], mul, squares);
        norm = max(norm, sum_of_row<LANES>((int)squares));
    }
    if (lane == 0) {
        int64_t block = t0 / BK - a.e4m3;
        *shared_mul = mul;
        if (block >= 0)
            a.k_scale[head * (a.npad / 8) + block / 4 * 16 + 4 * c + block % 4] =
                __float2half_rn(most > 0 ? fl16(__fdiv_rn(1, mul)) : 0);
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

/* ---- queries -------------------------------------------------------------------------------- */

/* Where 8 channels from 8 c on of a row of BK keys lie: panels of 64 channels, rows of 128 bytes
 * swizzled as wgmma reads them. */
static __device__ __forceinline__ uint32_t key_chunk_at(int row, int c)
{
    return (uint32_t)(c / 8 * (BK * 128) + row * 128 + ((c % 8 ^ (row & 7)) << 4));
}

/* The sink and local blocks of a query block, one after the other, by QUERY_THREADS threads. */
template <int D>
static __device__ __forceinline__ void copy_keys(uint32_t dst, const uint4 *keys, const regions &g)
{
    constexpr int ROWS = QUERY_THREADS / (D / 8); /* at once: a multiple of 8 */
    dst += key_chunk_at(threadIdx.x / (D / 8), threadIdx.x % (D / 8));
    keys += threadIdx.x;
    for (int j = 0; j < g.n; j = j == 0 ? g.mid + 1 : j + 1, dst += BK * D * 2)
#pragma unroll
        for (int r = 0; r < BK; r += ROWS)
            copy_async(dst + r * 128, keys + (j * BK + r) * (D / 8), true);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* D[64][32] (+)= A[64][16] B[32][16]^T of float16, A in registers as for mma_f16, by four warps. */
static __device__ __forceinline__ void wgmma_f16(float (&d)[4][4], const uint32_t (&a)[4],
                                                 uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]),
                   "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]),
                   "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
                   "+f"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* Keys in shared memory are there for wgmma too, once all threads have passed a barrier. */
static __device__ __forceinline__ void publish_keys()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Scores of the 64 rows of four warps with BK keys: a warp has its own 16. */
template <int D>
static __device__ __forceinline__ void score_keys(float (&acc)[4][4],
                                                  const uint32_t (&x)[D / 16][4], uint32_t keys)
{
    const uint64_t swizzled = 1ull << 62 | (uint64_t)(1024 >> 4) << 32 | 1u << 16;
    uint64_t at = swizzled | (keys & 0x3ffff) >> 4;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int c = 0; c < D / 16; c++)
        wgmma_f16(acc, x[c], at + c / 4 * (BK * 128 >> 4) + c % 4 * 2, c > 0);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm volatile("" : "+f"(acc[i / 4][i % 4])::"memory");
}
#else
static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
    MMA_16X8X16("f16", d, a, b0, b1);
}

static __device__ __forceinline__ void publish_keys()
{
}

/* Scores of a warp's 16 rows with BK keys, by strip of 8. */
template <int D>
static __device__ __forceinline__ void score_keys(float (&acc)[4][4],
                                                  const uint32_t (&x)[D / 16][4], uint32_t keys)
{
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 16; i++)
        acc[i / 4][i % 4] = 0;
#pragma unroll
    for (int c = 0; c < D / 16; c++)
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            uint32_t k[4];
            load_matrices(
                keys + key_chunk_at(8 * i + (lane & 7) + (lane >> 4) * 8, 2 * c + (lane >> 3 & 1)),
                k);
            mma_f16(acc[i], x[c], k[0], k[1]);
            mma_f16(acc[i + 1], x[c], k[2], k[3]);
        }
}
#endif

#define NO_SCORE -1e30f /* below every product of fp16 rows, and finite */

/* Largest score of a row so far and the sum of e^(score - largest), of the keys that a lane has. */
struct online {
    float top = NO_SCORE, sum = 0;

    /* Eight scores, -INFINITY for none. */
    __device__ __forceinline__ void add(const float (&x)[8], float factor)
    {
        float most = top, part = 0;
#pragma unroll
        for (int i = 0; i < 8; i++)
            most = fmaxf(most, x[i]);
        float shift = -most * factor;
#pragma unroll
        for (int i = 0; i < 8; i++)
            part += exp2_fast(fmaf(x[i], factor, shift));
        sum = fmaf(sum, exp2_fast((top - most) * factor), part);
        top = most;
    }
    __device__ __forceinline__ void merge(int bit, float factor)
    {
        float other = __shfl_xor_sync(~0u, top, bit), most = fmaxf(top, other);
        float theirs = __shfl_xor_sync(~0u, sum, bit);
        sum = sum * exp2_fast((top - most) * factor) + theirs * exp2_fast((other - most) * factor);
        top = most;
    }
};

/* A lane's part of a warp's 16 rows, in fp16: of rows lane / 4 and lane / 4 + 8 in turn two pairs
 * of channels of an A operand. */
template <int D> struct query_rows {
    uint32_t x[D / 16][4];

    __device__ __forceinline__ void load(const sale_args &a, int head, int64_t row)
    {
        const uint4 *q = a.q + head * a.nk * (D / 8) + (threadIdx.x & 3);
        uint4 raw[2][D / 32];
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int b = 0; b < D / 32; b++)
                raw[r][b] = row + 8 * r < a.nk ? __ldcs(q + (row + 8 * r) * (D / 8) + 4 * b)
                                               : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int b = 0; b < D / 32; b++) {
                x[2 * b][r] = half2_bits(two_fl16(raw[r][b].x));
                x[2 * b][r + 2] = half2_bits(two_fl16(raw[r][b].y));
                x[2 * b + 1][r] = half2_bits(two_fl16(raw[r][b].z));
                x[2 * b + 1][r + 2] = half2_bits(two_fl16(raw[r][b].w));
            }
    }

    /* Differences from a mean without infinities, and zero in rows past the end; the largest. */
    static __device__ __forceinline__ float bounded(__half2 (&y)[D / 16][4], int64_t row, int64_t n)
    {
        __half2 top = half2_in(0);
#pragma unroll
        for (int i = 0; i < D / 4; i++) {
            __half2 &z = y[i / 4][i % 4];
            z = row + i % 2 * 8 < n ? clamp16(z) : half2_in(0);
            top = larger(top, z);
        }
        return larger_of(top);
    }

    /* Its low-bit operands; rows past the end are zero. */
    __device__ __forceinline__ void quantise(const sale_args &a, int head, int64_t row) const
    {
        int l = threadIdx.x & 3;
        const uint4 *mean = (const uint4 *)(a.mean + head * D) + l;
        __half2 y[D / 16][4];
        __half2 top = half2_in(0);
        int norm = 0;
#pragma unroll
        for (int b = 0; b < D / 32; b++) {
            uint4 four = mean[4 * b];
            uint32_t m[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int e = 0; e < 8; e++) {
                __half2 &z = y[2 * b + e / 4][e % 4];
                z = __hsub2_rn(half2_in(x[2 * b + e / 4][e % 4]),
                               half2_in(m[e / 4 * 2 + e % 4 / 2]));
                top = larger(top, z);
            }
        }
        float most = larger_of(top);
        if (row + 8 >= a.nk || most == INFINITY)
            most = bounded(y, row, a.nk);
#pragma unroll
        for (int bit = 1; bit < 4; bit *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, bit));
        float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint4 *to = (uint4 *)(a.qi + (head * a.npad + row + 8 * r) * D) + l;
            float squares = 0;
#pragma unroll
            for (int c = 0; c < D / 16; c += 4) {
                uint32_t w[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    w[i] = four_bytes(a, y[c + i][r], y[c + i][r + 2], mul, squares);
                to[c] = make_uint4(w[0], w[1], w[2], w[3]);
            }
            squares += __shfl_xor_sync(~0u, squares, 1);
            squares += __shfl_xor_sync(~0u, squares, 2);
            norm = max(norm, (int)squares);
        }
        if (l == 0) {
            int64_t group = head * (a.npad / 2) + row / 16 * 8 + row % 8;
            float scale = most > 0 ? fl16(__fdiv_rn(most, LEVELS)) : 0;
            a.q_norm[group] = norm;
            a.q_scale[group] = make_float2(scale, scale > 0 ? fl16(__fdiv_rn(1, scale)) : 0);
        }
    }

    /* Without the keys from `seen` on; first: the lane's first key of the block. */
    static __device__ __forceinline__ void cut(float (&x)[8], int first, int seen)
    {
#pragma unroll
        for (int e = 0; e < 8; e++)
            x[e] = first + 8 * (e / 2) + e % 2 < seen ? x[e] : -INFINITY;
    }

    /* Thresholds of the rows; keys: the sink and local blocks one after the other. Warps whose rows
     * see none of a block take part in its scores. */
    __device__ __forceinline__ void find_thresholds(const sale_args &a, int head, int64_t row,
                                                    const regions &g, uint32_t keys) const
    {
        float factor = (float)(a.scale * 1.4426950408889634);
        int lane = threadIdx.x & 31, row0 = (int)row - (lane >> 2);
        int all_see = a.causal_stats ? min(row0 + 1, (int)a.nk) : (int)a.nk;
        online s[2];
        for (int j = 0, at = 0; j < g.n; j = j == 0 ? g.mid + 1 : j + 1, at++) {
            float acc[4][4], y[2][8];
            score_keys<D>(acc, x, keys + at * BK * D * 2);
#pragma unroll
            for (int e = 0; e < 16; e++)
                y[e / 2 % 2][e / 4 * 2 + e % 2] = acc[e / 4][e % 4];
            if ((j + 1) * BK > all_see) {
                int first = j * BK + 2 * (lane & 3);
                cut(y[0], first, a.causal_stats ? min((int)row + 1, (int)a.nk) : (int)a.nk);
                cut(y[1], first, a.causal_stats ? min((int)row + 9, (int)a.nk) : (int)a.nk);
            }
            s[0].add(y[0], factor);
            s[1].add(y[1], factor);
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            s[r].merge(1, factor);
            s[r].merge(2, factor);
        }
        if ((lane & 3) < 2) { /* a lane for each row */
            online mine = lane & 1 ? s[1] : s[0];
            float thr = log2f(a.tau[head] * mine.sum) / factor + mine.top;
            a.thr[head * a.npad + row + 8 * (lane & 1)] = fl16(thr);
        }
    }
};

/* A row of the map for each head of the key head: the blocks that are always kept. */
static __device__ __forceinline__ void keep_blocks(const sale_args &a, int m, const regions &g)
{
    int words = a.map.words;
    for (int e = threadIdx.x; e < words * a.per_kv; e += QUERY_THREADS) {
        int w = e % words, head = blockIdx.y * a.per_kv + e / words;
        uint32_t local = low_bits(~0u, g.n - 32 * w) & ~low_bits(~0u, g.mid + 1 - 32 * w);
        a.map.map[(head * (int64_t)a.groups + m) * words + w] = local | (w == 0);
    }
}

/* All of a query block's rows in the heads that read the same keys, a warp for 16 rows of one head
 * in two. Grid (npad / 64, kv_heads). */
template <int D>
static __global__ void __launch_bounds__(QUERY_THREADS, 2) prepare_queries(const sale_args a)
{
    extern __shared__ __align__(1024) uint8_t region[];
    int m = blockIdx.x, kv = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t row = (int64_t)m * BQ + 16 * (warp % 4) + (lane >> 2);
    const uint4 *keys = (const uint4 *)a.k16 + kv * a.npad * (D / 8);
    regions g = m < a.groups ? regions_of(a, m) : regions{0, 0};

    if (g.mid > 0)
        copy_keys<D>(shared_addr(region), keys, g);
    copy_commit();
    if (m < a.groups)
        keep_blocks(a, m, g);
    for (int i = warp / 4; i < (a.per_kv + 1) / 2 * 2; i += 2) {
        int head = kv * a.per_kv + i;
        query_rows<D> q;
        if (i < a.per_kv) {
            q.load(a, head, row);
            q.quantise(a, head, row);
        }
        if (i < 2) {
            copy_wait<0>();
            publish_keys();
            __syncthreads();
        }
        if (i < a.per_kv && g.mid > 0)
            q.find_thresholds(a, head, row, g, shared_addr(region));
    }
}

/* ---- the test by mma.sync, for GPUs without wgmma ------------------------------------------- */

/* 128 rows of D bytes; a distance of D + 16 keeps the eight rows of a matrix in different banks. */
template <int D> struct byte_tile {
    static constexpr int STEP = D + 16, BYTES = TILE * STEP, CHUNKS = D / 16;

    /* Where a thread's part of a tile comes from, and lies in it. */
    static __device__ __forceinline__ int from()
    {
        return threadIdx.x * 16;
    }
    static __device__ __forceinline__ int to()
    {
        return threadIdx.x / CHUNKS * STEP + threadIdx.x % CHUNKS * 16;
    }
    static __device__ __forceinline__ void copy(uint32_t to, const int8_t *from)
    {
        constexpr int ROWS = THREADS / CHUNKS;
#pragma unroll
        for (int r = 0; r < TILE; r += ROWS)
            copy_async(to + r * STEP, from + r * D, true);
    }
};

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
        bool corr = t < TILE / 8, scale = !corr && t < TILE / 8 + TILE / 64;
        ki = a.ki + kv * a.npad * D + byte_tile<D>::from();
        to = tiles + byte_tile<D>::to();
        side = corr    ? (const char *)(a.corr + head * a.npad + 8 * t)
               : scale ? (const char *)(a.k_scale + kv * (a.npad / 8) + 8 * (t - TILE / 8))
                       : NULL;
        step = corr ? TILE * 2 : TILE / 8 * 2;
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

/* Products of a warp's 16 rows with 32 keys: by strip of 8 keys. */
template <int D>
static __device__ __forceinline__ void multiply(const uint32_t (&rows)[D / 32][4], uint32_t keys,
                                                int (&dot)[4][4])
{
    keys += (threadIdx.x & 7) * byte_tile<D>::STEP + 16 * ((threadIdx.x & 31) >> 3);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < D / 64; c++) {
            uint32_t y[4];
            load_matrices(keys + 8 * i * byte_tile<D>::STEP + 64 * c, y);
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
    constexpr int BYTES = byte_tile<D>::BYTES, STEP = byte_tile<D>::STEP;
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
                load_matrices(base + (16 * warp + (lane & 15)) * STEP + 32 * c + 16 * (lane >> 4),
                              rows[c]);
        const key_side &here = side[s % 2];
        unsigned *done = &kept[s % 2][warp / 4];
#pragma unroll 1
        for (int turn = 0; turn < 4; turn++) {
            int b = (turn + warp) % 4, j = 4 * s + b, dot[4][4] = {{0}};
            if (j < 1 || j > mid || (shared_bits(done) >> b & 1))
                continue;
            multiply<D>(rows, base + BYTES * (1 + s % 2) + 32 * b * STEP, dot);
            const __half *corr = here.corr + 32 * b + 8 * (lane & 3);
            float k_scale = __half2float(here.scale[4 * (lane & 3) + b]);
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

/* ---- launches ------------------------------------------------------------------------------- */

/* Means first: both sides need them. */
template <int D> static int launch_operands(struct gpu *g, const sale_args &a, struct err *err)
{
    int heads = a.heads, kv_heads = a.kv_heads;
    int bytes = THRESHOLD_BLOCKS(a) * BK * D * 2;
    PASS_ON(gpu_zero(g, a.k_norm, 2 * (a.kv_heads + a.heads) * 4, err));
    PASS_ON_CU(err, run_kernel(g->stream, mean_tokens<D>, dim3(a.chunks, heads + kv_heads),
                               SUM_THREADS, 0, a));
    PASS_ON_CU(err,
               run_kernel(g->stream, prepare_keys<D>, dim3((a.npad / 128), kv_heads), 128, 0, a));
    return CU_STATUS(err, run_kernel(g->stream, prepare_queries<D>, dim3((a.npad / BQ), kv_heads),
                                     QUERY_THREADS, bytes, a));
}

struct sale_state : sale_args {
    CUtensorMap maps[2]; /* of the integers of q and k, on Hopper */
};

template <int D> static int launch_all(struct gpu *g, const sale_state &s, struct err *err)
{
    const sale_args &a = s;
    PASS_ON(launch_operands<D>(g, a, err));
    if (a.e4m3)
        return sale_test_sm90(g, a, s.maps, err);
    return CU_STATUS(err, run_kernel(g->stream, test_blocks<D>, dim3(a.npad / TILE, a.heads),
                                     THREADS, 3 * byte_tile<D>::BYTES, a));
}

/* ---- the table's functions ------------------------------------------------------------------ */

static bool fits(const struct select_problem *p, char why[160])
{
    if (!p->causal || p->nq != p->nk)
        return refuse(why, "whole causal prompts only");
    return dims_fit(p, why);
}

static int alloc_operands(struct gpu *g, sale_args *a, struct err *err)
{
    int64_t q = a->heads, k = a->kv_heads, d = a->d, n = a->npad;
    PASS_ON(take(g, err, &a->part, (q + k) * a->chunks * d, &a->mean, (q + k) * d, &a->k16,
                 k * n * d, &a->qi, q * n * d, &a->ki, k * n * d, &a->q_scale, q * n / 2,
                 &a->k_scale, k * n / 8, &a->corr, q * n, &a->q_norm, q * n / 2, &a->thr, q * n,
                 &a->k_norm, 2 * (k + q)));
    a->corr_max = (unsigned *)a->k_norm + k;
    a->summed = (int *)a->corr_max + q;
    return 0;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct sale_rule *r = &select_rule(p, 0)->sale;
    sale_state *s = NULL;

    PASS_ON(method_init(g, job, BQ, BK, &s, err));
    s->npad = ceil_div(s->nk, TILE) * TILE;
    s->chunks = (int)ceil_div(s->nk, SUM_ROWS);
    s->local = (int)r->local_blocks;
    s->strict = r->strict;
    s->causal_stats = r->causal_stats;
    s->scale = r->scale;
    s->e4m3 = g->sm == 90;
    PASS_ON(alloc_operands(g, s, err));
    PASS_ON(put_each(g, p->heads, &s->tau, err,
                     [=](int64_t h) { return (float)select_rule(p, (int)h)->sale.tau; }));
    if (!s->e4m3)
        return 0;
    /* To a copy, bytes are half as many numbers of 16 bits. */
    PASS_ON(tensor_map(&s->maps[0], s->qi, s->d / 2, s->npad, s->heads, BQ, err));
    return tensor_map(&s->maps[1], s->ki, s->d / 2, s->npad, s->kv_heads, TILE, err);
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const sale_state &s = *(const sale_state *)job->state;
    return s.d == 128 ? launch_all<128>(g, s, err) : launch_all<64>(g, s, err);
}

/* Heads differ in their threshold alone. */
static bool together(const union method_rule *a, const union method_rule *b)
{
    const struct sale_rule *x = &a->sale, *y = &b->sale;
    return x->scale == y->scale && x->local_blocks == y->local_blocks && x->strict == y->strict &&
           x->causal_stats == y->causal_stats;
}

extern "C" const struct select_method select_sale = {
    "sale", fits, init, launch, NULL, NULL, false, together,
};
