/*
 * device.h - one GPU: choice by rank, memory from a small arena, a stream, checked calls.
 */
#ifndef LACUNA_DEVICE_H
#define LACUNA_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/dtype.h"
#include "core/err.h"

#include <cuda_runtime_api.h>
#include <stdint.h>

/* Check a runtime call inside a function with `rc` and `out:`. A lost device, a missing one and too
 * old a driver are ERR_MACHINE, no memory ERR_NOMEM, everything else ERR_RUN. */
#define CU(err, call)                                                                              \
    do {                                                                                           \
        cudaError_t cu_status = (call);                                                            \
        if (cu_status != cudaSuccess) {                                                            \
            rc = gpu_error((err), __FILE__, __LINE__, #call, cu_status);                           \
            goto out;                                                                              \
        }                                                                                          \
    } while (0)

/* After a launch: configuration errors come back at once. */
#define CU_LAUNCHED(err) CU(err, cudaGetLastError())

int gpu_error(struct err *err, const char *file, int line, const char *call, cudaError_t status);

struct gpu_chunk; /* a cudaMalloc of the arena */

struct gpu {
    int               device, sm;  /* index; compute capability * 10 + minor, as 90 */
    int               sms;         /* multiprocessors */
    int64_t           l2_bytes, memory_bytes;
    char              name[128], uuid[41]; /* as nvidia-smi -L prints them */
    int               driver, runtime; /* versions as 13000 */
    cudaStream_t      stream;
    cudaStream_t      side;        /* of higher priority: between gpu_fork and gpu_join */
    cudaEvent_t       forked, joined;
    struct gpu_chunk *chunks;      /* newest first */
    int64_t           bytes_peak;  /* most bytes held at a time */
};

/* Take GPU `local_rank` modulo their number. None, or a driver older than the runtime that this
 * program was built with: ERR_MACHINE saying which. Close with gpu_close. */
int  gpu_open(int local_rank, struct gpu *g, struct err *err);
void gpu_close(struct gpu *g); /* also of a zeroed one */

/* Index, name and properties of a GPU that is not opened. */
int gpu_describe(int device, struct gpu *g, struct err *err);

/* Arena: 256-byte aligned device memory that lives until gpu_release of an older mark. The
 * oldest chunk is kept for reuse unless it is large. */
struct gpu_mark {
    struct gpu_chunk *chunk;
    int64_t           used;
};
int             gpu_alloc(struct gpu *g, int64_t bytes, void *out, struct err *err);
struct gpu_mark gpu_mark(const struct gpu *g);
void            gpu_release(struct gpu *g, struct gpu_mark mark);
int64_t         gpu_bytes_held(const struct gpu *g);

/* Copies on the stream; from and to pageable memory, so they return when the host side is done. */
int gpu_put(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err);
int gpu_get(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err);

/* n floats as `type` in new arena memory, `copies` times one after the other; done when it returns. */
int gpu_put_as(struct gpu *g, enum dtype type, const float *x, int64_t n, int copies,
               const void **out, struct err *err);
int gpu_zero(struct gpu *g, void *dst, int64_t bytes, struct err *err);
int gpu_sync(struct gpu *g, struct err *err);

/* What is launched on g->side after gpu_fork waits for everything on g->stream before it, and what
 * is launched on g->stream after gpu_join for everything on g->side. */
int gpu_fork(struct gpu *g, struct err *err);
int gpu_join(struct gpu *g, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
