/*
 * metrics_gather.cuh - the two gathering warps of a metrics pass (metrics_pass.cuh). Each serves
 * 128 rows: it combines the results of the warps that process these rows, which are the numbers of
 * units below the thresholds and the cells of the maps.
 */
#pragma once

#include "cuda/metrics/metrics_common.cuh"

/* Count units of an edge tile: in this lane, n units with `pairs` allowed pairs are below threshold
 * c. */
DEVICE void metrics_add_part(const metrics_args &a, int unit, int c, unsigned n, unsigned pairs)
{
    n = __reduce_add_sync(~0u, n);
    pairs = __reduce_add_sync(~0u, pairs);
    if ((threadIdx.x & 31) == 0 && n) {
        atomicAdd(&a.counts->part[unit][c], (unsigned long long)n);
        atomicAdd(&a.counts->part_pairs[unit][c], (unsigned long long)pairs);
    }
}

/* metrics_pairs() of a slice, `rows` x 1 at (r0, key). */
DEVICE int metrics_slice_pairs(const metrics_args &a, int r0, int rows, int key)
{
    int from = a.causal ? max(r0, key - a.offset) : r0;
    return key < a.nk ? max(min(r0 + rows, a.nq) - from, 0) : 0;
}

/* A tile's place, and whether the diagonal or an edge cuts it. */
struct pass_place {
    int row0, key0;
    bool edge;
};

/* ---- one threshold by signs ----------------------------------------------------------------- */

struct sign_counter {
    const metrics_args &a;
    uint32_t tally[ACCEL_UNITS]; /* whole units below the threshold */

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    /* Find units of 16, 32 or 64 keys: groups of N = 4, 8, 16 bits of a word that are all set. The
     * result has the lowest bit of each. */
    template <int N> static DEVICE uint32_t groups(uint32_t x)
    {
#pragma unroll
        for (int i = 1; i < N; i *= 2)
            x &= x >> i;
        return x & (N == 4 ? 0x11111111u : N == 8 ? 0x01010101u : 0x00010001u);
    }

    /* Add the blocks of `rows` x `keys` of an edge tile that this lane found: a bit of x for each,
     * the lowest of the block's bits. Bit 31 - i of place l in a quad is key 8 (i / 2) + 2 l + i %
     * 2. */
    DEVICE void add_blocks(int unit, uint32_t x, int row, int rows, int key0, int keys)
    {
        unsigned n = 0, pairs = 0;
        while (x) {
            int i = 32 - __ffs((int)x);
            x &= x - 1;
            int allowed = metrics_pairs(a, row, rows, key0 + 4 * (i + 1) - keys, keys);
            n += allowed > 0;
            pairs += allowed;
        }
        metrics_add_part(a, unit, 0, n, pairs);
    }

    /* The same for slices. Without a branch, because the consumers wait for a slow warp. */
    DEVICE void add_slices(int unit, uint32_t x, int row, int rows, int key0)
    {
        unsigned n = 0, pairs = 0;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            int key = key0 + 8 * (i >> 1) + 2 * (lane() & 3) + (i & 1);
            int allowed = x >> (31 - i) & 1 ? metrics_slice_pairs(a, row, rows, key) : 0;
            n += allowed > 0;
            pairs += allowed;
        }
        metrics_add_part(a, unit, 0, n, pairs);
    }

    DEVICE void add(int unit, uint32_t x, int rows, int keys, const pass_place &t, bool mine)
    {
        x = mine ? x : 0;
        int row = t.row0 + 16 * (lane() >> 2);
        if (!t.edge)
            tally[unit] += __popc(x);
        else if (keys == 1)
            add_slices(unit, x, row, rows, t.key0);
        else
            add_blocks(unit, x, row, rows, t.key0, keys);
    }

    /* Lane = 4 strip + place: s are slices, b blocks; further rows by AND with the next lanes. */
    template <class F> DEVICE void count(const F &from, const pass_place &t)
    {
        int l = lane();
        uint32_t s = from.words[l >> 2][l & 3], b = s & __shfl_xor_sync(~0u, s, 1);
        b &= __shfl_xor_sync(~0u, b, 2);
        add(S16, s, 16, 1, t, true);
        add(B16, groups<4>(b), 16, 16, t, (l & 3) == 0);
        s &= __shfl_xor_sync(~0u, s, 4);
        b &= __shfl_xor_sync(~0u, b, 4);
        add(B32, groups<8>(b), 32, 32, t, (l & 7) == 0);
        s &= __shfl_xor_sync(~0u, s, 8);
        b &= __shfl_xor_sync(~0u, b, 8);
        add(S64, s, 64, 1, t, (l & 12) == 0);
        add(B64, groups<16>(b), 64, 64, t, (l & 15) == 0);
        s &= __shfl_xor_sync(~0u, s, 16);
        b &= __shfl_xor_sync(~0u, b, 16);
        add(S128, s, 128, 1, t, l < 4);
        add(B128, b == ~0u, 128, 128, t, l == 0);
    }

    DEVICE void flush()
    {
#pragma unroll
        for (int u = 0; u < ACCEL_UNITS; u++) {
            metrics_add_whole(a, u, 0, tally[u]);
            tally[u] = 0;
        }
    }

    DEVICE void start()
    {
#pragma unroll
        for (int u = 0; u < ACCEL_UNITS; u++)
            tally[u] = 0;
    }

    static constexpr int MOST = 1 << 20; /* tiles between flushes: 2^10 units each */
};

/* ---- slices as bits ------------------------------------------------------------------------- */

struct slice_writer {
    const metrics_args &a;

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    /* Keys of the group of rows at r0 that some row may see: [0, limit); and those from `from` on
     * are kept anyway. */
    DEVICE void bounds(int r0, int *limit, int *from) const
    {
        int r1 = min(r0 + a.height, a.nq);
        bool text = a.text0 < a.text1 && r0 + a.offset < a.text1 && r1 + a.offset > a.text0;
        *limit = a.causal ? max(min(a.nk, r1 + a.offset), 0) : a.nk;
        *from = text ? 0 : a.causal ? r0 + a.offset : a.nk;
    }

    /* Lane = 4 strip + place in a quad: ANDs of the strips of a group say which slices are below
     * everywhere. Lane j then takes key j of each 32. */
    template <class F> DEVICE void count(const F &from, const pass_place &t)
    {
        int l = lane(), strips = a.height / 16;
        uint32_t below = from.words[l >> 2][l & 3];
        for (int step = 1; step < strips; step *= 2)
            below &= __shfl_xor_sync(~0u, below, 4 * step);
        for (int s = 0; s < 8 && t.row0 + 16 * s < a.nq; s += strips) {
            int r0 = t.row0 + 16 * s, limit, forced;
            uint32_t mine = __shfl_sync(~0u, below, 4 * s + (l & 7) / 2), word = 0;
            bounds(r0, &limit, &forced);
#pragma unroll
            for (int w = 0; w < 4; w++) {
                int key = t.key0 + 32 * w + l, bit = 31 - (8 * w + 2 * (l >> 3) + (l & 1));
                bool keep =
                    !(mine >> bit & 1) || key >= forced || (key >= a.text0 && key < a.text1);
                uint32_t all = __ballot_sync(~0u, keep && key < limit);
                word = l == w ? all : word;
            }
            if (l < 4 && t.key0 + 32 * l < a.nk)
                a.map[(size_t)(r0 / a.height) * a.words + t.key0 / 32 + l] = word;
        }
    }

    DEVICE void flush()
    {
    }
    DEVICE void start()
    {
    }
    static constexpr int MOST = 1 << 30;
};

/* ---- several thresholds by maxima ----------------------------------------------------------- */

/* Units of an edge tile below each threshold; the upper half of a word counts their pairs, at most
 * 2^14 per lane. */
struct level_parts {
    const metrics_args &a;
    uint32_t found[METRICS_C] = {};

    DEVICE void add(float p, int pairs)
    {
        uint32_t allowed = (uint32_t)pairs;
#pragma unroll
        for (int c = 0; c < METRICS_C; c++)
            found[c] += allowed && p < a.below[c] ? allowed << 16 | 1u : 0;
    }
    DEVICE void flush(int unit)
    {
#pragma unroll
        for (int c = 0; c < METRICS_C; c++)
            metrics_add_part(a, unit, c, found[c] & 0xffff, found[c] >> 16);
    }
};

template <class T> struct level_counter {
    static constexpr float NONE = T::TOPS ? -INFINITY : 0; /* p of no pair, or its log2 */
    const metrics_args &a;
    /* Units below each threshold, in 16 bits each: S64 and S128, B16 and B32, B64 and B128. */
    uint32_t tally[METRICS_C][3];
    float top; /* the largest p, or its log2 */

    static DEVICE int lane()
    {
        return threadIdx.x & 31;
    }

    /* Slices of ROWS rows of an edge tile; the lane has four keys. */
    template <int ROWS, class F>
    DEVICE void part_slices(int unit, const F &from, const pass_place &t)
    {
        level_parts sum = {a};
#pragma unroll 1
        for (int i = 0; i < 512 / ROWS; i++) {
            int strip = (i >> 2) * (ROWS / 16), key = 4 * lane() + (i & 3);
            float p = NONE;
#pragma unroll
            for (int j = 0; j < ROWS / 16; j++)
                p = fmaxf(p, from.strips[strip + j][key]);
            sum.add(p, metrics_slice_pairs(a, t.row0 + 16 * strip, ROWS, t.key0 + key));
        }
        sum.flush(unit);
    }

    DEVICE void count_slices(const float4 (&half)[2])
    {
        const float v[2][4] = {{half[0].x, half[0].y, half[0].z, half[0].w},
                               {half[1].x, half[1].y, half[1].z, half[1].w}};
#pragma unroll
        for (int c = 0; c < METRICS_C; c++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float low = a.below[c];
                tally[c][0] += v[0][i] < low;
                tally[c][0] += v[1][i] < low;
                tally[c][0] += fmaxf(v[0][i], v[1][i]) < low ? 0x10000u : 0;
            }
    }

    /* One or two blocks of an edge tile in this lane, the second below the first. */
    DEVICE void part_blocks(int unit, int n, float p0, float p1, int row, int size, int key)
    {
        level_parts sum = {a};
#pragma unroll 1
        for (int i = 0; i < n; i++)
            sum.add(i ? p1 : p0, metrics_pairs(a, row + i * size, size, key, size));
        sum.flush(unit);
    }

    /* y: maxima of the lane's four keys by strip; overwritten with those of larger blocks. */
    DEVICE void count_blocks(float (&y)[8], const pass_place &t)
    {
        int l = lane(), strip = 4 * (l & 1) + (l & 2), key = t.key0 + 16 * (l >> 2);
        fold<8>(y, 1);
        fold<4>(y, 2);
        float b32 = fmaxf(y[0], y[1]), b64, b128;
        b32 = fmaxf(b32, __shfl_xor_sync(~0u, b32, 4));
        b64 = fmaxf(b32, __shfl_xor_sync(~0u, b32, 2));
        b64 = fmaxf(b64, __shfl_xor_sync(~0u, b64, 8));
        b128 = fmaxf(b64, __shfl_xor_sync(~0u, b64, 1));
        b128 = fmaxf(b128, __shfl_xor_sync(~0u, b128, 16));
        top = fmaxf(top, b128);
        b32 = l & 4 ? INFINITY : b32; /* one lane counts it */
        b64 = l & 14 ? INFINITY : b64;
        b128 = l ? INFINITY : b128;
        if (t.edge) {
            int row = t.row0 + 16 * strip;
            part_blocks(B16, 2, y[0], y[1], row, 16, key);
            part_blocks(B32, 1, b32, 0, row, 32, key);
            part_blocks(B64, 1, b64, 0, row, 64, key);
            part_blocks(B128, 1, b128, 0, row, 128, key);
            return;
        }
#pragma unroll
        for (int c = 0; c < METRICS_C; c++) {
            float low = a.below[c];
            tally[c][1] += y[0] < low;
            tally[c][1] += y[1] < low;
            tally[c][1] += b32 < low ? 0x10000u : 0;
            tally[c][2] += b64 < low;
            tally[c][2] += b128 < low ? 0x10000u : 0;
        }
    }

    static DEVICE float4 max4(float4 a, float4 b)
    {
        return make_float4(fmaxf(a.x, b.x), fmaxf(a.y, b.y), fmaxf(a.z, b.z), fmaxf(a.w, b.w));
    }

    /* The consumer warps count slices of 16 rows themselves, except on an edge. */
    template <class F> DEVICE void count(const F &from, const pass_place &t)
    {
        float4 half[2];
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            float4 x = *(const float4 *)&from.strips[i][4 * lane()];
            y[i] = fmaxf(fmaxf(x.x, x.y), fmaxf(x.z, x.w));
            half[i >> 2] = i & 3 ? max4(half[i >> 2], x) : x;
        }
        if (t.edge) {
            part_slices<16>(S16, from, t);
            part_slices<64>(S64, from, t);
            part_slices<128>(S128, from, t);
        } else {
            count_slices(half);
        }
        count_blocks(y, t);
    }

    DEVICE void flush()
    {
#pragma unroll
        for (int c = 0; c < METRICS_C; c++)
#pragma unroll
            for (int i = 0; i < 3; i++) {
                metrics_add_whole(a, i == 0 ? S64 : i == 1 ? B16 : B64, c, tally[c][i] & 0xffff);
                metrics_add_whole(a, i == 0 ? S128 : i == 1 ? B32 : B128, c, tally[c][i] >> 16);
                tally[c][i] = 0;
            }
        unsigned most = __reduce_max_sync(~0u, __float_as_uint(T::TOPS ? exp2f(top) : top));
        if (lane() == 0)
            atomicMax(&a.counts->p_max, most);
    }

    DEVICE void start()
    {
        top = NONE;
#pragma unroll
        for (int c = 0; c < METRICS_C; c++)
            tally[c][0] = tally[c][1] = tally[c][2] = 0;
    }

    static constexpr int MOST = 8000; /* tiles between flushes: 8 units of a lane each */
};

/* Maps alone. */
struct no_counter {
    const metrics_args &a;
    template <class F> DEVICE void count(const F &, const pass_place &)
    {
    }
    DEVICE void flush()
    {
    }
    DEVICE void start()
    {
    }
    static constexpr int MOST = 1 << 30;
};

/* ---- the warp ------------------------------------------------------------------------------- */

/* Cells of 64 x 64: lane l < 4 has the upper or lower rows (l / 2) and half of the keys (l % 2). */
template <class T>
DEVICE void pass_cells(const metrics_args &a, const pass_found<T> &from, const pass_place &t)
{
    int l = threadIdx.x & 31, row = t.row0 + 64 * (l >> 1), key = t.key0 + 64 * (l & 1);
    float sum = 0, most = 0;
    if (T::LEVELS) {
        float v = 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                v = fmaxf(v, from.strips[4 * (l >> 1 & 1) + i][64 * (l & 1) + 8 * j + (l >> 2)]);
#pragma unroll
        for (int bit = 4; bit < 32; bit *= 2)
            v = fmaxf(v, __shfl_xor_sync(~0u, v, bit));
        most = v;
    }
    if (l >= 4 || row >= a.nq || key >= a.nk)
        return;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 x = from.cells[4 * (l >> 1) + i][l & 1];
        sum += x.x;
        most = T::LEVELS ? most : fmaxf(most, x.y);
    }
    size_t at = (size_t)(row / 64) * a.cells + key / 64;
    a.cell_sum[at] = sum;
    a.cell_max[at] = most;
}

/* Block b of 128 rows. */
template <class T, class COUNTER>
DEVICE void pass_gather(pass_smem<T> &sm, const metrics_args &a, int b)
{
    COUNTER counter = {a};
    ring<T::SLOTS> slot;
    counter.start();
#pragma unroll 1
    for (int n = 1;; n++) {
        mbar_wait(smem_addr(&sm.found_full[b][slot.at]), slot.parity);
        const pass_found<T> &from = sm.found[b][slot.at];
        pass_place t = {uniform(from.row0), uniform(from.key0), false};
        if (t.row0 < 0)
            break;
        t.edge = t.key0 > metrics_inside(a, t.row0);
        if (!t.edge || metrics_pairs(a, t.row0, 128, t.key0, T::BN))
            counter.count(from, t);
        if constexpr (T::EXPS && (T::MAPS || T::LEVELS))
            if (T::MAPS || a.cell_sum)
                pass_cells<T>(a, from, t);
        mbar_arrive(smem_addr(&sm.found_empty[b][slot.at])); /* each lane for what it read */
        slot.next();
        if (n == COUNTER::MOST) {
            counter.flush();
            n = 0;
        }
    }
    counter.flush();
}
