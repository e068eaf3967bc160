/*
 * headrows.cu - see headrows.h.
 */
#include "core/intmath.h"
#include "cuda/headrows.h"

#include <cuda_bf16.h>

#define THREADS 256

static __global__ void put_rows(const __nv_bfloat16 *x, int64_t n, int d, float unit, float *to,
                                int64_t stride)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n)
        to[i / d * stride + i % d] = __bfloat162float(x[i]) * unit;
}

extern "C" int head_rows_put(struct gpu *g, const void *x, int64_t n, int d, float unit, float *to,
                             int64_t stride, struct err *err)
{
    put_rows<<<(unsigned)ceil_div(n * d, THREADS), THREADS, 0, g->stream>>>(
        (const __nv_bfloat16 *)x, n * d, d, unit, to, stride);
    return LAUNCH_STATUS(err);
}
