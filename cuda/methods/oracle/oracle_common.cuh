/*
 * oracle_common.cuh - the numbers that all kernels of the oracle share, and what a row sees.
 */
#ifndef LACUNA_ORACLE_COMMON_CUH
#define LACUNA_ORACLE_COMMON_CUH

#include "core/rules.h"

#include <stdint.h>

#define ORACLE_TILE 128 /* rows and keys of a tile of scores */

/* Kernels work on a range of tiles of ORACLE_TILE rows; tile head * row_tiles + t has the rows from
 * t * ORACLE_TILE on. */
struct oracle_args {
    const uint4 *q, *k;
    int64_t nq, nk, pitch; /* pitch: floats of a row of scores */
    int heads, per_kv, causal, row_tiles;
    int bq, per_tile; /* per_tile: query blocks of a tile */
    int64_t bk;
    int groups, units, words;
    struct oracle_rule rule;
    float scale_log2;
    int tile0;    /* first tile of the launch */
    float *score; /* [tiles of a launch][ORACLE_TILE][pitch] q . k, not scaled */
    float2 *norm; /* [tiles][ORACLE_TILE] largest score of a row; 1 / sum of e^(scale
                   * (s - largest)), 0 for a row without a key */
    float *mass;  /* [tiles][per_tile][mass_pitch] of units */
    int64_t mass_pitch;
    int in_shared; /* the keys of a row fit into shared memory */
    uint32_t *map;
};

/* Keys that row i sees: [0, limit). */
static __device__ __forceinline__ int oracle_limit(const oracle_args &a, int64_t i)
{
    int64_t n = i + 1 + a.nk - a.nq;
    return (int)(!a.causal || n > a.nk ? a.nk : n < 0 ? 0 : n);
}

/* e^(scale (s - top)): the difference is exact where it matters, so that p is right to 1e-6 of
 * itself however large the scores are. */
static __device__ __forceinline__ float oracle_exp(const oracle_args &a, float s, float top)
{
    return exp2f((s - top) * a.scale_log2);
}

/* Units [lo, hi) of the rows [r0, r1) that are kept in advance (oracle.c: forced_units). */
static __device__ __forceinline__ void oracle_forced(const oracle_args &a, int64_t r0, int64_t r1,
                                                     int *lo, int *hi)
{
    int64_t shift = a.nk - a.nq, n = a.rule.forced_n, from = 0, to = 0;
    if (a.rule.forced == ORACLE_DIAG) {
        from = r0 + shift;
        to = r1 + shift;
    } else if (a.rule.forced == ORACLE_SINK) {
        to = n;
    } else if (a.rule.forced == ORACLE_WINDOW) {
        from = r0 + shift - n + 1;
        to = r1 + shift + (a.causal ? 0 : n - 1);
    }
    from = max(from, (int64_t)0);
    to = min(to, (int64_t)oracle_limit(a, r1 - 1));
    *lo = (int)(from < to ? from / a.bk : 0);
    *hi = (int)(from < to ? (to + a.bk - 1) / a.bk : 0);
}

#endif
