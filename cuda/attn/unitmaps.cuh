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

#endif
