/*
 * ceiling.c - a product of cuBLAS and a copy (ceiling.h).
 */
#include "cuda/ceiling.h"

#include "cuda/blas.h"
#include "cuda/ops.h"

#include <stdlib.h>

struct ceiling {
    struct blas *blas;
    int64_t n, bytes;
    void *a, *b, *c;
    char *from, *to;
};

int ceiling_open(struct gpu *g, int64_t n, int64_t bytes, struct ceiling **out, struct err *err)
{
    int rc = 0;
    struct ceiling *c = calloc(1, sizeof *c);
    if (!c)
        FAIL(err, ERR_NOMEM, "ceilings: out of memory");
    c->n = n;
    c->bytes = bytes;
    TRY(blas_open(g, &c->blas, err));
    TRY(gpu_alloc(g, n * n * 2, &c->a, err));
    TRY(gpu_alloc(g, n * n * 2, &c->b, err));
    TRY(gpu_alloc(g, n * n * 2, &c->c, err));
    TRY(gpu_alloc(g, bytes, &c->from, err));
    TRY(gpu_alloc(g, bytes, &c->to, err));
    TRY(ops_fill_normal(g, c->a, n * n, 11, err));
    TRY(ops_fill_normal(g, c->b, n * n, 12, err));
    TRY(ops_fill_normal(g, c->from, bytes / 2, 13, err));
    TRY(gpu_sync(g, err));
    *out = c;
    c = NULL;
out:
    ceiling_close(&c);
    return rc;
}

void ceiling_close(struct ceiling **c)
{
    if (!*c)
        return;
    blas_close(&(*c)->blas);
    free(*c);
    *c = NULL;
}

int ceiling_matmul(struct ceiling *c, struct gpu *g, struct err *err)
{
    return blas_square(c->blas, c->n, c->b, c->a, c->c, err);
}

int ceiling_copy(struct ceiling *c, struct gpu *g, struct err *err)
{
    return CU_STATUS(err, cudaMemcpyAsync(c->to, c->from, (size_t)c->bytes,
                                          cudaMemcpyDeviceToDevice, g->stream));
}

double ceiling_matmul_flop(const struct ceiling *c)
{
    return 2.0 * (double)c->n * (double)c->n * (double)c->n;
}

double ceiling_copy_bytes(const struct ceiling *c)
{
    return 2.0 * (double)c->bytes;
}
