/*
 * maprows.cuh - write rows of a selection's map (select.h), one warp per row: bits of the kept
 * units; words of patterns of equal steps.
 */
#pragma once

#include "cuda/select/select.h"

#include <stdio.h>

struct map_rows {
    uint32_t *map; /* [rows][words] */
    int words;
};

static inline map_rows map_rows_of(const struct select_lists *l)
{
    return {l->map, (int)l->words};
}

#define MAX_ROW_WARPS 8

/* Warps of a thread block whose rows take `bytes` of shared memory each: as many as fit into 48 KB.
 * A single row may take more, if the kernel's limit was raised. */
static inline int row_warps(int bytes)
{
    int warps = MAX_ROW_WARPS;
    while (warps > 1 && warps * bytes > 48 * 1024)
        warps /= 2;
    return warps;
}

/* Keep unit j if keep(j). All lanes call keep, for units 0 .. 31, 32 .. 63, ... in turn, up to a
 * whole word; past the last unit it must return false. */
template <class F>
static __device__ __forceinline__ void fill_row(const map_rows &m, int64_t row, F keep)
{
    int lane = threadIdx.x & 31;
    for (int j0 = 0; j0 < m.words * 32; j0 += 32) {
        uint32_t word = __ballot_sync(~0u, keep(j0 + lane));
        if (lane == 0)
            m.map[row * m.words + j0 / 32] = word;
    }
}

/* The same by whole words: word_of(w) is word w of the row; one lane calls it. */
template <class F>
static __device__ __forceinline__ void fill_row_words(const map_rows &m, int64_t row, F word_of)
{
    for (int w = threadIdx.x & 31; w < m.words; w += 32)
        m.map[row * m.words + w] = word_of(w);
}

static __device__ __forceinline__ uint32_t low_bits(uint32_t word, int64_t n)
{
    return n <= 0 ? 0 : n < 32 ? word & ((1u << n) - 1) : word;
}

/* A row whose units are the first `limit` of those in `from`, [words]; all lanes call it. Rows are
 * written once and read later, past the cache. */
static __device__ __forceinline__ void copy_row_bits(const map_rows &m, int64_t row,
                                                     const uint32_t *from, int64_t limit)
{
    if (m.words % 4) {
        fill_row_words(m, row, [&](int w) { return low_bits(from[w], limit - 32LL * w); });
        return;
    }
    uint4 *to = (uint4 *)(m.map + row * m.words);
    for (int i = threadIdx.x & 31; i < m.words / 4; i += 32) {
        int64_t left = limit - 128LL * i;
        uint4 four = make_uint4(0, 0, 0, 0);
        if (left > 0) {
            four = ((const uint4 *)from)[i];
            four.x = low_bits(four.x, left);
            four.y = low_bits(four.y, left - 32);
            four.z = low_bits(four.z, left - 64);
            four.w = low_bits(four.w, left - 96);
        }
        __stcs(to + i, four);
    }
}

/* ---- maps of pairs -------------------------------------------------------------------------- */

/* The most bytes for all heads of a call. Larger ones are made on the host, as compact lists. */
#define PAIR_MAP_BYTES (9LL << 29)
#define PAIR_TOKENS (1 << 30) /* that sums of two positions and steps fit into an int */

/* The keys first, first + step, ... below `end`, as bits of the word of keys [key, key + 32). */
static __device__ __forceinline__ uint32_t every_key(int first, int step, int end, int key)
{
    uint32_t bits = 0;
    if (end <= key || first >= key + 32)
        return 0;
    int past = key - first, to = min(end - key, 32);
    int from = past <= 0 ? -past : (step - past % step) % step;
    if (step == 1)
        return from < to ? ~0u >> (32 - (to - from)) << from : 0;
    for (; from < to; from += step)
        bits |= 1u << from;
    return bits;
}

static inline bool pair_maps_fit(const struct select_problem *p, char why[160])
{
    int64_t heads = p->of_heads ? p->of_heads : p->heads;
    bool fit = p->nq <= PAIR_TOKENS && p->nk <= PAIR_TOKENS &&
               (double)heads * (double)p->nq * (double)p->nk / 8 <= (double)PAIR_MAP_BYTES;
    if (!fit)
        snprintf(why, 160, "a bit for every pair takes more than %.1f GB",
                 (double)PAIR_MAP_BYTES * 1e-9);
    return fit;
}
