/*
 * device.h - one GPU: choice by rank, memory from a small arena, a stream, checked calls.
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "core/dtype.h"
#include "core/err.h"
#include "core/mem.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/* 0, or the error of a runtime call. A lost or missing device and too old a driver are ERR_MACHINE,
 * lack of memory is ERR_NOMEM, everything else ERR_RUN. CU is the TRY of such a call, PASS_ON_CU
 * its PASS_ON. */
#define CU_STATUS(err, call) gpu_status((err), __FILE__, __LINE__, #call, (call))
#define PASS_ON_CU(err, call) PASS_ON(CU_STATUS(err, call))
#define CU(err, call) TRY(CU_STATUS(err, call))
int gpu_status(struct err *err, const char *file, int line, const char *call, cudaError_t status);

/* After a launch: configuration errors come back at once. */
#define LAUNCH_STATUS(err) CU_STATUS(err, cudaGetLastError())
#define PASS_ON_LAUNCH(err) PASS_ON(LAUNCH_STATUS(err))
#define CU_LAUNCHED(err) TRY(LAUNCH_STATUS(err))

struct gpu_chunk; /* a cudaMalloc of the arena */

struct gpu {
    int device, sm; /* index; compute capability * 10 + minor, as 90 */
    int sms;        /* multiprocessors */
    int64_t l2_bytes, memory_bytes;
    char name[128], uuid[41]; /* as nvidia-smi -L prints them */
    int driver, runtime;      /* versions as 13000 */
    cudaStream_t stream;
    cudaStream_t side; /* a stream of higher priority, for use between gpu_fork and gpu_join */
    cudaEvent_t forked, joined;
    struct gpu_chunk *chunks; /* newest first */
    struct gpu_chunk *spare;  /* given back and not yet freed */
    int64_t bytes_own;        /* beside the arena */
    int64_t bytes_peak;       /* peak of the bytes held */
};

/* Take GPU number `local_rank` modulo the number of GPUs. ERR_MACHINE, with the reason, without a
 * GPU or with a driver older than the runtime that this program was built with. Close with
 * gpu_close. */
int gpu_open(int local_rank, struct gpu *g, struct err *err);
void gpu_close(struct gpu *g); /* also of a zeroed one */

/* Fill index, name and properties of a GPU without opening it. */
int gpu_describe(int device, struct gpu *g, struct err *err);

/* Arena: 256-byte aligned device memory that lives until gpu_release of an older mark. The
 * oldest chunk is kept for reuse unless it is large. */
struct gpu_mark {
    struct gpu_chunk *chunk;
    int64_t used;
};
int gpu_alloc(struct gpu *g, int64_t bytes, void *out, struct err *err);
struct gpu_mark gpu_mark(const struct gpu *g);
void gpu_release(struct gpu *g, struct gpu_mark mark);
int64_t gpu_bytes_held(const struct gpu *g);

/* Memory beside the arena, for what outlives it, until gpu_free_own of the same number of bytes. */
int gpu_alloc_own(struct gpu *g, int64_t bytes, void *out, struct err *err);
void gpu_free_own(struct gpu *g, void *memory, int64_t bytes);

/* Free what was released and is kept for the next gpu_alloc. */
void gpu_trim(struct gpu *g);

/* Copy on the stream from or to pageable memory, and return when the host side is done. */
int gpu_put(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err);
int gpu_get(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err);

/* Take new arena memory and put `bytes` of src there. */
int gpu_upload(struct gpu *g, const void *src, int64_t bytes, void *out, struct err *err);

/* Copy on the stream inside of device memory. */
int gpu_copy(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err);

int gpu_zero(struct gpu *g, void *dst, int64_t bytes, struct err *err);
int gpu_sync(struct gpu *g, struct err *err);

/* gpu_fork: launches on g->side from now on wait for everything launched on g->stream before.
 * gpu_join: launches on g->stream from now on wait for everything launched on g->side before. */
int gpu_fork(struct gpu *g, struct err *err);
int gpu_join(struct gpu *g, struct err *err);

/* ---- tensor maps ---------------------------------------------------------------------------- */

/* Descriptors for TMA copies of tensors of 16-bit floats. They say bf16, which serves float16 as
 * well: a copy does not look at the values. */

/* Boxes of 64 channels, or 32 if there are no more, x `rows` tokens of x [heads][n][d]. Rows of a
 * box are swizzled in their 128 or 64 bytes; what lies outside the tensor reads as zero. *map is
 * 128-byte aligned. */
int tensor_map(CUtensorMap *map, const void *x, int d, int64_t n, int heads, int rows,
               struct err *err);

/* The same with boxes of box[0] channels (64 or 32) x box[1] tokens x box[2] heads. */
int tensor_map_boxes(CUtensorMap *map, const void *x, int d, int64_t n, int heads, const int box[3],
                     struct err *err);

END_C
