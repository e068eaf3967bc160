/*
 * ceiling.c - cuBLAS opened at run time, and a copy (ceiling.h).
 */
#include "cuda/ceiling.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <stdlib.h>

struct ceiling {
    void          *lib;
    cublasHandle_t handle;
    int64_t        n, bytes;
    void          *a, *b, *c;
    char          *from, *to;

    cublasStatus_t (*create)(cublasHandle_t *);
    cublasStatus_t (*destroy)(cublasHandle_t);
    cublasStatus_t (*set_stream)(cublasHandle_t, cudaStream_t);
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
};

static int load_cublas(struct ceiling *c, struct err *err)
{
    static const char *const names[] = {"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13"};
    for (size_t i = 0; i < sizeof names / sizeof *names && !c->lib; i++)
        c->lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!c->lib)
        return err_set(err, ERR_MACHINE, "libcublas.so.13 was not found: install the CUDA 13 "
                       "runtime libraries or put their folder into LD_LIBRARY_PATH");
    *(void **)&c->create = dlsym(c->lib, "cublasCreate_v2");
    *(void **)&c->destroy = dlsym(c->lib, "cublasDestroy_v2");
    *(void **)&c->set_stream = dlsym(c->lib, "cublasSetStream_v2");
    *(void **)&c->gemm = dlsym(c->lib, "cublasGemmEx");
    if (!c->create || !c->destroy || !c->set_stream || !c->gemm)
        return err_set(err, ERR_MACHINE, "libcublas.so.13 lacks a function that every version has");
    return 0;
}

int ceiling_open(struct gpu *g, int64_t n, int64_t bytes, fill_fn *random, struct ceiling **out,
                 struct err *err)
{
    int             rc = 0;
    struct ceiling *c = calloc(1, sizeof *c);
    if (!c)
        FAIL(err, ERR_NOMEM, "ceilings: out of memory");
    c->n = n;
    c->bytes = bytes;
    TRY(load_cublas(c, err));
    if (c->create(&c->handle) || c->set_stream(c->handle, g->stream))
        FAIL(err, ERR_RUN, "cuBLAS could not be started");
    TRY(gpu_alloc(g, n * n * 2, &c->a, err));
    TRY(gpu_alloc(g, n * n * 2, &c->b, err));
    TRY(gpu_alloc(g, n * n * 2, &c->c, err));
    TRY(gpu_alloc(g, bytes, &c->from, err));
    TRY(gpu_alloc(g, bytes, &c->to, err));
    TRY(random(g, c->a, n * n, 11, err));
    TRY(random(g, c->b, n * n, 12, err));
    TRY(random(g, c->from, bytes / 2, 13, err));
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
    if ((*c)->handle)
        (*c)->destroy((*c)->handle);
    free(*c);
    *c = NULL;
}

int ceiling_matmul(struct ceiling *c, struct gpu *g, struct err *err)
{
    const float one = 1, zero = 0;
    int         n = (int)c->n;
    int s = (int)c->gemm(c->handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, c->a, CUDA_R_16BF, n,
                         c->b, CUDA_R_16BF, n, &zero, c->c, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F,
                         CUBLAS_GEMM_DEFAULT);
    return s ? err_set(err, ERR_RUN, "cublasGemmEx failed with status %d", s) : 0;
}

int ceiling_copy(struct ceiling *c, struct gpu *g, struct err *err)
{
    int rc = 0;
    CU(err, cudaMemcpyAsync(c->to, c->from, (size_t)c->bytes, cudaMemcpyDeviceToDevice, g->stream));
out:
    return rc;
}

double ceiling_matmul_flop(const struct ceiling *c)
{
    return 2.0 * (double)c->n * (double)c->n * (double)c->n;
}

double ceiling_copy_bytes(const struct ceiling *c)
{
    return 2.0 * (double)c->bytes;
}
