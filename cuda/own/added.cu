/*
 * added.cu - see own.h. 8 bytes read and 2 written per number.
 */
#include "cuda/own/own.h"

#include <cuda_bf16.h>
#include <math.h>

static __device__ __forceinline__ uint32_t plus(uint32_t pair, float low, float high)
{
    __nv_bfloat162 x = *(__nv_bfloat162 *)&pair;
    x = __floats2bfloat162_rn(__low2float(x) + low, __high2float(x) + high);
    return *(uint32_t *)&x;
}

/* A thread for every 8 numbers of head blockIdx.y. */
static __global__ void add_numbers(const added_job a)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i >= a.n / 8)
        return;
    uint4 *out = (uint4 *)a.out + (int64_t)blockIdx.y * (a.n / 8) + i;
    const float4 *x = (const float4 *)a.added + (int64_t)(blockIdx.y % a.parts) * (a.n / 4) + 2 * i;
    float4 first = x[0], second = x[1];
    uint4 o = *out;
    o.x = plus(o.x, first.x, first.y);
    o.y = plus(o.y, first.z, first.w);
    o.z = plus(o.z, second.x, second.y);
    o.w = plus(o.w, second.z, second.w);
    *out = o;
}

static __global__ void scale_numbers(float *x, int64_t n, float factor)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n)
        x[i] *= factor;
}

int added_init(struct gpu *g, const float *const *added, const int *exp, int parts, int64_t n,
               struct added_job *job, struct err *err)
{
    job->parts = parts;
    job->n = n;
    PASS_ON(gpu_alloc(g, parts * n * 4, &job->added, err));
    for (int i = 0; i < parts; i++) {
        float *to = job->added + i * n;
        PASS_ON(gpu_put(g, to, added[i], n * 4, err));
        if (exp[i] == 0)
            continue;
        scale_numbers<<<(unsigned)((n + 255) / 256), 256, 0, g->stream>>>(to, n,
                                                                          ldexpf(1, -exp[i]));
        PASS_ON_LAUNCH(err);
    }
    return gpu_sync(g, err);
}

int added_launch(struct gpu *g, const struct added_job *job, struct err *err)
{
    dim3 grid((unsigned)((job->n / 8 + 255) / 256), (unsigned)job->heads);
    add_numbers<<<grid, 256, 0, g->stream>>>(*job);
    return LAUNCH_STATUS(err);
}
