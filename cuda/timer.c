/*
 * timer.c - CUPTI activity records joined with spans; CUDA events without CUPTI (timer.h).
 *
 * libcupti is opened at run time. Its records arrive on another thread, so the callback only
 * appends to a locked list. After a flush, kernels are joined with spans by the correlation id that
 * a launch shares with its external-correlation record.
 */
#include "cuda/timer.h"

#include "core/mem.h"
#include "core/sort.h"

#include <cupti.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES (8u << 20)

#if CUPTI_API_VERSION >= 130000
typedef CUpti_ActivityKernel10 kernel_record;
#else
typedef CUpti_ActivityKernel9 kernel_record;
#endif

#define CUPTI_CALLS(X)                                                                             \
    X(cuptiGetVersion)                                                                             \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityDisable)                                                                        \
    X(cuptiActivityEnableRuntimeApi)                                                               \
    X(cuptiActivityEnableDriverApi)                                                                \
    X(cuptiActivityGetNextRecord)                                                                  \
    X(cuptiActivityGetNumDroppedRecords)                                                           \
    X(cuptiActivityFlushAll)                                                                       \
    X(cuptiActivityPushExternalCorrelationId)                                                      \
    X(cuptiActivityPopExternalCorrelationId)

static struct {
#define X(name) __typeof__(&name) name;
    CUPTI_CALLS(X)
#undef X
    void *lib;
} cupti;

struct work_record { /* a kernel, memset or copy */
    uint64_t start, end;
    uint32_t correlation;
};

struct link_record { /* external id of a launch */
    uint64_t id;
    uint32_t correlation;
};

#define MAX_NAMES 64

struct kernel_name { /* kernels of one name, as the compiler mangles it */
    char name[64];
    int64_t n;
    double ns;
};

/* What the callback fills. CUPTI gives it no user pointer, hence one of them. */
static struct {
    pthread_mutex_t lock;
    struct work_record *work;
    struct link_record *links;
    int64_t n_work, cap_work, n_links, cap_links;
    int64_t lost; /* dropped by CUPTI, without times, or out of memory */
    bool by_name;
    struct kernel_name names[MAX_NAMES];
    int n_names;
} collected = {.lock = PTHREAD_MUTEX_INITIALIZER};

struct span {
    cudaEvent_t begin, end;
    double ns; /* in which a kernel, memset or copy of the span runs */
    int64_t kernels;
    uint64_t last; /* end of what was counted */
};

struct timer {
    bool cupti;
    char reason[160];
    struct span *spans;
    int64_t n, cap;
};

/* ---- CUPTI callbacks ------------------------------------------------------------------------ */

static void CUPTIAPI request_buffer(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void add_work(uint64_t start, uint64_t end, uint32_t correlation)
{
    if ((start == 0 && end == 0) ||
        mem_grow(&collected.work, &collected.cap_work, collected.n_work + 1, sizeof *collected.work,
                 "kernel records", NULL)) {
        collected.lost++;
        return;
    }
    collected.work[collected.n_work++] = (struct work_record){start, end, correlation};
}

static void add_link(uint64_t id, uint32_t correlation)
{
    if (mem_grow(&collected.links, &collected.cap_links, collected.n_links + 1,
                 sizeof *collected.links, "correlation records", NULL))
        collected.lost++;
    else
        collected.links[collected.n_links++] = (struct link_record){id, correlation};
}

static void add_name(const kernel_record *k)
{
    struct kernel_name *e = collected.names;
    while (e < collected.names + collected.n_names &&
           strncmp(e->name, k->name, sizeof e->name - 1) != 0)
        e++;
    if (e == collected.names + MAX_NAMES)
        return;
    if (e == collected.names + collected.n_names) {
        *e = (struct kernel_name){.n = 0};
        snprintf(e->name, sizeof e->name, "%s", k->name);
        collected.n_names++;
    }
    e->n++;
    e->ns += (double)(k->end - k->start);
}

static void take_record(const CUpti_Activity *r)
{
    if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const kernel_record *k = (const kernel_record *)r;
        add_work(k->start, k->end, k->correlationId);
        if (collected.by_name)
            add_name(k);
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *m = (const CUpti_ActivityMemset4 *)r;
        add_work(m->start, m->end, m->correlationId);
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *m = (const CUpti_ActivityMemcpy6 *)r;
        add_work(m->start, m->end, m->correlationId);
    } else if (r->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        const CUpti_ActivityExternalCorrelation *e = (const CUpti_ActivityExternalCorrelation *)r;
        add_link(e->externalId, e->correlationId);
    }
}

static void CUPTIAPI buffer_done(CUcontext ctx, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t valid)
{
    CUpti_Activity *r = NULL;
    size_t dropped = 0;
    pthread_mutex_lock(&collected.lock);
    while (valid && cupti.cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS)
        take_record(r);
    if (cupti.cuptiActivityGetNumDroppedRecords(ctx, stream, &dropped) == CUPTI_SUCCESS)
        collected.lost += (int64_t)dropped;
    pthread_mutex_unlock(&collected.lock);
    free(buffer);
}

/* ---- opening -------------------------------------------------------------------------------- */

void *cupti_library(char *why, size_t size)
{
    static const char *const names[] = {"libcupti.so.13", "/usr/local/cuda/lib64/libcupti.so.13",
                                        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13"};
    void *lib = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !lib; i++)
        lib = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        snprintf(why, size, "libcupti.so.13 was not found");
    return lib;
}

bool cupti_symbol(void *lib, const char *name, void *function, char *why, size_t size)
{
    void *f = dlsym(lib, name);
    if (!f)
        snprintf(why, size, "libcupti has no %s", name);
    *(void **)function = f;
    return f != NULL;
}

static bool load_cupti(char *why, size_t size)
{
    cupti.lib = cupti_library(why, size);
#define X(name) &&cupti_symbol(cupti.lib, #name, &cupti.name, why, size)
    return cupti.lib CUPTI_CALLS(X);
#undef X
}

/* Launches only: external-correlation records come with API records, and these cost time. */
static CUptiResult enable_apis(void)
{
    static const CUpti_CallbackId runtime[] = {
        CUPTI_RUNTIME_TRACE_CBID___cudaLaunchKernel_v13000,
        CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000,
        CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernelExC_v11060,
        CUPTI_RUNTIME_TRACE_CBID_cudaMemcpyAsync_v3020,
        CUPTI_RUNTIME_TRACE_CBID_cudaMemsetAsync_v3020,
    };
    static const CUpti_CallbackId driver[] = {CUPTI_DRIVER_TRACE_CBID_cuLaunchKernel,
                                              CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx};
    CUptiResult r = CUPTI_SUCCESS;
    for (size_t i = 0; i < sizeof runtime / sizeof *runtime && !r; i++)
        r = cupti.cuptiActivityEnableRuntimeApi(runtime[i], 1);
    for (size_t i = 0; i < sizeof driver / sizeof *driver && !r; i++)
        r = cupti.cuptiActivityEnableDriverApi(driver[i], 1);
    return r;
}

static bool start_cupti(char *why, size_t size)
{
    static const CUpti_ActivityKind kinds[] = {
        CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMSET,
        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};
    uint32_t version = 0;

    if (!load_cupti(why, size))
        return false;
    CUptiResult r = cupti.cuptiGetVersion(&version);
    if (r || version / 10000 != CUPTI_API_VERSION / 10000) {
        snprintf(why, size, "libcupti is version %u, this program was built with %d", version,
                 CUPTI_API_VERSION);
        return false;
    }
    r = cupti.cuptiActivityRegisterCallbacks(request_buffer, buffer_done);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !r; i++)
        r = cupti.cuptiActivityEnable(kinds[i]);
    if (!r)
        r = enable_apis();
    if (r)
        snprintf(why, size, "CUPTI refused with code %d", (int)r);
    return r == CUPTI_SUCCESS;
}

int timer_open(bool want_cupti, struct timer **out, struct err *err)
{
    struct timer *t = NULL;
    PASS_ON(mem_zalloc(&t, 1, sizeof *t, "timer", err));
    if (want_cupti)
        t->cupti = start_cupti(t->reason, sizeof t->reason);
    else
        snprintf(t->reason, sizeof t->reason, "events were asked for");
    *out = t;
    return 0;
}

void timer_close(struct timer **t)
{
    if (!*t)
        return;
    timer_reset(*t);
    free((*t)->spans);
    free(*t);
    *t = NULL;
    pthread_mutex_lock(&collected.lock); /* CUPTI's thread may still bring records */
    free(collected.work);
    free(collected.links);
    collected.work = NULL;
    collected.links = NULL;
    collected.n_work = collected.n_links = 0;
    collected.cap_work = collected.cap_links = 0;
    pthread_mutex_unlock(&collected.lock);
}

const char *timer_name(const struct timer *t)
{
    return t->cupti ? "cupti" : "events";
}

const char *timer_reason(const struct timer *t)
{
    return t->reason;
}

void timer_by_name(struct timer *t)
{
    pthread_mutex_lock(&collected.lock);
    collected.by_name = t->cupti;
    collected.n_names = 0;
    pthread_mutex_unlock(&collected.lock);
}

void timer_print_names(FILE *to)
{
    pthread_mutex_lock(&collected.lock);
    for (int i = 0; i < collected.n_names; i++) {
        const struct kernel_name *e = collected.names + i;
        fprintf(to, "    %-64s %6lld launches of %9.1f us\n", e->name, (long long)e->n,
                e->ns / (double)e->n * 1e-3);
    }
    pthread_mutex_unlock(&collected.lock);
}

/* ---- spans ---------------------------------------------------------------------------------- */

int timer_begin(struct timer *t, struct gpu *g, int64_t *id, struct err *err)
{
    PASS_ON(mem_grow(&t->spans, &t->cap, t->n + 1, sizeof *t->spans, "timed spans", err));
    struct span *s = t->spans + t->n;
    memset(s, 0, sizeof *s);
    if (t->cupti) {
        if (cupti.cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                         (uint64_t)t->n))
            return err_set(err, ERR_RUN, "CUPTI refused a correlation id");
    } else {
        PASS_ON_CU(err, cudaEventCreate(&s->begin));
        PASS_ON_CU(err, cudaEventCreate(&s->end));
        PASS_ON_CU(err, cudaEventRecord(s->begin, g->stream));
    }
    *id = t->n++;
    return 0;
}

int timer_end(struct timer *t, struct gpu *g, struct err *err)
{
    uint64_t last;
    if (!t->cupti)
        return CU_STATUS(err, cudaEventRecord(t->spans[t->n - 1].end, g->stream));
    if (cupti.cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last))
        return err_set(err, ERR_RUN, "CUPTI lost a correlation id");
    return 0;
}

static int by_correlation(const void *x, const void *y)
{
    const struct link_record *a = x, *b = y;
    return a->correlation < b->correlation ? -1 : a->correlation > b->correlation;
}

static int by_start(const void *x, const void *y)
{
    const struct work_record *a = x, *b = y;
    return a->start < b->start ? -1 : a->start > b->start;
}

/* Records come in the order of their starts. */
static void add_to_span(struct timer *t, const struct work_record *w, const struct link_record *l)
{
    if (!l || l->id >= (uint64_t)t->n)
        return; /* of no span */
    struct span *s = t->spans + l->id;
    uint64_t from = w->start > s->last ? w->start : s->last;
    s->ns += w->end > from ? (double)(w->end - from) : 0;
    s->kernels++;
    s->last = w->end > s->last ? w->end : s->last;
}

static int collect_cupti(struct timer *t, struct err *err)
{
    int rc = 0;
    if (cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED))
        return err_set(err, ERR_RUN, "CUPTI could not be flushed");
    pthread_mutex_lock(&collected.lock);
    qsort(collected.links, (size_t)collected.n_links, sizeof *collected.links, by_correlation);
    qsort(collected.work, (size_t)collected.n_work, sizeof *collected.work, by_start);
    for (int64_t i = 0; i < collected.n_work; i++) {
        struct link_record key = {0, collected.work[i].correlation};
        add_to_span(t, collected.work + i,
                    collected.n_links ? bsearch(&key, collected.links, (size_t)collected.n_links,
                                                sizeof key, by_correlation)
                                      : NULL);
    }
    collected.n_work = collected.n_links = 0;
    if (collected.lost)
        rc = err_set(err, ERR_RUN, "CUPTI lost %lld records: times of this run are not valid",
                     (long long)collected.lost);
    pthread_mutex_unlock(&collected.lock);
    for (int64_t i = 0; i < t->n && !rc; i++)
        if (t->spans[i].kernels == 0)
            rc = err_set(err, ERR_RUN, "CUPTI has no record of the timed work %lld", (long long)i);
    return rc;
}

static int collect_events(struct timer *t, struct err *err)
{
    for (int64_t i = 0; i < t->n; i++) {
        float ms;
        PASS_ON_CU(err, cudaEventElapsedTime(&ms, t->spans[i].begin, t->spans[i].end));
        t->spans[i].ns = 1e6 * (double)ms;
    }
    return 0;
}

int timer_collect(struct timer *t, struct gpu *g, struct err *err)
{
    PASS_ON(gpu_sync(g, err));
    return t->cupti ? collect_cupti(t, err) : collect_events(t, err);
}

double timer_ns(const struct timer *t, int64_t id)
{
    return t->spans[id].ns;
}

void timer_reset(struct timer *t)
{
    for (int64_t i = 0; i < t->n; i++)
        if (t->spans[i].begin) {
            cudaEventDestroy(t->spans[i].begin);
            cudaEventDestroy(t->spans[i].end);
        }
    t->n = 0;
}

/* ---- statistics ----------------------------------------------------------------------------- */

struct quartiles quartiles_of(double *x, int64_t n)
{
    if (n == 0)
        return (struct quartiles){NAN, NAN, NAN};
    sort_f64(x, n);
    return (struct quartiles){x[(n + 3) / 4 - 1], x[(n + 1) / 2 - 1], x[(3 * n + 3) / 4 - 1]};
}
