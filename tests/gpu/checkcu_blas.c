/*
 * checkcu_blas.c - a reference whose products are neither our kernels' nor our CPU code's
 * (checkcu.h): S from cuBLAS in float32, the softmax and P V from it on the host in double.
 */
#include "tests/gpu/checkcu.h"

#include "core/dtype.h"
#include "core/mem.h"
#include "cuda/ops.h"

#include <math.h>
#include <stdlib.h>

struct check {
    struct cu_run r;
    float *s;      /* [nq][nk] */
    uint16_t *out; /* [heads][nq][d] */
    float *lse;
    double *p; /* [nk] */
    double delta, ref;
};

static void compare_row(struct check *k, int head, int64_t i, struct cu_errors *e)
{
    const struct attn_problem *p = &k->r.c.problem;
    const float *v = k->r.v + head / (p->heads / p->kv_heads) * p->nk * p->d;
    const float *s = k->s + i * p->nk;
    int64_t row = head * p->nq + i;
    double top = -INFINITY, sum = 0;

    for (int64_t j = 0; j < p->nk; j++)
        top = fmax(top, p->scale * s[j]);
    for (int64_t j = 0; j < p->nk; j++)
        sum += k->p[j] = exp(p->scale * s[j] - top);
    double lse = top + log(sum);
    e->lse_max = fmax(e->lse_max, fabs(lse - k->lse[row]));
    e->lse_ref = fmax(e->lse_ref, fabs(lse));
    for (int c = 0; c < p->d; c++) {
        double want = 0;
        for (int64_t j = 0; j < p->nk; j++)
            want += k->p[j] * v[j * p->d + c];
        want /= sum;
        double delta = bf16_to_f32(k->out[row * p->d + c]) - want;
        k->delta += delta * delta;
        k->ref += want * want;
    }
}

static int compare(struct gpu *g, struct check *k, struct cu_errors *e, struct err *err)
{
    const struct attn_problem *p = &k->r.c.problem;
    OWN(blas_close) struct blas *blas = NULL;
    float *s = NULL;

    PASS_ON(blas_open(g, &blas, err));
    PASS_ON(gpu_alloc(g, p->nq * p->nk * 4, &s, err));
    for (int h = 0; h < p->heads; h++) {
        const uint16_t *q = k->r.job.x.q, *key = k->r.job.x.k;
        int64_t kv = h / (p->heads / p->kv_heads);
        PASS_ON(blas_bf16(blas, p->nq, p->nk, p->d, q + h * p->nq * p->d, key + kv * p->nk * p->d,
                          0, s, p->nk, err));
        PASS_ON(gpu_get(g, k->s, s, p->nq * p->nk * 4, err));
        for (int64_t i = 0; i < p->nq; i++)
            compare_row(k, h, i, e);
    }
    e->l2_rel = sqrt(k->delta / k->ref);
    return 0;
}

int cu_check_scores(struct gpu *g, const struct cu_case *c, struct cu_errors *e, struct err *err)
{
    const struct attn_problem *p = &c->problem;
    int64_t rows = p->heads * p->nq;
    struct check k = {0};
    int rc = 0;

    TRY(cu_run_init(g, c, &k.r, err));
    TRY(mem_alloc(&k.s, p->nq * p->nk, sizeof *k.s, "scores", err));
    TRY(mem_alloc(&k.p, p->nk, sizeof *k.p, "probabilities", err));
    TRY(mem_alloc(&k.out, rows * p->d, sizeof *k.out, "outputs", err));
    TRY(mem_alloc(&k.lse, rows, sizeof *k.lse, "log-sum-exps", err));
    TRY(attn_job_launch(g, &k.r.job, err));
    TRY(gpu_get(g, k.out, k.r.job.x.out, rows * p->d * 2, err));
    TRY(gpu_get(g, k.lse, k.r.job.x.lse, rows * 4, err));
    TRY(compare(g, &k, e, err));
out:
    cu_run_free(g, &k.r);
    free(k.s);
    free(k.p);
    free(k.out);
    free(k.lse);
    return rc;
}
