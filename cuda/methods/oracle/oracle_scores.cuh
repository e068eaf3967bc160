/*
 * oracle_scores.cuh - scores of tiles of rows against all keys, in memory; from them the
 * normalisers of rows and the masses of units.
 */
#ifndef LACUNA_ORACLE_SCORES_CUH
#define LACUNA_ORACLE_SCORES_CUH

#include "cuda/methods/oracle/oracle_common.cuh"
#include "cuda/mma.cuh"
#include "cuda/warp.cuh"

#include <math.h>

#define ORACLE_THREADS 256

/* One tile of keys (blockIdx.x) of one tile of rows (blockIdx.y). Warp w: rows of quarter w % 4,
 * keys of half w / 4. Tiles that no row sees are not written. */
template <int D>
static __global__ void __launch_bounds__(ORACLE_THREADS, 2) oracle_score_tiles(const oracle_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int tile = a.tile0 + (int)blockIdx.y, head = tile / a.row_tiles;
    int64_t r0 = (int64_t)(tile % a.row_tiles) * ORACLE_TILE,
            j0 = (int64_t)blockIdx.x * ORACLE_TILE;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t rows = shared_addr(shared), keys = rows + ORACLE_TILE * D * 2;
    float acc[2][8][4] = {{{0}}};

    if (j0 >= oracle_limit(a, min(r0 + ORACLE_TILE, a.nq) - 1))
        return;
    copy_tile<D, ORACLE_TILE, ORACLE_THREADS>(rows, a.q + head * a.nq * (D / 8), r0, a.nq);
    copy_tile<D, ORACLE_TILE, ORACLE_THREADS>(keys, a.k + head / a.per_kv * a.nk * (D / 8), j0,
                                              a.nk);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    add_scores<D, 2, 8>(rows, warp % 4 * 32, keys, warp / 4 * 64, acc);
    float *to = a.score +
                ((int64_t)blockIdx.y * ORACLE_TILE + warp % 4 * 32 + (lane >> 2)) * a.pitch + j0 +
                warp / 4 * 64 + 2 * (lane & 3);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)(to + (16 * m + 8 * half) * a.pitch + 8 * n) =
                    make_float2(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
}

/* Sums of p over the units of query block blockIdx.y: a thread adds up columns, then the units put
 * together those of their keys. */
static __global__ void __launch_bounds__(ORACLE_THREADS) oracle_unit_masses(const oracle_args a)
{
    __shared__ double part[ORACLE_THREADS];
    int tile = a.tile0 + (int)blockIdx.y / a.per_tile, block = (int)blockIdx.y % a.per_tile;
    int64_t r0 = (int64_t)(tile % a.row_tiles) * ORACLE_TILE + (int64_t)block * a.bq;
    int64_t r1 = min(r0 + a.bq, a.nq),
            at = (int64_t)(blockIdx.y / a.per_tile) * ORACLE_TILE + block * a.bq;
    int wide = (int)min(a.bk, (int64_t)ORACLE_THREADS), units = ORACLE_THREADS / wide;
    int64_t j0 = (int64_t)blockIdx.x * units * a.bk, j1 = min(j0 + units * a.bk, a.nk);
    const float *score = a.score + at * a.pitch;
    const float2 *norm = a.norm + at;
    int rows = (int)(r1 - r0), first = oracle_limit(a, r0);
    double sum = 0;
    for (int64_t j = j0 + threadIdx.x; j < j1; j += ORACLE_THREADS) {
        /* Row r of the block sees key j from here on. */
        int from = !a.causal || j < first ? 0 : (int)(j - (r0 + a.nk - a.nq));
        float part = 0;
#pragma unroll 8
        for (int r = from; r < rows; r++)
            part += oracle_exp(a, score[r * a.pitch + j], norm[r].x) * norm[r].y;
        sum += (double)part;
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    int64_t unit = (int64_t)blockIdx.x * units + threadIdx.x;
    if ((int)threadIdx.x >= units || unit >= a.units)
        return;
    sum = 0;
    for (int e = 0; e < wide; e++)
        sum += part[threadIdx.x * wide + e];
    a.mass[(int64_t)blockIdx.y * a.mass_pitch + unit] = (float)sum;
}

#endif
