/*
 * sparge_values.cuh - V in e4m3 for SpargeAttn's 8-bit product: per channel scaled so that the
 * largest |v| becomes v_top, transposed.
 */
#ifndef LACUNA_SPARGE_VALUES_CUH
#define LACUNA_SPARGE_VALUES_CUH

#include "cuda/methods/spargeattn/sparge_tokens.cuh"

#include <cuda_fp8.h>

template <int D>
static __global__ void __launch_bounds__(THREADS)
    max_values(const uint4 *v, int64_t nk, unsigned *v_max)
{
    constexpr int LANES = D / 8, STEP = THREADS / LANES;
    __shared__ float shared[THREADS / 32][D];
    int64_t row0 = blockIdx.x * (int64_t)MEAN_ROWS;
    int rows = (int)min((int64_t)MEAN_ROWS, nk - row0);
    int lane = threadIdx.x & 31;
    float top[8] = {0};
    for (int r = threadIdx.x / LANES; r < rows; r += STEP) {
        float x[8];
        unpack(v[(blockIdx.y * nk + row0 + r) * LANES + threadIdx.x % LANES], x);
#pragma unroll
        for (int c = 0; c < 8; c++)
            top[c] = fmaxf(top[c], fabsf(x[c]));
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int step = LANES; step < 32; step *= 2)
            top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], step));
    if (lane < LANES)
#pragma unroll
        for (int c = 0; c < 8; c++)
            shared[threadIdx.x >> 5][lane * 8 + c] = top[c];
    __syncthreads();
    if (threadIdx.x < D) {
        float most = 0;
        for (int w = 0; w < THREADS / 32; w++)
            most = fmaxf(most, shared[w][threadIdx.x]);
        atomicMax(v_max + blockIdx.y * D + threadIdx.x, __float_as_uint(most));
    }
}

/* 128 keys: V transposed, in e4m3, the keys of each 16 in the order 0,1,8,9,2,3,10,11, ... that an
 * 8-bit A operand made of score accumulators has. */
template <int D>
static __global__ void __launch_bounds__(THREADS)
    quantise_values(const uint4 *v, int64_t nk, int64_t v_keys, float v_top, const unsigned *v_max,
                    uint8_t *out, float *scale)
{
    constexpr int LANES = D / 8;
    __shared__ alignas(16) uint16_t tile[128][D]; /* 16-byte chunks XORed with the key's sixteen */
    int64_t row0 = blockIdx.x * 128ll, head = blockIdx.y;
    int rows = (int)min((int64_t)128, nk - row0);
#pragma unroll
    for (int e = threadIdx.x; e < 128 * LANES; e += THREADS) {
        int r = e / LANES, c = e % LANES;
        *(uint4 *)&tile[r][(c ^ (r >> 4)) * 8] =
            r < rows ? v[(head * nk + row0 + r) * LANES + c] : make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < D * 8; e += THREADS) {
        int c = e / 8, part = e % 8, at = (c / 8 ^ part) * 8 + c % 8;
        float most = __uint_as_float(v_max[head * D + c]);
        float factor = most > 0 ? v_top / most : 0;
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x[4];
#pragma unroll
            for (int u = 0; u < 4; u++)
                x[u] = factor *
                       __uint_as_float((uint32_t)tile[part * 16 + 2 * i + u % 2 + u / 2 * 8][at]
                                       << 16);
            w[i] = __nv_cvt_float2_to_fp8x2(make_float2(x[0], x[1]), __NV_SATFINITE, __NV_E4M3) |
                   (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(x[2], x[3]), __NV_SATFINITE,
                                                      __NV_E4M3)
                       << 16;
        }
        *(uint4 *)(out + (head * D + c) * v_keys + row0 + part * 16) =
            make_uint4(w[0], w[1], w[2], w[3]);
    }
    if (blockIdx.x == 0 && threadIdx.x < D)
        scale[head * D + threadIdx.x] = __uint_as_float(v_max[head * D + threadIdx.x]) / v_top;
}

#endif
