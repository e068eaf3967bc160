/*
 * longnet.cu - the support of LongNet's branches, pair by pair (sim/methods/longnet.c has the rule
 * and the reference): integers only. Neither q nor k is read; N^2 / 8 bytes are written per head.
 */
#include "cuda/select/method.cuh"

struct longnet_args : head_args {
    struct own_dilated rule;
};

/* The keys of the branches that take part in position p. A warp per row. */
static __global__ void branch_rows(const __grid_constant__ longnet_args a)
{
    int64_t row = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) >> 5;
    if (row >= a.heads * a.nq)
        return;
    int64_t p = row % a.nq + a.nk - a.nq, limit = a.causal ? p + 1 : a.nk;
    unsigned taken = 0;
    for (int b = 0; b < a.rule.n && p >= 0; b++)
        taken |= (unsigned)(p % a.rule.b[b].w % a.rule.b[b].r == a.rule.b[b].phase) << b;
    fill_row_words(a.map, row, [&](int w) {
        uint32_t bits = 0;
        for (unsigned left = taken; left; left &= left - 1) {
            const own_branch &b = a.rule.b[__ffs(left) - 1];
            int start = (int)(p / b.w * b.w), r = (int)min(b.r, (int64_t)PAIR_TOKENS);
            bits |= every_key(start + (int)b.phase, r, (int)min(start + b.w, limit), 32 * w);
        }
        return bits;
    });
}

static int init(struct gpu *g, struct select_job *job, struct err *err)
{
    longnet_args *a = NULL;
    PASS_ON(method_init(g, job, 1, 1, &a, err));
    a->rule = select_rule(&job->problem, 0)->dilated;
    return 0;
}

static int launch(struct gpu *g, const struct select_job *job, struct err *err)
{
    const longnet_args &a = *(const longnet_args *)job->state;
    return CU_STATUS(err,
                     run_kernel(g->stream, branch_rows, ceil_div(a.heads * a.nq, 8), 256, 0, a));
}

extern "C" const struct select_method select_longnet = {
    "longnet", pair_maps_fit, init, launch, NULL, NULL, false, NULL,
};
