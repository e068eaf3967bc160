/*
 * fill.cu - Box-Muller on a counter hash (fill.h).
 */
#include "cuda/fill.h"

#include <cuda_bf16.h>

static __device__ uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

__global__ void fill_normal(__nv_bfloat16 *x, int64_t n, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t a = mix((uint32_t)i * 2 + mix(seed));
        uint32_t b = mix(a + 0x9e3779b9u + (uint32_t)(i >> 32));
        float u = (a + 1.0f) * 2.3283064e-10f, v = b * 2.3283064e-10f;
        x[i] = __float2bfloat16(sqrtf(-2 * logf(u)) * cosf(6.2831853f * v));
    }
}

extern "C" int gpu_fill_normal(struct gpu *g, void *x, int64_t n, uint32_t seed, struct err *err)
{
    fill_normal<<<1056, 256, 0, g->stream>>>((__nv_bfloat16 *)x, n, seed);
    return LAUNCH_STATUS(err);
}
