/*
 * maprows.cuh - write rows of a selection's map (select.h), one warp per row: bits of the kept
 * units, and their number.
 */
#ifndef LACUNA_MAPROWS_CUH
#define LACUNA_MAPROWS_CUH

#include "cuda/select/select.h"

struct map_rows {
    uint32_t *map;  /* [rows][words] */
    int32_t *count; /* [rows] */
    int words;
};

static inline map_rows map_rows_of(const struct select_lists *l)
{
    return {l->map, l->count, (int)l->words};
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
    int lane = threadIdx.x & 31, kept = 0;
    for (int j0 = 0; j0 < m.words * 32; j0 += 32) {
        uint32_t word = __ballot_sync(~0u, keep(j0 + lane));
        kept += __popc(word);
        if (lane == 0)
            m.map[row * m.words + j0 / 32] = word;
    }
    if (lane == 0)
        m.count[row] = kept;
}

/* The same by whole words: word_of(w) is word w of the row; one lane calls it. */
template <class F>
static __device__ __forceinline__ void fill_row_words(const map_rows &m, int64_t row, F word_of)
{
    int lane = threadIdx.x & 31, kept = 0;
    for (int w = lane; w < m.words; w += 32) {
        uint32_t word = word_of(w);
        m.map[row * m.words + w] = word;
        kept += __popc(word);
    }
    kept = __reduce_add_sync(~0u, kept);
    if (lane == 0)
        m.count[row] = kept;
}

#endif
