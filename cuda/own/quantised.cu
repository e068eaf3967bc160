/*
 * quantised.cu - SageAttention's attention (arXiv 2410.02367, 2411.10958, 2505.21136; the reference
 * is sim/blocks/tileattn.c): integer Q K^T, P and V rounded to fp16 or e4m3.
 *
 * A warp has 16 query rows, a thread block 128; keys come BK at a time, BK being the tile of the
 * method, because P is rounded relative to the largest score so far. Of 128 keys a warp has the
 * scores of one half at a time, and multiplies the first half twice: before and after it knows the
 * largest score. mma.sync on s8 for scores; on
 * fp16 for P V, which holds every e4m3 number: its products are exact and its sums are fp32. The
 * accumulators of other widths that the rule may ask for are rounded where the reference rounds, in
 * chains of 64 keys.
 *
 * 4 d N_q N_k operations per head, half when causal, of which the scores run at the integer rate.
 *
 * What Hopper's 8-bit kernels can do (cuda/attn/attn8.cu) goes there.
 */
#include "core/clock.h"
#include "cuda/own/own.h"
#include "cuda/own/quantise.cuh"
#include "cuda/softrows.cuh"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 128
#define THREADS 256
#define LN2 0.69314718055994531f

/* Shared memory: the queries and two stages of keys. A row of bytes has 16 more than its channels,
 * so that the eight rows of a matrix lie in different banks. */
template <int D, int BK> struct layout {
    static constexpr int STEP = D + 16, Q = ROWS * STEP, K = BK * STEP, V = BK * D * 2;
    static constexpr int STAGE = K + V + BK * 4, ALL = Q + 2 * STAGE;
};

/* Rows [row0, row0 + N) of bytes x [n][D]; rows from n on become 0. */
template <int D, int N>
static __device__ __forceinline__ void copy_bytes(uint32_t dst, const int8_t *x, int64_t row0,
                                                  int64_t n)
{
    constexpr int CHUNKS = D / 16;
#pragma unroll 2
    for (int e = threadIdx.x; e < N * CHUNKS; e += THREADS) {
        int r = e / CHUNKS, c = e % CHUNKS;
        bool in = row0 + r < n;
        copy_async(dst + r * (D + 16) + 16 * c, x + (in ? row0 + r : 0) * D + 16 * c, in);
    }
}

template <int D, int BK>
static __device__ __forceinline__ void load_stage(const quantised_args &a, uint32_t at, int kv,
                                                  int64_t key0)
{
    using L = layout<D, BK>;
    copy_bytes<D, BK>(at, a.ki + kv * a.nk * D, key0, a.nk);
    copy_tile<D, BK, THREADS>(at + L::K, (const uint4 *)(a.vh + kv * a.nk * D), key0, a.nk);
    if (threadIdx.x < BK / 4)
        copy_async(at + L::K + L::V + 16 * threadIdx.x,
                   a.k_scale + kv * a.padded + key0 + 4 * threadIdx.x, true);
    copy_commit();
}

#define PART 64 /* keys of which a warp holds the scores at once */

template <int D, int SUM> struct warp_rows {
    uint32_t q[D / 32][4];
    float scale[2], o[D / 8][4], m[2], l[2];
    int limit[2]; /* keys that a row sees */

    static __device__ __forceinline__ int lane()
    {
        return threadIdx.x & 31;
    }

    __device__ __forceinline__ void start(uint32_t q_smem)
    {
        uint32_t at = q_smem + (16 * (threadIdx.x >> 5) + (lane() & 15)) * (D + 16);
#pragma unroll
        for (int c = 0; c < D / 32; c++)
            load_matrices(at + 32 * c + 16 * (lane() >> 4), q[c]);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
        m[0] = m[1] = -INFINITY;
        l[0] = l[1] = 0;
    }

    /* Scores of PART keys in log2 units; -inf where a row does not see the key. */
    __device__ __forceinline__ void scores(uint32_t keys, const float *k_scale, int key0,
                                           float (&s)[PART / 8][4])
    {
        keys += (lane() & 7) * (D + 16) + 16 * (lane() >> 3);
#pragma unroll
        for (int j = 0; j < PART / 8; j++) {
            int dot[4] = {0, 0, 0, 0}, at = 8 * j + 2 * (lane() & 3);
#pragma unroll
            for (int c = 0; c < D / 64; c++) {
                uint32_t y[4];
                load_matrices(keys + 8 * j * (D + 16) + 64 * c, y);
                mma_s8(dot, q[2 * c], y[0], y[1]);
                mma_s8(dot, q[2 * c + 1], y[2], y[3]);
            }
            float2 by = *(const float2 *)(k_scale + at);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float x = __fmul_rn((float)dot[e], __fmul_rn(scale[e / 2], e % 2 ? by.y : by.x));
                s[j][e] = key0 + at + e % 2 < limit[e / 2] ? x : -INFINITY;
            }
        }
    }

    static __device__ __forceinline__ void look(const float (&s)[PART / 8][4], float (&top)[2])
    {
#pragma unroll
        for (int j = 0; j < PART / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                top[e / 2] = fmaxf(top[e / 2], s[j][e]);
    }

    /* New largest scores; l and o rescaled. */
    __device__ __forceinline__ void raise(float (&top)[2])
    {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            top[r] = row_max(top[r]);
            raise_row(m, l, o, r, top[r]);
        }
    }

    static __device__ __forceinline__ uint32_t pack(float lo, float hi, bool e4m3)
    {
        uint32_t x;
        if (e4m3) {
            __half2_raw h = __nv_cvt_fp8x2_to_halfraw2(
                __nv_cvt_float2_to_fp8x2(make_float2(lo, hi), __NV_SATFINITE, __NV_E4M3),
                __NV_E4M3);
            return (uint32_t)h.y << 16 | h.x;
        }
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(x) : "f"(hi), "f"(lo));
        return x;
    }

    /* P, rounded, as the operand of P V; its sums are of what was not rounded. */
    __device__ __forceinline__ void probabilities(const quantised_args &a, float (&s)[PART / 8][4],
                                                  uint32_t (&p)[PART / 16][4])
    {
        float base[2] = {m[0] == -INFINITY ? 0 : m[0], m[1] == -INFINITY ? 0 : m[1]};
        float add[2] = {0, 0};
#pragma unroll
        for (int j = 0; j < PART / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                s[j][e] = exp2_fast(s[j][e] - base[e / 2] + a.rule.offset) * a.rule.factor;
                add[e / 2] += s[j][e];
            }
            p[j / 2][j % 2 * 2] = pack(s[j][0], s[j][1], a.rule.e4m3);
            p[j / 2][j % 2 * 2 + 1] = pack(s[j][2], s[j][3], a.rule.e4m3);
        }
        l[0] += add[0];
        l[1] += add[1];
    }

    static __device__ __forceinline__ float narrow(float x)
    {
        return SUM == OWN_SUM_F16 ? __half2float(__float2half_rn(x))
                                  : __uint_as_float(__float_as_uint(x) & ~0x3ffu);
    }

    /* o += P V of PART keys, in accumulators of their own. */
    __device__ __forceinline__ void values(const quantised_args &a, uint32_t v,
                                           const uint32_t (&p)[PART / 16][4])
    {
        bool wide = a.rule.e4m3; /* a step of the product has 32 keys, else 16 */
#pragma unroll
        for (int i = 0; i < D / 8; i += 2) {
            float acc[2][4] = {{0}};
#pragma unroll
            for (int kk = 0; kk < PART / 16; kk++) {
                uint32_t b[4];
                load_transposed(v + chunk_at<D>(16 * kk + (lane() & 15), i + (lane() >> 4)), b);
                MMA_16X8X16("f16", acc[0], p[kk], b[0], b[1]);
                MMA_16X8X16("f16", acc[1], p[kk], b[2], b[3]);
                if (SUM != OWN_SUM_F32 && (!wide || kk % 2))
#pragma unroll
                    for (int e = 0; e < 8; e++)
                        acc[e / 4][e % 4] = narrow(acc[e / 4][e % 4]);
            }
#pragma unroll
            for (int e = 0; e < 8; e++)
                o[i + e / 4][e % 4] += acc[e / 4][e % 4];
        }
    }

    __device__ __forceinline__ void store(const quantised_args &a, int head, int64_t row)
    {
        const float *by = a.v_scale + head / a.per_kv * D;
        const float *mean = a.rule.smooth_v ? a.v_mean + head / a.per_kv * D : NULL;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            l[r] = row_add(l[r]);
            if (row + 8 * r >= a.nq)
                continue;
            int64_t to = head * a.nq + row + 8 * r;
            bool seen = l[r] > 0;
            float inv = seen ? 1 / l[r] : 0;
#pragma unroll
            for (int i = 0; i < D / 8; i++) {
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int c = 8 * i + 2 * (lane() & 3) + e;
                    x[e] = o[i][2 * r + e] * inv * by[c] + (seen && mean ? mean[c] : 0);
                }
                *(__nv_bfloat162 *)(a.out + to * D + 8 * i + 2 * (lane() & 3)) =
                    __floats2bfloat162_rn(x[0], x[1]);
            }
            if ((lane() & 3) == 0)
                a.lse[to] =
                    seen ? (m[r] + log2f(l[r]) - a.rule.offset - log2f(a.rule.factor)) * LN2 +
                               (a.rule.smooth_k ? a.dot[to] : 0)
                         : -INFINITY;
        }
    }
};

/* Grid (ceil(nq / 128), heads), from the end, where most keys are. */
template <int D, int BK, int SUM>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_quantised(const __grid_constant__ quantised_args a)
{
    using L = layout<D, BK>;
    extern __shared__ __align__(128) uint8_t shared[];
    int tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, kv = head / a.per_kv;
    int64_t row0 = tile * (int64_t)ROWS,
            row = row0 + 16 * (threadIdx.x >> 5) + ((threadIdx.x & 31) >> 2);
    int64_t last = min(row0 + ROWS, a.nq) - 1, shift = a.nk - a.nq;
    int64_t keys = a.causal ? max((int64_t)0, min(a.nk, last + 1 + shift)) : a.nk;
    int stages = (int)((keys + BK - 1) / BK);
    uint32_t q_smem = shared_addr(shared), stage = q_smem + L::Q;
    warp_rows<D, SUM> w;

    copy_bytes<D, ROWS>(q_smem, a.qi + head * a.nq * D, row0, a.nq);
    if (stages > 0)
        load_stage<D, BK>(a, stage, kv, 0);
    else
        copy_commit();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int64_t i = row + 8 * r;
        w.scale[r] = i < a.nq ? a.q_scale[head * a.nq + i] : 0;
        w.limit[r] = (int)(a.causal ? min(a.nk, i + 1 + shift) : a.nk);
    }
    copy_wait<0>();
    __syncthreads();
    w.start(q_smem);
    for (int i = 0; i < stages; i++) {
        uint32_t at = stage + i % 2 * L::STAGE;
        const float *k_scale = (const float *)(shared + (at - q_smem) + L::K + L::V);
        float s[PART / 8][4];
        uint32_t p[PART / 16][4];
        if (i + 1 < stages) {
            load_stage<D, BK>(a, stage + (i + 1) % 2 * L::STAGE, kv, (i + 1) * (int64_t)BK);
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        float top[2] = {w.m[0], w.m[1]};
#pragma unroll 1 /* or more is under way than registers hold */
        for (int part = 0; part < BK / PART; part++) {
            w.scores(at + part * PART * L::STEP, k_scale + part * PART, i * BK + part * PART, s);
            w.look(s, top);
        }
        w.raise(top);
#pragma unroll 1
        for (int part = BK / PART - 1; part >= 0; part--) { /* the last scores are still there */
            if (part < BK / PART - 1)
                w.scores(at + part * PART * L::STEP, k_scale + part * PART, i * BK + part * PART,
                         s);
            w.probabilities(a, s, p);
            w.values(a, at + L::K + part * PART * D * 2, p);
        }
        __syncthreads(); /* the stage may be overwritten */
    }
    w.store(a, head, row);
}

/* ---- launches ------------------------------------------------------------------------------- */

template <int D>
static int launch_statistics(struct gpu *g, const quantised_args &a, token_statistic first,
                             token_statistic second, struct err *err)
{
    dim3 grid((unsigned)a.chunks, (unsigned)a.kv_heads, first == second ? 1 : 2);
    find_statistics<D><<<grid, 256, 0, g->stream>>>(a, first, second);
    return LAUNCH_STATUS(err);
}

template <int D> static int launch_quant(struct gpu *g, const quantised_args &a, struct err *err)
{
    const struct own_quantised *r = &a.rule;
    token_statistic of_values = r->smooth_v ? SUM_VALUES : MAX_VALUES;
    bool values = r->smooth_v || r->e4m3;
    int3 n = blocks_of<D>(a);
    unsigned tokens = (unsigned)(n.x * a.heads + n.y * a.kv_heads), all = tokens + n.z * a.kv_heads;
    if (r->smooth_k || values)
        PASS_ON(launch_statistics<D>(g, a, r->smooth_k ? SUM_KEYS : of_values,
                                     values ? of_values : SUM_KEYS, err));
    if (r->smooth_v && r->e4m3)
        PASS_ON(launch_statistics<D>(g, a, MAX_VALUES, MAX_VALUES, err));
    if (r->gran == OWN_BY_TENSOR) {
        PASS_ON(gpu_zero(g, a.q_max, a.heads * 4LL, err));
        PASS_ON(gpu_zero(g, a.k_max, a.kv_heads * 4LL, err));
        quantise_operands<D><<<tokens, 256, 0, g->stream>>>(a, true);
        PASS_ON_LAUNCH(err);
    }
    quantise_operands<D><<<all, 256, 0, g->stream>>>(a, false);
    return LAUNCH_STATUS(err);
}

template <int D, int BK, int SUM>
static int launch_attend(struct gpu *g, const quantised_args &a, struct err *err)
{
    int bytes = layout<D, BK>::ALL;
    dim3 grid((unsigned)((a.nq + ROWS - 1) / ROWS), (unsigned)a.heads);
    PASS_ON_CU(err, cudaFuncSetAttribute((const void *)attend_quantised<D, BK, SUM>,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    attend_quantised<D, BK, SUM><<<grid, THREADS, bytes, g->stream>>>(a);
    return LAUNCH_STATUS(err);
}

template <int D, int BK>
static int launch_sums(struct gpu *g, const quantised_args &a, struct err *err)
{
    return a.rule.sum == OWN_SUM_F32    ? launch_attend<D, BK, OWN_SUM_F32>(g, a, err)
           : a.rule.sum == OWN_SUM_FP22 ? launch_attend<D, BK, OWN_SUM_FP22>(g, a, err)
                                        : launch_attend<D, BK, OWN_SUM_F16>(g, a, err);
}

/* ---- operands ------------------------------------------------------------------------------- */

static int alloc_operands(struct gpu *g, quantised_args *a, bool bytes, struct err *err)
{
    int64_t q = a->heads * a->nq, k = a->kv_heads * a->nk, channels = a->kv_heads * (int64_t)a->d;
    PASS_ON(gpu_alloc(g, 2 * channels * a->chunks * 8, &a->part, err));
    PASS_ON(gpu_alloc(g, 2 * a->kv_heads * 4LL, &a->arrived, err));
    PASS_ON(gpu_zero(g, a->arrived, 2 * a->kv_heads * 4LL, err));
    PASS_ON(gpu_alloc(g, channels * 4, &a->k_mean, err));
    PASS_ON(gpu_alloc(g, channels * 4, &a->v_mean, err));
    PASS_ON(gpu_alloc(g, a->heads * 4LL, &a->q_max, err));
    PASS_ON(gpu_alloc(g, a->kv_heads * 4LL, &a->k_max, err));
    PASS_ON(gpu_alloc(g, q * a->d, &a->qi, err));
    PASS_ON(gpu_alloc(g, k * a->d, &a->ki, err));
    PASS_ON(gpu_alloc(g, q * 4, &a->q_scale, err));
    PASS_ON(gpu_alloc(g, a->kv_heads * a->padded * 4, &a->k_scale, err));
    PASS_ON(gpu_alloc(g, q * 4, &a->dot, err));
    if (bytes)
        PASS_ON(gpu_alloc(g, channels * a->padded, &a->vt, err));
    else
        PASS_ON(gpu_alloc(g, k * a->d * 2, &a->vh, err));
    PASS_ON(gpu_alloc(g, channels * 4, &a->v_scale, err));
    return gpu_alloc(g, channels * 4, &a->v_factor, err);
}

/* bytes: v in e4m3, as the 8-bit kernels take it, else in fp16. */
static int init_operands(struct gpu *g, const struct attn_problem *p,
                         const struct own_quantised *rule, const struct attn_tensors *x, bool bytes,
                         struct own_operands *out, struct err *err)
{
    quantised_args *a = NULL;

    PASS_ON(mem_zalloc(&a, 1, sizeof *a, "quantised operands", err));
    out->args = a;
    a->rule = *rule;
    a->q = (const __nv_bfloat16 *)x->q;
    a->k = (const __nv_bfloat16 *)x->k;
    a->v = (const __nv_bfloat16 *)x->v;
    a->out = (__nv_bfloat16 *)x->out;
    a->lse = x->lse;
    a->nq = p->nq;
    a->nk = p->nk;
    a->padded = (p->nk + 127) / 128 * 128;
    a->heads = p->heads;
    a->kv_heads = p->kv_heads;
    a->per_kv = p->heads / p->kv_heads;
    a->d = p->d;
    a->causal = p->causal;
    a->chunks = (int)((p->nk + SUM_ROWS - 1) / SUM_ROWS);
    a->scale = (float)p->scale;
    a->q_factor = rule->fold_scale ? (float)(p->scale * M_LOG2E) : 1;
    a->score_scale = rule->fold_scale ? 1 : (float)(p->scale * M_LOG2E);
    PASS_ON(alloc_operands(g, a, bytes, err));
    out->x = {a->qi, a->ki, bytes ? (const void *)a->vt : a->vh, a->out, a->lse};
    out->scales = {a->q_scale,
                   a->k_scale,
                   a->v_scale,
                   rule->smooth_v ? a->v_mean : NULL,
                   rule->smooth_k ? a->dot : NULL,
                   a->padded,
                   rule->offset + log2f(rule->factor)};
    return 0;
}

int own_operands_init(struct gpu *g, const struct attn_problem *p, const struct own_quantised *rule,
                      const struct attn_tensors *x, struct own_operands *ops, struct err *err)
{
    memset(ops, 0, sizeof *ops);
    return init_operands(g, p, rule, x, rule->e4m3, ops, err);
}

int own_operands_make(struct gpu *g, const void *ops, struct err *err)
{
    const quantised_args &a = *(const quantised_args *)((const struct own_operands *)ops)->args;
    return a.d == 64 ? launch_quant<64>(g, a, err) : launch_quant<128>(g, a, err);
}

void own_operands_free(struct own_operands *ops)
{
    free(ops->args);
    memset(ops, 0, sizeof *ops);
}

/* ---- the kind ------------------------------------------------------------------------------- */

struct quantised {
    struct own_operands ops;
    const struct attn_kernel *kernel; /* of 8 bits, with its job; NULL: attend_quantised */
    struct attn_job job;
};

static const quantised_args &args_of(const struct quantised *s)
{
    return *(const quantised_args *)s->ops.args;
}

/* The 8-bit kernel's job. */
static int init_job(struct gpu *g, struct quantised *s, struct own_job *job, struct err *err)
{
    OWN(attn_plan_free) struct attn_plan plan = {};
    double since = clock_ns();

    PASS_ON(attn_plan_make(&job->problem, &s->kernel->tile, NULL, g->sms, &plan, err));
    job->plan_ns = clock_ns() - since;
    job->balance = plan.balance;
    return attn8_job_init(g, &job->problem, s->kernel, &plan, &s->ops.x, &s->ops.scales, &s->job,
                          err);
}

/* Pairs of the tiles of rows x width that a head multiplies. */
static int64_t pairs_of(const quantised_args *a, int64_t rows, int width)
{
    int64_t tiles = 0;
    for (int64_t r = 0; r < a->nq; r += rows) {
        int64_t last = (r + rows < a->nq ? r + rows : a->nq) - 1, keys = a->nk;
        if (a->causal && last + 1 + a->nk - a->nq < keys)
            keys = last + 1 + a->nk - a->nq;
        tiles += keys > 0 ? (keys + width - 1) / width : 0;
    }
    return tiles * rows * width;
}

static int init(struct gpu *g, struct own_job *job, const struct own_rule *rules, struct err *err)
{
    const struct attn_problem *p = &job->problem;
    const struct own_quantised *rule = &rules->of.quantised;
    enum attn_element element = rule->e4m3 ? ATTN_INT8 : ATTN_INT8_F16;
    struct quantised *s = NULL;

    PASS_ON(mem_zalloc(&s, 1, sizeof *s, "quantised attention", err));
    job->state = s;
    for (int h = 1; h < p->heads; h++)
        if (memcmp(&rules[h].of.quantised, rule, sizeof *rule) != 0)
            return err_set(
                err, ERR_RUN,
                "heads of one call with other quantisers: --copies replays them one by one");
    if (g->sm == 90 && attn8_takes(rule, element, rule->e4m3 ? 128 : 64))
        PASS_ON(attn_kernel_for(p, g->sm, element, &s->kernel, err));
    PASS_ON(init_operands(g, p, rule, &job->x, s->kernel && rule->e4m3, &s->ops, err));
    for (int h = 0; h < p->heads; h++) /* a warpgroup of Hopper's has 64 rows */
        job->pairs[h] = s->kernel ? pairs_of(&args_of(s), 64, s->kernel->tile.bn)
                                  : pairs_of(&args_of(s), ROWS, rule->bk);
    if (s->kernel)
        PASS_ON(init_job(g, s, job, err));
    if (s->kernel)
        snprintf(job->name, sizeof job->name, "%s", s->kernel->name);
    else
        snprintf(job->name, sizeof job->name, "quantised-hd%d-%dx%d", p->d, ROWS, rule->bk);
    return 0;
}

static int quant(struct gpu *g, const struct own_job *job, struct err *err)
{
    return own_operands_make(g, &((const struct quantised *)job->state)->ops, err);
}

static int attend(struct gpu *g, const struct own_job *job, struct err *err)
{
    const struct quantised *s = (const struct quantised *)job->state;
    const quantised_args &a = args_of(s);
    if (s->kernel)
        return attn_job_launch(g, &s->job, err);
    if (a.d == 64)
        return a.rule.bk == 64 ? launch_sums<64, 64>(g, a, err) : launch_sums<64, 128>(g, a, err);
    return a.rule.bk == 64 ? launch_sums<128, 64>(g, a, err) : launch_sums<128, 128>(g, a, err);
}

static void release(void *state)
{
    struct quantised *s = (struct quantised *)state;
    if (!s)
        return;
    attn_job_free(&s->job);
    own_operands_free(&s->ops);
    free(s);
}

const struct own_kind own_kind_quantised = {NULL, init, quant, attend, release};
