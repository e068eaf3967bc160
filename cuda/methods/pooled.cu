/*
 * pooled.cu - vsa and sla: products of the means of blocks, and a fixed number of best blocks for
 * every row of blocks. The CPU side is sim/methods/pooled.c. Means are sums in double and rounded
 * to bf16, products in double; reads Q and K once, 2 n^2 d FLOP in double. sla reads K twice: the
 * mean of all keys is subtracted first.
 */
#include "cuda/select/cut.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/method.cuh"

#include <cuda_bf16.h>

#define MAX_UNITS 24576 /* of a row in shared memory */

struct pooled_state : head_args {
    struct pooled_rule rule;
    float *k_all;           /* [kv_heads][d] mean of all keys */
    float *q_mean, *k_mean; /* [heads][groups][d], [kv_heads][units][d] */
    double *score;          /* [heads][groups][units] */
};

static __device__ __forceinline__ float as_bf16(float x)
{
    return __bfloat162float(__float2bfloat16_rn(x));
}

/* mean[head][block] of the rows x [heads][n][D] in bf16, of x - minus [heads][D] unless that is
 * NULL. Grid (blocks, heads). */
template <int D>
static __global__ void __launch_bounds__(256)
    rounded_means(const uint4 *x, int64_t n, int64_t block, const float *minus, float *mean)
{
    constexpr int LANES = D / 8, STEP = 256 / LANES;
    __shared__ double shared[STEP][D + 1];
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    int64_t row0 = blockIdx.x * block;
    int rows = (int)min(block, n - row0);
    double sum[8] = {0}, all = 0;
    float off[8] = {0};
    for (int c = 0; minus && c < 8; c++)
        off[c] = minus[(int64_t)blockIdx.y * D + lane * 8 + c];
    for (int r = group; r < rows; r += STEP) {
        float v[8];
        unpack(x[(blockIdx.y * n + row0 + r) * LANES + lane], v);
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += minus ? as_bf16(v[c] - off[c]) : v[c];
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        shared[group][lane * 8 + c] = sum[c];
    __syncthreads();
    if (threadIdx.x >= D)
        return;
    for (int i = 0; i < STEP; i++)
        all += shared[i][threadIdx.x];
    mean[(blockIdx.y * (int64_t)gridDim.x + blockIdx.x) * D + threadIdx.x] =
        as_bf16((float)(all / rows));
}

/* A number >= 0 for each double, in their order but for the last bit. */
static __device__ __forceinline__ double rank_of(double x)
{
    uint64_t u = (uint64_t)__double_as_longlong(x + 0.0); /* -0 becomes 0 */
    return __longlong_as_double((long long)((u >> 63 ? ~u : u | 1ull << 63) >> 1));
}

/* A warp per row: the `top` best of its units. */
static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS)
    best_units(const double *score, int64_t rows, int units, int top, const map_rows map)
{
    extern __shared__ double ranks[];
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, seen = 0;
    if (row >= rows)
        return;
    double *rank = ranks + (int64_t)(threadIdx.x >> 5) * units;
    bool some = top > 0 && top < units;
    cut c = {-0.5, 0};
    if (some) {
        for (int j = lane; j < units; j += 32)
            rank[j] = rank_of(score[row * units + j]);
        __syncwarp();
        c = cut_largest(list_shared{rank, units}, top);
    }
    fill_row(map, row, [&](int j) {
        return cut_has(c, some && j < units ? rank[j] : 0, top > 0 && j < units, &seen);
    });
}

template <int D> static int launch_pools(struct gpu *g, const pooled_state *s, struct err *err)
{
    const float *minus = s->rule.centre ? s->k_all : NULL;
    int rc = 0;
    if (s->rule.centre)
        CU(err, run_kernel(g->stream, rounded_means<D>, dim3(1, s->kv_heads), 256, 0, s->k, s->nk,
                           s->nk, (const float *)NULL, s->k_all));
    CU(err, run_kernel(g->stream, rounded_means<D>, dim3(s->groups, s->heads), 256, 0, s->q, s->nq,
                       s->rule.bq, (const float *)NULL, s->q_mean));
    CU(err, run_kernel(g->stream, rounded_means<D>, dim3(s->units, s->kv_heads), 256, 0, s->k,
                       s->nk, s->rule.bk, minus, s->k_mean));
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const pooled_state *s = (const pooled_state *)job->state;
    int64_t rows = job->lists.rows;
    int rc = 0, n = s->units, warps = row_warps(n * 8);
    int across = (int)ceil_div(n, SCORE_TILE), down = (int)ceil_div(s->groups, SCORE_TILE);
    TRY((s->d == 128 ? launch_pools<128> : launch_pools<64>)(g, s, err));
    CU(err, run_kernel(g->stream, score_means, dim3(across, down, s->heads), 128, 0, s->q_mean,
                       s->k_mean, s->d, s->groups, n, s->per_kv, 1.0, 0, (int)s->rule.bq,
                       (int)s->rule.bk, s->score));
    CU(err, run_kernel(g->stream, best_units, ceil_div(rows, warps), 32 * warps, warps * n * 8,
                       s->score, rows, n, (int)s->rule.top, s->map));
out:
    return rc;
}

static bool fits(const struct select_problem *p, char why[160])
{
    int64_t most = MAX_UNITS * select_rule(p, 0)->pooled.bk;
    return dims_fit(p, why) &&
           (p->nk <= most || refuse(why, "the GPU side takes up to %lld keys", (long long)most));
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct pooled_rule *r = &select_rule(&job->problem, 0)->pooled;
    pooled_state *s = NULL;
    int rc = 0;
    TRY(method_init(g, job, r->bq, r->bk, &s, err));
    s->rule = *r;
    TRY(take(g, err, &s->k_all, (int64_t)s->kv_heads * s->d, &s->q_mean, job->lists.rows * s->d,
             &s->k_mean, (int64_t)s->kv_heads * s->units * s->d, &s->score,
             job->lists.rows * s->units));
out:
    return rc;
}

extern "C" const struct select_method select_vsa = {
    "vsa", fits, init, launch, NULL, NULL, false, NULL,
};

extern "C" const struct select_method select_sla = {
    "sla", fits, init, launch, NULL, NULL, false, NULL,
};
