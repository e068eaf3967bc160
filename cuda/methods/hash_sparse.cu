/*
 * hash_sparse.cu - pairs of equal bucket under an angular hash (sim/methods/hash_sparse.c has the
 * rule and the reference). Directions and projections are in double with the reference's order of
 * sums, so that buckets agree; then a warp per row compares the buckets of all keys with its own.
 *
 * 2 N d buckets / 2 products, N^2 / 8 bytes written per head.
 */
#include "core/intmath.h"
#include "core/rng.h"
#include "cuda/select/maprows.cuh"
#include "cuda/select/means.cuh"
#include "cuda/select/select.h"

#include <stdio.h>
#include <stdlib.h>

struct hash_args {
    const uint4 *q, *k;
    int64_t nq, nk;
    int heads, kv_heads, per_kv, d, causal;
    struct hash_rule rule;
    double *dir;       /* [buckets / 2][d] */
    uint8_t *q_bucket; /* [heads][nq] */
    uint8_t *k_bucket; /* [kv_heads][words * 32] */
    map_rows map;
};

/* A thread per direction. */
static __global__ void make_directions(const hash_args a)
{
    int r = threadIdx.x;
    double *g = a.dir + (int64_t)r * a.d, norm = 0;
    for (int c = 0; c < a.d; c++) {
        g[c] = a.rule.axes ? (double)(c == r)
                           : rng_normal(a.rule.seed, a.rule.stream, (uint64_t)r * a.d + c);
        norm = __dadd_rn(norm, __dmul_rn(g[c], g[c]));
    }
    for (int c = 0; c < a.d; c++)
        g[c] = g[c] / sqrt(norm);
}

/* The first of the largest values [x R, -x R]; a thread per token. */
static __device__ int bucket_of(const hash_args &a, const uint4 *x)
{
    int half = (int)a.rule.buckets / 2, at[2] = {0, 0};
    double best[2] = {-INFINITY, -INFINITY};
    for (int r = 0; r < half; r++) {
        const double *g = a.dir + (int64_t)r * a.d;
        double dot = 0;
        for (int c = 0; c < a.d; c += 8) {
            float v[8];
            unpack(x[c / 8], v);
#pragma unroll
            for (int e = 0; e < 8; e++)
                dot = __dadd_rn(dot, __dmul_rn(g[c + e], (double)v[e]));
        }
        for (int sign = 0; sign < 2; sign++)
            if ((sign ? -dot : dot) > best[sign]) {
                best[sign] = sign ? -dot : dot;
                at[sign] = r;
            }
    }
    return best[1] > best[0] ? half + at[1] : at[0];
}

static __global__ void hash_queries(const hash_args a)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < a.heads * a.nq)
        a.q_bucket[i] = (uint8_t)bucket_of(a, a.q + i * (a.d / 8));
}

static __global__ void hash_keys(const hash_args a)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, kv = blockIdx.y;
    if (i < a.nk)
        a.k_bucket[kv * a.map.words * 32 + i] =
            (uint8_t)bucket_of(a, a.k + (kv * a.nk + i) * (a.d / 8));
}

/* A warp per row. */
static __global__ void compare_buckets(const hash_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= a.heads * a.nq)
        return;
    int64_t head = row / a.nq, i = row % a.nq;
    int64_t limit = a.causal ? i + a.nk - a.nq + !a.rule.strict : a.nk;
    limit = min(max(limit, (int64_t)0), a.nk);
    const uint8_t *keys = a.k_bucket + head / a.per_kv * a.map.words * 32;
    uint32_t own = a.q_bucket[row] * 0x01010101u;
    fill_row_words(a.map, row, [&](int w) {
        uint32_t bits = 0;
        if (w * 32 >= limit)
            return 0u;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 four = *(const uint4 *)(keys + w * 32 + 16 * half);
            const uint32_t b[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int e = 0; e < 4; e++) /* a bit of each byte to the top */
                bits |= ((__vcmpeq4(b[e], own) & 0x08040201u) * 0x01010101u >> 24)
                        << (16 * half + 4 * e);
        }
        return limit - w * 32 < 32 ? bits & ((1u << (limit - w * 32)) - 1) : bits;
    });
}

static bool fits(const struct select_problem *p, char why[160])
{
    if (p->d != 64 && p->d != 128)
        snprintf(why, 160, "the GPU side has head dimensions 64 and 128, not %d", p->d);
    return p->d == 64 || p->d == 128;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    const struct select_problem *p = &job->problem;
    hash_args *a = (hash_args *)calloc(1, sizeof *a);
    int rc = 0;

    job->state = a;
    if (!a)
        FAIL(err, ERR_NOMEM, "hash-sparse on the GPU: out of memory");
    TRY(select_lists_init(g, job, 1, 1, err));
    a->q = (const uint4 *)p->q;
    a->k = (const uint4 *)p->k;
    a->nq = p->nq;
    a->nk = p->nk;
    a->heads = p->heads;
    a->kv_heads = p->kv_heads;
    a->per_kv = p->heads / p->kv_heads;
    a->d = p->d;
    a->causal = p->causal;
    a->rule = p->rule->hash;
    a->map = map_rows_of(&job->lists);
    TRY(gpu_alloc(g, a->rule.buckets / 2 * p->d * 8, &a->dir, err));
    TRY(gpu_alloc(g, a->heads * a->nq, &a->q_bucket, err));
    TRY(gpu_alloc(g, (int64_t)a->kv_heads * a->map.words * 32, &a->k_bucket, err));
out:
    return rc;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const hash_args &a = *(const hash_args *)job->state;
    int rc = 0;
    make_directions<<<1, (unsigned)(a.rule.buckets / 2), 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    hash_queries<<<(unsigned)ceil_div(a.heads * a.nq, 128), 128, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    hash_keys<<<dim3((unsigned)ceil_div(a.nk, 128), (unsigned)a.kv_heads), 128, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
    compare_buckets<<<(unsigned)ceil_div(a.heads * a.nq, 8), 256, 0, g->stream>>>(a);
    CU_LAUNCHED(err);
out:
    return rc;
}

extern "C" const struct select_method select_hash_sparse = {
    "hash-sparse", fits, init, launch, NULL, NULL, false, NULL, false,
};
