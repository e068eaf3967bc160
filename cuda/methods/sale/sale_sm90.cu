/*
 * sale_sm90.cu - SALE's tests of every pair on Hopper: products of e4m3 bytes, keys by TMA. A tile
 * of queries comes once, tiles of 128 keys through a ring; a warpgroup has the 64 queries of a
 * query block, one warp copies. An accumulator's place is that of m16n8k32 products, so a lane has
 * the eight scores of a (row, key group) by itself (sale_common.cuh).
 *
 * Where float16 sums are exact, products are added in float16 to accumulators that begin with the
 * corrections. Integers up to 7 are e4m3 numbers, and every partial sum is a whole number below
 * 2^11 where the largest norms of queries and keys and the largest correction say so
 * (sums_are_exact). Tile: 320 queries, which warpgroups have in registers. A warpgroup has sums of
 * two halves of the keys: while it compares those of one half the tensor cores add up the other.
 *
 * The warps of the other rows add in float, which is exact (at most 49 D, whole numbers below
 * 2^13). Tile: 128 queries. Two thread blocks on a multiprocessor: while one compares, the tensor
 * cores work for the other.
 */
#include "cuda/hop.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/methods/sale/sale_common.cuh"

#define TEST_STAGES 3
#define TEST_THREADS (256 + 32)
#define E4M3_STAGES 8
#define GROUPS 5 /* warpgroups */
#define QUERIES (GROUPS * BQ)
#define SECTION_BYTES (16 << 20) /* of keys that thread blocks of one time read: a part of L2 */
#define E4M3_THREADS (GROUPS * 128 + 32)

/* ---- feed ----------------------------------------------------------------------------------- */

/* ROWS queries, and keys in STAGES stages. */
template <int ROWS, int STAGES> struct sale_smem {
    alignas(1024) int8_t queries[ROWS * PITCH];
    alignas(1024) int8_t keys[STAGES][TILE * PITCH];
    alignas(16) key_side side[STAGES];
    uint64_t q_full, q_empty, full[STAGES], empty[STAGES];
};

/* By one thread, before all others wait: `warps` warps give a stage back, and the queries. */
template <int ROWS, int STAGES> DEVICE void feed_init(sale_smem<ROWS, STAGES> &sm, int warps)
{
    mbar_init(smem_addr(&sm.q_full), 1);
    mbar_init(smem_addr(&sm.q_empty), warps);
    for (int i = 0; i < STAGES; i++) {
        mbar_init(smem_addr(&sm.full[i]), 1);
        mbar_init(smem_addr(&sm.empty[i]), warps);
    }
    mbar_init_fence();
}

/* By one thread: a tile of queries and then the keys from `first` (0 or BK) on, tile by tile. maps
 * as for sale_test_sm90. */
template <int ROWS, int STAGES>
DEVICE void feed(sale_smem<ROWS, STAGES> &sm, ring<STAGES> &k, const sale_args &a,
                 const CUtensorMap *mq, const CUtensorMap *mk, int tile, int head, int n_tiles,
                 int first)
{
    int kv = head / a.per_kv;
    const __half *corr = a.corr + head * a.npad + first;
    const __half *scale = (first ? a.k_scale1 : a.k_scale) + kv * (a.npad / 8);

    mbar_expect(smem_addr(&sm.q_full), sizeof sm.queries);
    for (int i = 0; i < ROWS; i += BQ)
        tma_load(smem_addr(sm.queries + i * PITCH), mq, smem_addr(&sm.q_full), 0, tile * ROWS + i,
                 head, L2_EVICT_FIRST);
    for (int s = 0; s < n_tiles; s++) {
        uint32_t bar = smem_addr(&sm.full[k.at]);
        key_side *side = &sm.side[k.at];
        mbar_wait(smem_addr(&sm.empty[k.at]), k.parity ^ 1);
        mbar_expect(bar, sizeof sm.keys[0] + sizeof *side);
        tma_load(smem_addr(sm.keys[k.at]), mk, bar, 0, first + s * TILE, kv, L2_EVICT_LAST);
        bulk_load(smem_addr(side->corr), corr + s * TILE, sizeof side->corr, bar);
        bulk_load(smem_addr(side->scale), scale + s * (TILE / 8), sizeof side->scale, bar);
        k.next();
    }
}

/* ---- sums in float -------------------------------------------------------------------------- */

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

typedef sale_smem<TILE, TEST_STAGES> test_smem;

template <int D> struct test_consumer {
    const sale_args &a;
    test_smem &sm;
    row_side r;
    bool others; /* these rows are tested by test_blocks_e4m3 */
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
        ring<TEST_STAGES> k;
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
static __global__ void __launch_bounds__(TEST_THREADS, 2)
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
        ring<TEST_STAGES> k;
        if ((threadIdx.x & 31) == 0)
            feed(sm, k, a, &mq, &mk, tile, head, n_tiles, 0);
        return;
    }
    test_consumer<D> c = {a, sm, r, others, mid};
    c.run(n_tiles, a.map.map + (head * (int64_t)a.groups + m) * a.map.words);
#endif
}

/* ---- sums in float16 ------------------------------------------------------------------------ */

/* D[64][64] += A[64][32] B[64][32]^T of e4m3 bytes, D in pairs of float16, B in shared memory, A
 * in registers: four bytes of rows l / 4 and l / 4 + 8 of the warp from 4 (l % 4) on in a[0] and
 * a[1], and from 16 + 4 (l % 4) on in a[2] and a[3]. */
DEVICE void wgmma_e4m3(uint32_t (&d)[16], const uint32_t (&a)[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k32.f16.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, 1, 1, 1;\n"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),
                   "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]),
                   "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

typedef sale_smem<QUERIES, E4M3_STAGES> e4m3_smem;

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

DEVICE void shared_words(uint32_t at, uint32_t (&x)[4])
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at));
}

DEVICE uint32_t shared_word(uint32_t at)
{
    uint32_t x;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at));
    return x;
}

/* The value is there before what follows that the compiler must not move. */
DEVICE void pin(uint32_t &x)
{
    asm volatile("" : "+r"(x)::"memory");
}

/* Sums of a warp's 16 rows with 64 keys: pairs of keys, rows l / 4 and l / 4 + 8 in turn. */
typedef uint32_t half_sums[16];

template <int D> struct e4m3_consumer {
    e4m3_smem &sm;
    __half2 inverse, thr, scale; /* of the lane's two rows */
    bool votes;                  /* do the rows count here? */
    uint32_t *map;
    uint32_t corr, scales;    /* where those of the lane's keys lie in the first stage */
    uint32_t rows[D / 32][4]; /* its queries */

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    DEVICE void load_queries(uint32_t parity)
    {
        uint32_t at = smem_addr(sm.queries) + (threadIdx.x >> 5) * 16 * PITCH;
        int row = lane() & 15, half = lane() >> 4;
        mbar_wait(smem_addr(&sm.q_full), parity);
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            load_matrices(at + row * PITCH + ((2 * kk + half) ^ (row & 7)) * 16, rows[kk]);
        __syncwarp();
        warp_arrive(smem_addr(&sm.q_empty));
    }

    /* Corrections of the lane's keys in half HALF of a stage, as whole numbers. */
    template <int HALF> DEVICE void corrections(uint32_t (&add)[8], int stage)
    {
        const __half2 magic = __float2half2_rn(1536.0f);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            uint32_t c[4];
            shared_words(corr + stage * (int)sizeof(key_side) + 128 * HALF + 64 * b, c);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                __half2 x = __hmul2_rn(half2_of(c[i]), inverse);
                add[4 * b + i] = bits_of(__hsub2_rn(__hadd2_rn(x, magic), magic));
                pin(add[4 * b + i]);
            }
        }
    }

    /* Products of the half on top of them, which are under way on return, when those before are
     * complete. */
    template <int HALF> DEVICE void multiply(half_sums &dot, const uint32_t (&add)[8], int stage)
    {
        uint64_t keys = descriptor(desc_low(smem_addr(sm.keys[stage]) + HALF * 64 * PITCH, 16));
#pragma unroll
        for (int i = 0; i < 16; i++)
            dot[i] = add[i / 2];
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            wgmma_e4m3(dot, rows[kk], keys + 2 * kk);
        wgmma_commit();
    }

    static DEVICE void finish(half_sums &dot)
    {
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 16; i++)
            pin(dot[i]);
    }

    /* Which of the half's two key blocks the lane's rows keep: from bit 2 HALF on, the second row's
     * 16 bits higher. */
    template <int HALF> DEVICE uint32_t compare(const half_sums &dot, int stage)
    {
        const __half2 most = __float2half2_rn(65504.0f);
        uint32_t bits = 0;
        __half2 by = half2_of(shared_word(scales + stage * (int)sizeof(key_side) + 4 * HALF));
        by = __hmin2(__hmul2_rn(by, scale), most);
#pragma unroll
        for (int b = 0; b < 2; b++) {
            __half2 top[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                top[r] =
                    __hmax2(__hmax2(half2_of(dot[8 * b + r]), half2_of(dot[8 * b + 2 + r])),
                            __hmax2(half2_of(dot[8 * b + 4 + r]), half2_of(dot[8 * b + 6 + r])));
            __half2 best = __hmax2(__lows2half2(top[0], top[1]), __highs2half2(top[0], top[1]));
            __half2 value = __hmul2_rn(best, b ? __high2half2(by) : __low2half2(by));
            bits |= __hge2_mask(value, thr) & 0x10001u << (2 * HALF + b);
        }
        return bits;
    }

    /* Four bits of the warp's rows for tile s into a word of eight tiles, which goes to the map
     * with the last one. */
    DEVICE void keep(uint32_t &word, uint32_t bits, unsigned s, bool last)
    {
        bits = __reduce_or_sync(~0u, bits);
        word |= ((bits | bits >> 16) & 0xf) << 4 * (s % 8);
        if (s % 8 == 7 || last) {
            if (votes && word && lane() == 0) {
                atomicOr(map + s / 8, word << 1); /* tile 0 begins with block 1 */
                if (word >> 31)
                    atomicOr(map + s / 8 + 1, 1);
            }
            word = 0;
        }
    }

    DEVICE void wait_for(const ring<E4M3_STAGES> &k)
    {
        mbar_wait(smem_addr(&sm.full[k.at]), k.parity);
    }

    /* While the tensor cores work on one half, the sums of the other are compared and the next
     * corrections made. ptxas would do both behind the next wait for products: a branch in front of
     * it keeps them where they are. For the second half that is a wait for keys that are there. */
    DEVICE void test(ring<E4M3_STAGES> &k, int n_tiles)
    {
        half_sums first, second;
        uint32_t word = 0, add[8], half, bits = 0;
        wait_for(k);
        corrections<0>(add, k.at);
        multiply<0>(first, add, k.at);
#pragma unroll 1
        for (int s = 0; s + 1 < n_tiles; s++) {
            int at = k.at;
            corrections<1>(add, at);
            wait_for(k);
            finish(first);
            multiply<1>(second, add, at);
            k.next();
            wait_for(k);
            corrections<0>(add, k.at);
            half = compare<0>(first, at);
            pin(half);
            keep(word, bits, s - 1, false); /* of the tile before; none at first */
            finish(second);
            multiply<0>(first, add, k.at);
            bits = half | compare<1>(second, at);
            pin(bits);
            warp_arrive(smem_addr(&sm.empty[at]));
        }
        corrections<1>(add, k.at);
        finish(first);
        multiply<1>(second, add, k.at);
        keep(word, bits, n_tiles - 2, false);
        half = compare<0>(first, k.at);
        finish(second);
        bits = half | compare<1>(second, k.at);
        warp_arrive(smem_addr(&sm.empty[k.at]));
        k.next();
        keep(word, bits, n_tiles - 1, true);
    }

    /* Tiles of keys that other query blocks of the item test. */
    DEVICE void leave_out(ring<E4M3_STAGES> &k, int n)
    {
#pragma unroll 1
        for (; n > 0; n--) {
            wait_for(k);
            warp_arrive(smem_addr(&sm.empty[k.at]));
            k.next();
        }
    }
};

/* Tiles of keys that query block m tests, from block 1 on: the number of tested blocks is a
 * multiple of 4. */
DEVICE int tiles_of(const sale_args &a, int m)
{
    return m < a.groups ? regions_of(a, m).mid / 4 : 0;
}

/* The consumer of a warp of query block m. */
template <int D>
DEVICE e4m3_consumer<D> consumer_of(e4m3_smem &sm, const sale_args &a, int head, int m)
{
    int lane = threadIdx.x & 31;
    int64_t row = (int64_t)m * BQ + 16 * (threadIdx.x / 32 % 4) + (lane >> 2);
    row_side r = {0, 0, {INFINITY, INFINITY}, true};
    bool votes = tiles_of(a, m) > 0;
    if (votes) {
        r = row_side_of(a, head, row, true);
        votes = sums_are_exact(a, head, row, r);
        if (!votes)
            *a.inexact = 1;
    }
    return {sm,
            __float2half2_rn(r.inverse),
            __halves2half2(least_passing(r.thr[0], a.strict), least_passing(r.thr[1], a.strict)),
            __float2half2_rn(r.scale),
            votes,
            a.map.map + (head * (int64_t)a.groups + m) * a.map.words,
            smem_addr(sm.side[0].corr) + 16 * (lane & 3),
            smem_addr(sm.side[0].scale) + 8 * (lane & 3)};
}

/* Items of the whole launch. */
struct test_order {
    int section, tiles, items; /* heads of a section; tiles of QUERIES of a head; all */
};

/* What a thread block does at a time: QUERIES rows of a head against all keys that one of their
 * query blocks tests. */
struct test_item {
    int tile, head, n_tiles; /* tiles of keys; 0: nothing is tested */
};

/* Longest first within a section of heads, whose items alternate. */
DEVICE test_item item_of(const sale_args &a, const test_order &o, int i)
{
    int all = o.tiles * o.section, at = all - 1 - i % all;
    test_item t = {at / o.section, i / all * o.section + at % o.section, 0};
    int last = min(GROUPS * t.tile + GROUPS, a.groups) - 1;
    if (last >= GROUPS * t.tile && t.head < a.heads)
        t.n_tiles = tiles_of(a, last);
    return t;
}

/* A thread block per multiprocessor. Block b of n has the items b, 2 n - 1 - b, 2 n + b, ..., so
 * that all have as much to do. */
DEVICE int item_number(int round)
{
    int n = gridDim.x, b = blockIdx.x;
    return round * n + (round % 2 ? n - 1 - b : b);
}

template <int D>
static __global__ void __launch_bounds__(E4M3_THREADS, 1)
    test_blocks_e4m3(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                     const __grid_constant__ sale_args a, const __grid_constant__ test_order o)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    e4m3_smem &sm = *(e4m3_smem *)raw;
    int warp = uniform(threadIdx.x >> 5);
    uint32_t parity = 0;
    ring<E4M3_STAGES> k;

    if (threadIdx.x == 0)
        feed_init(sm, 4 * GROUPS);
    __syncthreads();
    if (warp == 4 * GROUPS && (threadIdx.x & 31) != 0)
        return;
#pragma unroll 1
    for (int round = 0; round * gridDim.x < o.items; round++) {
        int i = item_number(round);
        test_item t = i < o.items ? item_of(a, o, i) : test_item{0, 0, 0};
        if (t.n_tiles == 0)
            continue;
        if (warp < 4 * GROUPS) {
            int m = GROUPS * t.tile + warp / 4, mine = uniform(tiles_of(a, m));
            e4m3_consumer<D> c = consumer_of<D>(sm, a, t.head, m);
            c.load_queries(parity);
            if (mine > 0)
                c.test(k, mine);
            c.leave_out(k, t.n_tiles - mine);
        } else {
            mbar_wait(smem_addr(&sm.q_empty), parity ^ 1);
            feed(sm, k, a, &mq, &mk, t.tile, t.head, t.n_tiles, BK);
        }
        parity ^= 1;
    }
#endif
}

/* Heads whose items alternate: those of some key heads. */
static int heads_of_section(const sale_args &a)
{
    int64_t keys = SECTION_BYTES / (a.npad * PITCH);
    return (int)(keys < 1 ? 1 : keys < a.kv_heads ? keys : a.kv_heads) * a.per_kv;
}

template <int D>
static int launch(struct gpu *g, const sale_args &a, const CUtensorMap *maps, struct err *err)
{
    int rc = 0, section = heads_of_section(a);
    test_order o = {section, (int)ceil_div(a.npad, QUERIES), 0};
    o.items = (int)ceil_div(a.heads, section) * section * o.tiles;
    CU(err, run_kernel(g->stream, test_blocks_e4m3<D>, MIN(o.items, g->sms), E4M3_THREADS,
                       sizeof(e4m3_smem), maps[0], maps[1], a, o));
    CU(err, run_kernel(g->stream, test_blocks_sm90<D>, dim3(a.npad / TILE, a.heads), TEST_THREADS,
                       sizeof(test_smem), maps[0], maps[1], a));
out:
    return rc;
}

int sale_test_sm90(struct gpu *g, const sale_args &a, const CUtensorMap *maps, struct err *err)
{
    return a.d == 128 ? launch<128>(g, a, maps, err) : launch<64>(g, a, maps, err);
}
