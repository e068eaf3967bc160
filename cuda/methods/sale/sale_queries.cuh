/*
 * sale_queries.cuh - what SALE makes of the queries before the test: low-bit operands, and the
 * thresholds of the rows from exact scores of a query block with its sink and local blocks
 * (sim/methods/sale/sale.c have the rules).
 *
 * The four lanes that have two rows of a 16-row product hold a query group. So a warp reads its
 * rows once, for both.
 */
#ifndef LACUNA_SALE_QUERIES_CUH
#define LACUNA_SALE_QUERIES_CUH

#include "cuda/methods/sale/sale_operands.cuh"
#include "cuda/mma.cuh"

#define QUERY_THREADS 256
#define THRESHOLD_BLOCKS(a) ((a).local + 4) /* most sink and local blocks of a query block */

static __device__ __forceinline__ void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                               uint32_t b1)
{
    MMA_16X8X16("f16", d, a, b0, b1);
}

/* Where 8 channels from 8 c on of a row of BK keys lie: panels of 64 channels, rows of 128 bytes
 * swizzled as wgmma reads them. */
static __device__ __forceinline__ uint32_t key_chunk_at(int row, int c)
{
    return (uint32_t)(c / 8 * (BK * 128) + row * 128 + ((c % 8 ^ (row & 7)) << 4));
}

/* BK keys from row0 on, by QUERY_THREADS threads. */
template <int D>
static __device__ __forceinline__ void copy_keys(uint32_t dst, const uint4 *keys, int64_t row0)
{
#pragma unroll
    for (int e = threadIdx.x; e < BK * (D / 8); e += QUERY_THREADS) {
        int r = e / (D / 8), c = e % (D / 8);
        copy_async(dst + key_chunk_at(r, c), keys + (row0 + r) * (D / 8) + c, true);
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* D[64][32] += A[64][16] B[32][16]^T of float16, A in registers as for mma_f16, by four warps. */
static __device__ __forceinline__ void wgmma_f16(float (&d)[4][4], const uint32_t (&a)[4],
                                                 uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]),
                   "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]),
                   "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
                   "+f"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
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
        wgmma_f16(acc, x[c], at + c / 4 * (BK * 128 >> 4) + c % 4 * 2);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 16; i++)
        asm volatile("" : "+f"(acc[i / 4][i % 4])::"memory");
}
#else
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
        const uint4 *q = a.q + head * a.n * (D / 8) + (threadIdx.x & 3);
        uint4 raw[2][D / 32];
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int b = 0; b < D / 32; b++)
                raw[r][b] = row + 8 * r < a.n ? __ldcs(q + (row + 8 * r) * (D / 8) + 4 * b)
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

    /* Its low-bit operands; rows past the end are zero. */
    __device__ __forceinline__ void quantise(const sale_args &a, int head, int64_t row) const
    {
        int l = threadIdx.x & 3;
        const uint4 *mean = (const uint4 *)(a.mean + head * D) + l;
        bool valid[2] = {row < a.n, row + 8 < a.n};
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
                z = smooth(half2_in(x[2 * b + e / 4][e % 4]), half2_in(m[e / 4 * 2 + e % 4 / 2]));
                z = valid[e % 2] ? z : half2_in(0);
                top = larger(top, z);
            }
        }
        float most = larger_of(top);
#pragma unroll
        for (int bit = 1; bit < 4; bit *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, bit));
        float mul = most > 0 ? __fdiv_rn(LEVELS, most) : 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            uint4 *to = (uint4 *)(a.qi + (head * a.npad + row + 8 * r) * PITCH) + l;
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
        int all_see = a.causal_stats ? min(row0 + 1, (int)a.n) : (int)a.n;
        online s[2];
        for (int j = 0, at = 0; j < g.n; j = j == 0 ? g.mid + 1 : j + 1, at++) {
            float acc[4][4] = {{0}}, y[2][8];
            score_keys<D>(acc, x, keys + at * BK * D * 2);
#pragma unroll
            for (int e = 0; e < 16; e++)
                y[e / 2 % 2][e / 4 * 2 + e % 2] = acc[e / 4][e % 4];
            if ((j + 1) * BK > all_see) {
                int first = j * BK + 2 * (lane & 3);
                cut(y[0], first, a.causal_stats ? min((int)row + 1, (int)a.n) : (int)a.n);
                cut(y[1], first, a.causal_stats ? min((int)row + 9, (int)a.n) : (int)a.n);
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
            double thr = log2(a.tau[head] * mine.sum) / (a.scale * 1.4426950408889634) + mine.top;
            a.thr[head * a.npad + row + 8 * (lane & 1)] = fl16((float)thr);
        }
    }
};

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
        for (int j = 0, at = 0; j < g.n; j = j == 0 ? g.mid + 1 : j + 1, at++)
            copy_keys<D>(shared_addr(region) + at * BK * D * 2, keys, j * BK);
    copy_commit();
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

#endif
