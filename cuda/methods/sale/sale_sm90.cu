/*
 * sale_sm90.cu - SALE's tests of every pair on Hopper: products of e4m3 bytes, keys by TMA. A tile
 * of queries comes once and is kept in registers, tiles of 128 keys go through a ring; a warpgroup
 * has the 64 queries of a query block, one warp copies. An accumulator's place is that of m16n8k32
 * products, so a lane has the eight scores of a (row, key group) by itself (sale_common.cuh).
 *
 * Where float16 sums are exact, products are added in float16 to accumulators that begin with the
 * corrections. Integers up to 7 are e4m3 numbers, and every partial sum is a whole number below
 * 2^11 where the largest norms of queries and keys and the largest correction say so
 * (sums_are_exact). Warpgroups with other rows add in float, which is exact (at most 49 D, whole
 * numbers below 2^13).
 *
 * Issue slots are the limit of 64 channels, so that nothing is written twice and no address is
 * computed for a tile: tiles of keys have stages of their own, four by four. Nothing branches on
 * what is found: the four warps of a warpgroup multiply together, and wait for the slowest.
 */
#include "cuda/hop.cuh"
#include "cuda/ldmatrix.cuh"
#include "cuda/methods/sale/sale_common.cuh"

#define STAGES 8                 /* two times the tiles that are tested without a loop */
#define SECTION_BYTES (16 << 20) /* of keys that thread blocks of one time read: a part of L2 */

#define GROUPS 6 /* warpgroups that test */
#define QUERIES (GROUPS * BQ)
#define THREADS (128 * (GROUPS + 1))

/* Registers of a thread: at the launch, and moved from the warpgroup that copies to the others. */
#define REGS (65536 / THREADS / 8 * 8)
#define REGS_FEED 24
#define REGS_TEST ((REGS * (GROUPS + 1) - REGS_FEED) / GROUPS / 8 * 8)

/* ---- feed ----------------------------------------------------------------------------------- */

template <int D> struct sale_smem {
    alignas(1024) int8_t queries[QUERIES * D];
    alignas(1024) int8_t keys[STAGES][TILE * D];
    alignas(16) key_side side[STAGES];
    uint64_t q_full, q_empty, full[STAGES], empty[STAGES];
};

/* By one thread, before all others wait. */
template <int D> DEVICE void feed_init(sale_smem<D> &sm)
{
    mbar_init(smem_addr(&sm.q_full), 1);
    mbar_init(smem_addr(&sm.q_empty), 4 * GROUPS);
    for (int i = 0; i < STAGES; i++) {
        mbar_init(smem_addr(&sm.full[i]), 1);
        mbar_init(smem_addr(&sm.empty[i]), 4 * GROUPS);
    }
    mbar_init_fence();
}

/* Tile s of an item is in stage s % STAGES. Bit i: the parity of the first of them in stage i. */
DEVICE uint32_t parity_of(uint32_t parities, int s)
{
    return (parities >> s % STAGES ^ s / STAGES) & 1;
}

/* Those of the next item, after one of n tiles. */
DEVICE uint32_t parities_after(uint32_t parities, int n)
{
    uint32_t last = (1u << n % STAGES) - 1;
    return parities ^ (n / STAGES % 2 ? ~last : last);
}

/* By one thread: a tile of queries and then the keys from the second block on, tile by tile. maps
 * as for sale_test_sm90. */
template <int D>
DEVICE void feed(sale_smem<D> &sm, uint32_t parities, const sale_args &a, const CUtensorMap *mq,
                 const CUtensorMap *mk, int tile, int head, int n_tiles)
{
    int kv = head / a.per_kv;
    const __half *corr = a.corr + head * a.npad + BK, *scale = a.k_scale + kv * (a.npad / 8);

    mbar_expect(smem_addr(&sm.q_full), sizeof sm.queries);
    for (int i = 0; i < QUERIES; i += BQ)
        tma_load(smem_addr(sm.queries + i * D), mq, smem_addr(&sm.q_full), 0, tile * QUERIES + i,
                 head, L2_EVICT_FIRST);
    for (int s = 0; s < n_tiles; s++) {
        int at = s % STAGES;
        uint32_t bar = smem_addr(&sm.full[at]);
        key_side *side = &sm.side[at];
        mbar_wait(smem_addr(&sm.empty[at]), parity_of(parities, s) ^ 1);
        mbar_expect(bar, sizeof sm.keys[0] + sizeof *side);
        tma_load(smem_addr(sm.keys[at]), mk, bar, 0, BK + s * TILE, kv, L2_EVICT_LAST);
        bulk_load(smem_addr(side->corr), corr + s * TILE, sizeof side->corr, bar);
        bulk_load(smem_addr(side->scale), scale + s * (TILE / 8), sizeof side->scale, bar);
    }
}

/* Where chunk c of 16 bytes of a row lies in a tile, as TMA swizzles it. */
template <int D> DEVICE uint32_t chunk_place(int row, int c)
{
    return row * D + ((c ^ (D == 128 ? row & 7 : row >> 1 & 3)) << 4);
}

/* ---- words ---------------------------------------------------------------------------------- */

DEVICE __half2 half2_of(uint32_t bits)
{
    return *(__half2 *)&bits;
}

DEVICE uint32_t bits_of(__half2 x)
{
    return *(uint32_t *)&x;
}

DEVICE void shared_words(uint32_t at, uint32_t (&x)[4])
{
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at));
}

DEVICE void shared_words(uint32_t at, uint32_t (&x)[2])
{
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x[0]), "=r"(x[1]) : "r"(at));
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

/* ---- products ------------------------------------------------------------------------------- */

/* Sums of a warp's 16 rows with 128 keys: pairs of keys, rows l / 4 and l / 4 + 8 in turn. */
typedef uint32_t half_sums[32];

/* D[64][128] += A[64][32] B[128][32]^T of e4m3 bytes, D in pairs of float16, B in shared memory, A
 * in registers: four bytes of rows l / 4 and l / 4 + 8 of the warp from 4 (l % 4) on in a[0] and
 * a[1], and from 16 + 4 (l % 4) on in a[2] and a[3]. */
DEVICE void wgmma_e4m3(half_sums &d, const uint32_t (&a)[4], uint64_t b)
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

/* D[64][32] (+)= A[64][32] B[32][32]^T, D in float: by strip of 8 keys. */
DEVICE void wgmma_e4m3(float (&d)[4][4], const uint32_t (&a)[4], uint64_t b, int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
                 "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}"
                 : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]),
                   "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]),
                   "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]),
                   "+f"(d[3][3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

/* Is `mine` true in all threads of the warpgroup? */
DEVICE bool all_of_group(bool mine, int group)
{
    int all;
    asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\n"
                 "barrier.cta.red.and.pred q, %2, 128, p;\nselp.b32 %0, 1, 0, q;\n}"
                 : "=r"(all)
                 : "r"((int)mine), "r"(1 + group)
                 : "memory");
    return all;
}

/* ---- consumers ------------------------------------------------------------------------------ */

template <int D> struct test_consumer {
    const sale_args &a;
    sale_smem<D> &sm;
    row_side r;
    uint32_t *map;
    uint32_t rows[D / 32][4]; /* its queries */

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    DEVICE void load_queries(uint32_t parity)
    {
        uint32_t at = smem_addr(sm.queries);
        int mine = (threadIdx.x >> 5) * 16 + (lane() & 15);
        mbar_wait(smem_addr(&sm.q_full), parity);
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            load_matrices(at + chunk_place<D>(mine, 2 * kk + (lane() >> 4)), rows[kk]);
        __syncwarp();
        warp_arrive(smem_addr(&sm.q_empty));
    }

    /* Low word of the descriptor of the keys in the first stage. */
    DEVICE uint32_t first_keys() const
    {
        return uniform(desc_low(smem_addr(sm.keys[0]), 16));
    }

    /* Of 32 x `blocks` rows further on. */
    static DEVICE uint64_t keys_at(uint32_t first, int blocks)
    {
        uint32_t low = first + blocks * (BK * D >> 4);
        return D == 128 ? descriptor(low) : descriptor64(low);
    }

    /* Bits of 16 blocks from number 1 + 4 s on to the map. */
    DEVICE void put(uint32_t bits, int s) const
    {
        uint32_t kept = __reduce_or_sync(~0u, bits), w = s / 8;
        kept = (kept | kept >> 16) & 0xffff;
        if (kept && lane() == 0) {
            atomicOr(map + w, kept << (1 + 4 * s % 32));
            if (s % 8 && kept >> 15)
                atomicOr(map + w + 1, 1);
        }
    }

    /* ---- sums in float16 ---- */

    /* The same bits, by the pipe that has nothing else to do: float16 is added, and registers are
     * moved, by another. As floats they are no NaN. */
    static DEVICE uint32_t copied(uint32_t bits, float minus_zero)
    {
        return __float_as_uint(__fadd_rn(__uint_as_float(bits), minus_zero));
    }

    /* What does not change from tile to tile. */
    struct constants {
        __half2 inverse, thr, scale;
        uint32_t corr, scales; /* where those of the lane's keys lie in the first stage */
        uint32_t keys;
        float minus_zero; /* ptxas does not know it */
    };

    DEVICE constants constants_of() const
    {
        return {
            __float2half2_rn(r.inverse),
            __halves2half2(least_passing(r.thr[0], a.strict), least_passing(r.thr[1], a.strict)),
            __float2half2_rn(r.scale),
            smem_addr(sm.side[0].corr + 8 * (lane() & 3)),
            smem_addr(sm.side[0].scale + 4 * (lane() & 3)),
            first_keys()};
    }

    /* Corrections of the stage's keys as whole numbers, and the products on top of them. by: the
     * products of the lane's scales, of two key blocks each. */
    DEVICE void multiply(half_sums &dot, __half2 (&by)[2], const constants &x, int stage) const
    {
        const __half2 magic = __float2half2_rn(1536.0f), most = __float2half2_rn(65504.0f);
        uint32_t two[2];
        shared_words(x.scales + stage * (int)sizeof(key_side), two);
#pragma unroll
        for (int b = 0; b < 4; b++) {
            uint32_t c[4];
            shared_words(x.corr + stage * (int)sizeof(key_side) + 64 * b, c);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                __half2 y = __hadd2_rn(__hmul2_rn(half2_of(c[i]), x.inverse), magic);
                dot[8 * b + 2 * i] = bits_of(__hsub2_rn(y, magic));
                dot[8 * b + 2 * i + 1] = copied(dot[8 * b + 2 * i], x.minus_zero);
            }
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            by[i] = __hmin2(__hmul2_rn(half2_of(two[i]), x.scale), most);
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < D / 32; kk++)
            wgmma_e4m3(dot, rows[kk], keys_at(x.keys, 4 * stage) + 2 * kk);
        wgmma_commit();
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 32; i++)
            asm volatile("" : "+r"(dot[i])::"memory");
    }

    /* Which of the four key blocks the lane's rows keep: from bit `first` on, the second row's 16
     * bits higher. */
    static DEVICE uint32_t compare(const half_sums &dot, const __half2 (&by)[2], __half2 thr,
                                   int first)
    {
        uint32_t bits = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            __half2 top[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t *y = dot + 8 * b + i;
                top[i] = __hmax2(__hmax2(half2_of(y[0]), half2_of(y[2])),
                                 __hmax2(half2_of(y[4]), half2_of(y[6])));
            }
            __half2 best = __hmax2(__lows2half2(top[0], top[1]), __highs2half2(top[0], top[1]));
            __half2 value =
                __hmul2_rn(best, b % 2 ? __high2half2(by[b / 2]) : __low2half2(by[b / 2]));
            bits |= __hge2_mask(value, thr) & 0x10001u << (first + b);
        }
        return bits;
    }

    DEVICE void test_half(uint32_t parities, int n) const
    {
        const constants x = constants_of();
        const uint32_t full = uniform(smem_addr(sm.full)), empty = uniform(smem_addr(sm.empty));
#pragma unroll 1
        for (int s = 0; s < n; s += 4) {
            uint32_t bits = 0, at = s % STAGES;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                half_sums dot;
                __half2 by[2];
                if (s + i >= n)
                    break;
                mbar_wait(full + 8 * (at + i), parity_of(parities, s + i));
                multiply(dot, by, x, at + i);
                bits |= compare(dot, by, x.thr, 4 * i);
                warp_arrive(empty + 8 * (at + i));
            }
            put(bits, s);
        }
    }

    /* ---- sums in float ---- */

    DEVICE void test_float(uint32_t parities, int n) const
    {
        const uint32_t first = first_keys();
        uint32_t bits = 0;
#pragma unroll 1
        for (int j = 0; j < 4 * n; j++) { /* block j + 1 */
            int s = j / 4, at = s % STAGES, b = j % 4;
            const __half *corr = sm.side[at].corr + 32 * b + 8 * (lane() & 3);
            float dot[4][4];
            mbar_wait(smem_addr(&sm.full[at]), parity_of(parities, s));
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < D / 32; kk++)
                wgmma_e4m3(dot, rows[kk], keys_at(first, 4 * at + b) + 2 * kk, kk > 0);
            wgmma_commit();
            wgmma_wait<0>();
#pragma unroll
            for (int i = 0; i < 16; i++)
                asm volatile("" : "+f"(dot[i / 4][i % 4])::"memory");
            float k_scale = __half2float(sm.side[at].scale[4 * (lane() & 3) + b]);
            bool keep = r.flat ? test_flat(a, corr, k_scale, r)
                               : test_pairs<true>(a, dot, corr, k_scale, r);
            bits |= (uint32_t)keep << j % 16;
            __syncwarp();
            if (b == 3)
                warp_arrive(smem_addr(&sm.empty[at]));
            if (j % 16 == 15 || j == 4 * n - 1) {
                put(bits, s / 4 * 4);
                bits = 0;
            }
        }
    }

    /* Tiles [from, to) of keys, which other query blocks of the item test. */
    DEVICE void leave_out(uint32_t parities, int from, int to)
    {
#pragma unroll 1
        for (int s = from; s < to; s++) {
            mbar_wait(smem_addr(&sm.full[s % STAGES]), parity_of(parities, s));
            warp_arrive(smem_addr(&sm.empty[s % STAGES]));
        }
    }
};

/* ---- items ---------------------------------------------------------------------------------- */

/* Tiles of keys that query block m tests, from block 1 on: the number of tested blocks is a
 * multiple of 4. */
DEVICE int tiles_of(const sale_args &a, int m)
{
    return m < a.groups ? regions_of(a, m).mid / 4 : 0;
}

/* Items of the whole launch. */
struct test_order {
    int section, tiles, items; /* heads of a section; tiles of queries of a head; all */
};

/* What a thread block does at a time: a tile of queries of a head against all keys that one of
 * their query blocks tests. */
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
 * that all have as much to do. The next one from `round` on; false: there is none. */
DEVICE bool next_item(const sale_args &a, const test_order &o, int &round, test_item &t)
{
    int n = gridDim.x, b = blockIdx.x;
    for (; round * n < o.items; round++) {
        int i = round * n + (round % 2 ? n - 1 - b : b);
        t = i < o.items ? item_of(a, o, i) : test_item{0, 0, 0};
        if (t.n_tiles > 0)
            return true;
    }
    return false;
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 1)
    test_blocks_sm90(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                     const __grid_constant__ sale_args a, const __grid_constant__ test_order o)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    sale_smem<D> &sm = *(sale_smem<D> *)raw;
    int warp = uniform(threadIdx.x >> 5);
    uint32_t parity = 0, parities = 0;
    test_item t;

    if (threadIdx.x == 0)
        feed_init(sm);
    __syncthreads();
    if (warp < 4 * GROUPS) {
        regs_inc<REGS_TEST>();
#pragma unroll 1
        for (int round = 0; next_item(a, o, round, t); round++, parity ^= 1) {
            int m = GROUPS * t.tile + warp / 4, mine = uniform(tiles_of(a, m));
            int64_t row = (int64_t)m * BQ + 16 * (warp % 4) + ((threadIdx.x & 31) >> 2);
            test_consumer<D> c = {a, sm};
            c.map = a.map.map + (t.head * (int64_t)a.groups + m) * a.map.words;
            c.load_queries(parity);
            if (mine > 0) {
                c.r = row_side_of(a, t.head, row, true);
                if (all_of_group(sums_are_exact(a, t.head, row, c.r), warp / 4))
                    c.test_half(parities, mine);
                else
                    c.test_float(parities, mine);
            }
            c.leave_out(parities, mine, t.n_tiles);
            parities = parities_after(parities, t.n_tiles);
        }
    } else {
        regs_dec<REGS_FEED>();
#pragma unroll 1
        for (int round = 0; threadIdx.x == 128 * GROUPS && next_item(a, o, round, t);
             round++, parity ^= 1) {
            mbar_wait(smem_addr(&sm.q_empty), parity ^ 1);
            feed(sm, parities, a, &mq, &mk, t.tile, t.head, t.n_tiles);
            parities = parities_after(parities, t.n_tiles);
        }
    }
#endif
}

/* Heads whose items alternate: those of some key heads. */
static int heads_of_section(const sale_args &a)
{
    int64_t keys = SECTION_BYTES / (a.npad * a.d);
    return (int)(keys < 1 ? 1 : keys < a.kv_heads ? keys : a.kv_heads) * a.per_kv;
}

template <int D>
static int launch(struct gpu *g, const sale_args &a, const CUtensorMap *maps, struct err *err)
{
    int section = heads_of_section(a);
    test_order o = {section, (int)ceil_div(a.npad, QUERIES), 0};
    o.items = (int)ceil_div(a.heads, section) * section * o.tiles;
    return CU_STATUS(err, run_kernel(g->stream, test_blocks_sm90<D>, MIN(o.items, g->sms), THREADS,
                                     sizeof(sale_smem<D>), maps[0], maps[1], a, o));
}

int sale_test_sm90(struct gpu *g, const sale_args &a, const CUtensorMap *maps, struct err *err)
{
    return a.d == 128 ? launch<128>(g, a, maps, err) : launch<64>(g, a, maps, err);
}
