/*
 * session.c - the GPU, its timer and its samples (session.h).
 *
 * Every sample of a work lies between samples of the others, so that a drift of clocks or
 * temperature affects all works equally.
 */
#include "cuda/session.h"

#include "core/clock.h"
#include "core/dtype.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "cuda/operands.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Device memory of plans of static masks. Beyond it the one that was not asked for longest goes. */
#define SESSION_PLAN_BYTES (2LL << 30)

static void plan_free(struct accel_session *s, struct session_plan *p)
{
    gpu_free_own(&s->gpu, p->memory, p->bytes);
    free(p->ptr);
    free(p);
}

static void drop_plans(struct accel_session *s)
{
    for (struct session_plan *p = s->plans, *next; p; p = next) {
        next = p->next;
        plan_free(s, p);
    }
    s->plans = NULL;
}

/* What the host holds of the masks that stay on the device. */
static void forget_kept(struct accel_session *s)
{
    for (int i = 0; i < s->kept.n; i++)
        select_job_free(s->kept.jobs + i);
    free(s->kept.jobs);
    s->kept = (struct session_kept){0};
}

static void forget(struct accel_session *s)
{
    forget_kept(s);
    free(s->call.v_exp);
    s->call = (struct session_call){0};
}

void session_drop_kept(struct accel_session *s)
{
    if (s->kept.dense)
        s->call.dense = (struct metrics_dense){0};
    if (s->kept.jobs)
        gpu_release(&s->gpu, s->kept.mark);
    forget_kept(s);
}

void session_close(struct accel_session **s)
{
    if (!*s)
        return;
    counters_close(&(*s)->counters);
    timer_close(&(*s)->timer);
    drop_plans(*s);
    gpu_close(&(*s)->gpu);
    pthread_mutex_destroy(&(*s)->lock);
    forget(*s);
    free(*s);
    *s = NULL;
}

int session_open(const struct accel_options *o, struct accel_session **out, struct err *err)
{
    struct accel_session *s = NULL;
    int rc = mem_zalloc(&s, 1, sizeof *s, "GPU session", err);
    if (rc)
        return rc;
    pthread_mutex_init(&s->lock, NULL);
    s->options = *o;
    s->options.samples = o->samples > SESSION_MAX_SAMPLES ? SESSION_MAX_SAMPLES : o->samples;
    /* The profiler does not share CUPTI with activity records, and what it does costs time. */
    if (o->counters)
        s->options.samples = 0;
    TRY(timer_open(!o->events && !o->counters, &s->timer, err));
    TRY(gpu_open(o->local_rank, &s->gpu, err));
    if (o->counters)
        s->counters = counters_open(&s->gpu, s->no_counters);
    if (o->l2_cold)
        TRY(gpu_alloc(&s->gpu, 2 * s->gpu.l2_bytes, &s->flush, err));
    s->base = gpu_mark(&s->gpu);
    *out = s;
    s = NULL;
out:
    session_close(&s);
    return rc;
}

void session_lock(struct accel_session *s)
{
    pthread_mutex_lock(&s->lock);
    s->used_since = clock_ns();
}

void session_unlock(struct accel_session *s)
{
    double used = atomic_load(&s->used_ns) + clock_ns() - s->used_since;
    atomic_store(&s->used_ns, used);
    pthread_mutex_unlock(&s->lock);
}

/* Without the lock: who asks must not wait for a launch. */
double session_used(struct accel_session *s)
{
    return 1e-9 * atomic_load(&s->used_ns);
}

struct accel_heads session_copies(const struct accel_session *s, const struct attn_in *x,
                                  struct accel_heads call)
{
    bool measures = s->options.samples > 0 || s->counters;
    int wanted = s->options.copies || measures ? s->options.copies : 1;
    return copies_of(wanted, call, x, s->gpu.sms, s->gpu.memory_bytes);
}

/* n heads of `bytes` each, one after the other: the arena is aligned to more than a head may be. */
static int take(struct gpu *g, int n, int64_t bytes, void *out, struct err *err)
{
    int64_t all;
    if (!mul_ok(n, bytes, &all))
        return err_set(err, ERR_NOMEM, "%d heads of %lld bytes", n, (long long)bytes);
    return gpu_alloc(g, all, out, err);
}

/* n numbers of a call's q, k or v, from there or from the host. */
static int put_matrix(struct gpu *g, const float *x, const void *there, int64_t n, void *staging,
                      void *to, struct err *err)
{
    if (there)
        return gpu_copy(g, to, there, n * 2, err);
    dtype_from_f32(DT_BF16, x, staging, n);
    return gpu_put(g, to, staging, n * 2, err);
}

static int put_values(struct gpu *g, const struct attn_in *x, float *scaled, void *staging,
                      int *v_exp, void *to, struct err *err)
{
    int64_t n = x->nk * x->dv;
    *v_exp = x->on_device ? 0 : values_exponent(x->v, n);
    if (*v_exp)
        values_scale(x->v, n, *v_exp, scaled);
    return put_matrix(g, *v_exp ? scaled : x->v, x->on_device ? x->on_device->v : NULL, n, staging,
                      to, err);
}

/* Is number i of the operands a copy of the first? */
static bool is_copy(const struct accel_call *c, int i)
{
    return c->copies && i > 0;
}

static int put_tensors(struct accel_session *s, const struct accel_call *c, struct err *err)
{
    const struct attn_problem *p = &s->call.problem;
    int64_t q = p->nq * p->d, k = p->nk * p->d, v = p->nk * attn_dv(p->d);
    int64_t most = MAX(q, MAX(k, v));
    char *at_q, *at_k, *at_v;
    OWN(free_at) float *scaled = NULL;
    OWN(free_at) void *staging = NULL;

    PASS_ON(take(&s->gpu, p->heads, q * 2, &at_q, err));
    PASS_ON(take(&s->gpu, p->kv_heads, k * 2, &at_k, err));
    PASS_ON(take(&s->gpu, p->kv_heads, v * 2, &at_v, err));
    PASS_ON(take(&s->gpu, p->heads, p->nq * attn_dv(p->d) * 2, &s->call.x.out, err));
    PASS_ON(take(&s->gpu, p->heads, p->nq * 4, &s->call.x.lse, err));
    PASS_ON(mem_alloc(&staging, most, 2, "operands in bf16", err));
    PASS_ON(mem_alloc(&scaled, v, sizeof *scaled, "scaled values", err));
    for (int i = 0; i < c->n; i++) {
        const struct attn_in *x = c->heads[i].x;
        const void *there = is_copy(c, i) ? at_q : x->on_device ? x->on_device->q : NULL;
        PASS_ON(put_matrix(&s->gpu, x->q, there, q, staging, at_q + i * q * 2, err));
    }
    for (int g = 0; g < p->kv_heads; g++) {
        const struct attn_in *x = c->heads[g * c->group].x;
        bool copy = is_copy(c, g);
        const void *there = copy ? at_k : x->on_device ? x->on_device->k : NULL;
        PASS_ON(put_matrix(&s->gpu, x->k, there, k, staging, at_k + g * k * 2, err));
        if (copy) {
            s->call.v_exp[g] = s->call.v_exp[0];
            PASS_ON(gpu_copy(&s->gpu, at_v + g * v * 2, at_v, v * 2, err));
        } else {
            PASS_ON(
                put_values(&s->gpu, x, scaled, staging, s->call.v_exp + g, at_v + g * v * 2, err));
        }
    }
    PASS_ON(gpu_sync(&s->gpu, err));
    s->call.x.q = at_q;
    s->call.x.k = at_k;
    s->call.x.v = at_v;
    return 0;
}

int session_put_call(struct accel_session *s, const struct accel_call *c, struct err *err)
{
    const struct attn_in *x = c->heads[0].x;
    int rc = 0;
    if (s->call.data == c->data && s->call.problem.heads == c->n)
        return 0;
    forget(s);
    gpu_release(&s->gpu, s->base);
    s->call.problem = (struct attn_problem){c->n,  c->n / c->group, x->d,      x->nq,
                                            x->nk, x->scale,        x->causal, ATTN_DENSE};
    TRY(mem_alloc(&s->call.v_exp, c->n / c->group, sizeof *s->call.v_exp, "values", err));
    TRY(put_tensors(s, c, err));
    s->call.copies = c->copies;
    s->call.data = c->data;
out:
    if (rc) {
        forget(s);
        gpu_release(&s->gpu, s->base);
    }
    return rc;
}

int session_call_dense(struct accel_session *s, struct err *err)
{
    struct session_call *c = &s->call;
    struct gpu_mark mark = gpu_mark(&s->gpu);
    struct attn_problem p = c->problem;
    struct head_run own = {c->copies, p.heads - c->copies, c->copies ? 1 : p.kv_heads};
    struct attn_tensors x = run_tensors(c, &c->x, own);
    int rc = 0;
    if (c->dense.out)
        return 0;
    p.heads = own.n;
    p.kv_heads = own.kv;
    rc = metrics_dense_make(&s->gpu, &p, &x, &c->dense, err);
    if (rc) {
        c->dense = (struct metrics_dense){0};
        gpu_release(&s->gpu, mark);
    }
    s->kept.dense = !rc && s->kept.jobs;
    return rc;
}

/* ---- plans of static masks ------------------------------------------------------------------ */

/* They outlive what lies in the arena, so each has memory of its own. */

static struct session_plan *find(struct accel_session *s, uint64_t id)
{
    struct session_plan *p = s->plans;
    while (p && p->id != id)
        p = p->next;
    return p;
}

const struct session_plan *session_find_plan(struct accel_session *s, uint64_t id)
{
    struct session_plan *p = id ? find(s, id) : NULL;
    if (p)
        p->used = ++s->plans_used;
    return p;
}

bool session_holds(struct accel_session *s, uint64_t id)
{
    session_lock(s);
    bool there = find(s, id) != NULL;
    session_unlock(s);
    return there;
}

/* Drop the oldest until `bytes` more fit. */
static void make_room(struct accel_session *s, int64_t bytes)
{
    for (;;) {
        struct session_plan **oldest = NULL;
        int64_t held = 0;
        for (struct session_plan **p = &s->plans; *p; p = &(*p)->next) {
            held += (*p)->bytes;
            if (!oldest || (*p)->used < (*oldest)->used)
                oldest = p;
        }
        if (!oldest || held + bytes <= SESSION_PLAN_BYTES)
            return;
        struct session_plan *gone = *oldest;
        *oldest = gone->next;
        plan_free(s, gone);
    }
}

/* One array of a plan: where it is on the host, its bytes, and where its place on the device goes.
 */
struct part {
    const void *from;
    int64_t bytes;
    const void **to;
};

enum { PARTS = 7 };

static void parts_of(const struct attn_problem *p, const struct attn_plan *plan,
                     struct attn_device_plan *d, struct part part[PARTS])
{
    const struct attn_csr *l = &plan->lists;
    bool bits = p->lists == ATTN_BITS || p->lists == ATTN_GATHER;
    int64_t keys = p->lists == ATTN_GATHER ? plan->blocks * ACCEL_TILE : 0;
    part[0] = (struct part){plan->items, plan->n_items * (int64_t)sizeof *plan->items, &d->items};
    part[1] =
        (struct part){plan->splits, plan->n_splits * (int64_t)sizeof *plan->splits, &d->splits};
    part[2] = (struct part){plan->empty, plan->n_empty * 4LL, &d->empty};
    part[3] = (struct part){plan->cols, plan->n_cols * 4, &d->cols};
    part[4] = (struct part){l->bits, bits ? plan->blocks * 4 : 0, &d->bits};
    part[5] = (struct part){l->keys, keys * 4, &d->keys};
    part[6] = (struct part){l->words, bits ? l->n_bits * ACCEL_TILE_WORDS * 8 : 0, &d->words};
}

static int64_t rounded(int64_t bytes)
{
    return (bytes + 255) & ~255LL;
}

/* Copy the parts into the plan's memory. */
static int put_parts(struct gpu *g, char *at, const struct part part[PARTS], struct err *err)
{
    for (int i = 0; i < PARTS; i++) {
        *part[i].to = at;
        PASS_ON(gpu_put(g, at, part[i].from, part[i].bytes, err));
        at += rounded(part[i].bytes);
    }
    return gpu_sync(g, err);
}

/* The plan as it is kept: only what is on the device, and its numbers. */
static struct attn_plan kept_plan(const struct attn_plan *plan)
{
    struct attn_plan kept = *plan;
    kept.items = NULL;
    kept.cols = NULL;
    kept.splits = NULL;
    kept.empty = NULL;
    kept.lists = (struct attn_csr){0};
    return kept;
}

int session_keep_plan(struct accel_session *s, uint64_t id, const struct attn_problem *p,
                      const struct attn_csr *csr, int64_t groups, struct attn_plan *plan,
                      struct err *err)
{
    struct attn_device_plan device;
    struct session_plan *k = NULL;
    struct part part[PARTS];
    int64_t bytes = 0, n = p->heads * groups + 1;
    int rc = 0;

    parts_of(p, plan, &device, part);
    for (int i = 0; i < PARTS; i++)
        bytes += rounded(part[i].bytes);
    if (bytes > SESSION_PLAN_BYTES || bytes > s->gpu.memory_bytes / 16)
        return 0;
    make_room(s, bytes);
    TRY(mem_zalloc(&k, 1, sizeof *k, "plan of a static mask", err));
    TRY(mem_alloc(&k->ptr, n, sizeof *k->ptr, "plan of a static mask", err));
    memcpy(k->ptr, csr->ptr, (size_t)n * sizeof *k->ptr);
    TRY(gpu_alloc_own(&s->gpu, bytes, &k->memory, err));
    k->bytes = bytes;
    TRY(put_parts(&s->gpu, k->memory, part, err));
    plan->device = device;
    k->id = id;
    k->problem = *p;
    k->plan = kept_plan(plan);
    k->used = ++s->plans_used;
    k->next = s->plans;
    s->plans = k;
    return 0;
out:
    if (k)
        plan_free(s, k);
    return rc;
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Clocks and temperature settle in a second; done once per session, with the kernels themselves. */
static int warm_up(struct accel_session *s, const struct session_work *work, struct err *err)
{
    double end = clock_ns() + (s->warm ? 1e7 : 1e9);
    int rc = 0;
    do {
        rc = work->launch(&s->gpu, work->job, err);
        if (!rc)
            rc = gpu_sync(&s->gpu, err);
    } while (!rc && clock_ns() < end);
    s->warm = true;
    return rc;
}

static int sample(struct accel_session *s, const struct session_work *work, struct err *err)
{
    int64_t id;
    if (s->flush)
        PASS_ON_CU(err,
                   cudaMemsetAsync(s->flush, 0x5a, (size_t)(2 * s->gpu.l2_bytes), s->gpu.stream));
    PASS_ON(timer_begin(s->timer, &s->gpu, &id, err));
    PASS_ON(work->launch(&s->gpu, work->job, err));
    return timer_end(s->timer, &s->gpu, err);
}

/* Where work i stands in sample k: the chain comes first, or last. */
static int place_of(int i, int k, int n, int chain)
{
    return k % 2 == 0 ? i : i < chain ? i + n - chain : i - chain;
}

static int work_at(int place, int k, int n, int chain)
{
    return k % 2 == 0 ? place : place < n - chain ? place + chain : place - (n - chain);
}

static struct accel_time summary(double *ns, int n)
{
    struct quartiles q = quartiles_of(ns, n);
    return (struct accel_time){q.median, q.q1, q.q3, n};
}

int session_time(struct accel_session *s, const struct session_work *work, int n, int chain,
                 int in_total, struct accel_time *times, struct accel_time *total, struct err *err)
{
    double ns[SESSION_MAX_SAMPLES], sum[SESSION_MAX_SAMPLES] = {0};
    int samples = s->options.samples;

    timer_reset(s->timer);
    for (int i = n - 1; i >= 0; i--)
        PASS_ON(warm_up(s, work + i, err));
    for (int k = 0; k < samples; k++)
        for (int i = 0; i < n; i++)
            PASS_ON(sample(s, work + work_at(i, k, n, chain), err));
    PASS_ON(timer_collect(s->timer, &s->gpu, err));
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < samples; k++) {
            ns[k] = timer_ns(s->timer, (int64_t)k * n + place_of(i, k, n, chain));
            sum[k] += i < in_total ? ns[k] : 0;
        }
        times[i] = summary(ns, samples);
    }
    if (total)
        *total = summary(sum, samples);
    return 0;
}
