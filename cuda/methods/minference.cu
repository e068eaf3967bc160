/*
 * minference.cu - MInference's patterns that look at q and k (arXiv:2407.02490, section 3.2). The
 * CPU side is sim/methods/minference/minference_head.c and sim/blocks/vslash.c.
 *
 * Vertical-slash: mass per key and per distance of the last rows (lastrows.cuh), the best of both,
 * and the lists of 64-row blocks (slashmap.cuh). Block: products of mean-pooled queries and keys,
 * and a fixed number of best blocks per row block of 64; reads Q and K once, 2 nb^2 d FLOP in
 * double. The A-shape and the Tri-shape need neither q nor k (streaming.cu).
 */
#include "core/intmath.h"
#include "core/presets.h"
#include "core/topshare.h"
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

static int64_t given(const struct select_problem *p, const char *name, int64_t otherwise)
{
    int64_t x = select_int(p, name);
    return x == INT64_MIN ? otherwise : x;
}

/* Columns or distances, as sim/methods/minference/minference.c clamps them. */
static int size_of(const struct select_problem *p, const char *name, int64_t otherwise,
                   double share, const char *least_name, int64_t least)
{
    double n = (double)p->nk, x = (double)given(p, name, otherwise);
    double budget = select_num(p, "budget");
    if (budget > 0)
        x = trunc(share * trunc(n * budget));
    x = fmin(trunc(x * select_num(p, "ratio")), n);
    least = given(p, least_name, least);
    return (int)(x < (double)least ? fmin((double)least, n) : x);
}

static bool is_slash(const struct select_problem *p)
{
    return select_is(p, "pattern", "vs") || select_is(p, "pattern", "table");
}

static bool fits(const struct select_problem *p, char why[160])
{
    const char *table = select_text(p, "table");
    bool slash = is_slash(p), blocks = select_is(p, "pattern", "block");
    int64_t most = slash ? SLASH_MOST : (int64_t)MAX_UNITS * BLOCK;
    if (!slash && !blocks)
        snprintf(why, 160, "pattern=%s looks at no query", select_word(p, "pattern"));
    else if (select_is(p, "profile", "frontier") || !select_is(p, "emulate", "none"))
        snprintf(why, 160, "the GPU side has the profiles official and paper with emulate=none");
    else if (select_int(p, "start_layer") >= 0 || (table && select_is(p, "pattern", "table")))
        snprintf(why, 160, "the GPU side has no table and no start_layer");
    else if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (p->nq != p->nk || p->nk > most)
        snprintf(why, 160, "the GPU side takes whole prompts of up to %lld tokens",
                 (long long)most);
    else
        return true;
    return false;
}

/* With sparsity= the sizes are searched here, once: the search stands for those that somebody has
 * tuned before, and is in no time of a choice. */
static int init_slash(struct gpu *g, struct select_job *job, minference_state *s, struct err *err)
{
    const struct select_problem *p = &job->problem;
    struct minf_preset preset = minf_preset(select_index(p, "preset"));
    int64_t rows = given(p, "last_q", 64);
    int rc = 0;

    s->slash = true;
    s->realised = select_is(p, "mask", "realised");
    TRY(select_lists_init(g, job, s->realised ? SLASH_ROWS : 1, 1, err));
    TRY(last_rows_init(g, p, (int)(rows < p->nk ? rows : p->nk), 1, &s->last, err));
    s->lists.n_cols = size_of(p, "v", preset.v, 0.2, "min_v", 30);
    s->lists.n_dists = size_of(p, "s", preset.s, 0.8, "min_s", 50);
    s->lists.force_cols = (int)given(p, "force_cols", 30);
    s->lists.force_dists = (int)given(p, "force_dists", 100);
    TRY(slash_init(g, job, &s->last, 0, &s->lists, err));
    if (isnan(select_num(p, "sparsity")))
        goto out;
    TRY(last_rows_launch(g, s->last, p->d, err));
    TRY(share_sizes(g, &s->lists, 1 - select_num(p, "sparsity"), err));
out:
    return rc;
}

static int init_blocks(struct gpu *g, struct select_job *job, minference_state *s, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    int rc = 0;

    double sparsity = select_num(p, "sparsity");
    TRY(select_lists_init(g, job, BLOCK, BLOCK, err));
    s->top = isnan(sparsity) ? (int)given(p, "top", 100)
                             : (int)top_of_share(1 - sparsity, l->units, p->causal);
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
    return is_slash(&job->problem) ? init_slash(g, job, s, err) : init_blocks(g, job, s, err);
}

extern "C" const struct select_method select_minference = {
    "minference", fits, init, launch, NULL, NULL, true, NULL, false, NULL,
};
