/*
 * dilated.cu - rows of dilated segments gathered, and the outputs of the branches mixed by their
 * softmax denominators (arXiv 2307.02486, equations 6-10). Both are bound by memory.
 */
#include "cuda/own/own.h"

#include <cuda_bf16.h>
#include <math.h>

#define THREADS 256

/* A thread copies eight channels. Grid (blocks, gathers). */
static __global__ void __launch_bounds__(THREADS) gather_rows(const dilated_gather *all, int chunks)
{
    const dilated_gather a = all[blockIdx.y];
    const uint4 *x = (const uint4 *)a.x;
    const int64_t total = a.parts * a.n * chunks;
    for (int64_t e = blockIdx.x * (int64_t)THREADS + threadIdx.x; e < total;
         e += gridDim.x * (int64_t)THREADS) {
        int64_t row = e / chunks, part = row / a.n;
        int2 from = __ldg(a.from + part);
        int64_t token = from.y + (row - part * a.n) * a.step;
        ((uint4 *)a.out)[e] = x[(from.x * a.tokens + token) * chunks + (e - row * chunks)];
    }
}

int dilated_gather_launch(struct gpu *g, const struct dilated_gather *all, int64_t count,
                          int64_t most, int d, struct err *err)
{
    int chunks = d / 8;
    int64_t blocks = (most * chunks + THREADS - 1) / THREADS;
    unsigned grid = (unsigned)(blocks < 16 * g->sms ? blocks : 16 * g->sms);
    gather_rows<<<dim3(grid, (unsigned)count), THREADS, 0, g->stream>>>(all, chunks);
    return LAUNCH_STATUS(err);
}

/* The row of a branch's outputs for position p of a head, -1 where the branch leaves it out. */
static __device__ __forceinline__ int64_t row_of(const dilated_branch &b, int head, int64_t p,
                                                 int64_t *segment)
{
    int64_t s = p / b.w, off = p - s * b.w;
    int phase = b.phase[head];
    *segment = head * b.segments + s;
    return off % b.r == phase ? b.base[*segment] + (off - phase) / b.r : -1;
}

/* A warp per row, PER channels a lane. */
template <int PER>
static __global__ void __launch_bounds__(THREADS)
    merge_rows(const __grid_constant__ dilated_merge a)
{
    constexpr int D = 32 * PER;
    int64_t row = (blockIdx.x * (int64_t)THREADS + threadIdx.x) >> 5;
    int lane = threadIdx.x & 31;
    if (row >= a.heads * a.nq)
        return;
    int head = (int)(row / a.nq);
    int64_t p = row - head * a.nq + a.shift, segment;
    float top = -INFINITY, sum = 0, acc[PER] = {0};
    for (int b = 0; b < a.n && p >= 0; b++) {
        int64_t at = row_of(a.b[b], head, p, &segment);
        if (at < 0)
            continue;
        float lse = a.b[b].lse[at], zeros = a.b[b].zeros ? a.b[b].zeros[segment] : -INFINITY;
        float most = fmaxf(top, fmaxf(lse, zeros)), old = expf(top - most), own = expf(lse - most);
        const __nv_bfloat16 *o = (const __nv_bfloat16 *)a.b[b].out + at * D + lane * PER;
        sum = sum * old + own + (zeros == -INFINITY ? 0 : expf(zeros - most));
        top = most;
#pragma unroll
        for (int c = 0; c < PER; c++)
            acc[c] = acc[c] * old + own * __bfloat162float(o[c]);
    }
    __nv_bfloat16 *out = (__nv_bfloat16 *)a.out + row * D + lane * PER;
#pragma unroll
    for (int c = 0; c < PER; c++)
        out[c] = __float2bfloat16_rn(sum > 0 ? acc[c] / sum : 0);
    if (lane == 0)
        a.lse[row] = sum > 0 ? top + logf(sum) : -INFINITY;
}

int dilated_merge_launch(struct gpu *g, const struct dilated_merge *a, struct err *err)
{
    unsigned grid = (unsigned)((a->heads * a->nq + THREADS / 32 - 1) / (THREADS / 32));
    if (a->d == 64)
        merge_rows<2><<<grid, THREADS, 0, g->stream>>>(*a);
    else
        merge_rows<4><<<grid, THREADS, 0, g->stream>>>(*a);
    return LAUNCH_STATUS(err);
}
