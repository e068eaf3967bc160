/*
 * metrics_session.c - metrics of a head in a replay's session: the order of the steps, and results
 * back to the host.
 */
#include "core/mem.h"
#include "cuda/metrics/metrics.h"
#include "cuda/session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct attn_problem dense_problem(const struct attn_in *x)
{
    return (struct attn_problem){1, 1, x->d, x->nq, x->nk, x->scale, x->causal, ATTN_DENSE};
}

/* ---- of an output --------------------------------------------------------------------------- */

int session_metrics_init(struct accel_session *s, const struct accel_head *h,
                         const struct attn_tensors *t, const struct attn_tensors *spare,
                         const struct attn_job *whole, struct session_metrics *m, struct err *err)
{
    struct attn_problem p = dense_problem(h->x);
    int rc = 0;

    memset(m, 0, sizeof *m);
    m->out = t->out;
    m->nq = p.nq;
    m->d = p.d;
    TRY(mem_zalloc(&m->ref, 1, sizeof *m->ref, "dense reference", err));
    m->all = !h->ptr;
    m->whole = whole;
    TRY(metrics_ref_init(&s->gpu, &p, spare, false, m->ref, err));
    TRY(gpu_alloc(&s->gpu, p.nq * (int64_t)sizeof *m->rows, &m->rows, err));
out:
    if (rc)
        session_metrics_free(m);
    return rc;
}

void session_metrics_free(struct session_metrics *m)
{
    if (m->ref)
        metrics_ref_free(m->ref);
    free(m->ref);
    memset(m, 0, sizeof *m);
}

int session_metrics_launch(struct gpu *g, const void *metrics, struct err *err)
{
    const struct session_metrics *m = metrics;
    int rc = 0;
    TRY(metrics_ref_launch(g, m->ref, m->out, m->rows, err));
    if (m->whole)
        TRY(attn_job_launch(g, m->whole, err));
out:
    return rc;
}

static int mass_by_lse(struct gpu *g, const struct session_metrics *m, struct accel_result *r,
                       struct err *err)
{
    float *lse = NULL;
    int rc = 0;
    if (m->whole) {
        TRY(mem_alloc(&lse, m->nq, sizeof *lse, "log-sum-exp", err));
        TRY(gpu_get(g, lse, m->whole->x.lse, m->nq * 4, err));
    }
    for (int64_t i = 0; i < m->nq; i++)
        r->mass[i] = metrics_kept(lse ? lse[i] : r->lse[i], r->dense_lse[i]);
out:
    free(lse);
    return rc;
}

/* Of a full mask nothing is lost, whatever the rounding of the LSEs. */
static void mass_of_all(const struct accel_result *r, int64_t nq)
{
    for (int64_t i = 0; i < nq; i++)
        r->mass[i] = isinf(r->dense_lse[i]) ? 0 : 1;
}

int session_metrics_fetch(struct accel_session *s, const struct session_metrics *m,
                          struct accel_result *r, struct err *err)
{
    int rc = 0;
    TRY(gpu_get(&s->gpu, r->rows, m->rows, m->nq * (int64_t)sizeof *m->rows, err));
    TRY(gpu_get(&s->gpu, r->dense_lse, m->ref->lse, m->nq * 8, err));
    if (m->all)
        mass_of_all(r, m->nq);
    else
        TRY(mass_by_lse(&s->gpu, m, r, err));
out:
    return rc;
}

/* ---- of the exact map ----------------------------------------------------------------------- */

static int launch_pass(struct gpu *g, const void *pass, struct err *err)
{
    return metrics_pass_launch(g, pass, err);
}

/* Thresholds [c0, c0 + n) of m in one pass. */
static int map_levels(struct accel_session *s, const struct metrics_pass *pass, int c0, int n,
                      struct accel_map *m, struct err *err)
{
    struct metrics_below below;
    struct accel_time time;
    struct session_work work = {launch_pass, pass};
    int rc = 0;

    TRY(metrics_pass_launch(&s->gpu, pass, err));
    TRY(metrics_pass_below(&s->gpu, pass, &below, err));
    for (int u = 0; u < ACCEL_UNITS; u++)
        for (int i = 0; i < n; i++) {
            m->units[u * m->n_c + c0 + i] = below.units[u][i];
            m->pairs[u * m->n_c + c0 + i] = below.pairs[u][i];
        }
    m->p_max = fmax(m->p_max, below.p_max); /* of which either may be NAN */
    if (s->options.samples > 0) {
        TRY(session_time(s, &work, 1, &time, err));
        m->time.median += time.median;
        m->time.q1 += time.q1;
        m->time.q3 += time.q3;
        m->time.samples = time.samples;
    }
out:
    return rc;
}

static int sum_error(struct accel_session *s, const struct metrics_pass *pass,
                     const struct attn_in *x, struct accel_map *m, struct err *err)
{
    double *sum = NULL;
    int rc = 0;
    TRY(mem_alloc(&sum, x->nq, sizeof *sum, "sums of rows", err));
    TRY(metrics_pass_sums(&s->gpu, pass, sum, err));
    m->sum_err = 0;
    for (int64_t i = 0; i < x->nq; i++) {
        bool sees = !x->causal || i + x->nk - x->nq >= 0;
        double e = fabs(sum[i] - (sees ? 1 : 0));
        if (!(e <= m->sum_err)) /* NaN stays */
            m->sum_err = e;
    }
out:
    free(sum);
    return rc;
}

/* The dense reference of a head whose attention has not been measured; t has its q, k, v. */
static int measure_norms(struct accel_session *s, const struct attn_in *x,
                         const struct attn_problem *p, struct attn_tensors *t, bool keep_out,
                         struct metrics_ref *ref, struct err *err)
{
    struct gpu *g = &s->gpu;
    int rc = 0;
    TRY(gpu_alloc(g, x->nq * x->d * 2, &t->out, err));
    TRY(gpu_alloc(g, x->nq * 4, &t->lse, err));
    TRY(metrics_ref_init(g, p, t, keep_out, ref, err));
    TRY(metrics_ref_launch(g, ref, NULL, NULL, err));
out:
    return rc;
}

static int put_norms(struct gpu *g, const double *lse, int64_t n, void **norm, struct err *err)
{
    float(*pair)[2] = NULL;
    int rc = 0;
    TRY(mem_alloc(&pair, n, sizeof *pair, "normalisers", err));
    for (int64_t i = 0; i < n; i++)
        metrics_norm(lse[i], pair[i]);
    TRY(gpu_alloc(g, n * (int64_t)sizeof *pair, norm, err));
    TRY(gpu_put(g, *norm, pair, n * (int64_t)sizeof *pair, err));
    TRY(gpu_sync(g, err));
out:
    free(pair);
    return rc;
}

static int map_locked(struct accel_session *s, const struct attn_in *x, struct accel_map *m,
                      struct err *err)
{
    struct gpu *g = &s->gpu;
    struct gpu_mark mark = s->base, inner;
    struct attn_problem p = dense_problem(x);
    struct attn_tensors t = {0};
    struct metrics_ref ref = {0};
    void *norm = NULL;
    struct metrics_pass pass = {0};
    int rc = 0;

    TRY(session_put_head(s, x, m->data, (struct accel_heads){1, 1}, !m->lse, err));
    int64_t in_call = session_call_head(s, m->data);
    mark = gpu_mark(g);
    if (in_call >= 0)
        TRY(session_call_dense(s, err));
    mark = gpu_mark(g);
    t = (struct attn_tensors){.q = s->head.q, .k = s->head.k, .v = s->head.v};
    if (in_call >= 0) {
        norm = (float *)s->call.dense.norm + 2 * in_call * x->nq;
    } else if (m->lse) {
        TRY(put_norms(g, m->lse, x->nq, &norm, err));
    } else {
        TRY(measure_norms(s, x, &p, &t, false, &ref, err));
        norm = ref.norm;
    }
    inner = gpu_mark(g);
    for (int c0 = 0; c0 < m->n_c; c0 += METRICS_C) {
        int n = m->n_c - c0 < METRICS_C ? m->n_c - c0 : METRICS_C;
        struct metrics_ask ask = {.c = m->c + c0, .n_c = n, .sums = m->sums && c0 == 0};
        TRY(metrics_pass_init(g, &p, &t, norm, &ask, &pass, err));
        TRY(map_levels(s, &pass, c0, n, m, err));
        if (pass.sums && c0 == 0)
            TRY(sum_error(s, &pass, x, m, err));
        metrics_pass_free(&pass);
        gpu_release(g, inner);
    }
out:
    metrics_pass_free(&pass);
    metrics_ref_free(&ref);
    gpu_release(g, mark);
    return rc;
}

int session_map(struct accel_session *s, const struct attn_in *x, struct accel_map *m,
                struct err *err)
{
    int rc = 0;
    session_lock(s);
    CU(err, cudaSetDevice(s->gpu.device));
    m->time = (struct accel_time){0, 0, 0, 0};
    m->p_max = m->sum_err = NAN;
    rc = map_locked(s, x, m, err);
out:
    session_unlock(s);
    return rc;
}

/* ---- dense attention as a service ----------------------------------------------------------- */

static int fetch_outputs(struct accel_session *s, const float *from, int64_t n, double *out,
                         struct err *err)
{
    double unit = ldexp(1, s->head.v_exp);
    float *part = NULL;
    int rc = 0;
    TRY(mem_alloc(&part, n, sizeof *part, "dense outputs", err));
    TRY(gpu_get(&s->gpu, part, from, n * (int64_t)sizeof *part, err));
    for (int64_t i = 0; i < n; i++)
        out[i] = part[i] * unit;
out:
    free(part);
    return rc;
}

/* A head of the call on the device: what is there of the whole call. */
static int reference_in_call(struct accel_session *s, const struct attn_in *x, int64_t head,
                             double *out, double *lse, struct err *err)
{
    int rc = 0;
    TRY(session_call_dense(s, err));
    TRY(gpu_get(&s->gpu, lse, s->call.dense.lse + head * x->nq, x->nq * 8, err));
    if (out)
        TRY(fetch_outputs(s, s->call.dense.out + head * x->nq * x->dv, x->nq * x->dv, out, err));
out:
    return rc;
}

static int reference_locked(struct accel_session *s, const struct attn_in *x, uint64_t data,
                            double *out, double *lse, struct err *err)
{
    struct gpu_mark mark = s->base;
    struct attn_problem p = dense_problem(x);
    struct metrics_ref ref = {0};
    struct attn_tensors t = {0};
    int rc = 0;

    TRY(session_put_head(s, x, data, (struct accel_heads){1, 1}, true, err));
    int64_t in_call = session_call_head(s, data);
    if (in_call >= 0)
        return reference_in_call(s, x, in_call, out, lse, err);
    mark = gpu_mark(&s->gpu);
    t = (struct attn_tensors){.q = s->head.q, .k = s->head.k, .v = s->head.v};
    TRY(measure_norms(s, x, &p, &t, out != NULL, &ref, err));
    TRY(gpu_get(&s->gpu, lse, ref.lse, x->nq * 8, err));
    if (out)
        TRY(fetch_outputs(s, ref.out, x->nq * x->dv, out, err));
out:
    metrics_ref_free(&ref);
    gpu_release(&s->gpu, mark);
    return rc;
}

int session_reference(struct accel_session *s, const struct attn_in *x, uint64_t data, double *out,
                      double *lse, struct err *err)
{
    int rc = 0;
    session_lock(s);
    CU(err, cudaSetDevice(s->gpu.device));
    rc = reference_locked(s, x, data, out, lse, err);
out:
    session_unlock(s);
    return rc;
}
