/*
 * libdense.c - our dense attention as a shared library, for tests/bench/peers.py: launched in the
 * process, on the stream and with the operands of the kernels that it is compared with, so that all
 * of them find the GPU alike.
 */
#include "cuda/attn/attn.h"

#include <math.h>
#include <stdlib.h>

struct dense {
    struct gpu gpu;
    cudaStream_t stream; /* of gpu, while launches go to the legacy one */
    struct attn_plan plan;
    struct attn_job job;
    struct err err;
};

/* What a problem's shape and tensors are passed as: bf16, float for lse, [heads][n][d], and of v
 * and out [heads][n][attn_dv(d)]. */
struct dense_case {
    int32_t heads, kv_heads, d, causal;
    int64_t n;
    const void *q, *k, *v;
    void *out;
    float *lse;
};

/* Each returns NULL or what went wrong, which lives until dense_close. *out is to be closed in any
 * case, NULL too. */
const char *dense_open(const struct dense_case *c, struct dense **out);
const char *dense_launch(struct dense *x);
void dense_close(struct dense *x);

static int dense_init(struct dense *x, const struct dense_case *c, struct err *err)
{
    struct attn_problem p = {c->heads,  c->kv_heads, c->d, c->n, c->n, 1 / sqrt((double)c->d),
                             c->causal, ATTN_DENSE};
    struct attn_tensors t = {c->q, c->k, c->v, c->out, c->lse};
    const struct attn_kernel *kernel;
    PASS_ON(gpu_open(0, &x->gpu, err));
    PASS_ON(attn_kernel_find(&p, x->gpu.sm, NULL, &kernel, err));
    PASS_ON(attn_plan_make(&p, &kernel->tile, NULL, x->gpu.sms, &x->plan, err));
    PASS_ON(attn_job_init(&x->gpu, &p, kernel, &x->plan, &t, &x->job, err));
    PASS_ON(gpu_sync(&x->gpu, err));
    x->stream = x->gpu.stream;
    x->gpu.stream = cudaStreamLegacy;
    return 0;
}

const char *dense_open(const struct dense_case *c, struct dense **out)
{
    *out = calloc(1, sizeof **out);
    if (!*out)
        return "out of memory";
    return dense_init(*out, c, &(*out)->err) ? (*out)->err.msg : NULL;
}

const char *dense_launch(struct dense *x)
{
    return attn_job_launch(&x->gpu, &x->job, &x->err) ? x->err.msg : NULL;
}

void dense_close(struct dense *x)
{
    if (!x)
        return;
    if (x->stream) {
        cudaStreamSynchronize(cudaStreamLegacy);
        x->gpu.stream = x->stream;
    }
    attn_job_free(&x->job);
    attn_plan_free(&x->plan);
    gpu_close(&x->gpu);
    free(x);
}
