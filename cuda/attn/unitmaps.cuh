/*
 * unitmaps.cuh - what the queries of maps of kept units see, and runs of bits.
 */
#ifndef LACUNA_UNITMAPS_CUH
#define LACUNA_UNITMAPS_CUH

#include "cuda/attn/maptiles.h"

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

#endif
