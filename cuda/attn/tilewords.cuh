/*
 * tilewords.cuh - pairs of a tile of 128 x 128 in the order of its words (accel_word in
 * core/accel.h): thread t has row a = word_row(t) and row a + 8, and of every 8 keys the two with
 * the numbers 2 q and 2 q + 1, q = t % 4.
 */
#ifndef LACUNA_TILEWORDS_CUH
#define LACUNA_TILEWORDS_CUH

#include "core/accel.h"

#include <stdint.h>

static __device__ __forceinline__ int word_row(int t)
{
    return 16 * (t / 32) + t % 32 / 4;
}

/* Nibbles 0, 2, 4, 6 of x in the low half, 1, 3, 5, 7 in the high half. */
static __device__ __forceinline__ uint32_t split_nibbles(uint32_t x)
{
    uint32_t turn = (x >> 4 ^ x) & 0x00f000f0;
    return __byte_perm(x ^ turn ^ turn << 4, 0, 0x3120);
}

/* The word of a thread. a and b: keys [32 q, 32 q + 32) of its two rows. Four neighbouring threads,
 * whose rows are the same, exchange what each has for the others: 16 bits for each q of 32 keys. */
static __device__ __forceinline__ uint64_t tile_word(uint32_t a, uint32_t b)
{
    const bool second = threadIdx.x & 1, upper = threadIdx.x & 2;
    uint32_t even = (a & 0x33333333) | (b << 2 & 0xcccccccc);
    uint32_t odd = (a >> 2 & 0x33333333) | (b & 0xcccccccc);
    even = split_nibbles(even); /* for q = 0 and 2 */
    odd = split_nibbles(odd);   /* for q = 1 and 3 */
    uint32_t low = __byte_perm(even, odd, 0x5410), high = __byte_perm(even, odd, 0x7632);
    uint32_t got = __shfl_xor_sync(~0u, upper ? low : high, 2);
    uint32_t first = upper ? got : low, last = upper ? high : got;
    uint32_t mine = __byte_perm(first, last, second ? 0x7632 : 0x5410);
    got = __shfl_xor_sync(~0u, __byte_perm(first, last, second ? 0x5410 : 0x7632), 1);
    uint32_t lo = __byte_perm(mine, got, second ? 0x1054 : 0x5410);
    uint32_t hi = __byte_perm(mine, got, second ? 0x3276 : 0x7632);
    return lo | (uint64_t)hi << 32;
}

#endif
