/*
 * minference.cu - the block pattern of MInference (arXiv:2407.02490, section 3.2): products of
 * mean-pooled queries and keys, a fixed number of best blocks per row block of 64. The CPU side is
 * sim/minference_head.c. The other patterns keep windows and single columns, for which there is no
 * attention kernel here.
 *
 * Bytes: Q and K once; 2 nb^2 d FLOP in double.
 */
#include "cuda/cut.cuh"
#include "cuda/lists.h"
#include "cuda/means.cuh"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 64
#define ROW_WARPS 8
#define MAX_UNITS 24576 /* of a row in shared memory */

struct minference_state {
    int top;
    float *q_mean, *k_mean; /* [heads][groups][d], [kv_heads][units][d] */
    double *score;          /* [heads][groups][units] */
};

/* Scores as numbers >= 0 that order alike. */
static __device__ __forceinline__ double rank_of(float x)
{
    uint32_t u = __float_as_uint(x + 0.0f); /* -0 becomes 0 */
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* A warp per row: the `top` best of the blocks up to the diagonal. */
static __global__ void __launch_bounds__(32 * ROW_WARPS)
    best_blocks(const double *score, int64_t rows, int units, int top, int words, uint32_t *map,
                int32_t *count)
{
    extern __shared__ double shared[];
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, seen = 0, kept = 0;
    if (row >= rows)
        return;
    double *rank = shared + (int64_t)(threadIdx.x >> 5) * units;
    int n = (int)(row % units) + 1;
    list_shared list = {rank, n};
    cut c = {-0.5, 0};
    if (n > top) {
        for (int j = lane; j < n; j += 32)
            rank[j] = rank_of((float)score[row * units + j]);
        __syncwarp();
        double t = cut_find(list, 0, [=](double, int number) { return number >= top; });
        int above;
        cut_mass(list, t, false, &above);
        c = {t, top - above};
    }
    for (int j0 = 0; j0 < words * 32; j0 += 32) {
        int j = j0 + lane;
        bool in = cut_has(c, n > top && j < n ? rank[j] : 0, j < n, &seen);
        uint32_t word = __ballot_sync(~0u, in);
        kept += __popc(word);
        if (lane == 0)
            map[row * words + j0 / 32] = word;
    }
    if (lane == 0)
        count[row] = kept;
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D>
static int launch_means(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    const minference_state *s = (const minference_state *)job->state;
    int rc = 0, n = (int)l->units;
    unsigned tiles = (unsigned)((n + SCORE_TILE - 1) / SCORE_TILE);
    mean_blocks<D>
        <<<dim3(n, p->heads), 256, 0, g->stream>>>((const uint4 *)p->q, p->nq, BLOCK, 1, s->q_mean);
    CU_LAUNCHED(err);
    mean_blocks<D><<<dim3(n, p->kv_heads), 256, 0, g->stream>>>((const uint4 *)p->k, p->nk, BLOCK,
                                                                1, s->k_mean);
    CU_LAUNCHED(err);
    score_means<<<dim3(tiles, tiles, p->heads), 128, 0, g->stream>>>(
        s->q_mean, s->k_mean, D, n, n, p->heads / p->kv_heads, 1, 1, BLOCK, BLOCK, s->score);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_lists *l = &job->lists;
    const minference_state *s = (const minference_state *)job->state;
    int rc = 0, warps = ROW_WARPS, n = (int)l->units;

    TRY(job->problem.d == 128 ? launch_means<128>(g, job, err) : launch_means<64>(g, job, err));
    while (warps > 1 && warps * n * 8 > 48 * 1024)
        warps /= 2;
    CU(err, cudaFuncSetAttribute((const void *)best_blocks,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, warps * n * 8));
    best_blocks<<<(unsigned)((l->rows + warps - 1) / warps), 32 * warps, warps * n * 8,
                  g->stream>>>(s->score, l->rows, n, s->top, (int)l->words, l->map, l->count);
    CU_LAUNCHED(err);
    TRY(lists_make(g, l, err));
out:
    return rc;
}

/* ---- set-up --------------------------------------------------------------------------------- */

static bool fits(const struct select_problem *p, char why[160])
{
    if (!select_is(p, "pattern", "block") || select_is(p, "profile", "frontier"))
        snprintf(why, 160, "the GPU side has pattern=block with blocks of 64");
    else if (!select_is(p, "emulate", "none") || select_int(p, "start_layer") >= 0)
        snprintf(why, 160, "emulate and start_layer have no GPU side");
    else if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (p->nq != p->nk || (p->nk + BLOCK - 1) / BLOCK > MAX_UNITS)
        snprintf(why, 160, "the GPU side takes whole prompts of up to %d blocks", MAX_UNITS);
    else
        return true;
    return false;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    minference_state *s = (minference_state *)calloc(1, sizeof *s);
    int64_t top = select_int(p, "top");
    int rc = 0;

    job->state = s;
    if (!s)
        FAIL(err, ERR_NOMEM, "minference on the GPU: out of memory");
    s->top = top == INT64_MIN ? 100 : (int)top;
    TRY(select_lists_init(g, job, BLOCK, BLOCK, err));
    TRY(gpu_alloc(g, l->rows * p->d * 4, &s->q_mean, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * p->d * 4, &s->k_mean, err));
    TRY(gpu_alloc(g, l->rows * l->units * 8, &s->score, err));
out:
    return rc;
}

extern "C" const struct select_method select_minference = {
    "minference", fits, init, launch, NULL,
};
