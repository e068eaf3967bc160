#include "core/gemm.h"

#include "core/log.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- kernels --------------------------------------------------------------------------------- */

static const char *family_here(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

void openblas_choose(const char *kernels, void (*quit)(void), void (*init)(void))
{
    static const char name[] = "OPENBLAS_CORETYPE";
    const char *family = family_here();
    if (!family || !quit || !init || getenv(name) || strcmp(kernels, "Prescott") != 0)
        return;
    setenv(name, family, 1);
    quit();
    init();
    unsetenv(name);
}

/* ---- who may multiply ----------------------------------------------------------------------- */

/* Products at the same time are never more than buffers for which there was room. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t freed;
    _Atomic int buffers, running, waiting;
    bool growing; /* a thread is in the product that makes the next buffer */
} gate = {.lock = PTHREAD_MUTEX_INITIALIZER, .freed = PTHREAD_COND_INITIALIZER};

/* What other threads may take between the question for room and OpenBLAS's own allocation. The
 * first buffer needs no reserve: gemm_ready makes it before there are other threads. */
#define RESERVE ((int64_t)1 << 30)

static bool room_for_a_buffer(void)
{
    size_t size = (size_t)(GEMM_BUFFER + (atomic_load(&gate.buffers) ? RESERVE : 0));
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return false;
    munmap(p, size);
    return true;
}

/* Makes OpenBLAS take a buffer: too large a product for the kernels that do without. */
static void first_product(void)
{
    enum { N = 64 };
    static const float a[N * N], b[N * N];
    float c[N * N];
    openblas_get(NULL)->sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, N, 1, a, N, b, N, 0, c,
                              N);
}

static bool take_buffer(void)
{
    if (atomic_fetch_add(&gate.running, 1) < atomic_load(&gate.buffers))
        return true;
    atomic_fetch_sub(&gate.running, 1);
    return false;
}

/* One more buffer, where there is room for it. With the lock held, which is free meanwhile. */
static bool grow(void)
{
    const struct openblas *blas = openblas_get(NULL);
    bool alone = gate.buffers > 0 && !blas->threadsafe;
    if (gate.growing || alone || !room_for_a_buffer())
        return false;
    gate.growing = true;
    pthread_mutex_unlock(&gate.lock);
    first_product();
    pthread_mutex_lock(&gate.lock);
    gate.growing = false;
    atomic_fetch_add(&gate.buffers, 1);
    pthread_cond_broadcast(&gate.freed);
    return true;
}

/* Waits for a buffer; false if there is none and no room for the first. */
static bool wait_for_buffer(void)
{
    bool taken = false, room = true;
    pthread_mutex_lock(&gate.lock);
    atomic_fetch_add(&gate.waiting, 1);
    while (room && !(taken = take_buffer())) {
        if (grow())
            continue;
        room = atomic_load(&gate.buffers) > 0 || gate.growing;
        if (room && !(taken = take_buffer()))
            pthread_cond_wait(&gate.freed, &gate.lock);
        if (taken)
            break;
    }
    atomic_fetch_sub(&gate.waiting, 1);
    pthread_mutex_unlock(&gate.lock);
    return taken;
}

static void end_product(void)
{
    atomic_fetch_sub(&gate.running, 1);
    if (atomic_load(&gate.waiting) == 0)
        return;
    pthread_mutex_lock(&gate.lock);
    pthread_cond_broadcast(&gate.freed);
    pthread_mutex_unlock(&gate.lock);
}

int gemm_ready(struct err *err)
{
    if (!openblas_get(err))
        return ERR_MACHINE;
    if (!take_buffer() && !wait_for_buffer())
        return err_set(err, ERR_MACHINE,
                       "no memory for products of matrices: the first one needs %lld MB of address "
                       "space; raise the limit (ulimit -v)",
                       (long long)(GEMM_BUFFER >> 20));
    end_product();
    return 0;
}

/* Commands have asked gemm_ready, so that there is a buffer and a wait for it ends. */
static void begin_product(void)
{
    if (take_buffer())
        return;
    struct err err = {0};
    if (openblas_get(&err) && wait_for_buffer())
        return;
    log_error("%s", err.code ? err.msg : "no memory for products of matrices");
    _Exit(4);
}

/* ---- products ------------------------------------------------------------------------------- */

#define GEMM(name, real, blas, trans_b)                                                            \
    void name(int64_t rows, int64_t cols, int64_t depth, real alpha, const real *a, int64_t lda,   \
              const real *b, int64_t ldb, real beta, real *c, int64_t ldc)                         \
    {                                                                                              \
        begin_product();                                                                           \
        openblas_get(NULL)->blas(CblasRowMajor, CblasNoTrans, trans_b, (int)rows, (int)cols,       \
                                 (int)depth, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);  \
        end_product();                                                                             \
    }

GEMM(gemm_nt_f32, float, sgemm, CblasTrans)
GEMM(gemm_nt_f64, double, dgemm, CblasTrans)
GEMM(gemm_nn_f32, float, sgemm, CblasNoTrans)
GEMM(gemm_nn_f64, double, dgemm, CblasNoTrans)

void gemv_f32(int64_t rows, int64_t cols, float alpha, const float *a, int64_t lda, const float *x,
              float *y)
{
    begin_product();
    openblas_get(NULL)->sgemv(CblasRowMajor, CblasNoTrans, (int)rows, (int)cols, alpha, a, (int)lda,
                              x, 1, 0, y, 1);
    end_product();
}
