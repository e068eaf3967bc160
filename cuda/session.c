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
#include "cuda/copies.h"
#include "cuda/session_plans.h"
#include "cuda/values.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

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
    s->head = (struct session_head){0};
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
    session_drop_plans(*s);
    gpu_close(&(*s)->gpu);
    pthread_mutex_destroy(&(*s)->lock);
    forget(*s);
    free(*s);
    *s = NULL;
}

int session_open(const struct accel_options *o, struct accel_session **out, struct err *err)
{
    int rc = 0;
    struct accel_session *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, ERR_NOMEM, "GPU session: out of memory");
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

struct accel_heads session_copies(const struct accel_session *s, struct accel_heads call,
                                  const struct attn_in *x)
{
    bool measures = s->options.samples > 0 || s->counters;
    int wanted = s->options.copies || measures ? s->options.copies : 1;
    return copies_of(wanted, call, x, s->gpu.sms, s->gpu.memory_bytes);
}

int session_blame(int rc, int copies, struct err *err)
{
    if (rc == ERR_NOMEM && copies > 1)
        err_prefix(err, "%d copies of a head (fewer with --copies)", copies);
    return rc;
}

static int put_values(struct gpu *g, const struct attn_in *x, int copies, int *v_exp,
                      const void **v, struct err *err)
{
    int64_t n = x->nk * x->dv;
    float *scaled = NULL;
    int rc = 0;
    *v_exp = values_exponent(x->v, n);
    if (*v_exp) {
        TRY(mem_alloc(&scaled, n, sizeof *scaled, "scaled values", err));
        values_scale(x->v, n, *v_exp, scaled);
    }
    TRY(gpu_put_as(g, DT_BF16, scaled ? scaled : x->v, n, copies, v, err));
out:
    free(scaled);
    return rc;
}

static int copy_there(struct gpu *g, void *to, const void *x, int64_t bytes, struct err *err)
{
    int rc = 0;
    CU(err, cudaMemcpyAsync(to, x, (size_t)bytes, cudaMemcpyDeviceToDevice, g->stream));
out:
    return rc;
}

/* `copies` copies, one after the other, of what is on the device; a single one stays where it is.
 */
static int take_there(struct gpu *g, const void *x, int64_t bytes, int copies, const void **out,
                      struct err *err)
{
    char *to = NULL;
    int rc = 0;
    *out = x;
    if (copies == 1)
        return 0;
    TRY(gpu_alloc(g, bytes * copies, &to, err));
    for (int i = 0; i < copies; i++)
        TRY(copy_there(g, to + i * bytes, x, bytes, err));
    *out = to;
out:
    return rc;
}

/* One matrix [n][d] of a head, from there or from the host. */
static int put_matrix(struct gpu *g, const float *x, const void *there, int64_t n, int d,
                      int copies, const void **out, struct err *err)
{
    return there ? take_there(g, there, n * d * 2, copies, out, err)
                 : gpu_put_as(g, DT_BF16, x, n * d, copies, out, err);
}

int session_call_head(const struct accel_session *s, uint64_t data)
{
    const struct session_call *c = &s->call;
    bool has = c->data && data >= c->data && data < c->data + (uint64_t)c->problem.heads;
    return has ? (int)(data - c->data) : -1;
}

/* Head i of the call that is there. */
static void head_of_call(struct accel_session *s, int i)
{
    const struct session_call *c = &s->call;
    const struct attn_problem *p = &c->problem;
    int kv = i / (p->heads / p->kv_heads);
    int64_t q = i * p->nq * p->d * 2, k = kv * p->nk * p->d * 2;
    s->head = (struct session_head){.data = c->data + (uint64_t)i,
                                    .copies = {1, 1},
                                    .q = (const char *)c->x.q + q,
                                    .k = (const char *)c->x.k + k,
                                    .v = (const char *)c->x.v + k,
                                    .v_exp = c->v_exp[kv]};
}

int session_put_head(struct accel_session *s, const struct attn_in *x, uint64_t data,
                     struct accel_heads copies, bool values, struct err *err)
{
    const struct accel_there *there = x->there;
    struct session_head *h = &s->head;
    struct gpu *g = &s->gpu;
    int rc = 0, in_call = copies.q == 1 ? session_call_head(s, data) : -1;
    if (in_call >= 0) {
        head_of_call(s, in_call);
        return 0;
    }
    if (!data || h->data != data || h->copies.q < copies.q || h->copies.kv < copies.kv) {
        forget(s);
        h->copies = copies;
        gpu_release(g, s->base);
        TRY(put_matrix(g, x->q, there ? there->q : NULL, x->nq, x->d, copies.q, &h->q, err));
        TRY(put_matrix(g, x->k, there ? there->k : NULL, x->nk, x->d, copies.kv, &h->k, err));
        h->data = data;
    }
    if (values && !h->v && there)
        TRY(take_there(g, there->v, x->nk * x->dv * 2, h->copies.kv, &h->v, err));
    else if (values && !h->v)
        TRY(put_values(g, x, h->copies.kv, &h->v_exp, &h->v, err));
out:
    if (rc)
        forget(s);
    return rc;
}

/* n heads of `bytes` each, one after the other: the arena is aligned to more than a head may be. */
static int take(struct gpu *g, int n, int64_t bytes, void *out, struct err *err)
{
    int64_t all;
    if (!mul_ok(n, bytes, &all))
        return err_set(err, ERR_NOMEM, "%d heads of %lld bytes", n, (long long)bytes);
    return gpu_alloc(g, all, out, err);
}

static int put_rows(struct gpu *g, const float *x, int64_t n, void *staging, void *to,
                    struct err *err)
{
    dtype_from_f32(DT_BF16, x, staging, n);
    return gpu_put(g, to, staging, n * 2, err);
}

/* n numbers of a call's q or k, from there or from the host. */
static int put_call_rows(struct gpu *g, const float *x, const void *there, int64_t n, void *staging,
                         void *to, struct err *err)
{
    return there ? copy_there(g, to, there, n * 2, err) : put_rows(g, x, n, staging, to, err);
}

static int put_call_values(struct gpu *g, const struct attn_in *x, float *scaled, void *staging,
                           int *v_exp, void *to, struct err *err)
{
    int64_t n = x->nk * x->dv;
    *v_exp = x->there ? 0 : values_exponent(x->v, n);
    if (*v_exp)
        values_scale(x->v, n, *v_exp, scaled);
    return put_call_rows(g, *v_exp ? scaled : x->v, x->there ? x->there->v : NULL, n, staging, to,
                         err);
}

static int put_tensors(struct accel_session *s, const struct accel_call *c, struct err *err)
{
    const struct attn_problem *p = &s->call.problem;
    int64_t q = p->nq * p->d, k = p->nk * p->d, most = q > k ? q : k;
    char *at_q, *at_k, *at_v;
    float *scaled = NULL;
    void *staging = NULL;
    int rc = 0;

    TRY(take(&s->gpu, p->heads, q * 2, &at_q, err));
    TRY(take(&s->gpu, p->kv_heads, k * 2, &at_k, err));
    TRY(take(&s->gpu, p->kv_heads, k * 2, &at_v, err));
    TRY(take(&s->gpu, p->heads, q * 2, &s->call.x.out, err));
    TRY(take(&s->gpu, p->heads, p->nq * 4, &s->call.x.lse, err));
    TRY(mem_alloc(&staging, most, 2, "operands in bf16", err));
    TRY(mem_alloc(&scaled, k, sizeof *scaled, "scaled values", err));
    for (int i = 0; i < c->n; i++) {
        const struct attn_in *x = c->x[i];
        TRY(put_call_rows(&s->gpu, x->q, x->there ? x->there->q : NULL, q, staging,
                          at_q + i * q * 2, err));
    }
    for (int g = 0; g < p->kv_heads; g++) {
        const struct attn_in *x = c->x[g * c->group];
        TRY(put_call_rows(&s->gpu, x->k, x->there ? x->there->k : NULL, k, staging,
                          at_k + g * k * 2, err));
        TRY(put_call_values(&s->gpu, x, scaled, staging, s->call.v_exp + g, at_v + g * k * 2, err));
    }
    TRY(gpu_sync(&s->gpu, err));
    s->call.x.q = at_q;
    s->call.x.k = at_k;
    s->call.x.v = at_v;
out:
    free(staging);
    free(scaled);
    return rc;
}

int session_put_call(struct accel_session *s, const struct accel_call *c, struct err *err)
{
    const struct attn_in *x = c->x[0];
    int rc = 0;
    if (s->call.data == c->data)
        return 0;
    forget(s);
    gpu_release(&s->gpu, s->base);
    s->call.problem = (struct attn_problem){c->n,  c->n / c->group, x->d,      x->nq,
                                            x->nk, x->scale,        x->causal, ATTN_DENSE};
    TRY(mem_alloc(&s->call.v_exp, c->n / c->group, sizeof *s->call.v_exp, "values", err));
    TRY(put_tensors(s, c, err));
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
    int rc = 0;
    if (c->dense.out)
        return 0;
    rc = metrics_dense_make(&s->gpu, &c->problem, &c->x, &c->dense, err);
    if (rc) {
        c->dense = (struct metrics_dense){0};
        gpu_release(&s->gpu, mark);
    }
    s->kept.dense = !rc && s->kept.jobs;
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
    int rc = 0;
    if (s->flush)
        CU(err, cudaMemsetAsync(s->flush, 0x5a, (size_t)(2 * s->gpu.l2_bytes), s->gpu.stream));
    TRY(timer_begin(s->timer, &s->gpu, &id, err));
    TRY(work->launch(&s->gpu, work->job, err));
    TRY(timer_end(s->timer, &s->gpu, err));
out:
    return rc;
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

int session_time_chain(struct accel_session *s, const struct session_work *work, int n, int chain,
                       int in_total, struct accel_time *times, struct accel_time *total,
                       struct err *err)
{
    double ns[SESSION_MAX_SAMPLES], sum[SESSION_MAX_SAMPLES] = {0};
    int rc = 0, samples = s->options.samples;

    timer_reset(s->timer);
    for (int i = n - 1; i >= 0; i--)
        TRY(warm_up(s, work + i, err));
    for (int k = 0; k < samples; k++)
        for (int i = 0; i < n; i++)
            TRY(sample(s, work + work_at(i, k, n, chain), err));
    TRY(timer_collect(s->timer, &s->gpu, err));
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < samples; k++) {
            ns[k] = timer_span(s->timer, (int64_t)k * n + place_of(i, k, n, chain)).kernel_ns;
            sum[k] += i < in_total ? ns[k] : 0;
        }
        times[i] = summary(ns, samples);
    }
    if (total)
        *total = summary(sum, samples);
out:
    return rc;
}

int session_time(struct accel_session *s, const struct session_work *work, int n,
                 struct accel_time *times, struct err *err)
{
    return session_time_chain(s, work, n, n, 0, times, NULL, err);
}

void session_share(struct accel_time *t, int copies)
{
    t->median /= copies;
    t->q1 /= copies;
    t->q3 /= copies;
}
