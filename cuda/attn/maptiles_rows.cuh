/*
 * maptiles_rows.cuh - rows of maps of kept units, and what a query of them may see (maptiles.cu).
 */
#ifndef LACUNA_MAPTILES_ROWS_CUH
#define LACUNA_MAPTILES_ROWS_CUH

#include "core/accel.h"
#include "cuda/attn/maptiles.h"
#include "cuda/attn/tilewords.cuh"
#include "cuda/attn/unitmaps.cuh"

#define TILE ACCEL_TILE
#define TILE_WORDS ACCEL_TILE_WORDS
#define THREADS 256 /* a thread per word of a tile */

enum { EMPTY, PARTIAL, WHOLE };

/* ---- maps ----------------------------------------------------------------------------------- */

/* The row of the map for a query, a bit per key. */
static __device__ const uint32_t *key_row(const tile_rows &r, int head, int row)
{
    int64_t group = row / (int)r.maps.bq;
    return r.by_key ? r.by_key + (head * r.map_rows + group) * r.pitch
                    : r.map[head] + group * r.pitch;
}

/* A column while its rows are read: `seen` keys of its 32, and those before it, are seen by the
 * first row, `grow` more by each row after it, `most` at most. */
struct reader {
    const uint32_t *at;
    int64_t pitch;
    int rows, seen, grow, most;
};

static __device__ __forceinline__ uint32_t seen_by(const reader &x, int i)
{
    return low_bits(min(x.seen + i * x.grow, x.most));
}

/* The reader of word w of a row of tiles that begins with query row0. */
static __device__ __forceinline__ reader reader_of(const tile_rows &r, const uint32_t *row,
                                                   int row0, int rows, int w)
{
    int64_t first = r.maps.causal ? row0 + r.maps.nk - r.maps.nq + 1 : r.maps.nk;
    int seen = (int)max(first - 32 * w, (int64_t)-TILE);
    return {row + w, r.pitch, rows, seen, r.maps.causal ? 1 : 0, (int)r.maps.nk - 32 * w};
}

#endif
