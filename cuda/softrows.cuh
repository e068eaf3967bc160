/*
 * softrows.cuh - the running softmax (FlashAttention-2, arXiv 2307.08691, algorithm 1) of the two
 * rows of which a thread has a part in the accumulators of mma.sync: elements 2 r and 2 r + 1 of
 * every fragment are of row r, whose other channels three other lanes have.
 */
#pragma once

#include "cuda/mma.cuh"

/* Over the four lanes of a row. */
static __device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

static __device__ __forceinline__ float row_add(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Outputs of row r times f. */
template <int N> static __device__ __forceinline__ void scale_row(float (&o)[N][4], int r, float f)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        o[i][2 * r] *= f;
        o[i][2 * r + 1] *= f;
    }
}

/* The largest score of row r, in log2 units, becomes `top`: sum and outputs follow. */
template <int N>
static __device__ __forceinline__ void raise_row(float (&m)[2], float (&l)[2], float (&o)[N][4],
                                                 int r, float top)
{
    float f = m[r] == top ? 1 : exp2_fast(m[r] - top);
    m[r] = top;
    l[r] *= f;
    scale_row(o, r, f);
}
