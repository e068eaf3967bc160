/*
 * sale_e4m3_sm90.cu - SALE's test of every pair on Hopper where float16 sums are exact: products of
 * e4m3 bytes, added in float16 to accumulators that begin with the corrections.
 *
 * Integers up to 7 are e4m3 numbers, and every partial sum is a whole number below 2^11 where the
 * largest norms of queries and keys and the largest correction say so (sums_are_exact): there the
 * test is that of sale_sm90.cu, which has the warps of the other rows.
 *
 * Tile: 320 queries x 128 keys, a warpgroup for the 64 queries of a block, which it has in
 * registers; one warp copies. A warpgroup has sums of two halves of the keys: while it compares
 * those of one half the tensor cores add up the other.
 */
#include "cuda/ldmatrix.cuh"
#include "cuda/methods/sale/sale_feed.cuh"
#include "cuda/methods/sale/sale_sm90.cuh"

#define STAGES 8
#define GROUPS 5 /* warpgroups */
#define QUERIES (GROUPS * BQ)
#define SECTION_BYTES (16 << 20) /* of keys that thread blocks of one time read: a part of L2 */
#define THREADS (GROUPS * 128 + 32)

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

    DEVICE void wait_for(const ring<STAGES> &k)
    {
        mbar_wait(smem_addr(&sm.full[k.at]), k.parity);
    }

    /* While the tensor cores work on one half, the sums of the other are compared and the next
     * corrections made. ptxas would do both behind the next wait for products: a branch in front of
     * it keeps them where they are. For the second half that is a wait for keys that are there. */
    DEVICE void test(ring<STAGES> &k, int n_tiles)
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
    DEVICE void leave_out(ring<STAGES> &k, int n)
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
static __global__ void __launch_bounds__(THREADS, 1)
    test_blocks_e4m3(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                     const __grid_constant__ sale_args a, const __grid_constant__ test_order o)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    e4m3_smem &sm = *(e4m3_smem *)raw;
    int warp = uniform(threadIdx.x >> 5);
    uint32_t parity = 0;
    ring<STAGES> k;

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
    int rc = 0, bytes = sizeof(e4m3_smem), section = heads_of_section(a), blocks = 0;
    test_order o = {section, (int)((a.npad + QUERIES - 1) / QUERIES), 0};
    o.items = (a.heads + section - 1) / section * section * o.tiles;
    blocks = o.items < g->sms ? o.items : g->sms;
    CU(err, cudaFuncSetAttribute((const void *)test_blocks_e4m3<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    test_blocks_e4m3<D><<<blocks, THREADS, bytes, g->stream>>>(maps[0], maps[1], a, o);
    CU_LAUNCHED(err);
out:
    return rc;
}

int sale_test_e4m3_sm90(struct gpu *g, const sale_args &a, int d, const CUtensorMap *maps,
                        struct err *err)
{
    return d == 128 ? launch<128>(g, a, maps, err) : launch<64>(g, a, maps, err);
}
