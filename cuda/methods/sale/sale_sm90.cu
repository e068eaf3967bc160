/*
 * sale_sm90.cu - SALE's test of every pair on Hopper: int8 products by wgmma, keys by TMA.
 *
 * Tile: 128 queries x 128 keys. A warpgroup has the 64 queries of a query block, one warp copies.
 * An accumulator's place is that of m16n8k32 products, so a lane has the eight scores of a (row,
 * key group) by itself (sale_pairs.cuh). Two thread blocks on a multiprocessor: while one compares,
 * the tensor cores work for the other.
 */
#include "cuda/hop.cuh"
#include "cuda/methods/sale/sale_pairs.cuh"
#include "cuda/methods/sale/sale_sm90.cuh"

#define STAGES 3
#define THREADS (256 + 32)

/* D[64][128] (+)= A[64][32] B[128][32]^T of bytes, both in shared memory. */
DEVICE void wgmma_bytes(int (&d)[64], uint64_t a, uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
                 "}, %64, %65, p;\n}"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),
                   "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]),
                   "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]), "+r"(d[17]),
                   "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
                   "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]),
                   "+r"(d[30]), "+r"(d[31]), "+r"(d[32]), "+r"(d[33]), "+r"(d[34]), "+r"(d[35]),
                   "+r"(d[36]), "+r"(d[37]), "+r"(d[38]), "+r"(d[39]), "+r"(d[40]), "+r"(d[41]),
                   "+r"(d[42]), "+r"(d[43]), "+r"(d[44]), "+r"(d[45]), "+r"(d[46]), "+r"(d[47]),
                   "+r"(d[48]), "+r"(d[49]), "+r"(d[50]), "+r"(d[51]), "+r"(d[52]), "+r"(d[53]),
                   "+r"(d[54]), "+r"(d[55]), "+r"(d[56]), "+r"(d[57]), "+r"(d[58]), "+r"(d[59]),
                   "+r"(d[60]), "+r"(d[61]), "+r"(d[62]), "+r"(d[63])
                 : "l"(a), "l"(b), "r"(add));
}

struct stage_smem {
    alignas(1024) int8_t keys[TILE * PITCH];
};

struct test_smem {
    alignas(1024) int8_t queries[TILE * PITCH];
    stage_smem stage[STAGES];
    alignas(16) key_side side[STAGES];
    uint64_t q_full, full[STAGES], empty[STAGES];
};

/* One thread copies the queries once and then the keys, tile by tile. */
DEVICE void produce(test_smem &sm, const sale_args &a, const CUtensorMap *mq, const CUtensorMap *mk,
                    int tile, int head, int n_tiles)
{
    int kv = head / a.per_kv;
    const __half *corr = a.corr + head * a.npad;
    const float *scale = a.k_scale + kv * (a.npad / 8);
    ring<STAGES> k;

    mbar_expect(smem_addr(&sm.q_full), sizeof sm.queries);
    tma_load(smem_addr(sm.queries), mq, smem_addr(&sm.q_full), 0, tile * TILE, head,
             L2_EVICT_FIRST);
    for (int s = 0; s < n_tiles; s++) {
        uint32_t bar = smem_addr(&sm.full[k.at]);
        key_side *side = &sm.side[k.at];
        mbar_wait(smem_addr(&sm.empty[k.at]), k.parity ^ 1);
        mbar_expect(bar, sizeof sm.stage[0].keys + sizeof *side);
        tma_load(smem_addr(sm.stage[k.at].keys), mk, bar, 0, s * TILE, kv, L2_EVICT_LAST);
        bulk_load(smem_addr(side->corr), corr + s * TILE, sizeof side->corr, bar);
        bulk_load(smem_addr(side->scale), scale + s * (TILE / 8), sizeof side->scale, bar);
        k.next();
    }
}

template <int D> struct test_consumer {
    const sale_args &a;
    test_smem &sm;
    row_side r;
    row_bounds bounds;
    bool rare; /* an all-zero query group, or corrections near the end of fp16's range */
    int mid;   /* last key block that the warp tests */

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    DEVICE void multiply(int (&dot)[64], uint64_t q, uint64_t k)
    {
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            wgmma_bytes(dot, q + 2 * kk, k + 2 * kk, kk > 0);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 64; i++)
            asm volatile("" : "+r"(dot[i])::"memory");
    }

    DEVICE bool keeps(const int (&best)[2], const __half *corr, float k_scale)
    {
        bool keep = decide(a, best, k_scale, r);
        return r.flat ? test_flat(a, corr, k_scale, r) : keep;
    }

    /* Does the warp keep a 32-key block? Two products tell in most cases. */
    DEVICE bool keeps_block(const int (&part)[4][4], const __half *corr, float k_scale)
    {
        int best[2];
        if (rare) {
            best_pairs<true>(part, corr, r, best);
            return __any_sync(~0u, keeps(best, corr, k_scale));
        }
        best_pairs<false>(part, corr, r, best);
        float scale = fminf(__fmul_rn(r.scale, k_scale), 65504.0f);
        float x = __fmul_rn(__int_as_float(best[0]) - MAGIC, scale);
        float y = __fmul_rn(__int_as_float(best[1]) - MAGIC, scale);
        if (!__any_sync(~0u, x >= bounds.low[0] || y >= bounds.low[1]))
            return false;
        if (__any_sync(~0u, x > bounds.high[0] || y > bounds.high[1]))
            return true;
        return __any_sync(~0u, decide(a, best, k_scale, r));
    }

    /* Which of the four key blocks of tile s the warp's 16 rows keep. */
    DEVICE uint32_t kept_blocks(const int (&dot)[64], const key_side &side, int s)
    {
        uint32_t bits = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            int part[4][4], j = 4 * s + b;
#pragma unroll
            for (int i = 0; i < 16; i++)
                part[i / 4][i % 4] = dot[16 * b + i];
            bool keep = keeps_block(part, side.corr + 32 * b + 2 * (lane() & 3),
                                    side.scale[4 * b + (lane() & 3)]);
            bits |= keep && j >= 1 && j <= mid ? 1u << b : 0;
        }
        return bits;
    }

    DEVICE void run(int n_tiles, uint32_t *map)
    {
        uint32_t half = threadIdx.x >> 7;
        uint64_t q = descriptor(desc_low(smem_addr(sm.queries) + half * 64 * PITCH, 16));
        ring<STAGES> k;
        int dot[64];
        mbar_wait(smem_addr(&sm.q_full), 0);
#pragma unroll 1
        for (int s = 0; s < n_tiles; s++) {
            mbar_wait(smem_addr(&sm.full[k.at]), k.parity);
            if (4 * s <= mid) { /* alike in the warpgroup */
                multiply(dot, q, descriptor(desc_low(smem_addr(sm.stage[k.at].keys), 16)));
                uint32_t bits = kept_blocks(dot, sm.side[k.at], s);
                if (bits && lane() == 0)
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

    if (n_tiles == 0)
        return;
    if (threadIdx.x == 0) {
        mbar_init(smem_addr(&sm.q_full), 1);
        for (int i = 0; i < STAGES; i++) {
            mbar_init(smem_addr(&sm.full[i]), 1);
            mbar_init(smem_addr(&sm.empty[i]), 8);
        }
        mbar_init_fence();
    }
    __syncthreads();
    if (warp == 8) {
        if ((threadIdx.x & 31) == 0)
            produce(sm, a, &mq, &mk, tile, head, n_tiles);
        return;
    }
    int64_t row = tile * (int64_t)TILE + 16 * warp + ((threadIdx.x & 31) >> 2);
    int mid = m < a.groups ? regions_of(a, m).mid : 0;
    row_side r = row_side_of(a, head, row, mid > 0);
    bool rare = __any_sync(~0u, r.flat || __uint_as_float(a.corr_max[head]) * r.inverse > 58000.0f);
    test_consumer<D> c = {a, sm, r, bounds_of(r), rare, mid};
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
