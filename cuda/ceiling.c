/*
 * ceiling.c - a product of cuBLAS and a copy (ceiling.h).
 */
#include "cuda/ceiling.h"

#include "cuda/ops.h"

int ceiling_open(struct gpu *g, struct ceiling *c, struct err *err)
{
    const int64_t n = CEILING_N * CEILING_N, bytes = CEILING_BYTES / 2;
    int rc = 0;
    *c = (struct ceiling){0};
    TRY(blas_open(g, &c->blas, err));
    TRY(gpu_alloc(g, n * 2, &c->a, err));
    TRY(gpu_alloc(g, n * 2, &c->b, err));
    TRY(gpu_alloc(g, n * 2, &c->c, err));
    TRY(gpu_alloc(g, bytes, &c->from, err));
    TRY(gpu_alloc(g, bytes, &c->to, err));
    TRY(ops_fill_normal(g, c->a, n, 11, err));
    TRY(ops_fill_normal(g, c->b, n, 12, err));
    TRY(ops_fill_normal(g, c->from, bytes / 2, 13, err));
    TRY(gpu_sync(g, err));
out:
    return rc;
}

int ceiling_matmul(struct gpu *g, const void *ceiling, struct err *err)
{
    const struct ceiling *c = ceiling;
    return blas_square(c->blas, CEILING_N, c->b, c->a, c->c, err);
}

int ceiling_copy(struct gpu *g, const void *ceiling, struct err *err)
{
    const struct ceiling *c = ceiling;
    return gpu_copy(g, c->to, c->from, CEILING_BYTES / 2, err);
}
