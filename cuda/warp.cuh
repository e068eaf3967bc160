/*
 * warp.cuh - sums and maxima over the lanes of a warp, in a fixed order; every lane gets the
 * result.
 */
#pragma once

template <class T> static __device__ __forceinline__ T warp_add(T x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
}

/* Four sums over the four lanes of a quad, of which each lane gets its own: lane 0 that of x0. */
static __device__ __forceinline__ float quad_add(float x0, float x1, float x2, float x3)
{
    bool high = threadIdx.x & 2, odd = threadIdx.x & 1;
    float y0 = high ? x2 : x0, y1 = high ? x3 : x1;
    y0 += __shfl_xor_sync(~0u, high ? x0 : x2, 2);
    y1 += __shfl_xor_sync(~0u, high ? x1 : x3, 2);
    return (odd ? y1 : y0) + __shfl_xor_sync(~0u, odd ? y0 : y1, 1);
}

static __device__ __forceinline__ double warp_max(double x)
{
#pragma unroll
    for (int step = 16; step; step /= 2) {
        double other = __shfl_xor_sync(~0u, x, step);
        x = other > x ? other : x;
    }
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}
