/*
 * sparse_transformer.cu - keys at multiples of a stride, and near ones, pair by pair
 * (sim/methods/sparse_transformer.c has the rule and the reference): integers only. Neither q nor k
 * is read; N^2 / 8 bytes are written per head.
 */
#include "cuda/select/method.cuh"

struct strided_args : head_args {
    struct strided_rule rule;
};

/* A warp per row. */
static __global__ void strided_rows(const strided_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= a.heads * a.nq)
        return;
    int p = (int)(row % a.nq + a.nk - a.nq), l = (int)min(a.rule.stride, (int64_t)PAIR_TOKENS);
    int near = (int)max(p + 1 - a.rule.near, (int64_t)0);
    fill_row_words(a.map, row, [&](int w) {
        return p < 0 ? 0 : every_key(p % l, l, p + 1, 32 * w) | every_key(near, 1, p + 1, 32 * w);
    });
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    strided_args *a = NULL;
    PASS_ON(method_init(g, job, 1, 1, &a, err));
    a->rule = select_rule(&job->problem, 0)->strided;
    return 0;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const strided_args &a = *(const strided_args *)job->state;
    return CU_STATUS(err,
                     run_kernel(g->stream, strided_rows, ceil_div(a.heads * a.nq, 8), 256, 0, a));
}

extern "C" const struct select_method select_sparse_transformer = {
    "sparse-transformer", pair_maps_fit, init, launch, NULL, NULL, false, NULL,
};
