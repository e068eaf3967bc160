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
#include "core/intmath.h"
#include "cuda/attn/attn.h"
#include "cuda/methods/fg_pooled.cuh"
#include "cuda/metrics/metrics.h"
#include "cuda/mma.cuh"
#include "cuda/select/maprows.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/select.h"
#include "cuda/select/wide.cuh"

extern "C" {
#include "core/mem.h"
}

#include <cuda_bf16.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

static __device__ float block_max(float x)
{
    __shared__ float part[32];
    x = warp_max(x);
    __syncthreads();
    if ((threadIdx.x & 31) == 0)
        part[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_max(part[threadIdx.x & 31]);
}

/* Bits with the order of the floats. */
static __device__ __forceinline__ uint32_t ordered(float x)
{
    uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
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
            above += ordered(t[j]) > middle;
        if (wide_sum(above) <= want)
            high = middle;
        else
            low = middle + 1;
    }
    int above = 0;
    for (int j = threadIdx.x; j < n; j += WIDE)
        above += ordered(t[j]) > low;
    *from = low;
    *m = (int)want - wide_sum(above);
}

/* Number of threads before this one, and of all, for which `x` holds. */
static __device__ int count_before(bool x, int *all)
{
    __shared__ int warps[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    uint32_t mine = __ballot_sync(~0u, x);
    __syncthreads();
    if (lane == 0)
        warps[warp] = __popc(mine);
    __syncthreads();
    *all = __reduce_add_sync(~0u, warps[lane]);
    return __reduce_add_sync(~0u, lane < warp ? warps[lane] : 0) +
           __popc(mine & ((1u << lane) - 1));
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
        top = block_max(top);
        for (int j = threadIdx.x; j < limit; j += WIDE)
            sum += (double)expf(t[j] - top);
        cut = (float)(log(wide_add(sum) * (double)a.at) + (double)top);
    } else if (a.by == FG_CHOOSE_TOPK) {
        find_cut(t, limit, a.want, &from, &m);
    }
    for (int j0 = 0; j0 < a.words * 32; j0 += WIDE) {
        int j = j0 + (int)threadIdx.x, all;
        float x = j < limit ? t[j] : -INFINITY;
        bool keep = x >= cut;
        if (a.by == FG_CHOOSE_TOPK) { /* for all threads alike, because they wait for each other */
            bool tie = j < limit && ordered(x) == from;
            int before = seen + count_before(tie, &all);
            keep = ordered(x) > from || (tie && before < m);
            seen += all;
        }
        keep = j < limit && (keep || j >= forced || (j >= text0 && j < text1));
        uint32_t word = __ballot_sync(~0u, keep);
        if ((threadIdx.x & 31) == 0 && j / 32 < a.words)
            a.map[row * a.words + j / 32] = word;
    }
}

/* ---- pooled scores -------------------------------------------------------------------------- */

/* Mean query of a group in double, as three bf16 terms. Grid (groups, heads), 256 threads. */
template <int D> static __global__ void __launch_bounds__(256) mean_queries(const fg_args a)
{
    constexpr int LANES = D / 8, STEP = 256 / LANES;
    __shared__ double part[STEP][D + 1];
    int lane = threadIdx.x % LANES, at = threadIdx.x / LANES, rows;
    int64_t r0 = blockIdx.x * (int64_t)a.M, head = blockIdx.y;
    double sum[8] = {0}, all = 0;
    rows = (int)min((int64_t)a.M, a.nq - r0);
    for (int r = at; r < rows; r += STEP) {
        float v[8];
        unpack(a.q[(head * a.nq + r0 + r) * LANES + lane], v);
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum[c] += v[c];
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
        part[at][lane * 8 + c] = sum[c];
    __syncthreads();
    if (threadIdx.x >= D)
        return;
    for (int i = 0; i < STEP; i++)
        all += part[i][threadIdx.x];
    all /= rows;
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

template <int D> static int launch_means(struct gpu *g, const fg_args &a, struct err *err)
{
    int rc = 0;
    mean_queries<D><<<dim3((unsigned)a.groups, (unsigned)a.heads), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

template <int D> static int launch_pooled(struct gpu *g, const fg_args &a, struct err *err)
{
    int rc = 0, smem = (3 * GROUP_TILE + KEY_TILE) * D * 2;
    dim3 tiles((unsigned)((a.nk + KEY_TILE - 1) / KEY_TILE),
               (unsigned)((a.groups + GROUP_TILE - 1) / GROUP_TILE), (unsigned)a.heads);
    CU(err, cudaFuncSetAttribute((const void *)pooled_scores<D>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
    pooled_scores<D><<<tiles, TILE_THREADS, smem, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

static int launch_choice(struct gpu *g, const fg_args &a, struct err *err)
{
    int rc = 0;
    choose_keys<<<dim3((unsigned)a.groups, (unsigned)a.heads), WIDE, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

/* ---- cached --------------------------------------------------------------------------------- */

struct fg_state {
    fg_args args;
    struct fg_pooled *pooled; /* on Hopper, where keys are not ranked; owned */
    bool cached, dense_call;
    int d;
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
    struct attn_plan plan = {};
    int rc = 0;
    TRY(attn_kernel_find(&dense, g->sm, NULL, &kernel, err));
    TRY(gpu_alloc(g, p->heads * p->nq * p->d * 2, &x.out, err));
    TRY(gpu_alloc(g, p->heads * p->nq * 4, &x.lse, err));
    TRY(attn_plan_make(&dense, &kernel->tile, NULL, g->sms, true, &plan, err));
    TRY(attn_job_init(g, &dense, kernel, &plan, &x, &s->dense, err));
out:
    attn_plan_free(&plan);
    return rc;
}

static int launch_dense(struct gpu *g, const fg_state *s, struct err *err)
{
    int64_t n = s->args.heads * s->args.nq;
    int rc = 0;
    TRY(attn_job_launch(g, &s->dense, err));
    TRY(metrics_norms_into(g, s->dense.x.lse, n, s->norm, err));
out:
    return rc;
}

static int init_cached(struct gpu *g, struct select_job *job, fg_state *s, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct select_lists *l = &job->lists;
    const struct fg_rule *r = &select_rule(p, 0)->fg;
    double c = r->at * (double)p->nk;
    int rc = 0;

    TRY(init_dense(g, p, s, err));
    TRY(gpu_alloc(g, p->heads * p->nq * 8, &s->norm, err));
    TRY(mem_zalloc(&s->pass, p->heads, sizeof *s->pass, "passes of heads", err));
    for (int h = 0; h < p->heads; h++) {
        struct attn_problem one = {1, 1, p->d, p->nq, p->nk, p->scale, p->causal, ATTN_DENSE};
        struct attn_tensors x = {(const char *)p->q + h * p->nq * p->d * 2,
                                 (const char *)p->k + h / s->args.per_kv * p->nk * p->d * 2, NULL,
                                 NULL, NULL};
        struct metrics_slices slices = {(int)r->M, r->text0, r->text1,
                                        s->args.map + h * l->groups * s->args.words, s->args.words};
        struct metrics_ask ask = {};
        ask.c = &c;
        ask.n_c = 1;
        ask.slices = &slices;
        TRY(metrics_pass_init(g, &one, &x, s->norm + h * p->nq, &ask, s->pass + h, err));
    }
    if (r->dense_call)
        TRY(launch_dense(g, s, err));
out:
    return rc;
}

static int launch_cached(struct gpu *g, const fg_state *s, const struct select_lists *l,
                         struct err *err)
{
    const fg_args &a = s->args;
    int rc = 0;
    if (!s->dense_call)
        TRY(launch_dense(g, s, err));
    TRY(gpu_zero(g, a.map, l->rows * a.words * 4, err));
    for (int h = 0; h < a.heads; h++)
        TRY(metrics_pass_launch(g, s->pass + h, err));
out:
    return rc;
}

static int launch_whole(struct gpu *g, const fg_state *s, const struct select_lists *l,
                        struct err *err)
{
    const fg_fold &f = s->fold;
    fg_args a = s->args;
    bool ranked = !s->cached && a.by == FG_CHOOSE_TOPK && f.width > 1;
    int rc = 0;

    if (s->cached)
        TRY(launch_cached(g, s, l, err));
    else
        TRY(s->d == 128 ? launch_means<128>(g, a, err) : launch_means<64>(g, a, err));
    if (s->pooled)
        TRY(fg_pooled_launch(g, a, s->pooled, err));
    else if (!s->cached)
        TRY(s->d == 128 ? launch_pooled<128>(g, a, err) : launch_pooled<64>(g, a, err));
    if (ranked) {
        dim3 grid((unsigned)((l->units + 255) / 256), a.groups, a.heads);
        a.t = f.value;
        a.keys = l->units;
        a.width = f.width;
        a.words = (int)l->words;
        a.map = l->map;
        fold_values<<<grid, 256, 0, g->stream>>>(f, a);
        CU_LAUNCHED(err);
    }
    if (!s->cached && !s->pooled)
        TRY(launch_choice(g, a, err));
    if (f.width > 1 && !ranked) {
        fold_bits<<<(unsigned)((f.rows + 7) / 8), 256, 0, g->stream>>>(f);
        CU_LAUNCHED(err);
    }
out:
    return rc;
}

/* ---- the table's functions ------------------------------------------------------------------ */

static bool fits(const struct select_problem *p, char why[160])
{
    const struct fg_rule *r = &select_rule(p, 0)->fg;
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "the GPU side has head dimensions 64 and 128, not %d", p->d);
    else if (r->by == FG_CHOOSE_MAX && r->M != 16 && r->M != 32 && r->M != 64 && r->M != 128)
        snprintf(why, 160, "the GPU side of mode=cached has M of 16, 32, 64 and 128, not %lld",
                 (long long)r->M);
    else if (r->by == FG_CHOOSE_MAX && !(r->at * (double)p->nk > 1e-6 && p->scale > 0))
        snprintf(why, 160, "the GPU side of mode=cached needs a threshold above 1e-6/N");
    else
        return true;
    return false;
}

/* The keys' own map, and values of units. */
static int init_fold(struct gpu *g, const struct select_job *job, fg_state *s, struct err *err)
{
    const struct select_lists *l = &job->lists;
    uint32_t *keys = NULL;
    int rc = 0;
    TRY(gpu_alloc(g, l->rows * s->args.words * 4, &keys, err));
    TRY(gpu_alloc(g, l->rows * l->units * 4, &s->fold.value, err));
    s->args.map = keys;
    s->fold.rows = l->rows;
    s->fold.nk = job->problem.nk;
    s->fold.width = (int)l->bk;
    s->fold.key_words = s->args.words;
    s->fold.key_map = keys;
    s->fold.map = map_rows_of(l);
out:
    return rc;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    const struct fg_rule *r = &select_rule(p, 0)->fg;
    fg_state *s = (fg_state *)calloc(1, sizeof *s);
    int rc = 0;

    job->state = s;
    if (!s)
        FAIL(err, ERR_NOMEM, "fg-attn on the GPU: out of memory");
    TRY(select_lists_init(g, job, r->M, r->width, err));
    s->cached = r->by == FG_CHOOSE_MAX;
    s->dense_call = r->dense_call;
    s->d = p->d;
    s->args.q = (const uint4 *)p->q;
    s->args.k = (const uint4 *)p->k;
    s->args.nq = p->nq;
    s->args.nk = p->nk;
    s->args.heads = p->heads;
    s->args.per_kv = p->heads / p->kv_heads;
    s->args.groups = (int)job->lists.groups;
    s->args.words = (int)((p->nk + 31) / 32);
    s->args.keys = p->nk;
    s->args.width = 1;
    s->args.M = (int)r->M;
    s->args.causal = p->causal;
    s->args.by = r->by;
    s->args.text0 = r->text0;
    s->args.text1 = r->text1;
    s->args.want = r->want;
    s->args.scale = (float)p->scale;
    s->args.at = (float)r->at;
    s->args.map = job->lists.map;
    if (r->width > 1)
        TRY(init_fold(g, job, s, err));
    if (s->cached) {
        TRY(init_cached(g, job, s, err));
    } else {
        TRY(gpu_alloc(g, 3LL * job->lists.rows * p->d * 2, &s->args.mean, err));
        if (g->sm == 90 && r->by != FG_CHOOSE_TOPK)
            TRY(fg_pooled_init(g, s->args, p->d, &s->pooled, err));
        else
            TRY(gpu_alloc(g, job->lists.rows * p->nk * 4, &s->args.t, err));
        s->fold.t = s->args.t;
    }
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    return launch_whole(g, (const fg_state *)job->state, &job->lists, err);
}

static void release(struct select_job *job)
{
    fg_state *s = (fg_state *)job->state;
    attn_job_free(&s->dense);
    for (int h = 0; s->pass && h < s->args.heads; h++)
        metrics_pass_free(s->pass + h);
    free(s->pass);
    fg_pooled_free(s->pooled);
}

extern "C" const struct select_method select_fg_attn = {
    "fg-attn", fits, init, launch, NULL, NULL, release, false, NULL,
};
