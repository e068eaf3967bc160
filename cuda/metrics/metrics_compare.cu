/*
 * metrics_compare.cu - outputs of the heads of a call against dense attention: errors, kept mass,
 * and their sums over rows (metrics.h).
 */
#include "cuda/metrics/metrics.h"

#include "cuda/attn/attn_args.h"

#include <cuda_bf16.h>
#include <math.h>
#include <stdlib.h>

#define THREADS 256
#define LANES_ROWS (THREADS / ROW_LANES) /* rows at a time */
#define BLOCK_ROWS 256                   /* of a thread block */

/* Sums over the channels of one row: of the method's output, of the dense reference, and of their
 * difference (delta). */
struct row_errors {
    float abs_delta, sq_delta, abs_ref, sq_ref, sq_out, dot, max_delta;
};

/* Eight lanes have the channels of a row between them. */
#define ROW_LANES 8

static __device__ __forceinline__ void add_error(row_errors &e, float x, float y)
{
    float delta = x - y;
    e.abs_delta += fabsf(delta);
    e.sq_delta += delta * delta;
    e.abs_ref += fabsf(y);
    e.sq_ref += y * y;
    e.sq_out += x * x;
    e.dot += x * y;
    if (!(fabsf(delta) <= e.max_delta)) /* NaN stays */
        e.max_delta = fabsf(delta);
}

static __device__ __forceinline__ void sum_errors(row_errors &e)
{
#pragma unroll
    for (int bit = 1; bit < ROW_LANES; bit *= 2) {
        e.abs_delta += __shfl_xor_sync(~0u, e.abs_delta, bit);
        e.sq_delta += __shfl_xor_sync(~0u, e.sq_delta, bit);
        e.abs_ref += __shfl_xor_sync(~0u, e.abs_ref, bit);
        e.sq_ref += __shfl_xor_sync(~0u, e.sq_ref, bit);
        e.sq_out += __shfl_xor_sync(~0u, e.sq_out, bit);
        e.dot += __shfl_xor_sync(~0u, e.dot, bit);
        float other = __shfl_xor_sync(~0u, e.max_delta, bit);
        if (isnan(other) || other > e.max_delta)
            e.max_delta = other;
    }
}

/* The fields of struct accel_sums in its order. */
enum { SUM_FIELDS = 12, MAX_DELTA = 6, MIN_COS = 7, MAX_LSE = 9 };

struct compare_args {
    const float *ref;
    const double *ref_lse;
    const __nv_bfloat16 *out;
    const float *lse, *lse_mask;
    bool all;
    int nq, blocks; /* blocks of rows of a head */
    double *mass;
    double *parts; /* [heads][blocks][SUM_FIELDS] */
};

/* Combine a value with what was there; a NaN, once seen, stays. */
static __device__ __forceinline__ double combine(int field, double a, double b)
{
    if (field == MAX_DELTA || field == MAX_LSE)
        return isnan(a) || b <= a ? a : b;
    if (field == MIN_COS)
        return isnan(a) || b >= a ? a : b;
    return a + b;
}

static __device__ __forceinline__ double initial(int field)
{
    return field == MIN_COS ? (double)INFINITY : 0;
}

/* Two zero vectors: 1; one of them: 0. */
static __device__ double row_cosine(const row_errors &e)
{
    if (e.sq_out == 0 && e.sq_ref == 0)
        return 1;
    return e.sq_out == 0 || e.sq_ref == 0
               ? 0
               : (double)e.dot / (sqrt((double)e.sq_out) * sqrt((double)e.sq_ref));
}

static __device__ void add_row(double *sum, const row_errors &e, double lse, double ref)
{
    bool both = lse != -INFINITY && ref != -INFINITY;
    double apart = both ? fabs(lse - ref) : 0;
    const double v[SUM_FIELDS] = {e.abs_delta, e.sq_delta,     e.abs_ref,
                                  e.sq_ref,    e.sq_out,       e.dot,
                                  e.max_delta, row_cosine(e),  apart,
                                  apart,       both ? 1. : 0., lse == -INFINITY ? 1. : 0.};
#pragma unroll
    for (int f = 0; f < SUM_FIELDS; f++)
        sum[f] = combine(f, sum[f], v[f]);
}

static __device__ double kept_mass(double lse, double ref, bool all)
{
    if (all)
        return ref == -INFINITY ? 0 : 1;
    double kept = lse == -INFINITY ? 0 : exp(lse - ref);
    return kept > 1 ? 1 : kept;
}

/* Eight lanes have a row between them: channels 4 l + 32 i. */
template <int D>
static __device__ row_errors errors_of_row(const compare_args &a, size_t row, int lane)
{
    size_t at = row * D + 4 * lane;
    row_errors e = {};
#pragma unroll
    for (int c = 0; c < D; c += 4 * ROW_LANES) {
        float4 y = *(const float4 *)(a.ref + at + c);
        uint2 x = *(const uint2 *)(a.out + at + c);
        float2 lo = __bfloat1622float2(*(__nv_bfloat162 *)&x.x);
        float2 hi = __bfloat1622float2(*(__nv_bfloat162 *)&x.y);
        add_error(e, lo.x, y.x);
        add_error(e, lo.y, y.y);
        add_error(e, hi.x, y.z);
        add_error(e, hi.y, y.w);
    }
    sum_errors(e);
    return e;
}

template <int D> __global__ void __launch_bounds__(THREADS) compare_rows(const compare_args a)
{
    __shared__ double shared[LANES_ROWS][SUM_FIELDS];
    int lane = threadIdx.x % ROW_LANES, group = threadIdx.x / ROW_LANES;
    double sum[SUM_FIELDS];

    for (int f = 0; f < SUM_FIELDS; f++)
        sum[f] = initial(f);
    for (int i = 0; i < BLOCK_ROWS; i += LANES_ROWS) {
        int in_head = blockIdx.x * BLOCK_ROWS + i + group;
        bool mine = in_head < a.nq;
        size_t row = (size_t)blockIdx.y * a.nq + (mine ? in_head : a.nq - 1);
        row_errors e = errors_of_row<D>(a, row, lane);
        if (lane || !mine)
            continue;
        add_row(sum, e, a.lse[row], a.ref_lse[row]);
        if (a.mass)
            a.mass[row] = kept_mass(a.lse_mask[row], a.ref_lse[row], a.all);
    }
    if (lane == 0)
        for (int f = 0; f < SUM_FIELDS; f++)
            shared[group][f] = sum[f];
    __syncthreads();
    int f = threadIdx.x;
    if (f >= SUM_FIELDS)
        return;
    double total = initial(f);
    for (int k = 0; k < LANES_ROWS; k++)
        total = combine(f, total, shared[k][f]);
    a.parts[((size_t)blockIdx.y * a.blocks + blockIdx.x) * SUM_FIELDS + f] = total;
}

/* The blocks of a head, in order. A thread block per head. */
__global__ static void add_parts(const double *parts, int blocks, double *sums)
{
    int f = threadIdx.x;
    double total = initial(f);
    for (int b = 0; b < blocks; b++)
        total = combine(f, total, parts[((size_t)blockIdx.x * blocks + b) * SUM_FIELDS + f]);
    sums[blockIdx.x * SUM_FIELDS + f] = total;
}

static void take_sums(const double *v, struct accel_sums *s)
{
    *s = {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11], 0};
}

int metrics_compare(struct gpu *g, const struct attn_problem *p, const struct metrics_dense *d,
                    const struct metrics_outputs *o, struct accel_sums *sums, double *mass,
                    struct err *err)
{
    struct gpu_mark mark = gpu_mark(g);
    int64_t rows = p->heads * p->nq, blocks = (p->nq + BLOCK_ROWS - 1) / BLOCK_ROWS;
    compare_args a = {d->out,     d->lse,      (const __nv_bfloat16 *)o->out,
                      o->lse,     o->lse_mask, o->all,
                      (int)p->nq, (int)blocks, NULL,
                      NULL};
    double *device_sums = NULL, *v = NULL;
    dim3 grid((unsigned)blocks, (unsigned)p->heads);
    auto compare = BY_HEAD_DIM(attn_dv(p->d), compare_rows);
    int rc = 0;

    if (mass)
        TRY(gpu_alloc(g, rows * 8, &a.mass, err));
    TRY(gpu_alloc(g, p->heads * blocks * SUM_FIELDS * 8, &a.parts, err));
    TRY(gpu_alloc(g, p->heads * SUM_FIELDS * 8, &device_sums, err));
    TRY(mem_alloc(&v, p->heads * SUM_FIELDS, sizeof *v, "sums of errors", err));
    compare<<<grid, THREADS, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    add_parts<<<(unsigned)p->heads, SUM_FIELDS, 0, g->stream>>>(a.parts, (int)blocks, device_sums);
    CU_LAUNCHED(err);
    TRY(gpu_get(g, v, device_sums, p->heads * (int64_t)SUM_FIELDS * 8, err));
    for (int h = 0; h < p->heads; h++)
        take_sums(v + h * SUM_FIELDS, sums + h);
    if (mass)
        TRY(gpu_get(g, mass, a.mass, rows * 8, err));
out:
    free(v);
    gpu_release(g, mark);
    return rc;
}
