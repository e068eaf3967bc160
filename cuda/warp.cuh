/*
 * warp.cuh - sums and maxima over the lanes of a warp, in a fixed order; every lane gets the
 * result.
 */
#ifndef LACUNA_WARP_CUH
#define LACUNA_WARP_CUH

template <class T> static __device__ __forceinline__ T warp_add(T x)
{
#pragma unroll
    for (int step = 16; step; step /= 2)
        x += __shfl_xor_sync(~0u, x, step);
    return x;
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

#endif
