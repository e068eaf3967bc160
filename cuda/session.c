/*
 * session.c - the GPU, its timer and its samples (session.h).
 *
 * Every sample of a work lies between samples of the others, so that a drift of clocks or
 * temperature affects all works equally.
 */
#include "cuda/session.h"

#include "core/clock.h"
#include "core/mem.h"
#include "cuda/copies.h"
#include "cuda/values.h"

#include <math.h>
#include <stdlib.h>

void session_close(struct accel_session **s)
{
    if (!*s)
        return;
    counters_close(&(*s)->counters);
    timer_close(&(*s)->timer);
    gpu_close(&(*s)->gpu);
    pthread_mutex_destroy(&(*s)->lock);
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
    s->matmul_tflops = s->copy_tbs = NAN;
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

static int put_values(struct gpu *g, const struct attn_in *x, struct session_head *h,
                      struct err *err)
{
    int64_t n = x->nk * x->dv;
    float *scaled = NULL;
    int rc = 0;
    h->v_exp = values_exponent(x->v, n);
    if (h->v_exp) {
        TRY(mem_alloc(&scaled, n, sizeof *scaled, "scaled values", err));
        values_scale(x->v, n, h->v_exp, scaled);
    }
    TRY(gpu_put_as(g, DT_BF16, scaled ? scaled : x->v, n, h->copies.kv, &h->v, err));
out:
    free(scaled);
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
        CU(err,
           cudaMemcpyAsync(to + i * bytes, x, (size_t)bytes, cudaMemcpyDeviceToDevice, g->stream));
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

int session_put_head(struct accel_session *s, const struct attn_in *x, uint64_t data,
                     struct accel_heads copies, bool values, struct err *err)
{
    const struct accel_there *there = x->there;
    struct session_head *h = &s->head;
    struct gpu *g = &s->gpu;
    int rc = 0;
    if (!data || h->data != data || h->copies.q < copies.q || h->copies.kv < copies.kv) {
        *h = (struct session_head){.copies = copies};
        gpu_release(g, s->base);
        TRY(put_matrix(g, x->q, there ? there->q : NULL, x->nq, x->d, copies.q, &h->q, err));
        TRY(put_matrix(g, x->k, there ? there->k : NULL, x->nk, x->d, copies.kv, &h->k, err));
        h->data = data;
    }
    if (values && !h->v && there)
        TRY(take_there(g, there->v, x->nk * x->dv * 2, h->copies.kv, &h->v, err));
    else if (values && !h->v)
        TRY(put_values(g, x, h, err));
out:
    if (rc)
        *h = (struct session_head){0};
    return rc;
}

/* ---- time ----------------------------------------------------------------------------------- */

/* Clocks and temperature settle in a second; done once per session, with the kernels themselves. */
static int warm_up(struct accel_session *s, const struct session_work *work, struct err *err)
{
    double end = clock_ns() + (s->warm ? 1e7 : 1e9);
    int rc = 0;
    do {
        for (int i = 0; i < 3 && !rc; i++)
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

static struct accel_time summary(const struct timer *t, int first, int step, int n)
{
    double ns[SESSION_MAX_SAMPLES];
    for (int i = 0; i < n; i++)
        ns[i] = timer_span(t, first + (int64_t)step * i).kernel_ns;
    struct quartiles q = quartiles_of(ns, n);
    return (struct accel_time){q.median, q.q1, q.q3, n};
}

int session_time(struct accel_session *s, const struct session_work *work, int n,
                 struct accel_time *times, struct err *err)
{
    int rc = 0, samples = s->options.samples;

    timer_reset(s->timer);
    for (int i = n - 1; i >= 0; i--)
        TRY(warm_up(s, work + i, err));
    for (int k = 0; k < samples; k++)
        for (int i = 0; i < n; i++)
            TRY(sample(s, work + i, err));
    TRY(timer_collect(s->timer, &s->gpu, err));
    for (int i = 0; i < n; i++)
        times[i] = summary(s->timer, i, n, samples);
out:
    return rc;
}

void session_share(struct accel_time *t, int copies)
{
    t->median /= copies;
    t->q1 /= copies;
    t->q3 /= copies;
}
