/*
 * attn_scores.cuh - scores of a warp's 16 rows of a tile from global memory, with mma.sync, for the
 * few stages whose scores a consumer needs again after their keys have left shared memory
 * (attn_consumer.cuh). The accumulators of m16n8k16 have the layout of wgmma's.
 */
#pragma once

#include "cuda/hop.cuh"
#include "cuda/mma16.cuh"

/* Channels [at, at + 2) of a row of D 16-bit elements. Volatile, because otherwise ptxas keeps more
 * loads in flight than it has registers for. */
template <int D> DEVICE uint32_t pair_of(const void *x, int64_t row, int at)
{
    uint32_t pair;
    asm volatile("ld.global.nc.u32 %0, [%1];"
                 : "=r"(pair)
                 : "l"((const uint32_t *)x + (row * D + at) / 2));
    return pair;
}

/* s = Q K^T of this lane's rows, `row` and row + 8, those past `rows` as zeros, with 2 N keys:
 * key(i, j) is the number of the j-th of the i-th eight. One head has q [rows][D], k [keys][D]. */
template <int D, int N, class F>
DEVICE void warp_scores(float (&s)[N], const void *q, int row, int rows, const void *k, F key)
{
    constexpr int AT_ONCE = 8; /* blocks of 8 keys whose loads are under way together */
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = 0;
#pragma unroll 1
    for (int at = 2 * (lane & 3); at < D; at += 16) {
        uint32_t a[4], b[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = pair_of<D>(q, min(row + i % 2 * 8, rows - 1), at + i / 2 * 8) &
                   -(uint32_t)(row + i % 2 * 8 < rows); /* no branch: lanes stay together */
#pragma unroll
        for (int j = 0; j < N / 4; j += AT_ONCE) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                int64_t of = key(j + i, lane >> 2);
                b[i][0] = pair_of<D>(k, of, at);
                b[i][1] = pair_of<D>(k, of, at + 8);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                MMA_16X8X16(ATTN_ELEMENT, s + 4 * (j + i), a, b[i][0], b[i][1]);
        }
    }
}
