/*
 * blocksum.cuh - sums over the threads before each, in a thread block of whole warps.
 */
#pragma once

#include "cuda/warp.cuh"

#include <stdint.h>

/* The sum of the x before this thread's; *all is that of the block. Neighbouring calls need
 * different `part`. */
static __device__ int64_t sum_before(int64_t x, int64_t part[32], int64_t *all)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x / 32;
    int64_t sum = x;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int64_t left = __shfl_up_sync(~0u, sum, step);
        sum += lane >= step ? left : 0;
    }
    if (lane == 31)
        part[warp] = sum;
    __syncthreads();
    int64_t others = lane < warps ? part[lane] : 0;
    *all = warp_add(others);
    return warp_add(lane < warp ? others : 0) + sum - x;
}
