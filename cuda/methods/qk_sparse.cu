/*
 * qk_sparse.cu - whole queries and keys dropped at random (sim/methods/qk_sparse.c has the rule and
 * the reference): integers only, so both sides draw the same. N^2 / 8 bytes written per head.
 */
#include "core/rng.h"
#include "cuda/select/method.cuh"

struct qk_args : head_args {
    struct qk_rule rule;
    uint32_t *keys; /* [words] bits of the kept ones; all heads share the rule and so the keys */
};

static __global__ void draw_keys(const qk_args a)
{
    int64_t j = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    bool keep = j < a.nk && rng_uniform(a.rule.seed, a.rule.stream_k, (uint64_t)j) >= a.rule.drop;
    uint32_t word = __ballot_sync(~0u, keep);
    if ((threadIdx.x & 31) == 0 && j / 32 < a.map.words)
        a.keys[j / 32] = word;
}

/* A warp per row. */
static __global__ void fill_rows(const qk_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= a.heads * a.nq)
        return;
    int64_t i = row % a.nq, limit = a.causal ? i + 1 + a.nk - a.nq : a.nk;
    if (rng_uniform(a.rule.seed, a.rule.stream_q, (uint64_t)i) < a.rule.drop_q)
        limit = 0;
    copy_row_bits(a.map, row, a.keys, min(limit, a.nk));
}

static bool fits(const struct select_problem *p, char why[160])
{
    (void)p;
    (void)why;
    return true;
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    qk_args *a = NULL;
    PASS_ON(method_init(g, job, 1, 1, &a, err));
    a->rule = select_rule(&job->problem, 0)->qk;
    return take(g, err, &a->keys, a->map.words);
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const qk_args &a = *(const qk_args *)job->state;
    PASS_ON_CU(err, run_kernel(g->stream, draw_keys, ceil_div(a.nk, 256), 256, 0, a));
    return CU_STATUS(err, run_kernel(g->stream, fill_rows, ceil_div(a.heads * a.nq, 8), 256, 0, a));
}

extern "C" const struct select_method select_qk_sparse = {
    "qk-sparse", fits, init, launch, NULL, NULL, false, NULL,
};
