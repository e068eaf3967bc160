/*
 * minference.cu - MInference's patterns that look at q and k (arXiv:2407.02490, section 3.2). The
 * CPU side is sim/methods/minference/minference.c and sim/blocks/vslash.c.
 *
 * Vertical-slash: mass per key and per distance of the last rows (lastrows.cuh), the best of both,
 * and the lists of 64-row blocks (slashmap.cuh). Block: products of mean-pooled queries and keys,
 * and a fixed number of best blocks per row block of 64; reads Q and K once, 2 nb^2 d FLOP in
 * double.
 */
#include "core/intmath.h"
#include "cuda/select/cut.cuh"
#include "cuda/select/lastrows.cuh"
#include "cuda/select/maprows.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/slashmap.cuh"
#include "cuda/select/slashshare.cuh"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BLOCK 64
#define MAX_UNITS 24576 /* of a row in shared memory */

struct minference_state {
    bool slash, realised; /* vertical-slash; its lists or the pairs asked for */
    last_rows last;
    slash_lists lists;

    int top;                /* the block pattern */
    float *q_mean, *k_mean; /* [heads][groups][d], [kv_heads][units][d] */
    double *score;          /* [heads][groups][units] */
};

/* Scores as numbers >= 0 that order alike. */
static __device__ __forceinline__ double rank_of(float x)
{
    uint32_t u = __float_as_uint(x + 0.0f); /* -0 becomes 0 */
    return u >> 31 ? ~u : u | 0x80000000u;
}

/* A warp per row: the `top` best of the blocks that it sees, up to the diagonal or all. */
static __global__ void __launch_bounds__(32 * MAX_ROW_WARPS)
    best_blocks(const double *score, int64_t rows, int units, int top, int causal,
                const map_rows map)
{
    extern __shared__ double ranks[];
    int64_t row = blockIdx.x * (int64_t)(blockDim.x >> 5) + (threadIdx.x >> 5);
    int lane = threadIdx.x & 31, seen = 0;
    if (row >= rows)
        return;
    double *rank = ranks + (int64_t)(threadIdx.x >> 5) * units;
    int n = causal ? (int)(row % units) + 1 : units;
    cut c = {-0.5, 0};
    if (n > top) {
        for (int j = lane; j < n; j += 32)
            rank[j] = rank_of((float)score[row * units + j]);
        __syncwarp();
        c = cut_largest(list_shared{rank, n}, top);
    }
    fill_row(map, row,
             [&](int j) { return cut_has(c, n > top && j < n ? rank[j] : 0, j < n, &seen); });
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D>
static int launch_means(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    const minference_state *s = (const minference_state *)job->state;
    int rc = 0, n = (int)l->units;
    unsigned tiles = (unsigned)ceil_div(n, SCORE_TILE);
    mean_blocks<D>
        <<<dim3(n, p->heads), 256, 0, g->stream>>>((const uint4 *)p->q, p->nq, BLOCK, 1, s->q_mean);
    CU_LAUNCHED(err);
    mean_blocks<D><<<dim3(n, p->kv_heads), 256, 0, g->stream>>>((const uint4 *)p->k, p->nk, BLOCK,
                                                                1, s->k_mean);
    CU_LAUNCHED(err);
    score_means<<<dim3(tiles, tiles, p->heads), 128, 0, g->stream>>>(
        s->q_mean, s->k_mean, D, n, n, p->heads / p->kv_heads, 1, p->causal, BLOCK, BLOCK,
        s->score);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch_blocks(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_lists *l = &job->lists;
    const minference_state *s = (const minference_state *)job->state;
    int rc = 0, n = (int)l->units, warps = row_warps(n * 8), smem = warps * n * 8;

    if (job->problem.d == 128)
        TRY(launch_means<128>(g, job, err));
    else
        TRY(launch_means<64>(g, job, err));
    CU(err, cudaFuncSetAttribute((const void *)best_blocks,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    best_blocks<<<(unsigned)ceil_div(l->rows, warps), 32 * warps, smem, g->stream>>>(
        s->score, l->rows, n, s->top, job->problem.causal, map_rows_of(l));
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const minference_state *s = (const minference_state *)job->state;
    int rc =
        s->slash ? last_rows_launch(g, s->last, job->problem.d, err) : launch_blocks(g, job, err);
    return rc || !s->slash ? rc : slash_launch(g, s->lists, s->realised, err);
}

/* ---- set-up --------------------------------------------------------------------------------- */

static bool fits(const struct select_problem *p, char why[160])
{
    int64_t most = select_rule(p, 0)->minf.blocks ? (int64_t)MAX_UNITS * BLOCK : SLASH_MOST;
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (p->nq != p->nk || p->nk > most)
        snprintf(why, 160, "the GPU side takes whole prompts of up to %lld tokens",
                 (long long)most);
    else
        return true;
    return false;
}

/* For a share of work the sizes are searched here, once: the search stands for those that somebody
 * has tuned before, and is in no time of a choice. */
static int init_slash(struct gpu *g, struct select_job *job, minference_state *s, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct minf_rule *r = &select_rule(p, 0)->minf;
    int rc = 0;

    s->slash = true;
    s->realised = r->realised;
    TRY(select_lists_init(g, job, s->realised ? SLASH_ROWS : 1, 1, err));
    TRY(last_rows_init(g, p, (int)r->rows, 1, &s->last, err));
    s->lists.n_cols = (int)r->v;
    s->lists.n_dists = (int)r->s;
    s->lists.force_cols = (int)r->force_cols;
    s->lists.force_dists = (int)r->force_dists;
    TRY(slash_init(g, job, &s->last, 0, &s->lists, err));
    if (!(r->work > 0))
        goto out;
    TRY(last_rows_launch(g, s->last, p->d, err));
    TRY(share_sizes(g, &s->lists, r->work, err));
out:
    return rc;
}

static int init_blocks(struct gpu *g, struct select_job *job, minference_state *s, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    int rc = 0;

    TRY(select_lists_init(g, job, BLOCK, BLOCK, err));
    s->top = (int)select_rule(p, 0)->minf.top;
    TRY(gpu_alloc(g, l->rows * p->d * 4, &s->q_mean, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * p->d * 4, &s->k_mean, err));
    TRY(gpu_alloc(g, l->rows * l->units * 8, &s->score, err));
out:
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    minference_state *s = (minference_state *)calloc(1, sizeof *s);
    job->state = s;
    if (!s)
        return err_set(err, ERR_NOMEM, "minference on the GPU: out of memory");
    bool blocks = select_rule(&job->problem, 0)->minf.blocks;
    return blocks ? init_blocks(g, job, s, err) : init_slash(g, job, s, err);
}

extern "C" const struct select_method select_minference = {
    "minference", fits, init, launch, NULL, NULL, NULL, false, NULL,
};
