/*
 * metrics_sm90.cuh - one pass over the exact probabilities of a head, reduced as they are made, for
 * Hopper. The CPU's are map_below_run (sim/basemap.h), pool_map (core/poolmap.h), attn_rows.
 *
 * Tile: 256 queries x 128 keys; each of two consumer warpgroups takes 128 rows, so that every block
 *   and slice lies inside a warpgroup, and the keys are read once for both. Scores are 128
 * registers per thread, in an upper and a lower half of 64 rows: the products of one half run under
 * the exponentials and reductions of the other, also from tile to tile. p = 2^(s c - b): b is the
 * row's base-2 LSE rounded to fp32, and `norm.y`, 2^(b - LSE), corrects row sums for the rounding.
 * Thresholds see p without that factor, which is within 6e-8 |LSE| of 1: less than what fp32 scores
 * of that size are known to. Reductions: row sums in the thread and its quad. Column maxima: a
 * thread's two rows, then the 8 rows of lanes with a transposing butterfly (28 shuffles for 64
 * scores), so that a warp ends with the maxima of its strip of 16 rows; strips meet in shared
 * memory, where each thread takes a column through slices of 16 to 128 rows, and each warp 32
 * columns through blocks. Counts are integers and row sums are added in a fixed order: a result has
 * the same bits on every launch.
 */
#ifndef LACUNA_METRICS_SM90_CUH
#define LACUNA_METRICS_SM90_CUH

#include "cuda/metrics.h"
#include "cuda/wgmma.cuh"

struct metrics_counts { /* of whole units; of units on the diagonal or an edge, and their pairs */
    unsigned long long whole[ACCEL_UNITS][METRICS_C];
    unsigned long long part[ACCEL_UNITS][METRICS_C], part_pairs[ACCEL_UNITS][METRICS_C];
    unsigned p_max; /* bits of a float */
};

struct metrics_args {
    const int4 *items;
    const uint32_t *tiles; /* NULL: see struct metrics_plan */
    unsigned *ticket;      /* 0 before a launch, 0 again after it */
    const float2 *norm;
    float2 *parts;
    metrics_counts *counts;
    float *cell_sum, *cell_max;
    int n_items, nq, nk, causal, offset, cells; /* cells: per row of the maps */
    float scale_log2;
    float below[METRICS_C]; /* c / N */
};

enum { B16, B32, B64, B128, S16, S64, S128 };

template <int D_, int NC_> struct metrics_shape {
    static constexpr int D = D_, NC = NC_, WG = 2, BM = METRICS_BM, BN = METRICS_BN, STAGES = 4;
    static constexpr int PANELS = D / 64, THREADS = 384, Q_BYTES = BM * D * 2, K_BYTES = BN * D * 2;
};

template <class T> struct metrics_smem {
    alignas(1024) uint8_t q[T::Q_BYTES];
    alignas(1024) uint8_t k[T::STAGES][T::K_BYTES];
    float strip[T::WG][8][T::BN]; /* column maxima of 16 rows */
    float rect[T::WG][4][2];      /* maxima of 64 rows x the 32 keys of a warp */
    float cell[T::WG][4][4];      /* sums of a warp over the quarters of a tile */
    int4 work;                    /* the item, its index in w; x = -1: no more */
    uint32_t tile[T::STAGES];
    uint64_t q_full, q_empty, k_full[T::STAGES], k_empty[T::STAGES];
};

/* ---- producer ------------------------------------------------------------------------------- */

template <class T, int ROWS>
DEVICE void metrics_load(const CUtensorMap *map, uint8_t *to, uint64_t *full, int row,
                         uint64_t policy)
{
    uint32_t bar = smem_addr(full);
    mbar_expect(bar, ROWS * T::D * 2);
#pragma unroll
    for (int p = 0; p < T::PANELS; p++)
        tma_load(smem_addr(to) + p * ROWS * 128, map, bar, p * 64, row, 0, policy);
}

/* The first keys of an item come before its queries, whose buffer is free later. */
template <class T>
DEVICE void metrics_produce(metrics_smem<T> &sm, const metrics_args &a, const CUtensorMap *mq,
                            const CUtensorMap *mk)
{
    ring<1> q;
    ring<T::STAGES> k;
    unsigned ticket = atomicAdd(a.ticket, 1u);
    while (ticket < (unsigned)a.n_items) {
        int4 item = __ldg(a.items + ticket);
        int early = min(item.y + 2, item.z) - 1;
        for (int i = item.y; i < item.z; i++) {
            uint32_t tile = a.tiles ? __ldg(a.tiles + i) : (uint32_t)i | 255u << 24;
            mbar_wait(smem_addr(&sm.k_empty[k.at]), k.parity ^ 1);
            sm.tile[k.at] = tile;
            metrics_load<T, T::BN>(mk, sm.k[k.at], &sm.k_full[k.at], (int)(tile & 0xffffff) * T::BN,
                                   L2_EVICT_LAST);
            k.next();
            if (i == early) {
                mbar_wait(smem_addr(&sm.q_empty), q.parity ^ 1);
                sm.work = make_int4(item.x, item.y, item.z, (int)ticket);
                metrics_load<T, T::BM>(mq, sm.q, &sm.q_full, item.x * T::BM, L2_EVICT_FIRST);
                q.next();
            }
        }
        ticket = atomicAdd(a.ticket, 1u);
    }
    /* Every CTA draws exactly one ticket past the end; the last of them resets the counter. */
    if (ticket == (unsigned)a.n_items + gridDim.x - 1)
        *a.ticket = 0;
    mbar_wait(smem_addr(&sm.q_empty), q.parity ^ 1);
    sm.work = make_int4(-1, 0, 0, 0);
    mbar_arrive(smem_addr(&sm.q_full));
}

/* ---- consumers ------------------------------------------------------------------------------ */

template <class T> struct metrics_consumer {
    static constexpr int NC = T::NC, CELLS = NC ? NC : 1;

    metrics_smem<T> &sm;
    const metrics_args &a;
    int w;
    ring<1> q;
    ring<T::STAGES> k;
    int row0;         /* of the warpgroup */
    float norm[2][2]; /* of the thread's rows 64 h + 16 warp + lane / 4 + 8 r */
    float sum[2][2], kept[2][2];
    float top;   /* largest p of the thread's columns */
    int counted; /* tiles in cnt */
    /* Units below each threshold, in 16 bits each: S16 and S64, S128 and B16, B32 and B64, B128. */
    uint32_t cnt[CELLS][4];

    static DEVICE int t()
    {
        return threadIdx.x & 127;
    }
    static DEVICE int warp()
    {
        return threadIdx.x >> 5 & 3;
    }
    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    DEVICE void sync()
    {
        named_sync(1 + w, 128);
    }
    DEVICE void arrive(uint64_t *bar)
    {
        if (t() == 0)
            mbar_arrive(smem_addr(bar));
    }

    DEVICE void issue_scores(float (&s)[64], uint64_t qd, uint64_t kd)
    {
        wgmma_fence();
#pragma unroll
        for (int kk = 0; kk < T::D / 16; kk++) {
            wgmma_ss<128>(s, qd + (kk / 4 * (T::BM * 128) + kk % 4 * 32) / 16,
                          kd + (kk / 4 * (T::BN * 128) + kk % 4 * 32) / 16, kk > 0);
        }
        wgmma_commit();
    }

    /* Scores of 64 rows become probabilities; row sums, sums of the halves of the keys in part. */
    template <bool EDGE>
    DEVICE void exponentials(float (&s)[64], int h, int key0, uint32_t keep, float (&part)[2])
    {
        part[0] = part[1] = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int row = row0 + 64 * h + 16 * warp() + (lane() >> 2) + 8 * r;
            int limit = a.causal ? min(a.nk, row + a.offset + 1) : a.nk;
            int left = limit - key0 - 2 * (lane() & 3);
            float add[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float x[2] = {0, 0};
#pragma unroll
                for (int j = 8 * half; j < 8 * half + 8; j++)
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        float &e = s[4 * j + 2 * r + c];
                        e = exp2_fast(fmaf(e, a.scale_log2, -norm[h][r]));
                        if (EDGE && 8 * j + c >= left)
                            e = 0;
                        x[c] += e;
                    }
                add[half] = x[0] + x[1];
                part[half] += add[half];
            }
            sum[h][r] += add[0] + add[1];
            kept[h][r] += (keep >> (2 * h) & 1 ? add[0] : 0) + (keep >> (2 * h) & 2 ? add[1] : 0);
        }
    }

    /* One step of a transposing butterfly: n values per lane become n / 2 maxima with lane ^ bit;
     * lanes with the bit set keep the upper half. */
    template <int N, int M> static DEVICE void fold(float (&v)[M], int bit)
    {
        bool up = lane() & bit;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            float mine = up ? v[N / 2 + i] : v[i], other = up ? v[i] : v[N / 2 + i];
            v[i] = fmaxf(mine, __shfl_xor_sync(~0u, other, bit));
        }
    }

    /* Column maxima of the warp's 16 rows to shared memory. */
    DEVICE void store_strip(const float (&s)[64], int h)
    {
        float v[32];
#pragma unroll
        for (int j = 0; j < 16; j++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                v[2 * j + c] = fmaxf(s[4 * j + c], s[4 * j + 2 + c]);
        fold<32>(v, 16);
        fold<16>(v, 8);
        fold<8>(v, 4);
        int l = lane();
        float *to =
            sm.strip[w][4 * h + warp()] + (l & 16) * 4 + (l & 8) * 4 + (l & 4) * 4 + 2 * (l & 3);
        *(float2 *)to = make_float2(v[0], v[1]);
        *(float2 *)(to + 8) = make_float2(v[2], v[3]);
    }

    /* Allowed pairs of the unit of `rows` x `keys` at (r0, k0): sim/basemap.c, unit_pairs. */
    DEVICE int pairs(int r0, int rows, int k0, int keys) const
    {
        int r1 = min(r0 + rows, a.nq), k1 = min(k0 + keys, a.nk), shift = a.offset + 1;
        if (r0 >= r1 || k0 >= k1)
            return 0;
        if (!a.causal)
            return (r1 - r0) * (k1 - k0);
        int from = min(r1, max(r0, k0 - shift + 1)), full = max(from, min(r1, k1 - shift));
        return (from + full - 1 + 2 * (shift - k0)) * (full - from) / 2 + (r1 - full) * (k1 - k0);
    }

    /* Units of an edge tile: n of them below threshold c, with p allowed pairs, in this lane. */
    DEVICE void count_part(int unit, int c, int n, int p)
    {
        n = __reduce_add_sync(~0u, n);
        p = __reduce_add_sync(~0u, p);
        if (lane() == 0 && n) {
            atomicAdd(&a.counts->part[unit][c], (unsigned long long)n);
            atomicAdd(&a.counts->part_pairs[unit][c], (unsigned long long)p);
        }
    }

    /* N units of `rows` x `keys` of this lane, one below the other; `mine`: the lane has them. */
    template <int N>
    DEVICE void count_edge(int unit, const float (&v)[N], int r0, int rows, int k0, int keys,
                           bool mine)
    {
        int size[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            size[i] = mine ? pairs(r0 + i * rows, rows, k0, keys) : 0;
#pragma unroll 1
        for (int c = 0; c < NC; c++) {
            int n = 0, p = 0;
#pragma unroll
            for (int i = 0; i < N; i++)
                if (size[i] && v[i] < a.below[c]) {
                    n++;
                    p += size[i];
                }
            count_part(unit, c, n, p);
        }
    }

    /* Slices: this thread's key, its 8 strips in v. */
    template <bool EDGE> DEVICE void count_slices(const float (&v)[8], int key0)
    {
        float m64[2], m128[1];
#pragma unroll
        for (int i = 0; i < 2; i++)
            m64[i] = fmaxf(fmaxf(v[4 * i], v[4 * i + 1]), fmaxf(v[4 * i + 2], v[4 * i + 3]));
        m128[0] = fmaxf(m64[0], m64[1]);
        top = fmaxf(top, m128[0]);
        if constexpr (EDGE) {
            count_edge<8>(S16, v, row0, 16, key0 + t(), 1, true);
            count_edge<2>(S64, m64, row0, 64, key0 + t(), 1, true);
            count_edge<1>(S128, m128, row0, 128, key0 + t(), 1, true);
        } else {
#pragma unroll
            for (int c = 0; c < NC; c++) {
                float low = a.below[c];
                uint32_t n = 0;
#pragma unroll
                for (int i = 0; i < 8; i++)
                    n += v[i] < low;
                n += (m64[0] < low ? 0x10000u : 0u) + (m64[1] < low ? 0x10000u : 0u);
                cnt[c][0] += n;
                cnt[c][1] += m128[0] < low;
            }
        }
    }

    /* Blocks of 16 and 32, and for the larger ones the maxima of 64 rows x 32 keys. */
    template <bool EDGE> DEVICE void count_blocks(float (&v)[8], int key0)
    {
        int l = lane();
        fold<8>(v, 1);
        fold<4>(v, 2);
        fold<2>(v, 4);
        int strip = 4 * (l & 1) + (l & 2) + (l >> 2 & 1);
        float b16[1] = {fmaxf(v[0], __shfl_xor_sync(~0u, v[0], 8))}, b32[1];
        b32[0] = fmaxf(b16[0], __shfl_xor_sync(~0u, b16[0], 16));
        b32[0] = fmaxf(b32[0], __shfl_xor_sync(~0u, b32[0], 4));
        float rect = fmaxf(b32[0], __shfl_xor_sync(~0u, b32[0], 2));
        if (l < 2)
            sm.rect[w][warp()][l] = rect;
        if constexpr (EDGE) {
            int k32 = key0 + 32 * warp();
            count_edge<1>(B16, b16, row0 + 16 * strip, 16, k32 + (l & 16), 16, !(l & 8));
            count_edge<1>(B32, b32, row0 + 16 * strip, 32, k32, 32, !(l & 28));
        } else {
#pragma unroll
            for (int c = 0; c < NC; c++) {
                cnt[c][1] += !(l & 8) && b16[0] < a.below[c] ? 0x10000u : 0u;
                cnt[c][2] += !(l & 28) && b32[0] < a.below[c];
            }
        }
    }

    /* Sums of a warp over the quarters: lane l < 4 gets rows 64 (l & 1), keys 64 (l >> 1). */
    DEVICE void store_cells(const float (&part)[2][2])
    {
        bool lower = lane() & 1, right = lane() & 2;
        float x[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            x[i] = (lower ? part[1][i] : part[0][i]) +
                   __shfl_xor_sync(~0u, lower ? part[0][i] : part[1][i], 1);
        float y = (right ? x[1] : x[0]) + __shfl_xor_sync(~0u, right ? x[0] : x[1], 2);
#pragma unroll
        for (int bit = 4; bit < 32; bit *= 2)
            y += __shfl_xor_sync(~0u, y, bit);
        if (lane() < 4)
            sm.cell[w][warp()][lane()] = y;
    }

    /* Blocks of 64 and 128 and the cells of the maps, by the first warp. */
    template <bool EDGE> DEVICE void count_large(int key0)
    {
        int l = lane(), lower = l & 1, right = l >> 1 & 1;
        float b64[1] = {fmaxf(sm.rect[w][2 * right][lower], sm.rect[w][2 * right + 1][lower])};
        float b128[1] = {fmaxf(b64[0], __shfl_xor_sync(~0u, b64[0], 1))};
        b128[0] = fmaxf(b128[0], __shfl_xor_sync(~0u, b128[0], 2));
        int row = row0 + 64 * lower, key = key0 + 64 * right;
        if (a.cell_max && l < 4 && row < a.nq && key < a.nk) {
            size_t at = (size_t)(row / 64) * a.cells + key / 64;
            a.cell_max[at] = b64[0];
            a.cell_sum[at] =
                (sm.cell[w][0][l] + sm.cell[w][1][l]) + (sm.cell[w][2][l] + sm.cell[w][3][l]);
        }
        if constexpr (EDGE) {
            count_edge<1>(B64, b64, row, 64, key, 64, l < 4);
            count_edge<1>(B128, b128, row0, 128, key0, 128, l == 0);
        } else {
#pragma unroll
            for (int c = 0; c < NC; c++) {
                cnt[c][2] += l < 4 && b64[0] < a.below[c] ? 0x10000u : 0u;
                cnt[c][3] += l == 0 && b128[0] < a.below[c];
            }
        }
    }

    /* Queries of the upper (0) or lower half, and keys of the stage at hand. */
    DEVICE uint64_t q_desc(int h) const
    {
        return tile_desc(uniform(smem_addr(sm.q) + (2 * w + h) * 64 * 128), 16, 1024);
    }
    DEVICE uint64_t k_desc(int stage) const
    {
        return tile_desc(uniform(smem_addr(sm.k[stage])), 16, 1024);
    }

    /* Columns and blocks of a tile whose strips are in shared memory. */
    template <bool EDGE> DEVICE void columns(const float (&part)[2][2], int key0)
    {
        float v[8];
        sync();
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = sm.strip[w][i][t()];
        count_slices<EDGE>(v, key0);
        count_blocks<EDGE>(v, key0);
        if (a.cell_sum)
            store_cells(part);
        sync();
        if (warp() == 0)
            count_large<EDGE>(key0);
    }

    DEVICE void half(float (&s)[64], int h, int key0, uint32_t keep, bool edge, float (&part)[2])
    {
        if (edge)
            exponentials<true>(s, h, key0, keep, part);
        else
            exponentials<false>(s, h, key0, keep, part);
        if (NC)
            store_strip(s, h);
    }

    /* The tiles of an item. At most one product is under way, of the half that is not at hand. One
     * is issued for a next tile even after the last, because ptxas serialises what it finds under
     * way on one path only; it may read what is being replaced, and nobody looks at it. */
    DEVICE void tiles(int n)
    {
        float upper[64], lower[64], part[2][2];
        mbar_wait(smem_addr(&sm.k_full[k.at]), k.parity);
        issue_scores(upper, q_desc(0), k_desc(k.at));
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            uint32_t entry = (uint32_t)uniform((int)sm.tile[k.at]), keep = entry >> (24 + 4 * w);
            int key0 = (int)(entry & 0xffffff) * T::BN, last = key0 + T::BN - 1;
            bool edge = row0 + 128 > a.nq || last >= a.nk || (a.causal && last > row0 + a.offset);
            ring<T::STAGES> before = k;
            wgmma_wait<0>();
            hold(upper);
            issue_scores(lower, q_desc(1), k_desc(k.at));
            half(upper, 0, key0, keep, edge, part[0]);
            k.next();
            bool more = i < n - 1;
            if (more)
                mbar_wait(smem_addr(&sm.k_full[k.at]), k.parity);
            uint64_t kd = k_desc(more ? k.at : before.at);
            wgmma_wait<0>();
            hold(lower);
            issue_scores(upper, q_desc(0), kd);
            arrive(&sm.k_empty[before.at]);
            if (!more)
                arrive(&sm.q_empty);
            half(lower, 1, key0, keep, edge, part[1]);
            if (NC && edge)
                columns<true>(part, key0);
            else if (NC)
                columns<false>(part, key0);
        }
        wgmma_wait<0>();
        hold(upper);
    }

    DEVICE void start_item(const int4 &item)
    {
        row0 = item.x * T::BM + 128 * w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = row0 + 64 * (i >> 1) + 16 * warp() + (lane() >> 2) + 8 * (i & 1);
            norm[i >> 1][i & 1] = row < a.nq ? __ldg(a.norm + row).x : INFINITY;
            sum[i >> 1][i & 1] = kept[i >> 1][i & 1] = 0;
        }
    }

    DEVICE void finish_item(int index)
    {
        float2 *to = a.parts + (size_t)index * T::BM + 128 * w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = sum[i >> 1][i & 1], y = kept[i >> 1][i & 1];
#pragma unroll
            for (int bit = 1; bit < 4; bit *= 2) {
                x += __shfl_xor_sync(~0u, x, bit);
                y += __shfl_xor_sync(~0u, y, bit);
            }
            int in_tile = 64 * (i >> 1) + 16 * warp() + (lane() >> 2) + 8 * (i & 1);
            if ((lane() & 3) == 0 && row0 + in_tile < a.nq) {
                float f = __ldg(a.norm + row0 + in_tile).y;
                to[in_tile] = make_float2(x * f, y * f);
            }
        }
    }

    DEVICE void add_whole(int unit, int c, uint32_t n)
    {
        n = __reduce_add_sync(~0u, n);
        if (lane() == 0 && n)
            atomicAdd(&a.counts->whole[unit][c], (unsigned long long)n);
    }

    DEVICE void flush_counts()
    {
        counted = 0;
#pragma unroll
        for (int c = 0; c < NC; c++) {
            add_whole(S16, c, cnt[c][0] & 0xffff);
            add_whole(S64, c, cnt[c][0] >> 16);
            add_whole(S128, c, cnt[c][1] & 0xffff);
            add_whole(B16, c, cnt[c][1] >> 16);
            add_whole(B32, c, cnt[c][2] & 0xffff);
            add_whole(B64, c, cnt[c][2] >> 16);
            add_whole(B128, c, cnt[c][3]);
            cnt[c][0] = cnt[c][1] = cnt[c][2] = cnt[c][3] = 0;
        }
    }

    DEVICE void run()
    {
        top = 0;
        counted = 0;
#pragma unroll
        for (int c = 0; c < CELLS; c++)
            cnt[c][0] = cnt[c][1] = cnt[c][2] = cnt[c][3] = 0;
        for (;;) {
            mbar_wait(smem_addr(&sm.q_full), q.parity);
            int4 item = sm.work;
            item = make_int4(uniform(item.x), uniform(item.y), uniform(item.z), uniform(item.w));
            if (item.x < 0)
                break;
            int n = item.z - item.y;
            if (NC && counted + n > 8000) /* 8 per tile: below 2^16 */
                flush_counts();
            counted += n;
            start_item(item);
            tiles(n);
            finish_item(item.w);
            q.next();
        }
        if (NC) {
            flush_counts();
            unsigned most = __reduce_max_sync(~0u, __float_as_uint(top));
            if (lane() == 0)
                atomicMax(&a.counts->p_max, most);
        }
    }
};

/* ---- kernel --------------------------------------------------------------------------------- */

template <class T>
__global__ void __launch_bounds__(T::THREADS, 1)
    metrics_sm90(const __grid_constant__ CUtensorMap mq, const __grid_constant__ CUtensorMap mk,
                 const __grid_constant__ metrics_args a)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t raw[];
    metrics_smem<T> &sm = *(metrics_smem<T> *)raw;
    int group = threadIdx.x >> 7;

    if (threadIdx.x == 0) {
        mbar_init(smem_addr(&sm.q_full), 1);
        mbar_init(smem_addr(&sm.q_empty), T::WG);
        for (int i = 0; i < T::STAGES; i++) {
            mbar_init(smem_addr(&sm.k_full[i]), 1);
            mbar_init(smem_addr(&sm.k_empty[i]), T::WG);
        }
        mbar_init_fence();
        tma_prefetch(&mq);
        tma_prefetch(&mk);
    }
    __syncthreads();
    if (group == 0) {
        regs_dec<24>();
        if (threadIdx.x == 0)
            metrics_produce<T>(sm, a, &mq, &mk);
    } else {
        regs_inc<240>();
        metrics_consumer<T> c = {sm, a, uniform(group - 1)};
        c.run();
    }
#endif
}

#endif
