/*
 * sale_e4m3_sm90.cu - SALE's test of every pair on Hopper where float16 sums are exact: products of
 * e4m3 bytes, added in float16 to accumulators that begin with the corrections.
 *
 * Integers up to 7 are e4m3 numbers, and every partial sum is a whole number below 2^11 where the
 * largest norms of queries and keys and the largest correction say so (sums_are_exact): there the
 * test is that of sale_sm90.cu, which has the warps of the other rows.
 *
 * Tile: 320 queries x 128 keys, a warpgroup for the 64 queries of a block, which it has in
 * registers; one warp copies. The tensor cores multiply for one warpgroup while others compare.
 */
#include "cuda/ldmatrix.cuh"
#include "cuda/methods/sale/sale_feed.cuh"
#include "cuda/methods/sale/sale_sm90.cuh"

#define STAGES 5
#define GROUPS 5 /* warpgroups; six would leave 80 registers a thread */
#define QUERIES (GROUPS * BQ)
#define THREADS (GROUPS * 128 + 32)

/* D[64][128] += A[64][32] B[128][32]^T of e4m3 bytes, D in pairs of float16, B in shared memory, A
 * in registers: four bytes of rows l / 4 and l / 4 + 8 of the warp from 4 (l % 4) on in a[0] and
 * a[1], and from 16 + 4 (l % 4) on in a[2] and a[3]. */
DEVICE void wgmma_e4m3(uint32_t (&d)[32], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
                 "}, {%32, %33, %34, %35}, %36, 1, 1, 1;\n"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),
                   "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]),
                   "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]),
                   "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
                   "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]),
                   "+r"(d[30]), "+r"(d[31])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

typedef sale_smem<QUERIES, STAGES> e4m3_smem;

DEVICE __half2 half2_of(uint32_t bits)
{
    return *(__half2 *)&bits;
}

DEVICE uint32_t bits_of(__half2 x)
{
    return *(uint32_t *)&x;
}

/* The least float16 that passes a threshold; NaN, which nothing passes, for a row without a vote.
 */
DEVICE __half least_passing(float thr, bool strict)
{
    uint16_t bits = __half_as_ushort(__float2half_rn(thr));
    if (thr == INFINITY)
        return __ushort_as_half(0x7fff);
    if (strict)
        bits = (bits & 0x7fff) == 0 ? 1 : bits & 0x8000 ? bits - 1 : bits + 1;
    return __ushort_as_half(bits);
}

template <int D> struct e4m3_consumer {
    e4m3_smem &sm;
    __half2 inverse, thr, scale; /* of the lane's two rows */
    int mid;                     /* last key block that is tested; 0: the rows have no vote here */
    uint32_t *map;
    uint32_t rows[D / 32][4]; /* its queries */

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    DEVICE void load_queries()
    {
        uint32_t at = smem_addr(sm.queries) + (threadIdx.x >> 5) * 16 * PITCH;
        int row = lane() & 15, half = lane() >> 4;
        mbar_wait(smem_addr(&sm.q_full), 0);
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            load_matrices(at + row * PITCH + ((2 * kk + half) ^ (row & 7)) * 16, rows[kk]);
    }

    /* Corrections of the lane's keys as whole numbers, and the products on top of them. */
    DEVICE void multiply(uint32_t (&dot)[32], int stage)
    {
        const uint4 *corr = (const uint4 *)sm.side[stage].corr + (lane() & 3);
        const __half2 magic = __float2half2_rn(1536.0f);
        uint64_t k = descriptor(desc_low(smem_addr(sm.keys[stage]), 16));
#pragma unroll
        for (int b = 0; b < 4; b++) {
            uint4 four = corr[4 * b];
            uint32_t c[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                __half2 x = __hmul2_rn(half2_of(c[i]), inverse);
                x = __hsub2_rn(__hadd2_rn(x, magic), magic);
                dot[8 * b + 2 * i] = dot[8 * b + 2 * i + 1] = bits_of(x);
            }
        }
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            wgmma_e4m3(dot, rows[kk], k + 2 * kk);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 32; i++)
            asm volatile("" : "+r"(dot[i])::"memory");
    }

    /* Which of the four key blocks of tile s the warp's 16 rows keep. */
    DEVICE uint32_t compare(const uint32_t (&dot)[32], int stage, int s)
    {
        const __half2 most = __float2half2_rn(65504.0f);
        uint2 side = ((const uint2 *)sm.side[stage].scale)[lane() & 3];
        __half2 by[2] = {__hmin2(__hmul2_rn(half2_of(side.x), scale), most),
                         __hmin2(__hmul2_rn(half2_of(side.y), scale), most)};
        uint32_t bits = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            __half2 top[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                top[r] =
                    __hmax2(__hmax2(half2_of(dot[8 * b + r]), half2_of(dot[8 * b + 2 + r])),
                            __hmax2(half2_of(dot[8 * b + 4 + r]), half2_of(dot[8 * b + 6 + r])));
            __half2 best = __hmax2(__lows2half2(top[0], top[1]), __highs2half2(top[0], top[1]));
            __half2 value =
                __hmul2_rn(best, b % 2 ? __high2half2(by[b / 2]) : __low2half2(by[b / 2]));
            bits |= __hge2_mask(value, thr) & 0x10001u << b;
        }
        bits = __reduce_or_sync(~0u, bits);
        bits |= bits >> 16;
        bits &= s == 0 ? 14 : 15; /* blocks 1 to mid */
        return bits & (mid >= 4 * s + 3 ? 15 : mid < 4 * s ? 0 : (2 << (mid - 4 * s)) - 1);
    }

    DEVICE void run(int n_tiles)
    {
        uint32_t dot[32], word = 0;
        ring<STAGES> k;
        load_queries();
#pragma unroll 1
        for (int s = 0; s < n_tiles; s++) {
            mbar_wait(smem_addr(&sm.full[k.at]), k.parity);
            multiply(dot, k.at);
            word |= compare(dot, k.at, s) << 4 * (s % 8);
            warp_arrive(smem_addr(&sm.empty[k.at]));
            if (s % 8 == 7 || s + 1 == n_tiles) {
                if (word && lane() == 0)
                    atomicOr(map + s / 8, word);
                word = 0;
            }
            k.next();
        }
    }
};

/* Grid (npad / QUERIES, heads), from the end, where most keys are. */
template <int D>
static __global__ void __launch_bounds__(THREADS, 1)
    test_blocks_e4m3(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                     const __grid_constant__ sale_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    e4m3_smem &sm = *(e4m3_smem *)raw;
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, warp = uniform(threadIdx.x >> 5);
    int last = min(GROUPS * tile + GROUPS, a.groups) - 1;
    int most = last < GROUPS * tile ? 0 : regions_of(a, last).mid;
    int n_tiles = most == 0 ? 0 : most / 4 + 1;

    if (n_tiles == 0)
        return;
    if (threadIdx.x == 0)
        feed_init(sm, 4 * GROUPS);
    __syncthreads();
    if (warp == 4 * GROUPS) {
        if ((threadIdx.x & 31) == 0)
            feed(sm, a, &mq, &mk, tile, head, n_tiles);
        return;
    }
    int m = GROUPS * tile + warp / 4;
    int mid = m < a.groups ? regions_of(a, m).mid : 0;
    int64_t row = (int64_t)m * BQ + 16 * (warp % 4) + ((threadIdx.x & 31) >> 2);
    row_side r = {0, 0, {INFINITY, INFINITY}, true};
    if (mid > 0) {
        r = row_side_of(a, head, row, true);
        if (!sums_are_exact(a, head, row, r)) {
            mid = 0;
            *a.inexact = 1;
        }
    }
    e4m3_consumer<D> c = {
        sm,
        __float2half2_rn(r.inverse),
        __halves2half2(least_passing(r.thr[0], a.strict), least_passing(r.thr[1], a.strict)),
        __float2half2_rn(r.scale),
        mid,
        a.map.map + (head * (int64_t)a.groups + m) * a.map.words};
    c.run(n_tiles);
#endif
}

template <int D>
static int launch(struct gpu *g, const sale_args &a, const CUtensorMap *maps, struct err *err)
{
    int rc = 0, bytes = sizeof(e4m3_smem);
    dim3 grid((unsigned)((a.npad + QUERIES - 1) / QUERIES), (unsigned)a.heads);
    CU(err, cudaFuncSetAttribute((const void *)test_blocks_e4m3<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    test_blocks_e4m3<D><<<grid, THREADS, bytes, g->stream>>>(maps[0], maps[1], a);
    CU_LAUNCHED(err);
out:
    return rc;
}

int sale_test_e4m3_sm90(struct gpu *g, const sale_args &a, int d, const CUtensorMap *maps,
                        struct err *err)
{
    return d == 128 ? launch<128>(g, a, maps, err) : launch<64>(g, a, maps, err);
}
