/*
 * unitmaps.cuh - what the queries of maps of kept units see, and what maps hold, counted and
 * fetched (struct map_totals). What is made of the maps, lists (maplists.cu) or tiles
 * (maptiles.cu), adds its own counts.
 */
#pragma once

#include "cuda/attn/mapplan.h"
#include "cuda/warp.cuh"

#include <stdint.h>

/* The low n bits; none for n < 0, all for n > 32. */
static __device__ __forceinline__ uint32_t low_bits(int n)
{
    uint32_t mask;
    asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(mask) : "r"(n > 0 ? n : 0));
    return mask;
}

/* Keys that a query may see, the first ones. */
static __device__ __forceinline__ int key_limit_of(const unit_maps &m, int row)
{
    int64_t p = m.causal ? row + m.nk - m.nq + 1 : m.nk;
    return (int)(p < 0 ? 0 : p > m.nk ? m.nk : p);
}

#define TOTALS_THREADS 256

/* Pairs of a unit whose key some query may not see: later queries see what earlier ones see. */
static __device__ int64_t pairs_of_unit(const unit_maps &m, int row0, int row1, int key0, int key1)
{
    int64_t n = 0;
    if (key_limit_of(m, row0) >= key1)
        return (int64_t)(row1 - row0) * (key1 - key0);
    for (int row = row0; row < row1; row++)
        n += max(0, min(key_limit_of(m, row), key1) - key0);
    return n;
}

/* Query rows of [row0, row1) that see no key of the unit from `key` on, their first one. */
static __device__ __forceinline__ int rows_before(const unit_maps &m, int row0, int row1,
                                                  int64_t key)
{
    int64_t n = m.causal ? key + m.nq - m.nk - row0 : 0;
    return (int)(n < 0 ? 0 : n < row1 - row0 ? n : row1 - row0);
}

/* By a lane for the row of a map with the queries [row0, row1), of whose units the first is number
 * `first` and n are kept. */
static __device__ __forceinline__ void add_units(const unit_maps &m, int row0, int row1, int first,
                                                 int n, map_totals *t)
{
    int empty = n ? rows_before(m, row0, row1, first * m.bk) : row1 - row0;
    atomicAdd(&t->units, (unsigned long long)n);
    atomicAdd(&t->empty, (unsigned long long)empty);
}

/* Kept units of each row of the maps that some query of it may see, with PAIRS their pairs as well.
 * A warp per row. Grid (rows, heads). */
template <bool PAIRS>
static __global__ void __launch_bounds__(TOTALS_THREADS)
    count_units(unit_maps m, const uint32_t *const *map, int64_t rows, map_totals *totals,
                int32_t *units)
{
    int64_t row = (blockIdx.x * (int64_t)TOTALS_THREADS + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31, head = blockIdx.y, n = 0, bk = (int)m.bk, first = INT32_MAX;
    unsigned long long pairs = 0;

    if (row >= rows)
        return;
    int row0 = (int)(row * m.bq), row1 = (int)min(row0 + m.bq, m.nq);
    int seen = (key_limit_of(m, row1 - 1) + bk - 1) / bk;
    for (int w = lane; 32 * w < seen; w += 32) {
        uint32_t bits = map[head][row * m.words + w] & low_bits(seen - 32 * w);
        first = bits && first == INT32_MAX ? 32 * w + __ffs(bits) - 1 : first;
        n += __popc(bits);
        for (; PAIRS && bits; bits &= bits - 1) {
            int key0 = (32 * w + __ffs(bits) - 1) * bk, key1 = (int)min(key0 + m.bk, m.nk);
            pairs += pairs_of_unit(m, row0, row1, key0, key1);
        }
    }
    n = warp_add(n);
    if (PAIRS)
        pairs = warp_add(pairs);
    first = __reduce_min_sync(~0u, first);
    if (lane)
        return;
    units[head * rows + row] = n;
    if (PAIRS)
        atomicAdd(&totals[head].pairs, pairs);
    add_units(m, row0, row1, first, n, totals + head);
}

/* Count and fetch: totals [heads], units [heads][ceil(nq / bq)]. map: [heads], on the device.
 * count(sums) launches what else is counted into sums [heads] and returns 0 or an error; without
 * PAIRS the kept pairs are among it. */
template <bool PAIRS, class F>
static int unit_totals(struct gpu *g, const struct unit_maps *m, const uint32_t *const *map,
                       F count, struct map_totals *totals, int32_t *units, struct err *err)
{
    struct gpu_mark mark = gpu_mark(g);
    int64_t heads = m->heads, rows = (m->nq + m->bq - 1) / m->bq;
    int64_t bytes = heads * (int64_t)sizeof *totals;
    int warps = TOTALS_THREADS / 32, rc = 0;
    dim3 grid((unsigned)((rows + warps - 1) / warps), (unsigned)heads);
    map_totals *sums = NULL;
    int32_t *per_row = NULL;

    TRY(gpu_alloc(g, bytes, &sums, err));
    TRY(gpu_alloc(g, heads * rows * 4, &per_row, err));
    TRY(gpu_zero(g, sums, bytes, err));
    TRY(count(sums));
    count_units<PAIRS><<<grid, TOTALS_THREADS, 0, g->stream>>>(*m, map, rows, sums, per_row);
    CU_LAUNCHED(err);
    TRY(gpu_get(g, totals, sums, bytes, err));
    TRY(gpu_get(g, units, per_row, heads * rows * 4, err));
out:
    gpu_release(g, mark);
    return rc;
}
