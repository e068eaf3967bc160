/*
 * products.cuh - products of tokens with directions that are drawn in double: in float for all, and
 * in double, in the order of the CPU's sums, where float does not decide.
 */
#pragma once

#include "cuda/select/means.cuh"

/* Add the products of a token x [d], bf16, with the directions in shared memory, float [d][N],
 * aligned to 16 bytes, to dot, and find its largest |channel|. By a thread. */
template <int N>
static __device__ __forceinline__ void add_products(const uint4 *x, int d, const float *shared,
                                                    float (&dot)[N], float *most)
{
#pragma unroll 1
    for (int c = 0; c < d; c += 8) {
        float v[8];
        unpack(x[c / 8], v);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float4 *g = (const float4 *)(shared + (c + e) * N);
            *most = fmaxf(*most, fabsf(v[e]));
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                float4 four = g[i / 4];
                dot[i] = fmaf(four.x, v[e], dot[i]);
                dot[i + 1] = fmaf(four.y, v[e], dot[i + 1]);
                dot[i + 2] = fmaf(four.z, v[e], dot[i + 2]);
                dot[i + 3] = fmaf(four.w, v[e], dot[i + 3]);
            }
        }
    }
}

/* Do such products tell their size, or are they near the ends of float's range? */
static __device__ __forceinline__ bool products_in_range(float most)
{
    return most > 1e-25f && most < 1e30f;
}

/* The product with one direction g [d] as the CPU takes it. */
static __device__ __forceinline__ double exact_product(const double *g, const uint4 *x, int d)
{
    double dot = 0;
    for (int c = 0; c < d; c += 8) {
        float v[8];
        unpack(x[c / 8], v);
#pragma unroll
        for (int e = 0; e < 8; e++)
            dot = __dadd_rn(dot, __dmul_rn(g[c + e], (double)v[e]));
    }
    return dot;
}
