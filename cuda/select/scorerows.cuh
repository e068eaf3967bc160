/*
 * scorerows.cuh - a warp for a row of scores of units: its softmax, and the best of it into the
 * map.
 */
#pragma once

#include "cuda/select/cut.cuh"
#include "cuda/select/maprows.cuh"

/* e^(z - top) / sum is the softmax of z [n]. */
struct row_scale {
    double top, sum;
};

static __device__ __forceinline__ row_scale scale_row(const double *z, int n)
{
    row_scale r = {-INFINITY, 0};
    int lane = threadIdx.x & 31;
    for (int j = lane; j < n; j += 32)
        r.top = z[j] > r.top ? z[j] : r.top;
    r.top = warp_max(r.top);
    for (int j = lane; j < n; j += 32)
        r.sum += exp(z[j] - r.top);
    r.sum = warp_add(r.sum);
    return r;
}

/* A number >= 0 for each double below 2^1023, in their order but for the last bit. */
static __device__ __forceinline__ double rank_of(double x)
{
    uint64_t u = (uint64_t)__double_as_longlong(x + 0.0); /* -0 becomes 0 */
    return __longlong_as_double((long long)((u >> 63 ? ~u : u | 1ull << 63) >> 1));
}

/* Keep the `top` best of the first n units of a row, ties by index, and unit `own`, -1: none.
 * score(j): of unit j; rank: [n] in shared memory. */
template <class F>
static __device__ __forceinline__ void keep_best(const map_rows &map, int64_t row, int n, int top,
                                                 int own, double *rank, F score)
{
    bool some = top > 0 && top < n;
    int seen = 0;
    cut c = {-0.5, 0};
    if (some) {
        for (int j = threadIdx.x & 31; j < n; j += 32)
            rank[j] = rank_of(score(j));
        __syncwarp();
        c = cut_largest(list_shared{rank, n}, top);
    }
    fill_row(map, row, [&](int j) {
        bool best = cut_has(c, some && j < n ? rank[j] : 0, top > 0 && j < n, &seen);
        return best || j == own;
    });
}
