/*
 * decoder_ops.cuh - what the small kernels of a layer are made of (decoder_ops.cu,
 * denoiser_ops.cu).
 */
#ifndef LACUNA_DECODER_OPS_CUH
#define LACUNA_DECODER_OPS_CUH

#include "core/intmath.h"
#include "cuda/decoder_ops.h"
#include "cuda/warp.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define THREADS 256

static inline unsigned blocks_of(int64_t n)
{
    return (unsigned)ceil_div(n, THREADS);
}

/* hi, lo (and hi again) of x at column c of a row of `d` columns. */
static __device__ __forceinline__ void put_split(__nv_bfloat16 *row, int64_t d, int64_t c,
                                                 int terms, float x)
{
    __nv_bfloat16 hi = __float2bfloat16(x);
    row[c] = hi;
    row[d + c] = __float2bfloat16(x - __bfloat162float(hi));
    if (terms == 3)
        row[2 * d + c] = hi;
}

static __device__ __forceinline__ float load_as_float(const void *x, int type, int64_t i)
{
    if (type == DT_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)x)[i]);
    if (type == DT_F16)
        return __half2float(((const __half *)x)[i]);
    return ((const float *)x)[i];
}

/* Sum over a block of THREADS, in all threads. */
static __device__ float block_sum(float x)
{
    __shared__ float part[THREADS / 32];
    x = warp_add(x);
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    x = part[threadIdx.x & (THREADS / 32 - 1)];
    for (int m = THREADS / 64; m; m >>= 1)
        x += __shfl_xor_sync(~0u, x, m);
    __syncthreads();
    return x;
}

/* Larger values of q, k or v are refused. */
static __device__ __forceinline__ float operand_limit(bool bf16)
{
    return bf16 ? 0x1p39F : 65504;
}

static __device__ __forceinline__ void put_operand(void *to, bool bf16, int64_t i, float x)
{
    if (bf16)
        ((__nv_bfloat16 *)to)[i] = __float2bfloat16(x);
    else
        ((__half *)to)[i] = __float2half(x);
}

static __device__ __forceinline__ float operand(const void *x, bool bf16, int64_t i)
{
    return bf16 ? __bfloat162float(((const __nv_bfloat16 *)x)[i])
                : __half2float(((const __half *)x)[i]);
}

#endif
