/*
 * spargeattn.cu - filter 1 of SpargeAttn (arXiv 2502.18137, section 3.3) and its 8-bit operands.
 *
 *   mean of K over the tokens; per block of Q and of K minus that mean: mean and self-similarity;
 *   scores of the means, their softmax per query block, and the largest up to a sum of tau
 *
 * The CPU side is sim/methods/spargeattn/spargeattn.c, and the order of its arithmetic is
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
    struct sparge_rule rule;  /* what all heads have */
    bool dense;               /* no head is judged */
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
                    s->rule.paper,
                    s->k_mean,
                    s->k_like,
                    quantise ? (uint2 *)job->operands.k : NULL,
                    job->operands.k_scale};
    if (s->rule.smooth_k)
        sum_keys<D><<<dim3((unsigned)s->shares, p->kv_heads), THREADS, 0, g->stream>>>(
            (const uint4 *)p->k, p->nk, s->shares, s->partial);
    CU_LAUNCHED(err);
    finish_mean<D><<<p->kv_heads, D * MEAN_GROUPS, 0, g->stream>>>(
        s->partial, s->shares, p->nk, s->rule.smooth_k, s->kbar, s->v_max);
    CU_LAUNCHED(err);
    TRY((launch_blocks<D, true>(g, p->kv_heads, (int)s->rule.bk, k, err)));
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
                    s->rule.paper,
                    s->q_mean + row0 * D,
                    s->q_like + row0,
                    quantise ? (uint2 *)o->q + at : NULL,
                    o->q_scale + row0};
    return launch_blocks<D, false>(g, count, (int)s->rule.bq, q, err);
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
        (const uint4 *)p->v, p->nk, o->v_keys, s->rule.v_max, s->v_max, o->v, o->v_scale);
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
    row_args a = {s->score + row0 * n, s->q_like + row0, s->k_like + (int64_t)head0 * n,
                  s->cuts + head0,     (int)l->groups,   n,
                  p->causal,           (int)s->rule.bq,  (int)s->rule.bk,
                  s->rule.paper,       s->rule.by_count, s->rule.sink,
                  count * l->groups,   l->words,         l->map + row0 * l->words,
                  s->mass + row0};
    if (!s->dense)
        score_means<<<dim3((unsigned)ceil_div(n, SCORE_TILE),
                           (unsigned)ceil_div(l->groups, SCORE_TILE), count),
                      128, 0, g->side>>>(
            s->q_mean + row0 * p->d, s->k_mean + (int64_t)kv0 * n * p->d, p->d, (int)l->groups, n,
            per_kv, p->scale, p->causal, (int)s->rule.bq, (int)s->rule.bk, s->score + row0 * n);
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

static bool fits(const struct select_problem *p, char why[160])
{
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "head dimension %d, the GPU side has 64 and 128", p->d);
    else if (ceil_div(p->nk, select_rule(p, 0)->sparge.bk) > MAX_UNITS || p->nq > INT32_MAX / 2)
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
        const struct sparge_rule *r = &select_rule(p, h)->sparge;
        theta[h] = r->theta;
        cuts[h] = {r->tau, (int)r->top, r->dense};
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
    s->rule = select_rule(p, 0)->sparge;
    s->shares = ceil_div(p->nk, MEAN_ROWS);
    TRY(select_lists_init(g, job, s->rule.bq, s->rule.bk, err));
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

/* Heads differ in what a calibration gives them. */
static bool together(const union method_rule *a, const union method_rule *b)
{
    const struct sparge_rule *x = &a->sparge, *y = &b->sparge;
    return x->bq == y->bq && x->bk == y->bk && x->paper == y->paper && x->by_count == y->by_count &&
           x->sink == y->sink && x->smooth_k == y->smooth_k && x->v_max == y->v_max;
}

extern "C" const struct select_method select_spargeattn = {
    "spargeattn", fits, init, launch, launch_quantised, NULL, NULL, false, together,
};
