/*
 * device.c - the CUDA runtime behind struct err, and an arena of device memory (device.h).
 */
#include "cuda/device.h"
#include "core/mem.h"

#include <cudaTypedefs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Small enough to fit beside other users of the GPU, large enough that a head needs a few. */
#define CHUNK_BYTES (64LL << 20)
/* A larger oldest chunk goes back like the others: the ceilings take gigabytes, once. */
#define KEEP_BYTES (1LL << 30)
/* Chunks that were given back and wait for the next who needs as much: every method of a call takes
 * hundreds of megabytes, and cudaMalloc and cudaFree take milliseconds for them. At most this part
 * of the GPU's memory. */
#define SPARE_PART 32

struct gpu_chunk {
    struct gpu_chunk *next;
    char *base;
    int64_t size, used;
};

static int error_class(cudaError_t status)
{
    switch (status) {
    case cudaErrorMemoryAllocation:
        return ERR_NOMEM;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorDevicesUnavailable:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorECCUncorrectable:
        return ERR_MACHINE;
    default:
        return ERR_RUN;
    }
}

int gpu_status(struct err *err, const char *file, int line, const char *call, cudaError_t status)
{
    if (status == cudaSuccess)
        return 0;
    cudaGetLastError(); /* the next launch must not find it again */
    return err_set_at(err, file, line, error_class(status), "%.*s: %s (%s)%s",
                      (int)strcspn(call, "("), call, cudaGetErrorString(status),
                      cudaGetErrorName(status),
                      status == cudaErrorNoKernelImageForDevice
                          ? "; for GPUs that are not Hopper build with CUDA_PTX=1"
                          : "");
}

/* A driver that is missing or too old is the usual reason on a new machine: say it in words. */
static int check_driver(struct gpu *g, struct err *err)
{
    PASS_ON_CU(err, cudaRuntimeGetVersion(&g->runtime));
    PASS_ON_CU(err, cudaDriverGetVersion(&g->driver));
    if (g->driver == 0)
        return err_set(err, ERR_MACHINE, "CUDA: no NVIDIA driver was found on this machine");
    if (g->driver / 1000 < g->runtime / 1000)
        return err_set(
            err, ERR_MACHINE,
            "the NVIDIA driver supports CUDA %d.%d, this program needs CUDA %d: update the driver",
            g->driver / 1000, g->driver % 1000 / 10, g->runtime / 1000);
    return 0;
}

/* GPU-8-4-4-4-12 hexadecimal digits. */
static void write_uuid(const unsigned char *bytes, char out[41])
{
    out += sprintf(out, "GPU");
    for (int i = 0; i < 16; i++)
        out += sprintf(out, i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       bytes[i]);
}

int gpu_describe(int device, struct gpu *g, struct err *err)
{
    struct cudaDeviceProp p;
    PASS_ON_CU(err, cudaGetDeviceProperties(&p, device));
    g->device = device;
    g->sm = p.major * 10 + p.minor;
    g->sms = p.multiProcessorCount;
    g->l2_bytes = p.l2CacheSize;
    g->memory_bytes = (int64_t)p.totalGlobalMem;
    snprintf(g->name, sizeof g->name, "%.120s", p.name);
    write_uuid((const unsigned char *)p.uuid.bytes, g->uuid);
    return 0;
}

int gpu_open(int local_rank, struct gpu *g, struct err *err)
{
    int rc = 0, count = 0, least, most;

    memset(g, 0, sizeof *g);
    TRY(check_driver(g, err));
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
        FAIL(err, ERR_MACHINE, "no CUDA GPU was found on this machine");
    CU(err, status);
    TRY(gpu_describe((local_rank < 0 ? 0 : local_rank) % count, g, err));
    CU(err, cudaSetDevice(g->device));
    CU(err, cudaDeviceGetStreamPriorityRange(&least, &most));
    CU(err, cudaStreamCreateWithPriority(&g->stream, cudaStreamNonBlocking, least));
    CU(err, cudaStreamCreateWithPriority(&g->side, cudaStreamNonBlocking, most));
    CU(err, cudaEventCreateWithFlags(&g->forked, cudaEventDisableTiming));
    CU(err, cudaEventCreateWithFlags(&g->joined, cudaEventDisableTiming));
out:
    if (rc)
        gpu_close(g);
    return rc;
}

static void free_chunks(struct gpu_chunk **list)
{
    while (*list) {
        OWN(free_at) struct gpu_chunk *c = *list;
        *list = c->next;
        cudaFree(c->base);
    }
}

void gpu_close(struct gpu *g)
{
    free_chunks(&g->chunks);
    free_chunks(&g->spare);
    if (g->forked)
        cudaEventDestroy(g->forked);
    if (g->joined)
        cudaEventDestroy(g->joined);
    if (g->side)
        cudaStreamDestroy(g->side);
    if (g->stream)
        cudaStreamDestroy(g->stream);
    memset(g, 0, sizeof *g);
}

/* ---- arena ---------------------------------------------------------------------------------- */

static int64_t bytes_of(const struct gpu_chunk *list)
{
    int64_t sum = 0;
    for (const struct gpu_chunk *c = list; c; c = c->next)
        sum += c->size;
    return sum;
}

/* The smallest spare chunk of at least this size, empty; NULL: there is none. */
static struct gpu_chunk *take_spare(struct gpu *g, int64_t bytes)
{
    struct gpu_chunk **best = NULL;
    for (struct gpu_chunk **at = &g->spare; *at; at = &(*at)->next)
        if ((*at)->size >= bytes && (!best || (*at)->size < (*best)->size))
            best = at;
    struct gpu_chunk *c = best ? *best : NULL;
    if (c)
        *best = c->next;
    return c;
}

static void give_back(struct gpu *g, struct gpu_chunk *c)
{
    c->used = 0;
    c->next = g->spare;
    g->spare = c;
    if (bytes_of(g->spare) <= g->memory_bytes / SPARE_PART)
        return;
    g->spare = c->next;
    cudaFree(c->base);
    free(c);
}

/* cudaMalloc, in place of what was released where that is all there is. */
static int take_memory(struct gpu *g, int64_t bytes, void *out, struct err *err)
{
    cudaError_t status = cudaMalloc(out, (size_t)bytes);
    if (status != cudaSuccess && g->spare) {
        cudaGetLastError();
        free_chunks(&g->spare);
        status = cudaMalloc(out, (size_t)bytes);
    }
    return gpu_status(err, __FILE__, __LINE__, "cudaMalloc", status);
}

/* NULL with *err. */
static struct gpu_chunk *new_chunk(struct gpu *g, int64_t bytes, struct err *err)
{
    struct gpu_chunk *c = calloc(1, sizeof *c);
    if (!c) {
        err_set(err, ERR_NOMEM, "device memory: out of memory");
        return NULL;
    }
    c->size = bytes > CHUNK_BYTES ? bytes : CHUNK_BYTES;
    if (take_memory(g, c->size, &c->base, err) == 0)
        return c;
    free(c);
    return NULL;
}

static void raise_peak(struct gpu *g)
{
    int64_t held = gpu_bytes_held(g);
    g->bytes_peak = held > g->bytes_peak ? held : g->bytes_peak;
}

/* The newest chunk of the arena; NULL with *err. */
static struct gpu_chunk *add_chunk(struct gpu *g, int64_t bytes, struct err *err)
{
    struct gpu_chunk *c = take_spare(g, bytes);
    if (!c)
        c = new_chunk(g, bytes, err);
    if (!c) {
        err_prefix(err, "%.1f MB of GPU memory", (double)bytes / 1e6);
        return NULL;
    }
    c->next = g->chunks;
    g->chunks = c;
    raise_peak(g);
    return c;
}

int gpu_alloc(struct gpu *g, int64_t bytes, void *out, struct err *err)
{
    struct gpu_chunk *c = g->chunks;
    int64_t need;
    if (bytes < 0 || __builtin_add_overflow(bytes, 255, &need))
        return err_set(err, ERR_RUN, "GPU memory: impossible size");
    need &= ~255LL;
    if (!c || c->size - c->used < need)
        c = add_chunk(g, need, err);
    if (!c)
        return err->code;
    *(void **)out = c->base + c->used;
    c->used += need;
    return 0;
}

struct gpu_mark gpu_mark(const struct gpu *g)
{
    return (struct gpu_mark){g->chunks, g->chunks ? g->chunks->used : 0};
}

void gpu_release(struct gpu *g, struct gpu_mark mark)
{
    while (g->chunks && g->chunks != mark.chunk &&
           (g->chunks->next || g->chunks->size > KEEP_BYTES)) {
        struct gpu_chunk *c = g->chunks;
        g->chunks = c->next;
        give_back(g, c);
    }
    if (g->chunks)
        g->chunks->used = g->chunks == mark.chunk ? mark.used : 0;
}

void gpu_trim(struct gpu *g)
{
    free_chunks(&g->spare);
}

int64_t gpu_bytes_held(const struct gpu *g)
{
    return bytes_of(g->chunks) + bytes_of(g->spare) + g->bytes_own;
}

int gpu_alloc_own(struct gpu *g, int64_t bytes, void *out, struct err *err)
{
    PASS_ON(take_memory(g, bytes, out, err));
    g->bytes_own += bytes;
    raise_peak(g);
    return 0;
}

void gpu_free_own(struct gpu *g, void *memory, int64_t bytes)
{
    if (!memory)
        return;
    cudaFree(memory);
    g->bytes_own -= bytes;
}

/* ---- copies --------------------------------------------------------------------------------- */

int gpu_put(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err)
{
    return bytes ? CU_STATUS(err, cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyHostToDevice,
                                                  g->stream))
                 : 0;
}

int gpu_upload(struct gpu *g, const void *src, int64_t bytes, void *out, struct err *err)
{
    PASS_ON(gpu_alloc(g, bytes, out, err));
    return gpu_put(g, *(void **)out, src, bytes, err);
}

int gpu_copy(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err)
{
    return bytes ? CU_STATUS(err, cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDeviceToDevice,
                                                  g->stream))
                 : 0;
}

int gpu_get(struct gpu *g, void *dst, const void *src, int64_t bytes, struct err *err)
{
    PASS_ON(bytes ? CU_STATUS(err, cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDeviceToHost,
                                                   g->stream))
                  : 0);
    return gpu_sync(g, err);
}

int gpu_zero(struct gpu *g, void *dst, int64_t bytes, struct err *err)
{
    return bytes ? CU_STATUS(err, cudaMemsetAsync(dst, 0, (size_t)bytes, g->stream)) : 0;
}

int gpu_sync(struct gpu *g, struct err *err)
{
    return CU_STATUS(err, cudaStreamSynchronize(g->stream));
}

int gpu_fork(struct gpu *g, struct err *err)
{
    PASS_ON(CU_STATUS(err, cudaEventRecord(g->forked, g->stream)));
    return CU_STATUS(err, cudaStreamWaitEvent(g->side, g->forked, 0));
}

int gpu_join(struct gpu *g, struct err *err)
{
    PASS_ON(CU_STATUS(err, cudaEventRecord(g->joined, g->side)));
    return CU_STATUS(err, cudaStreamWaitEvent(g->stream, g->joined, 0));
}

/* ---- tensor maps ---------------------------------------------------------------------------- */

/* Taken from the driver at run time: the program links no libcuda. */
static int encoder(PFN_cuTensorMapEncodeTiled_v12000 *encode, struct err *err)
{
    enum cudaDriverEntryPointQueryResult found;
    void *p = NULL;
    PASS_ON_CU(err, cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000,
                                                     cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess || !p)
        return err_set(err, ERR_MACHINE,
                       "the NVIDIA driver has no cuTensorMapEncodeTiled (CUDA 12.0)");
    *(void **)encode = p;
    return 0;
}

int tensor_map(CUtensorMap *map, const void *x, int d, int64_t n, int heads, int rows,
               struct err *err)
{
    const int box[3] = {d < 64 ? 32 : 64, rows, 1};
    return tensor_map_boxes(map, x, d, n, heads, box, err);
}

int tensor_map_boxes(CUtensorMap *map, const void *x, int d, int64_t n, int heads, const int box[3],
                     struct err *err)
{
    PFN_cuTensorMapEncodeTiled_v12000 encode = NULL;
    cuuint64_t dims[3] = {(cuuint64_t)d, (cuuint64_t)n, (cuuint64_t)heads};
    cuuint64_t strides[2] = {(cuuint64_t)d * 2, (cuuint64_t)n * (cuuint64_t)d * 2};
    cuuint32_t size[3] = {(cuuint32_t)box[0], (cuuint32_t)box[1], (cuuint32_t)box[2]};
    cuuint32_t steps[3] = {1, 1, 1};
    PASS_ON(encoder(&encode, err));
    CUresult r = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)(uintptr_t)x, dims,
                        strides, size, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r)
        return err_set(err, ERR_RUN, "tensor map of %d x %lld x %d: driver error %d", heads,
                       (long long)n, d, (int)r);
    return 0;
}
