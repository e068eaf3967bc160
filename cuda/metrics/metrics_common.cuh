/*
 * metrics_common.cuh - shared by the roles of a metrics pass (metrics_pass.cuh): arguments, shapes,
 * shared memory, the number of allowed pairs of a unit.
 */
#pragma once

#include "cuda/metrics/metrics.h"
#include "cuda/wgmma.cuh"

struct metrics_counts { /* counts of whole units; of units on the diagonal or an edge, and of their
                         * allowed pairs */
    unsigned long long whole[ACCEL_UNITS][METRICS_C];
    unsigned long long part[ACCEL_UNITS][METRICS_C], part_pairs[ACCEL_UNITS][METRICS_C];
    unsigned p_max; /* bits of a float */
};

struct metrics_args {
    const int4 *items;
    unsigned *ticket; /* 0 before a launch, 0 again after it */
    const float2 *norm;
    float *parts;
    metrics_counts *counts;
    float *cell_sum, *cell_max;
    int n_items, nq, nk, causal, offset, cells; /* cells: per row of the maps */
    float scale_log2, per_scale;                /* and 1 / scale_log2 */
    float unit, shift;      /* of p inside METRICS_SIGNS and _SUMS, and its log2 */
    float below[METRICS_C]; /* c / N; METRICS_TOPS: its log2 */
    uint32_t *map;          /* METRICS_SLICES, as in metrics_slices */
    int words, height, text0, text1;
};

enum { B16, B32, B64, B128, S16, S64, S128 };

/* Number of allowed pairs in the unit of `rows` x `keys` at (r0, k0), as pairs_allowed_block() of
 * core/mask.c. */
DEVICE int metrics_pairs(const metrics_args &a, int r0, int rows, int k0, int keys)
{
    int r1 = min(r0 + rows, a.nq), k1 = min(k0 + keys, a.nk), shift = a.offset + 1;
    if (r0 >= r1 || k0 >= k1)
        return 0;
    if (!a.causal)
        return (r1 - r0) * (k1 - k0);
    int from = min(r1, max(r0, k0 - shift + 1)), full = max(from, min(r1, k1 - shift));
    return (from + full - 1 + 2 * (shift - k0)) * (full - from) / 2 + (r1 - full) * (k1 - k0);
}

/* A tile of the 128 rows at row0 is cut by neither the diagonal nor an edge if its first key is at
 * most this. */
DEVICE int metrics_inside(const metrics_args &a, int row0)
{
    int last = a.nk - METRICS_BN;
    if (a.causal)
        last = min(last, row0 + a.offset - METRICS_BN + 1);
    return row0 + 128 > a.nq ? -1 : last;
}

/* Count n units per lane of a warp as below threshold c. */
DEVICE void metrics_add_whole(const metrics_args &a, int unit, int c, uint32_t n)
{
    n = __reduce_add_sync(~0u, n);
    if ((threadIdx.x & 31) == 0 && n)
        atomicAdd(&a.counts->whole[unit][c], (unsigned long long)n);
}

/* One step of a transposing butterfly: N values per lane become N / 2 maxima with lane ^ bit; lanes
 * with the bit set keep the upper half. */
template <int N, int M> DEVICE void fold(float (&v)[M], int bit)
{
    bool up = threadIdx.x & bit;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        float mine = up ? v[N / 2 + i] : v[i], other = up ? v[i] : v[N / 2 + i];
        v[i] = fmaxf(mine, __shfl_xor_sync(~0u, other, bit));
    }
}

/* ---- shapes --------------------------------------------------------------------------------- */

template <int D_, metrics_kind KIND_> struct pass_shape {
    static constexpr int D = D_, WG = 4, BM = METRICS_BM, BN = METRICS_BN;
    static constexpr int STAGES = D > 192   ? 1
                                  : D > 128 ? 2
                                            : 4; /* of keys; what shared memory has room for */
    static constexpr metrics_kind KIND = KIND_;
    static constexpr bool SCORES = KIND == METRICS_SIGNS || KIND == METRICS_SLICES;
    static constexpr bool SIGNS = SCORES || KIND == METRICS_SUMS;
    static constexpr bool MAPS = KIND == METRICS_MAPS, TOPS = KIND == METRICS_TOPS;
    static constexpr bool LEVELS = KIND == METRICS_LEVELS || TOPS;
    static constexpr bool EXPS = !SCORES && !TOPS;
    static constexpr int PANELS = (D + 63) / 64, THREADS = 128 * WG + 96;
    static constexpr int Q_BYTES = BM * PANELS * 128, K_BYTES = BN * PANELS * 128;
    static constexpr int SLOTS = LEVELS ? 3 : 4; /* tiles that wait to be put together */
};

template <class T> struct pass_found {                  /* in 128 rows x 128 keys */
    alignas(16) float strips[T::LEVELS ? 8 : 1][T::BN]; /* LEVELS: maxima of 16 rows, TOPS: log2 */
    uint32_t words[T::SIGNS ? 8 : 1][4];                /* SIGNS: by strip and place in a quad */
    float2 cells[8][2]; /* MAPS, LEVELS: sum and maximum, by strip and half of the keys */
    int row0, key0;     /* row0 = -1: no more */
};

/* Is this one of the lanes that write what their warp found? Each of them arrives for itself. */
template <class T> DEVICE constexpr bool pass_writes(int lane)
{
    return T::LEVELS || (T::SIGNS ? lane < 4 : (lane & 15) == 0);
}
template <class T> constexpr int pass_writers = 8 * (T::LEVELS ? 32 : T::SIGNS ? 4 : 2);

template <class T> struct pass_smem {
    alignas(1024) uint8_t q[T::Q_BYTES];
    alignas(1024) uint8_t k[T::STAGES][T::K_BYTES];
    pass_found<T> found[2][T::SLOTS];
    int4 work; /* the item, its index in w; x = -1: no more */
    uint64_t q_full, q_empty, k_full[T::STAGES], k_empty[T::STAGES];
    uint64_t found_full[2][T::SLOTS], found_empty[2][T::SLOTS];
};
