/*
 * rowlse.cuh - log-sum-exp of rows whose scores were reduced in parts, 32 rows to a thread block.
 */
#ifndef LACUNA_ROWLSE_CUH
#define LACUNA_ROWLSE_CUH

#include <stdint.h>

#define LSE_THREADS 1024

/* Log-sum-exp of the lane's row, in base 2. part(p), p < n, is {largest score, sum of 2^(score -
 * largest)}. 32 warps share the parts; sums are double, in a fixed order. Valid in warp 0; -inf
 * when no part has a score. */
template <class F> static __device__ __forceinline__ double row_lse(int n, F part)
{
    __shared__ double sums[32][32];
    __shared__ float tops[32][32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float top = -INFINITY;
    double sum = 0;
#pragma unroll 4
    for (int p = warp; p < n; p += 32)
        top = fmaxf(top, part(p).x);
    tops[warp][lane] = top;
    __syncthreads();
    for (int w = 0; w < 32; w++)
        top = fmaxf(top, tops[w][lane]);
    if (top == -INFINITY)
        top = 0;
#pragma unroll 4
    for (int p = warp; p < n; p += 32) {
        float2 x = part(p);
        sum += (double)x.y * exp2f(x.x - top);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp == 0)
        for (int w = 1; w < 32; w++)
            sum += sums[w][lane];
    return top + log2(sum);
}

#endif
