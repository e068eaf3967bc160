/*
 * fg_attn.cu - FG-Attn's slices of M rows x 1 key, as bits, or of several keys (width), as lists
 * (sim/methods/fgattn/fgattn.c has the rules and the reference).
 *
 *   cached   a slice is kept where its largest p exceeds c/N: a pass over Q K^T that compares
 * scores and stores one bit per slice (metrics_pass.cuh, METRICS_SLICES). A refresh step has its
 * log-sum-exps from its own dense attention; elsewhere an attention launch is a part of the choice.
 *   pooled   t = scale k . qbar of a group's mean query, which is cut into three bf16 terms: their
 *            products are exact and are added in fp32. On Hopper they are made twice, for the
 *            log-sum-exp of a group and for its bits (fg_pooled_sm90.cu). Elsewhere, and where keys
 *            are ranked, they are kept, and a thread block per group normalises, compares or ranks
 *            its row.
 *
 * Cached: one Q K^T. Pooled: N^2 d / M products, three times, and again twice or 4 N^2 / M bytes
 * per head.
 */
#include "cuda/attn/attn.h"
#include "cuda/methods/fg_pooled.cuh"
#include "cuda/metrics/metrics.h"
#include "cuda/mma.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/wide.cuh"

#include <cuda_bf16.h>
#include <limits.h>

/* Units of several keys: one is kept where one of its keys is, or ranked by its largest value. */
struct fg_fold {
    int64_t rows, nk;
    int width, key_words;
    const uint32_t *key_map; /* [rows][key_words] */
    const float *t;          /* [rows][nk] */
    float *value;            /* [rows][units] */
    map_rows map;
};

/* A warp per row of units. */
static __global__ void fold_bits(const fg_fold f)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    const uint32_t *keys = f.key_map + row * f.key_words;
    if (row >= f.rows)
        return;
    fill_row(f.map, row, [&](int u) {
        int64_t k0 = (int64_t)u * f.width, k1 = min(k0 + f.width, f.nk);
        bool any = false;
        for (int64_t w = k0 / 32; w * 32 < k1 && !any; w++) {
            uint32_t bits = keys[w];
            bits = k0 > w * 32 ? bits >> (k0 - w * 32) << (k0 - w * 32) : bits;
            any = (k1 - w * 32 < 32 ? bits & ((1u << (k1 - w * 32)) - 1) : bits) != 0;
        }
        return any;
    });
}

/* ---- the choice of a row -------------------------------------------------------------------- */

/* A thread per unit; keys that no row of its group sees do not count. Grid (units / 256, groups,
 * heads). */
static __global__ void fold_values(const fg_fold f, const fg_args a)
{
    int64_t u = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    int64_t row = blockIdx.z * (int64_t)a.groups + blockIdx.y;
    int limit, forced;
    float most = -INFINITY;
    if (u >= a.keys)
        return;
    group_bounds(a, blockIdx.y, &limit, &forced);
    for (int64_t j = u * f.width; j < min((u + 1) * f.width, (int64_t)limit); j++)
        most = fmaxf(most, f.t[row * f.nk + j]);
    f.value[row * a.keys + u] = most;
}

/* The `want` largest of n: all that are above `from`, and the first m of those equal to it. */
static __device__ void find_cut(const float *t, int n, int64_t want, uint32_t *from, int *m)
{
    uint32_t low = 0, high = ~0u; /* values >= low are more than wanted; > high, at most that */
    if (want >= n) {
        *from = 0;
        *m = n;
        return;
    }
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int above = 0;
        for (int j = threadIdx.x; j < n; j += WIDE)
            above += ordered_bits(t[j]) > middle;
        if (wide_sum(above) <= want)
            high = middle;
        else
            low = middle + 1;
    }
    int above = 0;
    for (int j = threadIdx.x; j < n; j += WIDE)
        above += ordered_bits(t[j]) > low;
    *from = low;
    *m = (int)want - wide_sum(above);
}

/* A thread block per group: which keys of its row of t are kept. */
static __global__ void __launch_bounds__(WIDE) choose_keys(const fg_args a)
{
    int g = blockIdx.x, limit, forced, m = 0, seen = 0;
    int64_t row = blockIdx.y * (int64_t)a.groups + g;
    const float *t = a.t + row * a.keys;
    uint32_t from = 0;
    float cut = a.at;

    group_bounds(a, g, &limit, &forced);
    forced = forced < limit ? forced / a.width : INT_MAX; /* from here on values of t are counted */
    limit = (limit + a.width - 1) / a.width;
    int text0 = (int)(a.text0 / a.width), text1 = (int)((a.text1 + a.width - 1) / a.width);
    text1 = a.text0 < a.text1 ? text1 : text0;
    if (a.by == FG_CHOOSE_NORM) { /* e^(t - top) / sum >= at */
        float top = -INFINITY;
        double sum = 0;
        for (int j = threadIdx.x; j < limit; j += WIDE)
            top = fmaxf(top, t[j]);
        top = wide_max(top);
        for (int j = threadIdx.x; j < limit; j += WIDE)
            sum += (double)expf(t[j] - top);
        cut = (float)(log(wide_add(sum) * (double)a.at) + (double)top);
    } else if (a.by == FG_CHOOSE_TOPK) {
        find_cut(t, limit, a.want, &from, &m);
    }
    wide_bits(a.map.map + row * a.map.words, a.map.words, [&](int j) {
        int all;
        float x = j < limit ? t[j] : -INFINITY;
        bool keep = x >= cut;
        if (a.by == FG_CHOOSE_TOPK) { /* for all threads alike, because they wait for each other */
            bool tie = j < limit && ordered_bits(x) == from;
            int before = seen + wide_rank(tie, &all);
            keep = ordered_bits(x) > from || (tie && before < m);
            seen += all;
        }
        return j < limit && (keep || j >= forced || (j >= text0 && j < text1));
    });
}

/* ---- pooled scores -------------------------------------------------------------------------- */

/* Mean query of a group in double, as three bf16 terms. Grid (groups, heads), 256 threads. */
template <int D> static __global__ void __launch_bounds__(256) mean_queries(const fg_args a)
{
    int64_t r0 = blockIdx.x * (int64_t)a.M, head = blockIdx.y;
    int rows = (int)min((int64_t)a.M, a.nq - r0);
    double all = sum_rows<D>(a.q + (head * a.nq + r0) * (D / 8), rows) / rows;
    if (threadIdx.x >= D)
        return;
    for (int term = 0; term < 3; term++) {
        __nv_bfloat16 x = __float2bfloat16_rn((float)all);
        int64_t to = ((term * (int64_t)a.heads + head) * a.groups + blockIdx.x) * D;
        ((__nv_bfloat16 *)a.mean)[to + threadIdx.x] = x;
        all -= (double)__bfloat162float(x);
    }
}

#define GROUP_TILE 64
#define KEY_TILE 128
#define TILE_THREADS 256

/* t of 64 groups x 128 keys. Warp w: groups of quarter w % 4, keys of half w / 4. */
template <int D>
static __global__ void __launch_bounds__(TILE_THREADS) pooled_scores(const fg_args a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    int g0 = blockIdx.y * GROUP_TILE, j0 = blockIdx.x * KEY_TILE, head = blockIdx.z, limit, forced;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t base = shared_addr(shared), keys = base + 3 * GROUP_TILE * D * 2;
    float acc[1][8][4] = {{{0}}};

    group_bounds(a, min(g0 + GROUP_TILE, a.groups) - 1, &limit, &forced);
    if (j0 >= limit)
        return;
    for (int term = 0; term < 3; term++)
        copy_tile<D, GROUP_TILE, TILE_THREADS>(
            base + term * GROUP_TILE * D * 2,
            a.mean + (term * (int64_t)a.heads + head) * a.groups * (D / 8), g0, a.groups);
    copy_tile<D, KEY_TILE, TILE_THREADS>(keys, a.k + head / a.per_kv * a.nk * (D / 8), j0, a.nk);
    copy_commit();
    copy_wait<0>();
    __syncthreads();
    for (int term = 2; term >= 0; term--) /* small terms first */
        add_scores<D, 1, 8>(base + term * GROUP_TILE * D * 2, warp % 4 * 16, keys, warp / 4 * 64,
                            acc);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int g = g0 + warp % 4 * 16 + (lane >> 2) + 8 * (i / 2);
            int j = j0 + warp / 4 * 64 + 8 * n + 2 * (lane & 3) + i % 2;
            if (g < a.groups && j < a.nk)
                a.t[(head * (int64_t)a.groups + g) * a.nk + j] = acc[0][n][i] * a.scale;
        }
}

/* ---- cached --------------------------------------------------------------------------------- */

struct fg_state : fg_args {
    struct fg_pooled *pooled; /* on Hopper, where keys are not ranked; owned */
    bool cached, dense_call;
    struct attn_job dense;     /* for the log-sum-exps */
    fg_fold fold;              /* with units of several keys */
    float2 *norm;              /* [heads][nq] */
    struct metrics_pass *pass; /* [heads], owned */
};

/* Attention with the keys as values, because nobody asks for the output. */
static int init_dense(struct gpu *g, const struct select_problem *p, fg_state *s, struct err *err)
{
    struct attn_problem dense = {p->heads, p->kv_heads, p->d,      p->nq,
                                 p->nk,    p->scale,    p->causal, ATTN_DENSE};
    struct attn_tensors x = {p->q, p->k, p->k, NULL, NULL};
    const struct attn_kernel *kernel = NULL;
    OWN(attn_plan_free) struct attn_plan plan = {};
    PASS_ON(attn_kernel_find(&dense, g->sm, NULL, &kernel, err));
    PASS_ON(gpu_alloc(g, p->heads * p->nq * p->d * 2, &x.out, err));
    PASS_ON(take(g, err, &x.lse, p->heads * p->nq));
    PASS_ON(attn_plan_make(&dense, &kernel->tile, NULL, g->sms, &plan, err));
    return attn_job_init(g, &dense, kernel, &plan, &x, &s->dense, err);
}

static int launch_dense(struct gpu *g, const fg_state *s, struct err *err)
{
    PASS_ON(attn_job_launch(g, &s->dense, err));
    return metrics_norms_into(g, s->dense.x.lse, s->heads * s->nq, s->norm, err);
}

static int init_cached(struct gpu *g, struct select_job *job, fg_state *s, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct fg_rule *r = &select_rule(p, 0)->fg;
    double c = r->at * (double)p->nk;

    PASS_ON(init_dense(g, p, s, err));
    PASS_ON(take(g, err, &s->norm, p->heads * p->nq));
    PASS_ON(mem_zalloc(&s->pass, p->heads, sizeof *s->pass, "passes of heads", err));
    for (int h = 0; h < p->heads; h++) {
        struct attn_problem one = {1, 1, p->d, p->nq, p->nk, p->scale, p->causal, ATTN_DENSE};
        struct attn_tensors x = {(const char *)p->q + h * p->nq * p->d * 2,
                                 (const char *)p->k + h / s->per_kv * p->nk * p->d * 2, NULL, NULL,
                                 NULL};
        struct metrics_slices slices = {(int)r->M, r->text0, r->text1,
                                        s->map.map + (int64_t)h * s->groups * s->map.words,
                                        s->map.words};
        struct metrics_ask ask = {};
        ask.c = &c;
        ask.n_c = 1;
        ask.slices = &slices;
        PASS_ON(metrics_pass_init(g, &one, &x, s->norm + h * p->nq, &ask, s->pass + h, err));
    }
    if (r->dense_call)
        return launch_dense(g, s, err);
    return 0;
}

static int launch_cached(struct gpu *g, const fg_state *s, const struct select_lists *l,
                         struct err *err)
{
    if (!s->dense_call)
        PASS_ON(launch_dense(g, s, err));
    PASS_ON(gpu_zero(g, s->map.map, l->rows * s->map.words * 4, err));
    for (int h = 0; h < s->heads; h++)
        PASS_ON(metrics_pass_launch(g, s->pass + h, err));
    return 0;
}

static int launch_pooled(struct gpu *g, const fg_state *s, struct err *err)
{
    const fg_args &a = *s;
    int smem = (3 * GROUP_TILE + KEY_TILE) * a.d * 2;
    dim3 tiles(ceil_div(a.nk, KEY_TILE), ceil_div(a.groups, GROUP_TILE), a.heads);
    PASS_ON_CU(err, run_kernel(g->stream, a.d == 128 ? mean_queries<128> : mean_queries<64>,
                               dim3(a.groups, a.heads), 256, 0, a));
    if (s->pooled)
        return fg_pooled_launch(g, a, s->pooled, err);
    return CU_STATUS(err, run_kernel(g->stream, a.d == 128 ? pooled_scores<128> : pooled_scores<64>,
                                     tiles, TILE_THREADS, smem, a));
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const fg_state *s = (const fg_state *)job->state;
    const struct select_lists *l = &job->lists;
    const fg_fold &f = s->fold;
    fg_args a = *s;
    bool ranked = !s->cached && a.by == FG_CHOOSE_TOPK && f.width > 1;

    PASS_ON(s->cached ? launch_cached(g, s, l, err) : launch_pooled(g, s, err));
    if (ranked) {
        a.t = f.value;
        a.keys = l->units;
        a.width = f.width;
        a.map = f.map;
        PASS_ON_CU(err, run_kernel(g->stream, fold_values,
                                   dim3(ceil_div(l->units, 256), a.groups, a.heads), 256, 0, f, a));
    }
    if (!s->cached && !s->pooled)
        PASS_ON_CU(err, run_kernel(g->stream, choose_keys, dim3(a.groups, a.heads), WIDE, 0, a));
    if (f.width > 1 && !ranked)
        return CU_STATUS(err, run_kernel(g->stream, fold_bits, ceil_div(f.rows, 8), 256, 0, f));
    return 0;
}

/* ---- the table's functions ------------------------------------------------------------------ */

static bool fits(const struct select_problem *p, char why[160])
{
    const struct fg_rule *r = &select_rule(p, 0)->fg;
    bool cached = r->by == FG_CHOOSE_MAX;
    if (!dims_fit(p, why))
        return false;
    if (cached && r->M != 16 && r->M != 32 && r->M != 64 && r->M != 128)
        return refuse(why, "the GPU side of mode=cached has M of 16, 32, 64 and 128, not %lld",
                      (long long)r->M);
    return !cached || (r->at * (double)p->nk > 1e-6 && p->scale > 0) ||
           refuse(why, "the GPU side of mode=cached needs a threshold above 1e-6/N");
}

/* The keys' own map, and values of units. */
static int init_fold(struct gpu *g, const struct select_job *job, fg_state *s, struct err *err)
{
    const struct select_lists *l = &job->lists;
    s->map.words = (int)ceil_div(s->nk, 32);
    PASS_ON(take(g, err, &s->map.map, l->rows * s->map.words, &s->fold.value, l->rows * l->units));
    s->fold.rows = l->rows;
    s->fold.nk = s->nk;
    s->fold.width = (int)l->bk;
    s->fold.key_words = s->map.words;
    s->fold.key_map = s->map.map;
    s->fold.map = map_rows_of(l);
    return 0;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct fg_rule *r = &select_rule(p, 0)->fg;
    fg_state *s = NULL;

    PASS_ON(method_init(g, job, r->M, r->width, &s, err));
    s->cached = r->by == FG_CHOOSE_MAX;
    s->dense_call = r->dense_call;
    s->keys = p->nk;
    s->width = 1;
    s->M = (int)r->M;
    s->by = r->by;
    s->text0 = r->text0;
    s->text1 = r->text1;
    s->want = r->want;
    s->scale = (float)p->scale;
    s->at = (float)r->at;
    if (r->width > 1)
        PASS_ON(init_fold(g, job, s, err));
    if (s->cached) {
        return init_cached(g, job, s, err);
    } else {
        PASS_ON(take(g, err, &s->mean, 3 * job->lists.rows * (p->d / 8)));
        if (g->sm == 90 && r->by != FG_CHOOSE_TOPK)
            PASS_ON(fg_pooled_init(g, *s, &s->pooled, err));
        else
            PASS_ON(take(g, err, &s->t, job->lists.rows * p->nk));
        s->fold.t = s->t;
    }
    return 0;
}

static void release(struct select_job *job)
{
    fg_state *s = (fg_state *)job->state;
    attn_job_free(&s->dense);
    for (int h = 0; s->pass && h < s->heads; h++)
        metrics_pass_free(s->pass + h);
    free(s->pass);
    fg_pooled_free(s->pooled);
}

extern "C" const struct select_method select_fg_attn = {
    "fg-attn", fits, init, launch, NULL, release, false, NULL,
};
