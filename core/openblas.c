#include "core/gemm.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef OPENBLAS_DIR
#define OPENBLAS_DIR "" /* where the Makefile found the threaded library */
#endif

static struct openblas library;
static bool loaded;
static char missing[200];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *find(void *handle, const char *name)
{
    void *p = dlsym(handle, name);
    if (!p && !missing[0])
        snprintf(missing, sizeof missing, "it has no %s", name);
    return p;
}

/* The threaded library if there is one: the serial one cannot serve several threads. */
static void *open_library(void)
{
    static const char *const names[] = {OPENBLAS_DIR "libopenblas.so.0", "libopenblas.so.0",
                                        "libopenblas.so"};
    void *handle = NULL;
    const char *old = getenv("OPENBLAS_NUM_THREADS");
    char kept[32]; /* a number; no memory that may be missing */
    snprintf(kept, sizeof kept, "%s", old ? old : "");
    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* read while it is loaded */
    for (int i = 0; i < 3 && !handle; i++)
        handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (old)
        setenv("OPENBLAS_NUM_THREADS", kept, 1);
    else
        unsetenv("OPENBLAS_NUM_THREADS");
    return handle;
}

static void load(void)
{
    void *handle = open_library();
    if (!handle) {
        const char *why = dlerror();
        snprintf(missing, sizeof missing, "%s", why ? why : "out of memory");
        return;
    }
    library.sgemm = find(handle, "cblas_sgemm");
    library.dgemm = find(handle, "cblas_dgemm");
    library.sgemv = find(handle, "cblas_sgemv");
    library.corename = find(handle, "openblas_get_corename");
    library.config = find(handle, "openblas_get_config");
    library.parallel = find(handle, "openblas_get_parallel");
    loaded = !missing[0];
    library.threadsafe = loaded && library.parallel() != 0;
    if (loaded)
        openblas_choose(library.corename(), dlsym(handle, "gotoblas_dynamic_quit"),
                        dlsym(handle, "gotoblas_dynamic_init"));
}

const struct openblas *openblas_get(struct err *err)
{
    pthread_once(&once, load);
    if (loaded)
        return &library;
    err_set(err, ERR_MACHINE, "OpenBLAS cannot be loaded (%s): install libopenblas0-pthread",
            missing);
    return NULL;
}

const char *openblas_kernels(void)
{
    const struct openblas *b = openblas_get(NULL);
    return b ? b->corename() : "none";
}

const char *openblas_text(void)
{
    const struct openblas *b = openblas_get(NULL);
    return b ? b->config() : "none";
}
