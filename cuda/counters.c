/*
 * counters.c - the Range Profiler's calls in their order (session.h): the host side turns metric
 * names into a configuration for the chip and raw counters into values, the device side collects a
 * user range around a launch. All metrics below fit into one pass on Hopper, so the launch is not
 * replayed. On a chip that needs more passes, v->why says so.
 */
#include "cuda/session.h"

#include "cuda/timer.h"

#include <cuda.h>
#include <cupti_profiler_host.h>
#include <cupti_profiler_target.h>
#include <cupti_target.h>
#include <cupti_range_profiler.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In the order of struct accel_counters. */
static const char *metrics[] = {
    "sm__pipe_tensor_type_hmma_hgmma_qgmma_imma_igmma_bmma_bgmma_cycles_active.avg."
    "pct_of_peak_sustained_active",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "sm__cycles_active.max",
};
#define METRICS (sizeof metrics / sizeof *metrics)

#define CALLS(X)                                                                                   \
    X(cuptiProfilerInitialize)                                                                     \
    X(cuptiDeviceGetChipName)                                                                      \
    X(cuptiProfilerHostInitialize)                                                                 \
    X(cuptiProfilerHostDeinitialize)                                                               \
    X(cuptiProfilerHostConfigAddMetrics)                                                           \
    X(cuptiProfilerHostGetConfigImageSize)                                                         \
    X(cuptiProfilerHostGetConfigImage)                                                             \
    X(cuptiProfilerHostGetNumOfPasses)                                                             \
    X(cuptiProfilerHostEvaluateToGpuValues)                                                        \
    X(cuptiRangeProfilerEnable)                                                                    \
    X(cuptiRangeProfilerDisable)                                                                   \
    X(cuptiRangeProfilerGetCounterDataSize)                                                        \
    X(cuptiRangeProfilerCounterDataImageInitialize)                                                \
    X(cuptiRangeProfilerSetConfig)                                                                 \
    X(cuptiRangeProfilerStart)                                                                     \
    X(cuptiRangeProfilerStop)                                                                      \
    X(cuptiRangeProfilerPushRange)                                                                 \
    X(cuptiRangeProfilerPopRange)                                                                  \
    X(cuptiRangeProfilerDecodeData)                                                                \
    X(cuptiGetResultString)

static struct {
#define X(name) __typeof__(&name) name;
    CALLS(X)
#undef X
} cupti;

struct counters {
    CUpti_Profiler_Host_Object *host;
    CUpti_RangeProfiler_Object *range;
    uint8_t *config, *data; /* images, owned */
    size_t config_size, data_size;
};

/* A parameter block of CUPTI with its size set. */
#define PARAMS(type, name, ...)                                                                    \
    type##_Params name = {.structSize = type##_Params_STRUCT_SIZE, __VA_ARGS__}

static bool ok(CUptiResult r, const char *what, char why[160])
{
    const char *text = "unknown error";
    if (r == CUPTI_SUCCESS)
        return true;
    if (r == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) {
        snprintf(why, 160,
                 "no permission for hardware counters (root, or the driver option "
                 "NVreg_RestrictProfilingToAdminUsers=0)");
        return false;
    }
    cupti.cuptiGetResultString(r, &text);
    snprintf(why, 160, "%s: %s", what, text);
    return false;
}

/* ---- opening -------------------------------------------------------------------------------- */

static bool load(char why[160])
{
    void *lib = cupti_library(why, 160);
#define X(name) &&cupti_symbol(lib, #name, &cupti.name, why, 160)
    return lib CALLS(X);
#undef X
}

static bool current_context(CUcontext *ctx, char why[160])
{
    CUresult (*get)(CUcontext *) = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    if (cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", (void **)&get, 4000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess || get(ctx) || !*ctx) {
        snprintf(why, 160, "there is no CUDA context");
        return false;
    }
    return true;
}

/* The host side for this chip, told which metrics are wanted. */
static bool start_host(struct counters *c, int device, char why[160])
{
    PARAMS(CUpti_Profiler_Initialize, init, .pPriv = NULL);
    PARAMS(CUpti_Device_GetChipName, chip, .deviceIndex = (size_t)device);
    if (!ok(cupti.cuptiProfilerInitialize(&init), "profiler", why) ||
        !ok(cupti.cuptiDeviceGetChipName(&chip), "chip name", why))
        return false;
    PARAMS(CUpti_Profiler_Host_Initialize, host, .profilerType = CUPTI_PROFILER_TYPE_RANGE_PROFILER,
           .pChipName = chip.pChipName);
    if (!ok(cupti.cuptiProfilerHostInitialize(&host), "profiler host", why))
        return false;
    c->host = host.pHostObject;
    PARAMS(CUpti_Profiler_Host_ConfigAddMetrics, add, .pHostObject = c->host,
           .ppMetricNames = metrics, .numMetrics = METRICS);
    return ok(cupti.cuptiProfilerHostConfigAddMetrics(&add), "metrics of this chip", why);
}

/* The metrics as a configuration for this chip. */
static bool make_config(struct counters *c, char why[160])
{
    PARAMS(CUpti_Profiler_Host_GetConfigImageSize, size, .pHostObject = c->host);
    if (!ok(cupti.cuptiProfilerHostGetConfigImageSize(&size), "configuration", why))
        return false;
    c->config_size = size.configImageSize;
    if (mem_zalloc(&c->config, (int64_t)c->config_size, 1, "profiler configuration", NULL)) {
        snprintf(why, 160, "out of memory");
        return false;
    }
    PARAMS(CUpti_Profiler_Host_GetConfigImage, image, .pHostObject = c->host,
           .configImageSize = c->config_size, .pConfigImage = c->config);
    PARAMS(CUpti_Profiler_Host_GetNumOfPasses, passes, .configImageSize = c->config_size,
           .pConfigImage = c->config);
    if (!ok(cupti.cuptiProfilerHostGetConfigImage(&image), "configuration", why) ||
        !ok(cupti.cuptiProfilerHostGetNumOfPasses(&passes), "passes", why))
        return false;
    if (passes.numOfPasses != 1) {
        snprintf(why, 160, "this chip needs %zu passes for the metrics", passes.numOfPasses);
        return false;
    }
    return true;
}

static bool start_device(struct counters *c, char why[160])
{
    CUcontext ctx = NULL;
    if (!current_context(&ctx, why))
        return false;
    PARAMS(CUpti_RangeProfiler_Enable, on, .ctx = ctx);
    if (!ok(cupti.cuptiRangeProfilerEnable(&on), "range profiler", why))
        return false;
    c->range = on.pRangeProfilerObject;
    PARAMS(CUpti_RangeProfiler_GetCounterDataSize, size, .pRangeProfilerObject = c->range,
           .pMetricNames = metrics, .numMetrics = METRICS, .maxNumOfRanges = 1,
           .maxNumRangeTreeNodes = 1);
    if (!ok(cupti.cuptiRangeProfilerGetCounterDataSize(&size), "counter data", why))
        return false;
    c->data_size = size.counterDataSize;
    if (mem_zalloc(&c->data, (int64_t)c->data_size, 1, "counter data", NULL)) {
        snprintf(why, 160, "out of memory");
        return false;
    }
    return true;
}

struct counters *counters_open(struct gpu *g, char why[160])
{
    struct counters *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(why, 160, "out of memory");
        return NULL;
    }
    if (!load(why) || !start_host(c, g->device, why) || !make_config(c, why) ||
        !start_device(c, why))
        counters_close(&c);
    return c;
}

void counters_close(struct counters **out)
{
    struct counters *c = *out;
    if (!c)
        return;
    if (c->range) {
        PARAMS(CUpti_RangeProfiler_Disable, off, .pRangeProfilerObject = c->range);
        cupti.cuptiRangeProfilerDisable(&off);
    }
    if (c->host) {
        PARAMS(CUpti_Profiler_Host_Deinitialize, off, .pHostObject = c->host);
        cupti.cuptiProfilerHostDeinitialize(&off);
    }
    free(c->config);
    free(c->data);
    free(c);
    *out = NULL;
}

/* ---- measuring ------------------------------------------------------------------------------ */

static bool begin_range(struct counters *c, char why[160])
{
    PARAMS(CUpti_RangeProfiler_CounterDataImage_Initialize, init, .pRangeProfilerObject = c->range,
           .counterDataSize = c->data_size, .pCounterData = c->data);
    PARAMS(CUpti_RangeProfiler_SetConfig, set, .pRangeProfilerObject = c->range,
           .configSize = c->config_size, .pConfig = c->config, .counterDataImageSize = c->data_size,
           .pCounterDataImage = c->data, .range = CUPTI_UserRange, .replayMode = CUPTI_UserReplay,
           .maxRangesPerPass = 1, .numNestingLevels = 1, .minNestingLevel = 1,
           .targetNestingLevel = 1);
    PARAMS(CUpti_RangeProfiler_Start, start, .pRangeProfilerObject = c->range);
    PARAMS(CUpti_RangeProfiler_PushRange, push, .pRangeProfilerObject = c->range,
           .pRangeName = "kernel");
    return ok(cupti.cuptiRangeProfilerCounterDataImageInitialize(&init), "counter data", why) &&
           ok(cupti.cuptiRangeProfilerSetConfig(&set), "configuration", why) &&
           ok(cupti.cuptiRangeProfilerStart(&start), "start", why) &&
           ok(cupti.cuptiRangeProfilerPushRange(&push), "range", why);
}

static bool end_range(struct counters *c, double values[METRICS], char why[160])
{
    PARAMS(CUpti_RangeProfiler_PopRange, pop, .pRangeProfilerObject = c->range);
    PARAMS(CUpti_RangeProfiler_Stop, stop, .pRangeProfilerObject = c->range);
    PARAMS(CUpti_RangeProfiler_DecodeData, decode, .pRangeProfilerObject = c->range);
    PARAMS(CUpti_Profiler_Host_EvaluateToGpuValues, eval, .pHostObject = c->host,
           .pCounterDataImage = c->data, .counterDataImageSize = c->data_size,
           .ppMetricNames = metrics, .numMetrics = METRICS, .pMetricValues = values);
    if (!ok(cupti.cuptiRangeProfilerPopRange(&pop), "range", why) ||
        !ok(cupti.cuptiRangeProfilerStop(&stop), "stop", why) ||
        !ok(cupti.cuptiRangeProfilerDecodeData(&decode), "decoding", why))
        return false;
    if (!stop.isAllPassSubmitted || decode.numOfRangeDropped) {
        snprintf(why, 160, "CUPTI dropped the counters of the launch");
        return false;
    }
    return ok(cupti.cuptiProfilerHostEvaluateToGpuValues(&eval), "values", why);
}

int counters_measure(struct counters *c, struct gpu *g,
                     int (*launch)(struct gpu *g, const void *job, struct err *err),
                     const void *job, struct accel_counters *v, struct err *err)
{
    double values[METRICS];

    v->tensor_pipe_pct = v->dram_read_bytes = v->dram_write_bytes = v->cycles = NAN;
    PASS_ON(launch(g, job, err));
    PASS_ON(gpu_sync(g, err));
    if (!begin_range(c, v->why))
        return 0;
    PASS_ON(launch(g, job, err));
    PASS_ON(gpu_sync(g, err));
    if (!end_range(c, values, v->why))
        return 0;
    v->tensor_pipe_pct = values[0];
    v->dram_read_bytes = values[1];
    v->dram_write_bytes = values[2];
    v->cycles = values[3];
    return 0;
}
