/*
 * backend.c - one head at a time on the GPU: upload, plan, launch, time, fetch (core/accel.h).
 *
 * All heads use the same arena, one after the other. A timed launch holds copies of the head
 * (copies.h), and the outputs that are compared are those of its last copy.
 */
#include "cuda/backend.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/attn/attn.h"
#include "cuda/attn/attn_filter.h"
#include "cuda/ceiling.h"
#include "cuda/copies.h"
#include "cuda/headrows.h"
#include "cuda/own/added.h"
#include "cuda/own/own.h"
#include "cuda/session_plans.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CEILING_N 8192
#define CEILING_BYTES (4LL << 30)
#define CEILING_SAMPLES 11

/* ---- a head on the device ------------------------------------------------------------------- */

static bool session_supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                             int64_t *bk, char why[160])
{
    struct err e = {0};
    struct attn_problem p = {1, 1, x->d, x->nq, x->nk, x->scale, x->causal, ATTN_DENSE};
    const struct attn_kernel *k;
    if (attn_kernel_find(&p, s->gpu.sm, NULL, &k, &e)) {
        snprintf(why, 160, "%.150s", e.msg);
        return false;
    }
    if (x->d != x->dv) {
        snprintf(why, 160, "the kernels want values as wide as keys, found %d and %d", x->dv, x->d);
        return false;
    }
    bool fine = *bq % 64 || *bk % 64;
    *bq = *bq % 128 && !fine ? 64 : 128;
    *bk = fine || (*bq == 128 && *bk % 128 == 0) ? 128 : 64;
    return true;
}

static bool session_filters(const struct accel_session *s, const struct attn_in *x,
                            const struct accel_filter *f, char why[160])
{
    return filter_kernel_find(x->d, s->gpu.sm, f, why) != NULL;
}

static bool session_owns(const struct accel_session *s, const struct attn_in *x,
                         const struct own_rule *r, char why[160])
{
    struct attn_problem p = {1, 1, x->d, x->nq, x->nk, x->scale, x->causal, ATTN_DENSE};
    return own_fits(s->gpu.sm, &p, r, why);
}

static int fetch(struct accel_session *s, const struct attn_tensors *t, const struct attn_in *x,
                 struct accel_result *r, struct err *err)
{
    struct gpu *g = &s->gpu;
    double unit = ldexp(1, s->head.v_exp);
    uint16_t *out = NULL;
    float *lse = NULL;
    int rc = 0;
    if (accel_stays(x))
        TRY(head_rows_put(g, t->out, x->nq, x->dv, (float)unit, x->there->out, x->there->stride,
                          err));
    if (r->out) {
        TRY(mem_alloc(&out, x->nq * x->dv, sizeof *out, "output", err));
        TRY(gpu_get(g, out, t->out, x->nq * x->dv * 2, err));
        for (int64_t i = 0; i < x->nq * x->dv; i++)
            r->out[i] = bf16_to_f32(out[i]) * unit;
    }
    TRY(mem_alloc(&lse, x->nq, sizeof *lse, "log-sum-exp", err));
    TRY(gpu_get(g, lse, t->lse, x->nq * 4, err)); /* waits for the device */
    for (int64_t i = 0; i < x->nq; i++)
        r->lse[i] = lse[i];
out:
    free(out);
    free(lse);
    return rc;
}

/* Tensors of the copies of a head, as heads of one problem. */
struct copied_head {
    const struct accel_head *h;
    struct accel_heads copies;
    struct attn_tensors t;
};

static struct attn_problem problem_of(const struct copied_head *c)
{
    const struct attn_in *x = c->h->x;
    return (struct attn_problem){c->copies.q, c->copies.kv, x->d,      x->nq,
                                 x->nk,       x->scale,     x->causal, ATTN_DENSE};
}

/* The last of them alone. */
static struct attn_tensors last_of(const struct copied_head *c)
{
    const struct attn_in *x = c->h->x;
    int64_t before = c->copies.q - 1, q = before * x->nq * x->d * 2;
    int64_t k = (c->copies.kv - 1) * x->nk * x->d * 2;
    return (struct attn_tensors){(const char *)c->t.q + q, (const char *)c->t.k + k,
                                 (const char *)c->t.v + k, (char *)c->t.out + q,
                                 c->t.lse + before * x->nq};
}

/* The list kernel (or the dense one) with its plan, on tensors that are already there. pairs and
 * plan_ns are those of one copy. */
static int make_job(struct accel_session *s, const struct copied_head *c, bool dense,
                    struct attn_job *job, int64_t *pairs, double *plan_ns, struct err *err)
{
    const struct accel_head *h = c->h;
    const struct attn_kernel *k = NULL;
    struct attn_plan plan = {0};
    struct copied_lists lists = {0};
    struct attn_problem p = problem_of(c);
    int rc = 0;

    if (!dense)
        p.lists = h->keys       ? ATTN_GATHER
                  : h->bits     ? ATTN_BITS
                  : h->bq == 64 ? ATTN_64x64
                  : h->bk == 64 ? ATTN_128x64
                                : ATTN_128x128;
    TRY(attn_kernel_find(&p, s->gpu.sm, NULL, &k, err));
    if (!dense && h->ptr)
        TRY(copied_lists_make(h, ceil_div(p.nq, attn_block_rows(p.lists, &k->tile)), c->copies.q,
                              &lists, err));
    double since = clock_ns();
    TRY(attn_plan_make(&p, &k->tile, dense ? NULL : &lists.csr, s->gpu.sms, true, &plan, err));
    *plan_ns = (clock_ns() - since) / c->copies.q;
    *pairs = plan.blocks / c->copies.q * attn_block_rows(p.lists, &k->tile) *
             attn_block_keys(p.lists, &k->tile);
    TRY(attn_job_init(&s->gpu, &p, k, &plan, &c->t, job, err));
out:
    attn_plan_free(&plan);
    copied_lists_free(&lists);
    return rc;
}

/* The filter's kernel and its plan. blocks and plan_ns are those of one copy. */
static int make_filter_job(struct accel_session *s, const struct copied_head *c,
                           struct attn_job *job, const struct filter_kernel **kernel,
                           int64_t *blocks, double *plan_ns, struct err *err)
{
    const struct accel_head *h = c->h;
    struct attn_problem p = problem_of(c);
    struct copied_lists lists = {0};
    struct attn_plan plan = {0};
    char why[160];
    int rc = 0;

    *kernel = filter_kernel_find(p.d, s->gpu.sm, h->filter, why);
    if (!*kernel)
        FAIL(err, ERR_RUN, "%s", why);
    p.lists = (*kernel)->kernel.lists;
    TRY(copied_lists_make(h, ceil_div(p.nq, h->filter->bq), c->copies.q, &lists, err));
    double since = clock_ns();
    TRY(attn_plan_filtered(&p, &(*kernel)->kernel.tile, &lists.csr, h->filter->tail, s->gpu.sms,
                           &plan, err));
    *plan_ns = (clock_ns() - since) / c->copies.q;
    *blocks = plan.blocks / c->copies.q;
    TRY(filter_job_init(&s->gpu, &p, *kernel, &plan, h->filter, 1, &c->t, job, err));
out:
    attn_plan_free(&plan);
    copied_lists_free(&lists);
    return rc;
}

/* The filter of h once more, on one copy and with skipped tiles in the normaliser, for the LSE of
 * the whole mask. The output goes to `spare`. */
static int make_whole_job(struct accel_session *s, const struct accel_head *h,
                          const struct attn_tensors *spare, struct attn_job *job, struct err *err)
{
    struct accel_filter counts_all = *h->filter;
    struct accel_head whole = *h;
    struct copied_head one = {&whole, {1, 1}, *spare};
    const struct filter_kernel *kernel;
    int64_t blocks;
    double plan_ns;
    int rc = 0;
    counts_all.keep_denominator = true;
    whole.filter = &counts_all;
    TRY(gpu_alloc(&s->gpu, h->x->nq * 4, &one.t.lse, err));
    TRY(make_filter_job(s, &one, job, &kernel, &blocks, &plan_ns, err));
out:
    return rc;
}

/* The method's own arithmetic on all copies. */
static int make_own_job(struct accel_session *s, const struct copied_head *c, struct own_job *job,
                        struct accel_result *r, struct err *err)
{
    struct attn_problem p = problem_of(c);
    struct own_rule *rules = NULL;
    int rc = 0;
    TRY(mem_alloc(&rules, p.heads, sizeof *rules, "rules of copies", err));
    for (int h = 0; h < p.heads; h++)
        rules[h] = *c->h->own;
    TRY(own_job_init(&s->gpu, &p, rules, &c->t, job, err));
    r->pairs_exec = job->pairs[0];
    r->host_plan_ns = job->plan_ns / p.heads;
out:
    free(rules);
    return rc;
}

/* Attention over the list that beside own arithmetic says whose mass is kept, on one copy. The
 * output goes to `spare`. */
static int make_mask_job(struct accel_session *s, const struct accel_head *h,
                         const struct attn_tensors *spare, struct attn_job *job, struct err *err)
{
    struct copied_head one = {h, {1, 1}, *spare};
    double plan_ns;
    int64_t pairs;
    int rc = 0;
    TRY(gpu_alloc(&s->gpu, h->x->nq * 4, &one.t.lse, err));
    TRY(make_job(s, &one, false, job, &pairs, &plan_ns, err));
out:
    return rc;
}

/* How many tiles of P V the launch computed for the last copy. */
static int count_filtered(struct accel_session *s, const struct accel_head *h,
                          const struct attn_job *job, const struct filter_kernel *kernel,
                          int64_t blocks, struct accel_result *r, struct err *err)
{
    double *tiles = NULL;
    int rc = 0;
    TRY(mem_alloc(&tiles, job->problem.heads, sizeof *tiles, "counts of tiles", err));
    TRY(filter_tiles(&s->gpu, job, kernel, tiles, err));
    r->tiles_pv = tiles[job->problem.heads - 1];
    r->pairs_exec =
        (int64_t)(((double)blocks + r->tiles_pv) / 2 * (double)(h->filter->bq * h->filter->bk));
out:
    free(tiles);
    return rc;
}

static int launch_job(struct gpu *g, const void *job, struct err *err)
{
    return attn_job_launch(g, job, err);
}

/* The attention of a head: by kernels over lists, or by the method's own. */
struct attention {
    const struct attn_job *lists;
    const struct own_job *own;     /* NULL: lists */
    const struct added_job *added; /* to the outputs over lists; NULL: nothing */
};

static int launch_attention(struct gpu *g, const void *attention, struct err *err)
{
    const struct attention *a = attention;
    int rc = a->own ? own_job_attend(g, a->own, err) : attn_job_launch(g, a->lists, err);
    return rc || !a->added ? rc : added_launch(g, a->added, err);
}

/* Samples of the mask's kernel, of the dense one, of own operands and, if wanted, of the metrics,
 * in turns. */
static int time_jobs(struct accel_session *s, const struct attention *a,
                     const struct attn_job *dense, const struct session_metrics *metrics,
                     struct accel_result *r, struct err *err)
{
    int copies = dense->problem.heads, n = 0, rc = 0;
    bool quant = a->own && a->own->has_quant;
    struct session_work work[4];
    struct accel_time times[4];
    if (quant)
        work[n++] = (struct session_work){own_job_quant, a->own};
    work[n++] = (struct session_work){launch_attention, a};
    work[n++] = (struct session_work){launch_job, dense};
    if (r->rows)
        work[n++] = (struct session_work){session_metrics_launch, metrics};
    TRY(session_time(s, work, n, times, err));
    n = 0;
    if (quant)
        r->quant = times[n++];
    r->attend = times[n++];
    r->dense = times[n++];
    session_share(&r->quant, copies);
    session_share(&r->attend, copies);
    session_share(&r->dense, copies);
    if (r->rows)
        r->metrics = times[n];
out:
    return rc;
}

/* Operands that are there, and outputs and log-sum-exps for two kernels on them. */
static int take_tensors(struct accel_session *s, struct copied_head *c, struct copied_head *spare,
                        struct err *err)
{
    int64_t rows = c->copies.q * c->h->x->nq;
    int rc = 0;
    c->t = (struct attn_tensors){.q = s->head.q, .k = s->head.k, .v = s->head.v};
    TRY(gpu_alloc(&s->gpu, rows * c->h->x->d * 2, &c->t.out, err));
    TRY(gpu_alloc(&s->gpu, rows * 4, &c->t.lse, err));
    *spare = *c;
    TRY(gpu_alloc(&s->gpu, rows * c->h->x->d * 2, &spare->t.out, err));
    TRY(gpu_alloc(&s->gpu, rows * 4, &spare->t.lse, err));
out:
    return rc;
}

/* Of one copy. */
static int count_events(struct accel_session *s, const struct attention *a, int copies,
                        struct accel_counters *c, struct err *err)
{
    int rc = counters_measure(s->counters, &s->gpu, launch_attention, a, c, err);
    c->dram_read_bytes /= copies;
    c->dram_write_bytes /= copies;
    return rc;
}

/* Metrics of the output in t. `whole` becomes the job that they need where the kernel's
 * log-sum-exps are not those of the whole mask. */
static int take_metrics(struct accel_session *s, const struct accel_head *h,
                        const struct attn_tensors *t, const struct attn_tensors *spare,
                        struct attn_job *whole, struct session_metrics *m, struct accel_result *r,
                        struct err *err)
{
    bool other = h->filter && !h->filter->keep_denominator;
    int rc = 0;
    if (other)
        TRY(make_whole_job(s, h, spare, whole, err));
    if (h->own && h->ptr)
        TRY(make_mask_job(s, h, spare, whole, err));
    TRY(session_metrics_init(s, h, t, spare, whole->kernel ? whole : NULL, m, err));
    TRY(session_metrics_launch(&s->gpu, m, err));
    TRY(session_metrics_fetch(s, m, r, err));
out:
    return rc;
}

static int attend_locked(struct accel_session *s, const struct accel_head *h,
                         struct accel_result *r, struct err *err)
{
    const struct attn_in *x = h->x;
    struct gpu *g = &s->gpu;
    struct gpu_mark mark = s->base;
    struct copied_head c = {.h = h, .copies = session_copies(s, h->call, x)}, spare;
    struct attn_tensors last, last_spare;
    struct attn_job job = {0}, dense = {0}, whole = {0};
    struct own_job own = {0};
    struct added_job added = {0};
    struct attention attention = {&job, h->own ? &own : NULL, h->added ? &added : NULL};
    struct session_metrics metrics = {0};
    const struct filter_kernel *filter = NULL;
    int64_t dense_pairs, blocks = 0;
    double dense_plan_ns;
    int rc = 0;

    r->copies = c.copies;
    TRY(session_put_head(s, x, h->data, c.copies, true, err));
    r->rows_exp = s->head.v_exp;
    mark = gpu_mark(g);
    TRY(take_tensors(s, &c, &spare, err));
    last = last_of(&c);
    last_spare = last_of(&spare);
    if (h->own)
        TRY(make_own_job(s, &c, &own, r, err));
    else if (h->filter)
        TRY(make_filter_job(s, &c, &job, &filter, &blocks, &r->host_plan_ns, err));
    else
        TRY(make_job(s, &c, h->ptr == NULL, &job, &r->pairs_exec, &r->host_plan_ns, err));
    TRY(make_job(s, &spare, true, &dense, &dense_pairs, &dense_plan_ns, err));
    snprintf(r->kernel, sizeof r->kernel, "%s", h->own ? own.name : job.kernel->name);
    snprintf(r->dense_kernel, sizeof r->dense_kernel, "%s", dense.kernel->name);
    if (h->own)
        TRY(own_job_quant(g, &own, err));
    if (h->added) {
        TRY(added_init(g, &h->added, &s->head.v_exp, 1, x->nq * x->d, &added, err));
        added.out = c.t.out;
        added.heads = c.copies.q;
    }
    TRY(launch_attention(g, &attention, err));
    TRY(fetch(s, &last, x, r, err));
    if (filter)
        TRY(count_filtered(s, h, &job, filter, blocks, r, err));
    if (r->rows)
        TRY(take_metrics(s, h, &last, &last_spare, &whole, &metrics, r, err));
    if (s->options.samples > 0 && !h->once)
        TRY(time_jobs(s, &attention, &dense, &metrics, r, err));
    if (s->counters && !h->once)
        TRY(count_events(s, &attention, c.copies.q, &r->counters, err));
out:
    session_metrics_free(&metrics);
    attn_job_free(&job);
    attn_job_free(&dense);
    attn_job_free(&whole);
    own_job_free(&own);
    gpu_release(g, mark);
    return session_blame(rc, c.copies.q, err);
}

static int session_attend(struct accel_session *s, const struct accel_head *h,
                          struct accel_result *r, struct err *err)
{
    int rc = 0;
    session_lock(s);
    CU(err, cudaSetDevice(s->gpu.device));
    r->quant = r->attend = r->dense = r->metrics = (struct accel_time){NAN, NAN, NAN, 0};
    r->counters = (struct accel_counters){NAN, NAN, NAN, ""};
    memcpy(r->counters.why, s->no_counters, sizeof r->counters.why);
    rc = attend_locked(s, h, r, err);
out:
    session_unlock(s);
    return rc;
}

/* ---- description ---------------------------------------------------------------------------- */

static int measure_ceilings(struct accel_session *s, double *matmul_tflops, double *copy_tbs,
                            struct err *err)
{
    struct ceiling *c = NULL;
    struct gpu_mark mark = gpu_mark(&s->gpu);
    double matmul[CEILING_SAMPLES], copy[CEILING_SAMPLES];
    int64_t peak = s->gpu.bytes_peak, id, held;
    int rc = 0;

    TRY(ceiling_open(&s->gpu, CEILING_N, CEILING_BYTES, &c, err));
    timer_reset(s->timer);
    for (int i = 0; i < CEILING_SAMPLES; i++) {
        TRY(timer_begin(s->timer, &s->gpu, &id, err));
        TRY(ceiling_matmul(c, &s->gpu, err));
        TRY(timer_end(s->timer, &s->gpu, err));
        TRY(timer_begin(s->timer, &s->gpu, &id, err));
        TRY(ceiling_copy(c, &s->gpu, err));
        TRY(timer_end(s->timer, &s->gpu, err));
    }
    TRY(timer_collect(s->timer, &s->gpu, err));
    for (int i = 0; i < CEILING_SAMPLES; i++) {
        matmul[i] = timer_span(s->timer, 2 * i).kernel_ns;
        copy[i] = timer_span(s->timer, 2 * i + 1).kernel_ns;
    }
    *matmul_tflops = ceiling_matmul_flop(c) / quartiles_of(matmul, CEILING_SAMPLES).median * 1e-3;
    *copy_tbs = ceiling_copy_bytes(c) / quartiles_of(copy, CEILING_SAMPLES).median * 1e-3;
out:
    ceiling_close(&c);
    gpu_release(&s->gpu, mark);
    gpu_trim(&s->gpu);
    held = gpu_bytes_held(&s->gpu); /* for heads; the peak is to be theirs, not the product's */
    s->gpu.bytes_peak = peak > held ? peak : held;
    return rc;
}

static int session_describe(struct accel_session *s, struct jw *w, struct err *err)
{
    (void)err;
    jw_kstr(w, "name", s->gpu.name);
    jw_kint(w, "device", s->gpu.device);
    jw_kstr(w, "uuid", s->gpu.uuid);
    jw_kint(w, "sm", s->gpu.sm);
    jw_kint(w, "multiprocessors", s->gpu.sms);
    jw_kint(w, "cuda_driver", s->gpu.driver);
    jw_kint(w, "cuda_runtime", s->gpu.runtime);
    jw_kstr(w, "timer", timer_name(s->timer));
    if (*timer_reason(s->timer))
        jw_kstr(w, "timer_reason", timer_reason(s->timer));
    jw_kstr(w, "l2", s->options.l2_cold ? "cold" : "warm");
    jw_kint(w, "samples", s->options.samples);
    return 0;
}

/* Without cuBLAS the ceilings stay unknown, and the reason is told instead. */
static int session_ceilings(struct accel_session *s, struct jw *w, struct err *err)
{
    struct err own = {0};
    double matmul, copy;

    session_lock(s);
    int rc = measure_ceilings(s, &matmul, &copy, &own);
    session_unlock(s);
    if (rc == 0) {
        jw_knum(w, "matmul_8192_tflops", matmul);
        jw_knum(w, "copy_tb_per_s", copy);
    } else if (rc == ERR_MACHINE || rc == ERR_NOMEM) {
        jw_kstr(w, "ceilings", own.msg);
        rc = 0;
    } else {
        *err = own;
    }
    return rc;
}

static int64_t session_bytes_peak(const struct accel_session *s)
{
    return s->gpu.bytes_peak;
}

const struct accel cuda_accel = {
    .name = "cuda",
    .open = session_open,
    .close = session_close,
    .supports = session_supports,
    .filters = session_filters,
    .owns = session_owns,
    .attend = session_attend,
    .select = session_select,
    .put_call = session_bring_call,
    .select_call = session_select_call,
    .attend_call = session_attend_call,
    .holds = session_holds,
    .map = session_map,
    .reference = session_reference,
    .bytes_peak = session_bytes_peak,
    .describe = session_describe,
    .ceilings = session_ceilings,
    .used_s = session_used,
};

/* ---- lists ---------------------------------------------------------------------------------- */

static void list_kernel(struct jw *w, const struct attn_kernel *k)
{
    jw_obj(w);
    jw_kstr(w, "name", k->name);
    jw_kstr(w, "summary", k->summary);
    jw_kint(w, "sm", k->sm);
    jw_kint(w, "query_rows", k->tile.bm);
    jw_kint(w, "keys", k->tile.bn);
    jw_kint(w, "threads", k->threads);
    jw_kint(w, "shared_memory_bytes", k->smem_bytes);
    jw_obj_end(w);
}

int cuda_list_kernels(struct jw *w, struct err *err)
{
    for (const struct attn_kernel *k = attn_kernels; k->name; k++)
        list_kernel(w, k);
    for (const struct filter_kernel *k = filter_kernels; k->kernel.name; k++)
        list_kernel(w, &k->kernel);
    return 0;
}

/* Without a driver or a GPU: nothing. */
int cuda_list_gpus(struct jw *w, struct err *err)
{
    int rc = 0, count = 0, driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 ||
        cudaGetDeviceCount(&count) != cudaSuccess)
        return 0;
    for (int i = 0; i < count; i++) {
        struct gpu g = {0};
        char text[160];
        TRY(gpu_describe(i, &g, err));
        snprintf(text, sizeof text, "sm_%d, %d multiprocessors, %.0f GB", g.sm, g.sms,
                 (double)g.memory_bytes / 1e9);
        jw_obj(w);
        jw_kstr(w, "name", g.name);
        jw_kstr(w, "summary", text);
        jw_kint(w, "index", i);
        jw_kint(w, "sm", g.sm);
        jw_kint(w, "multiprocessors", g.sms);
        jw_kint(w, "memory_bytes", g.memory_bytes);
        jw_kint(w, "l2_bytes", g.l2_bytes);
        jw_kint(w, "cuda_driver", driver);
        jw_obj_end(w);
    }
out:
    return rc;
}
