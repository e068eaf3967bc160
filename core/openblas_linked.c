/*
 * openblas_linked.c - openblas.c for programs that have the library inside (make gpu-bundle): they
 * run on machines without it. Linked in place of openblas.c.
 */
#include "core/gemm.h"

#include <pthread.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;

extern void gotoblas_dynamic_quit(void) __attribute__((weak));
extern void gotoblas_dynamic_init(void) __attribute__((weak));

static void prepare(void)
{
    openblas_choose(openblas_get_corename(), gotoblas_dynamic_quit, gotoblas_dynamic_init);
    openblas_set_num_threads(1); /* work is spread over heads and rows by our own threads */
}

const struct openblas *openblas_get(struct err *err)
{
    static const struct openblas library = {
        cblas_sgemm,         cblas_dgemm,           cblas_sgemv, openblas_get_corename,
        openblas_get_config, openblas_get_parallel, true,
    };
    (void)err;
    pthread_once(&once, prepare);
    return &library;
}

const char *openblas_kernels(void)
{
    return openblas_get(NULL)->corename();
}

const char *openblas_text(void)
{
    return openblas_get(NULL)->config();
}
