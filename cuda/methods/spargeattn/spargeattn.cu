/*
 * spargeattn.cu - filter 1 of SpargeAttn (arXiv 2502.18137, section 3.3) and its 8-bit operands.
 *
 *   mean of K over the tokens; per block of Q and of K minus that mean: mean and self-similarity;
 *   scores of the means, their softmax per query block, and the largest up to a sum of tau
 *
 * The CPU side is sim/methods/spargeattn/spargeattn_select.c, and the order of its arithmetic is
 * followed where a threshold decides: means are sums in double rounded to float, scores, softmax
 * and running sums are in double, ties go to the lower block. Sums over blocks and norms are in
 * float.
 *
 * Bytes: K twice and Q once for the selection (K for its mean first), 0.2 ms for 32 heads of 32K x
 * 128 at 4 TB/s; the quantised operands are written in the same passes, V is read twice. Scores,
 * softmax and cut move few bytes: they run on a second stream beside the pass over the other half
 * of the queries, or over V.
 */
#include "core/intmath.h"
#include "cuda/select/maprows.cuh"
#include "cuda/methods/spargeattn/sparge_blocks.cuh"
#include "cuda/methods/spargeattn/sparge_rows.cuh"
#include "cuda/methods/spargeattn/sparge_tokens.cuh"
#include "cuda/methods/spargeattn/sparge_values.cuh"

extern "C" {
#include "core/mem.h"
}

#include <cuda_bf16.h>
#include <math.h>
#include <stdio.h>

#define MAX_UNITS 24576 /* of a row whose probabilities fit into shared memory */

struct sparge_state {
    bool paper, topk_cut, sink, smooth_k;
    bool dense; /* no head is judged */
    int bq, bk;
    float v_top;
    double *theta;            /* [heads] */
    head_cut *cuts;           /* [heads] */
    int64_t shares;           /* of the token mean */
    double *partial;          /* [kv_heads][shares][d] */
    float *kbar;              /* [kv_heads][d] */
    float *q_mean, *k_mean;   /* [heads][groups][d], [kv_heads][units][d] */
    uint8_t *q_like, *k_like; /* [heads][groups], [heads][units]: self-similar, as the query head
                               * judges */
    double *score;            /* [heads][groups][units] */
    double *mass;             /* [heads][groups] */
    unsigned *v_max;          /* [kv_heads][d]: bits of max |v| */
};

/* ---- launches ------------------------------------------------------------------------------- */

template <int D, bool KEYS>
static int launch_blocks(struct gpu *g, int heads, int block, const block_args &a, struct err *err)
{
    int rc = 0;
    dim3 grid((unsigned)a.blocks, (unsigned)heads);
    int threads = block == 64 ? judge_shape<D, 64>::SIZE : judge_shape<D, 128>::SIZE;
    if (block == 64 && a.q8)
        judge_blocks<D, 64, KEYS, true><<<grid, threads, 0, g->stream>>>(a);
    else if (block == 64)
        judge_blocks<D, 64, KEYS, false><<<grid, threads, 0, g->stream>>>(a);
    else if (a.q8)
        judge_blocks<D, 128, KEYS, true><<<grid, threads, 0, g->stream>>>(a);
    else
        judge_blocks<D, 128, KEYS, false><<<grid, threads, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

/* Token means of k, then its blocks. */
template <int D>
static int launch_keys(struct gpu *g, const struct select_job *job, bool quantise, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const sparge_state *s = (const sparge_state *)job->state;
    int rc = 0;
    block_args k = {(const uint4 *)p->k,
                    s->kbar,
                    p->nk,
                    job->lists.units,
                    s->theta,
                    p->heads / p->kv_heads,
                    s->paper,
                    s->k_mean,
                    s->k_like,
                    quantise ? (uint2 *)job->operands.k : NULL,
                    job->operands.k_scale};
    if (s->smooth_k)
        sum_keys<D><<<dim3((unsigned)s->shares, p->kv_heads), THREADS, 0, g->stream>>>(
            (const uint4 *)p->k, p->nk, s->shares, s->partial);
    CU_LAUNCHED(err);
    finish_mean<D><<<p->kv_heads, D * MEAN_GROUPS, 0, g->stream>>>(s->partial, s->shares, p->nk,
                                                                   s->smooth_k, s->kbar, s->v_max);
    CU_LAUNCHED(err);
    TRY((launch_blocks<D, true>(g, p->kv_heads, s->bk, k, err)));
out:
    return rc;
}

/* Blocks of the queries of heads [head0, head0 + count). */
template <int D>
static int launch_queries(struct gpu *g, const struct select_job *job, int head0, int count,
                          bool quantise, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_operands *o = &job->operands;
    const sparge_state *s = (const sparge_state *)job->state;
    int64_t at = head0 * p->nq * (D / 8), row0 = head0 * job->lists.groups;
    block_args q = {(const uint4 *)p->q + at,
                    NULL,
                    p->nq,
                    job->lists.groups,
                    s->theta + head0,
                    1,
                    s->paper,
                    s->q_mean + row0 * D,
                    s->q_like + row0,
                    quantise ? (uint2 *)o->q + at : NULL,
                    o->q_scale + row0};
    return launch_blocks<D, false>(g, count, s->bq, q, err);
}

template <int D>
static int launch_values(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_operands *o = &job->operands;
    const sparge_state *s = (const sparge_state *)job->state;
    int rc = 0;
    max_values<D><<<dim3((unsigned)s->shares, p->kv_heads), THREADS, 0, g->stream>>>(
        (const uint4 *)p->v, p->nk, s->v_max);
    CU_LAUNCHED(err);
    quantise_values<D><<<dim3((unsigned)(o->v_keys / 128), p->kv_heads), THREADS, 0, g->stream>>>(
        (const uint4 *)p->v, p->nk, o->v_keys, s->v_top, s->v_max, o->v, o->v_scale);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch_select(const row_args &a, cudaStream_t stream, struct err *err)
{
    int rc = 0;
    unsigned blocks = (unsigned)ceil_div(a.rows, MAX_ROW_WARPS);
    if (a.units <= 256) {
        select_rows<8><<<blocks, 32 * MAX_ROW_WARPS, 0, stream>>>(a);
    } else if (a.units <= 512) {
        select_rows<16><<<blocks, 32 * MAX_ROW_WARPS, 0, stream>>>(a);
    } else {
        int bytes = a.units * 8, warps = row_warps(bytes);
        CU(err, cudaFuncSetAttribute((const void *)select_rows<0>,
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, warps * bytes));
        blocks = (unsigned)ceil_div(a.rows, warps);
        select_rows<0><<<blocks, 32 * warps, warps * bytes, stream>>>(a);
    }
    CU_LAUNCHED(err);
out:
    return rc;
}

/* What the heads [head0, head0 + count) keep, on the side stream. head0 belongs to kv head kv0. */
static int launch_rows(struct gpu *g, const struct select_job *job, int head0, int count,
                       struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    const sparge_state *s = (const sparge_state *)job->state;
    int rc = 0, n = (int)l->units, per_kv = p->heads / p->kv_heads, kv0 = head0 / per_kv;
    int64_t row0 = head0 * l->groups;
    row_args a = {s->score + row0 * n,
                  s->q_like + row0,
                  s->k_like + (int64_t)head0 * n,
                  s->cuts + head0,
                  (int)l->groups,
                  n,
                  p->causal,
                  s->bq,
                  s->bk,
                  s->paper,
                  s->topk_cut,
                  s->sink,
                  count * l->groups,
                  l->words,
                  l->map + row0 * l->words,
                  s->mass + row0};
    if (!s->dense)
        score_means<<<dim3((unsigned)ceil_div(n, SCORE_TILE),
                           (unsigned)ceil_div(l->groups, SCORE_TILE), count),
                      128, 0, g->side>>>(
            s->q_mean + row0 * p->d, s->k_mean + (int64_t)kv0 * n * p->d, p->d, (int)l->groups, n,
            per_kv, p->scale, p->causal, s->bq, s->bk, s->score + row0 * n);
    CU_LAUNCHED(err);
    TRY(launch_select(a, g->side, err));
out:
    return rc;
}

/* Beside the rows of the first heads run the queries of the others, or beside all rows V.
 */
template <int D>
static int launch_all(struct gpu *g, const struct select_job *job, bool quantise, struct err *err)
{
    const struct select_problem *p = &job->problem;
    int rc = 0, per_kv = p->heads / p->kv_heads;
    int first = quantise ? p->heads : (p->kv_heads + 1) / 2 * per_kv, rest = p->heads - first;

    TRY(launch_keys<D>(g, job, quantise, err));
    TRY(launch_queries<D>(g, job, 0, first, quantise, err));
    TRY(gpu_fork(g, err));
    TRY(launch_rows(g, job, 0, first, err));
    if (rest) {
        TRY(launch_queries<D>(g, job, first, rest, quantise, err));
        TRY(gpu_fork(g, err));
        TRY(launch_rows(g, job, first, rest, err));
    }
    if (quantise)
        TRY(launch_values<D>(g, job, err));
    TRY(gpu_join(g, err));
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    return job->problem.d == 128 ? launch_all<128>(g, job, false, err)
                                 : launch_all<64>(g, job, false, err);
}

static int launch_quantised(struct gpu *g, const struct select_job *job, struct err *err)
{
    return job->problem.d == 128 ? launch_all<128>(g, job, true, err)
                                 : launch_all<64>(g, job, true, err);
}

/* ---- set-up --------------------------------------------------------------------------------- */

/* Tile of the official kernels (sim/methods/spargeattn/spargeattn_head.c). */
static void tile_of(const struct select_problem *p, int *bq, int *bk)
{
    const char *tile = select_word(p, "tile");
    bool wide = tile ? tile[0] == '6' : select_is(p, "arch", "sm90");
    *bq = wide ? 64 : 128;
    *bk = wide ? 128 : 64;
}

static bool fits(const struct select_problem *p, char why[160])
{
    int bq, bk;
    tile_of(p, &bq, &bk);
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (!select_is(p, "map_dtype", "f32") || !select_is(p, "cdf_dtype", "f32"))
        snprintf(why, 160, "the GPU side has map_dtype=f32 and cdf_dtype=f32");
    else if (ceil_div(p->nk, bk) > MAX_UNITS || p->nq > INT32_MAX / 2)
        snprintf(why, 160, "the GPU side takes rows of up to %d blocks", MAX_UNITS);
    else
        return true;
    return false;
}

/* ---- numbers beside the masks ---------------------------------------------------------------- */

struct number_args {
    int groups, units;
    const double *mass;
    const uint8_t *q_like, *k_like;
    uint8_t *own;
    int64_t own_bytes;
};

/* Of head blockIdx.x, by one warp. */
static __global__ void __launch_bounds__(32) collect_numbers(const number_args a)
{
    int head = blockIdx.x, lane = threadIdx.x;
    uint8_t *own = a.own + head * a.own_bytes;
    struct sparge_own *first = (struct sparge_own *)own;
    const double *mass = a.mass + (int64_t)head * a.groups;
    double sum = 0;
    int rows = 0;
    for (int i = lane; i < a.groups; i += 32) {
        sum += mass[i] < 0 ? 0 : mass[i];
        rows += mass[i] >= 0;
        own[sizeof *first + i] = a.q_like[(int64_t)head * a.groups + i];
    }
    for (int j = lane; j < a.units; j += 32)
        own[sizeof *first + a.groups + j] = a.k_like[(int64_t)head * a.units + j];
    sum = warp_add(sum);
    rows = __reduce_add_sync(~0u, rows);
    if (lane == 0) {
        first->mass = sum;
        first->rows = rows;
    }
}

static int make_numbers(struct gpu *g, const struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    const sparge_state *s = (const sparge_state *)job->state;
    number_args a = {(int)l->groups, (int)l->units,     s->mass,     s->q_like,
                     s->k_like,      (uint8_t *)l->own, l->own_bytes};
    int rc = 0;
    collect_numbers<<<(unsigned)p->heads, 32, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int init_numbers(struct gpu *g, struct select_job *job, struct err *err)
{
    struct select_lists *l = &job->lists;
    l->own_bytes = ceil_div((int64_t)sizeof(struct sparge_own) + l->groups + l->units, 8) * 8;
    l->own_make = make_numbers;
    return gpu_alloc(g, job->problem.heads * l->own_bytes, &l->own, err);
}

static int init_operands(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    struct select_operands *o = &job->operands;
    int rc = 0;
    o->v_keys = ceil_div(p->nk, 128) * 128;
    TRY(gpu_alloc(g, p->heads * p->nq * p->d, &o->q, err));
    TRY(gpu_alloc(g, p->kv_heads * p->nk * p->d, &o->k, err));
    TRY(gpu_alloc(g, p->heads * l->groups * 4, &o->q_scale, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * 4, &o->k_scale, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * o->v_keys, &o->v, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &o->v_scale, err));
out:
    return rc;
}

/* Similarity above which the head takes a block for its mean. */
static double theta_of(const struct select_problem *p)
{
    double theta = select_num(p, "theta");
    if (!select_flag(p, "judge"))
        return -1;
    return !isnan(theta) ? theta : select_is(p, "select", "topk") ? -0.1 : 0.6;
}

static head_cut cut_of(const struct select_problem *p, int64_t units)
{
    int64_t top = (int64_t)((float)select_num(p, "topk") * (float)units);
    return {select_num(p, "tau"),
            (int)(top < 1       ? 1
                  : top > units ? units
                                : top),
            select_flag(p, "dense")};
}

/* What a calibration gives each head. */
static int put_heads(struct gpu *g, const struct select_job *job, sparge_state *s, struct err *err)
{
    const struct select_problem *p = &job->problem;
    int64_t n = p->heads;
    double *theta = NULL;
    head_cut *cuts = NULL;
    int rc = 0;
    TRY(mem_alloc(&theta, n, sizeof *theta, "thresholds of heads", err));
    TRY(mem_alloc(&cuts, n, sizeof *cuts, "cuts of heads", err));
    s->dense = true;
    for (int h = 0; h < n; h++) {
        struct select_problem own = select_head(p, h);
        theta[h] = theta_of(&own);
        cuts[h] = cut_of(&own, job->lists.units);
        s->dense &= cuts[h].dense;
    }
    TRY(gpu_alloc(g, n * 8, &s->theta, err));
    TRY(gpu_alloc(g, n * (int64_t)sizeof *cuts, &s->cuts, err));
    TRY(gpu_put(g, s->theta, theta, n * 8, err));
    TRY(gpu_put(g, s->cuts, cuts, n * (int64_t)sizeof *cuts, err));
out:
    free(theta);
    free(cuts);
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    sparge_state *s = (sparge_state *)calloc(1, sizeof *s);
    int rc = 0;

    job->state = s;
    if (!s)
        FAIL(err, ERR_NOMEM, "spargeattn on the GPU: out of memory");
    tile_of(p, &s->bq, &s->bk);
    s->paper = select_is(p, "profile", "paper");
    s->topk_cut = select_is(p, "select", "topk");
    s->sink = select_flag(p, "sink");
    s->smooth_k = select_flag(p, "smooth_k");
    s->v_top = select_is(p, "v_max", "2.25") ? 2.25f : 448.0f;
    s->shares = ceil_div(p->nk, MEAN_ROWS);
    TRY(select_lists_init(g, job, s->bq, s->bk, err));
    TRY(put_heads(g, job, s, err));
    TRY(gpu_alloc(g, p->kv_heads * s->shares * p->d * 8, &s->partial, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &s->kbar, err));
    TRY(gpu_alloc(g, l->rows * p->d * 4, &s->q_mean, err));
    TRY(gpu_alloc(g, p->kv_heads * l->units * p->d * 4, &s->k_mean, err));
    TRY(gpu_alloc(g, l->rows, &s->q_like, err));
    TRY(gpu_alloc(g, p->heads * l->units, &s->k_like, err));
    TRY(gpu_alloc(g, l->rows * l->units * 8, &s->score, err));
    TRY(gpu_alloc(g, l->rows * 8, &s->mass, err));
    TRY(init_numbers(g, job, err));
    TRY(gpu_alloc(g, p->kv_heads * p->d * 4LL, &s->v_max, err));
    TRY(init_operands(g, job, err));
out:
    return rc;
}

/* Heads differ in what a calibration searches: thresholds, cuts, and the filter on P V, which comes
 * after the choice. */
static bool together(const struct accel_choice *a, const struct accel_choice *b)
{
    static const char *const searched[] = {"theta", "tau", "topk", "dense", "pv", NULL};
    return select_same_params(a, b, searched);
}

extern "C" const struct select_method select_spargeattn = {
    "spargeattn", fits, init, launch, launch_quantised, NULL, false, NULL, false, together,
};
