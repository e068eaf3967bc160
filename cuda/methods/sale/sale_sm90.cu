/*
 * sale_sm90.cu - SALE's test of every pair on Hopper, of the rows that sale_e4m3_sm90.cu leaves:
 * products of e4m3 bytes added in float, which are exact (at most 49 D, whole numbers below 2^13),
 * keys by TMA.
 *
 * Tile: 128 queries x 128 keys. A warpgroup has the 64 queries of a query block, one warp copies.
 * An accumulator's place is that of m16n8k32 products, so a lane has the eight scores of a (row,
 * key group) by itself (sale_pairs.cuh). Two thread blocks on a multiprocessor: while one compares,
 * the tensor cores work for the other.
 */
#include "cuda/methods/sale/sale_feed.cuh"
#include "cuda/methods/sale/sale_sm90.cuh"

#define STAGES 3
#define THREADS (256 + 32)

/* D[64][128] (+)= A[64][32] B[128][32]^T of e4m3 bytes, both in shared memory. */
DEVICE void wgmma_e4m3(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p, 1, 1;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
                   "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                   "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
                   "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
                   "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                   "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
                   "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
                   "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "l"(a), "l"(b), "r"(add));
}

typedef sale_smem<TILE, STAGES> test_smem;

template <int D> struct test_consumer {
    const sale_args &a;
    test_smem &sm;
    row_side r;
    bool others; /* these rows are tested by sale_e4m3_sm90.cu */
    int mid;     /* last key block that the warp tests */

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    DEVICE void multiply(float (&dot)[64], uint64_t q, uint64_t k)
    {
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            wgmma_e4m3(dot, q + 2 * kk, k + 2 * kk, kk > 0);
        wgmma_commit();
        wgmma_wait<0>();
        hold(dot);
    }

    /* Which of the four key blocks of tile s the warp's 16 rows keep. */
    DEVICE uint32_t kept_blocks(const float (&dot)[64], const key_side &side, int s)
    {
        uint32_t bits = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const __half *corr = side.corr + 32 * b + 8 * (lane() & 3);
            float part[4][4], k_scale = __half2float(side.scale[4 * (lane() & 3) + b]);
            int j = 4 * s + b;
#pragma unroll
            for (int i = 0; i < 16; i++)
                part[i / 4][i % 4] = dot[16 * b + i];
            bool keep = test_pairs<true>(a, part, corr, k_scale, r);
            keep = __any_sync(~0u, r.flat ? test_flat(a, corr, k_scale, r) : keep);
            bits |= keep && j >= 1 && j <= mid ? 1u << b : 0;
        }
        return bits;
    }

    DEVICE void run(int n_tiles, uint32_t *map)
    {
        uint32_t half = threadIdx.x >> 7;
        uint64_t q = descriptor(desc_low(smem_addr(sm.queries) + half * 64 * PITCH, 16));
        ring<STAGES> k;
        float dot[64];
        mbar_wait(smem_addr(&sm.q_full), 0);
#pragma unroll 1
        for (int s = 0; s < n_tiles; s++) {
            mbar_wait(smem_addr(&sm.full[k.at]), k.parity);
            if (4 * s <= mid) { /* alike in the warpgroup */
                multiply(dot, q, descriptor(desc_low(smem_addr(sm.keys[k.at]), 16)));
                uint32_t bits = kept_blocks(dot, sm.side[k.at], s);
                if (bits && !others && lane() == 0)
                    atomicOr(map + s / 8, bits << 4 * (s % 8));
            }
            warp_arrive(smem_addr(&sm.empty[k.at]));
            k.next();
        }
    }
};

/* Grid (npad / 128, heads), from the end, where most keys are. */
template <int D>
static __global__ void __launch_bounds__(THREADS, 2)
    test_blocks_sm90(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                     const __grid_constant__ sale_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    test_smem &sm = *(test_smem *)raw;
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, warp = uniform(threadIdx.x >> 5);
    int m = 2 * tile + warp / 4;
    int most = max(regions_of(a, 2 * tile).mid,
                   2 * tile + 1 < a.groups ? regions_of(a, 2 * tile + 1).mid : 0);
    int n_tiles = most == 0 ? 0 : most / 4 + 1;

    if (n_tiles == 0 || !*a.inexact)
        return;
    int64_t row = tile * (int64_t)TILE + 16 * (warp % 8) + ((threadIdx.x & 31) >> 2);
    int mid = m < a.groups ? regions_of(a, m).mid : 0;
    row_side r = row_side_of(a, head, row, mid > 0);
    bool others = warp == 8 || mid == 0 || sums_are_exact(a, head, row, r);
    if (!__syncthreads_or(!others))
        return;
    if (threadIdx.x == 0)
        feed_init(sm, 8);
    __syncthreads();
    if (warp == 8) {
        ring<STAGES> k;
        if ((threadIdx.x & 31) == 0)
            feed(sm, k, a, &mq, &mk, tile, head, n_tiles, 0);
        return;
    }
    test_consumer<D> c = {a, sm, r, others, mid};
    c.run(n_tiles, a.map.map + (head * (int64_t)a.groups + m) * a.map.words);
#endif
}

template <int D>
static int launch(struct gpu *g, const sale_args &a, const CUtensorMap *maps, struct err *err)
{
    int rc = 0;
    CU(err, cudaFuncSetAttribute((const void *)test_blocks_sm90<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(test_smem)));
    test_blocks_sm90<D><<<dim3((unsigned)(a.npad / TILE), (unsigned)a.heads), THREADS,
                          sizeof(test_smem), g->stream>>>(maps[0], maps[1], a);
    CU_LAUNCHED(err);
out:
    return rc;
}

int sale_test_sm90(struct gpu *g, const sale_args &a, int d, const CUtensorMap *maps,
                   struct err *err)
{
    return d == 128 ? launch<128>(g, a, maps, err) : launch<64>(g, a, maps, err);
}
