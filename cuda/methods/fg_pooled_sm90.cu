/*
 * fg_pooled_sm90.cu - FG-Attn's mode=pooled on Hopper, by the rules that compare with a number: the
 * scores of a group's mean query are multiplied twice and stored never. One pass finds the
 * log-sum-exp of each group, the next compares scores with the group's number and stores bits.
 *
 * Tile: 128 groups x 128 keys. Two warpgroups have 64 groups each, one warp copies keys; the three
 * terms of the mean queries stay in shared memory. A thread block has a range of key tiles.
 */
#include "core/intmath.h"
#include "cuda/methods/fg_pooled.cuh"
#include "cuda/wgmma.cuh"

#include <math.h>

#define STAGES 3
#define THREADS (256 + 32)

template <int D> struct pooled_smem {
    alignas(1024) uint8_t q[3][FG_GROUPS * D * 2];
    alignas(1024) uint8_t k[STAGES][FG_KEYS * D * 2];
    uint64_t q_full, full[STAGES], empty[STAGES];
};

struct key_range {
    int first, last; /* tiles [first, last) */
};

/* Boxes of 64 channels of 128 rows. */
template <int D>
DEVICE void load_rows(uint32_t to, const CUtensorMap *map, uint32_t bar, int row, int head)
{
#pragma unroll
    for (int p = 0; p < D / 64; p++)
        tma_load(to + p * 128 * 128, map, bar, 64 * p, row, head, L2_EVICT_LAST);
}

template <int D>
DEVICE void produce(pooled_smem<D> &sm, const fg_args &a, const CUtensorMap *mq,
                    const CUtensorMap *mk, int g0, int head, key_range keys)
{
    ring<STAGES> k;
    mbar_expect(smem_addr(&sm.q_full), sizeof sm.q);
    for (int term = 0; term < 3; term++)
        load_rows<D>(smem_addr(sm.q[term]), mq, smem_addr(&sm.q_full), g0, term * a.heads + head);
    for (int t = keys.first; t < keys.last; t++) {
        uint32_t bar = smem_addr(&sm.full[k.at]);
        mbar_wait(smem_addr(&sm.empty[k.at]), k.parity ^ 1);
        mbar_expect(bar, sizeof sm.k[0]);
        load_rows<D>(smem_addr(sm.k[k.at]), mk, bar, t * FG_KEYS, head / a.per_kv);
        k.next();
    }
}

/* use(tile, products) for each tile; product 4 j + 2 h + e of a thread: its row h, key 8 j + 2
 * (lane % 4) + e. */
template <int D, class F> DEVICE void walk_keys(pooled_smem<D> &sm, key_range keys, F use)
{
    uint32_t half = threadIdx.x >> 7, q = smem_addr(sm.q[0]) + half * 64 * 128;
    float acc[64];
    ring<STAGES> k;
    mbar_wait(smem_addr(&sm.q_full), 0);
#pragma unroll 1
    for (int t = keys.first; t < keys.last; t++) {
        mbar_wait(smem_addr(&sm.full[k.at]), k.parity);
        wgmma_fence();
#pragma unroll
        for (int term = 2; term >= 0; term--) /* small terms first */
#pragma unroll
            for (int kk = 0; kk < D / 16; kk++) {
                uint32_t step = kk / 4 * (128 * 128) + kk % 4 * 32;
                wgmma_ss<128>(acc, descriptor(desc_low(q + term * sizeof sm.q[0] + step, 16)),
                              descriptor(desc_low(smem_addr(sm.k[k.at]) + step, 16)),
                              term < 2 || kk > 0);
            }
        wgmma_commit();
        wgmma_wait<0>();
        hold(acc);
        warp_arrive(smem_addr(&sm.empty[k.at]));
        k.next();
        use(t, acc);
    }
}

/* ---- log-sum-exps --------------------------------------------------------------------------- */

/* {largest, sum of 2^(score - largest)} of two parts of a group. */
DEVICE float2 join_parts(float2 x, float2 y)
{
    float most = fmaxf(x.x, y.x), base = most == -INFINITY ? 0 : most;
    return make_float2(most, x.y * exp2_fast(x.x - base) + y.y * exp2_fast(y.x - base));
}

/* The keys of a tile that group h of the thread has, as far as they count. */
DEVICE float2 add_keys(float2 part, const float (&acc)[64], int h, int limit, float scale)
{
    float most = -INFINITY, sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (8 * (i / 2) + i % 2 < limit)
            most = fmaxf(most, acc[4 * (i / 2) + 2 * h + i % 2]);
    most = fmaxf(part.x, scale * most);
    float base = most == -INFINITY ? 0 : most;
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (8 * (i / 2) + i % 2 < limit)
            sum += exp2_fast(fmaf(acc[4 * (i / 2) + 2 * h + i % 2], scale, -base));
    return make_float2(most, part.y * exp2_fast(part.x - base) + sum);
}

template <int D>
DEVICE void sum_groups(const fg_args &a, pooled_smem<D> &sm, int head, const int (&group)[2],
                       const int (&limit)[2], key_range keys)
{
    float2 part[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
    float scale = a.scale * 1.4426950408889634f;
    auto add = [&](int t, const float(&acc)[64]) {
        int from = t * FG_KEYS + 2 * (threadIdx.x & 3);
#pragma unroll
        for (int h = 0; h < 2; h++)
            part[h] = limit[h] >= (t + 1) * FG_KEYS
                          ? add_keys(part[h], acc, h, FG_KEYS, scale)
                          : add_keys(part[h], acc, h, limit[h] - from, scale);
    };
    walk_keys<D>(sm, keys, add);
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int step = 1; step < 4; step *= 2)
            part[h] = join_parts(part[h], make_float2(__shfl_xor_sync(~0u, part[h].x, step),
                                                      __shfl_xor_sync(~0u, part[h].y, step)));
        if ((threadIdx.x & 3) == 0 && group[h] < a.groups)
            a.part[(head * (int64_t)a.groups + group[h]) * a.ranges + blockIdx.x] = part[h];
    }
}

/* ---- bits ----------------------------------------------------------------------------------- */

/* From which score on a group keeps a key. */
DEVICE float cut_of(const fg_args &a, int head, int group, int limit)
{
    if (a.by != FG_CHOOSE_NORM)
        return a.at;
    if (group >= a.groups || limit <= 0)
        return INFINITY;
    int ranges = (limit + FG_KEYS * a.each - 1) / (FG_KEYS * a.each);
    const float2 *part = a.part + (head * (int64_t)a.groups + group) * a.ranges;
    float top = -INFINITY;
    double sum = 0;
    for (int r = 0; r < ranges; r++)
        top = fmaxf(top, part[r].x);
    for (int r = 0; r < ranges; r++)
        sum += (double)part[r].y * exp2f(part[r].x - top);
    return (float)(log(sum * (double)a.at) + (double)top * 0.6931471805599453);
}

/* Bits [from, to) of the word that begins with key `key`. */
DEVICE uint32_t bits_between(int key, int from, int to)
{
    int lo = max(from - key, 0), hi = min(to - key, 32);
    return lo < hi ? (~0u >> (32 - (hi - lo))) << lo : 0;
}

template <int D>
DEVICE void choose_groups(const fg_args &a, pooled_smem<D> &sm, int head, const int (&group)[2],
                          const int (&limit)[2], const int (&forced)[2], key_range keys)
{
    int quad = threadIdx.x & 3, kept[2] = {0}, text0 = (int)a.text0, text1 = (int)a.text1;
    float cut[2] = {cut_of(a, head, group[0], limit[0]), cut_of(a, head, group[1], limit[1])};
    auto compare = [&](int t, const float(&acc)[64]) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t mine = 0; /* a word of 32 keys for each lane of the quad */
#pragma unroll
            for (int w = 0; w < 4; w++) {
                uint32_t word = 0;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    word |= acc[16 * w + 4 * (i / 2) + 2 * h + i % 2] * a.scale >= cut[h]
                                ? 1u << (8 * (i / 2) + i % 2)
                                : 0;
                word <<= 2 * quad;
                word |= __shfl_xor_sync(~0u, word, 1);
                word |= __shfl_xor_sync(~0u, word, 2);
                mine = w == quad ? word : mine;
            }
            int key = t * FG_KEYS + 32 * quad;
            mine |= bits_between(key, forced[h], (int)a.nk) | bits_between(key, text0, text1);
            mine &= bits_between(key, 0, limit[h]);
            kept[h] += __popc(mine);
            if (group[h] < a.groups && key < a.nk)
                a.map[(head * (int64_t)a.groups + group[h]) * a.words + key / 32] = mine;
        }
    };
    walk_keys<D>(sm, keys, compare);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        kept[h] += __shfl_xor_sync(~0u, kept[h], 1);
        kept[h] += __shfl_xor_sync(~0u, kept[h], 2);
        if (quad == 0 && kept[h])
            atomicAdd(a.count + head * (int64_t)a.groups + group[h], kept[h]);
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

/* Grid (ranges, tiles of groups from the end, heads). */
template <int D, bool CHOOSE>
static __global__ void __launch_bounds__(THREADS, 1)
    pooled_pass(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                const __grid_constant__ fg_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    pooled_smem<D> &sm = *(pooled_smem<D> *)raw;
    int g0 = (int)(gridDim.y - 1 - blockIdx.y) * FG_GROUPS, head = blockIdx.z;
    int warp = uniform(threadIdx.x >> 5), most, unused;
    group_bounds(a, min(g0 + FG_GROUPS, a.groups) - 1, &most, &unused);
    key_range keys = {(int)blockIdx.x * a.each, 0};
    keys.last = min(keys.first + a.each, (most + FG_KEYS - 1) / FG_KEYS);
    if (keys.first >= keys.last)
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
            produce<D>(sm, a, &mq, &mk, g0, head, keys);
        return;
    }
    int group[2], limit[2] = {0}, forced[2] = {0};
#pragma unroll
    for (int h = 0; h < 2; h++) {
        group[h] = g0 + 16 * warp + (int)(threadIdx.x & 31) / 4 + 8 * h;
        if (group[h] < a.groups)
            group_bounds(a, group[h], &limit[h], &forced[h]);
    }
    if (CHOOSE)
        choose_groups<D>(a, sm, head, group, limit, forced, keys);
    else
        sum_groups<D>(a, sm, head, group, limit, keys);
#endif
}

template <int D, bool CHOOSE>
static int launch(struct gpu *g, const fg_args &a, const CUtensorMap *maps, struct err *err)
{
    int rc = 0, bytes = sizeof(pooled_smem<D>);
    dim3 grid((unsigned)a.ranges, (unsigned)ceil_div(a.groups, FG_GROUPS), (unsigned)a.heads);
    CU(err, cudaFuncSetAttribute((const void *)pooled_pass<D, CHOOSE>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    pooled_pass<D, CHOOSE><<<grid, THREADS, bytes, g->stream>>>(maps[0], maps[1], a);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int D>
static int launch_passes(struct gpu *g, const fg_args &a, const CUtensorMap *maps, struct err *err)
{
    int64_t rows = (int64_t)a.heads * a.groups;
    int rc = 0;
    if (a.by == FG_CHOOSE_NORM)
        TRY((launch<D, false>(g, a, maps, err)));
    TRY(gpu_zero(g, a.map, rows * a.words * 4, err));
    TRY(gpu_zero(g, a.count, rows * 4, err));
    TRY((launch<D, true>(g, a, maps, err)));
out:
    return rc;
}

int fg_pooled_sm90(struct gpu *g, const fg_args &a, int d, const CUtensorMap *maps, struct err *err)
{
    return d == 128 ? launch_passes<128>(g, a, maps, err) : launch_passes<64>(g, a, maps, err);
}
