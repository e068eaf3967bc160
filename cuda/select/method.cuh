/*
 * method.cuh - what the GPU sides of methods share on the host: their state, arrays on the device,
 * launches, and why they do not fit.
 */
#pragma once

#include "core/intmath.h"
#include "cuda/select/maprows.cuh"
#include "cuda/select/select.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What kernels are told of a problem and the lists of its job. */
struct head_args {
    const uint4 *q, *k; /* bf16 [heads][nq][d], [kv_heads][nk][d] */
    int64_t nq, nk;
    int heads, kv_heads, per_kv, d, causal; /* per_kv: query heads of a kv head */
    int groups, units;                      /* rows of the map and units of a row, per head */
    float scale_log2;                       /* of a product in base 2 */
    map_rows map;
};

/* Memory of lists whose unit is bq x bk. The job's state is *state, zeroed but for its head_args,
 * on which S is built. */
template <class S>
static int method_init(struct gpu *g, struct select_job *job, int64_t bq, int64_t bk, S **state,
                       struct err *err)
{
    const struct select_problem *p = &job->problem;
    void *memory = NULL;
    S *s = NULL;
    if (posix_memalign(&memory, 128, sizeof *s) != 0) /* tensor maps */
        return err_set(err, ERR_NOMEM, "%s on the GPU: out of memory", job->method->name);
    job->state = *state = s = (S *)memset(memory, 0, sizeof *s);
    PASS_ON(select_lists_init(g, job, bq, bk, err));
    s->q = (const uint4 *)p->q;
    s->k = (const uint4 *)p->k;
    s->nq = p->nq;
    s->nk = p->nk;
    s->heads = p->heads;
    s->kv_heads = p->kv_heads;
    s->per_kv = p->heads / p->kv_heads;
    s->d = p->d;
    s->causal = p->causal;
    s->groups = (int)job->lists.groups;
    s->units = (int)job->lists.units;
    s->scale_log2 = (float)(p->scale * M_LOG2E);
    s->map = map_rows_of(&job->lists);
    return 0;
}

/* Arrays from the arena, each with its number of elements: take(g, err, &x, n, &y, m). */
static inline int take(struct gpu *, struct err *)
{
    return 0;
}

template <class T, class... More>
static int take(struct gpu *g, struct err *err, T **array, int64_t n, More... more)
{
    PASS_ON(gpu_alloc(g, n * (int64_t)sizeof **array, array, err));
    return take(g, err, more...);
}

/* A new array from the arena with the n elements of `from`. */
template <class T>
static int put_array(struct gpu *g, const T *from, int64_t n, T **array, struct err *err)
{
    PASS_ON(take(g, err, array, n));
    return gpu_put(g, *array, from, n * (int64_t)sizeof *from, err);
}

/* The same of the elements of(0), of(1), ... */
template <class T, class F>
static int put_each(struct gpu *g, int64_t n, T **array, struct err *err, F of)
{
    OWN(free_at) T *host = NULL;
    PASS_ON(mem_alloc(&host, n, sizeof *host, "numbers of heads", err));
    for (int64_t i = 0; i < n; i++)
        host[i] = of(i);
    return put_array(g, host, n, array, err);
}

/* Launch a kernel with `shared` bytes of dynamic shared memory; for CU_STATUS(). */
template <class... P, class... A>
static cudaError_t run_kernel(cudaStream_t stream, void (*kernel)(P...), dim3 grid, dim3 block,
                              int64_t shared, const A &...args)
{
    cudaError_t status = cudaSuccess;
    if (shared)
        status = cudaFuncSetAttribute((const void *)kernel,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    if (status == cudaSuccess) {
        kernel<<<grid, block, (size_t)shared, stream>>>(args...);
        status = cudaGetLastError();
    }
    return status;
}

/* Say why a problem does not fit; false. */
__attribute__((format(printf, 2, 3))) static inline bool refuse(char why[160], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, 160, fmt, args);
    va_end(args);
    return false;
}

static inline bool dims_fit(const struct select_problem *p, char why[160])
{
    return p->d == 64 || p->d == 128 ||
           refuse(why, "the GPU side has head dimensions 64 and 128, not %d", p->d);
}
