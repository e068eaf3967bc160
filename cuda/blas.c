/*
 * blas.c - the few functions of cuBLAS that are used (ops.h). cuBLAS is column-major, so a
 * row-major x w^T is computed with the operands exchanged and w transposed.
 */
#include "cuda/ops.h"
#include "core/mem.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdlib.h>

struct blas {
    void *lib;
    cublasHandle_t handle;

    cublasStatus_t (*create)(cublasHandle_t *);
    cublasStatus_t (*destroy)(cublasHandle_t);
    cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
};

static int load(struct blas *b, struct err *err)
{
    static const char *const names[] = {"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !b->lib; i++)
        b->lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!b->lib)
        return err_set(err, ERR_MACHINE,
                       "libcublas.so.13 was not found: install the CUDA 13 "
                       "runtime libraries or put their folder into LD_LIBRARY_PATH");
    *(void **)&b->create = dlsym(b->lib, "cublasCreate_v2");
    *(void **)&b->destroy = dlsym(b->lib, "cublasDestroy_v2");
    *(void **)&b->set_stream = dlsym(b->lib, "cublasSetStream_v2");
    *(void **)&b->gemm = dlsym(b->lib, "cublasGemmEx");
    if (!b->create || !b->destroy || !b->set_stream || !b->gemm)
        return err_set(err, ERR_MACHINE, "libcublas.so.13 lacks a function that every version has");
    return 0;
}

int blas_open(struct gpu *g, struct blas **out, struct err *err)
{
    OWN(blas_close) struct blas *b = NULL;
    PASS_ON(mem_zalloc(&b, 1, sizeof *b, "cuBLAS", err));
    PASS_ON(load(b, err));
    if (b->create(&b->handle) || b->set_stream(b->handle, g->stream))
        return err_set(err, ERR_RUN, "cuBLAS could not be started");
    *out = b;
    b = NULL;
    return 0;
}

void blas_close(struct blas **b)
{
    if (!*b)
        return;
    if ((*b)->handle)
        (*b)->destroy((*b)->handle);
    free(*b);
    *b = NULL;
}

static int gemm(struct blas *b, int64_t m, int64_t n, int64_t k, const void *x, const void *w,
                float beta, void *y, cudaDataType type, int64_t ldy, struct err *err)
{
    const float one = 1;
    if (m > INT32_MAX || n > INT32_MAX || k > INT32_MAX || ldy > INT32_MAX)
        return err_set(err, ERR_RUN, "a matrix product of %lld x %lld x %lld is too large",
                       (long long)m, (long long)n, (long long)k);
    int s = (int)b->gemm(b->handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)n, (int)m, (int)k, &one, w,
                         CUDA_R_16BF, (int)k, x, CUDA_R_16BF, (int)k, &beta, y, type, (int)ldy,
                         CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return s ? err_set(err, ERR_RUN, "cublasGemmEx failed with status %d", s) : 0;
}

int blas_bf16(struct blas *b, int64_t m, int64_t n, int64_t k, const void *x, const void *w,
              float beta, float *y, int64_t ldy, struct err *err)
{
    return gemm(b, m, n, k, x, w, beta, y, CUDA_R_32F, ldy, err);
}

/* ---- ceilings ------------------------------------------------------------------------------- */

int ceiling_open(struct gpu *g, struct ceiling *c, struct err *err)
{
    const int64_t n = CEILING_N * CEILING_N, bytes = CEILING_BYTES / 2;
    *c = (struct ceiling){0};
    PASS_ON(blas_open(g, &c->blas, err));
    PASS_ON(gpu_alloc(g, n * 2, &c->a, err));
    PASS_ON(gpu_alloc(g, n * 2, &c->b, err));
    PASS_ON(gpu_alloc(g, n * 2, &c->c, err));
    PASS_ON(gpu_alloc(g, bytes, &c->from, err));
    PASS_ON(gpu_alloc(g, bytes, &c->to, err));
    PASS_ON(ops_fill_normal(g, c->a, n, 11, err));
    PASS_ON(ops_fill_normal(g, c->b, n, 12, err));
    PASS_ON(ops_fill_normal(g, c->from, bytes / 2, 13, err));
    return gpu_sync(g, err);
}

int ceiling_matmul(struct gpu *g, const void *ceiling, struct err *err)
{
    const struct ceiling *c = ceiling;
    return gemm(c->blas, CEILING_N, CEILING_N, CEILING_N, c->b, c->a, 0, c->c, CUDA_R_16BF,
                CEILING_N, err);
}

int ceiling_copy(struct gpu *g, const void *ceiling, struct err *err)
{
    const struct ceiling *c = ceiling;
    return gpu_copy(g, c->to, c->from, CEILING_BYTES / 2, err);
}
