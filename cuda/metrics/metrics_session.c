/*
 * metrics_session.c - the exact attention of a head in a replay's session: dense rows, and how
 * sparse its map is.
 */
#include "cuda/metrics/metrics.h"
#include "cuda/session_runs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A head on the device with its dense attention, which lies above the call. */
struct dense_head {
    struct attn_problem p;
    struct attn_tensors x; /* q, k, v */
    int64_t row;           /* its first row in call.dense */
    int v_exp;
};

static int find_head(struct accel_session *s, const struct attn_in *x, uint64_t data,
                     struct dense_head *h, struct err *err)
{
    const struct session_call *c = &s->call;
    int i = 0, rc = 0;
    CU(err, cudaSetDevice(s->gpu.device));
    TRY(session_put_head(s, x, data, &i, err));
    TRY(session_call_dense(s, err));
    int kv = i / (c->problem.heads / c->problem.kv_heads);
    h->p = c->problem;
    h->p.heads = h->p.kv_heads = 1;
    h->x = run_tensors(c, &c->x, (struct head_run){i, 1, 1});
    h->row = (i - c->copies) * c->problem.nq;
    h->v_exp = c->v_exp[kv];
out:
    return rc;
}

/* ---- how sparse the map is ------------------------------------------------------------------ */

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
        TRY(session_time(s, &work, &time, err));
        m->time.median += time.median;
        m->time.q1 += time.q1;
        m->time.q3 += time.q3;
        m->time.samples = time.samples;
    }
out:
    return rc;
}

static int sum_error(struct accel_session *s, const struct metrics_pass *pass,
                     const struct attn_problem *p, struct accel_map *m, struct err *err)
{
    double *sum = NULL;
    int rc = 0;
    TRY(mem_alloc(&sum, p->nq, sizeof *sum, "sums of rows", err));
    TRY(metrics_pass_sums(&s->gpu, pass, sum, err));
    m->sum_err = 0;
    for (int64_t i = 0; i < p->nq; i++) {
        bool sees = !p->causal || i + p->nk - p->nq >= 0;
        double e = fabs(sum[i] - (sees ? 1 : 0));
        if (!(e <= m->sum_err)) /* NaN stays */
            m->sum_err = e;
    }
out:
    free(sum);
    return rc;
}

static int map_locked(struct accel_session *s, const struct attn_in *x, uint64_t data,
                      struct accel_map *m, struct err *err)
{
    struct gpu *g = &s->gpu;
    struct metrics_pass pass = {0};
    struct dense_head h;
    int rc = find_head(s, x, data, &h, err);
    struct gpu_mark mark = gpu_mark(g);

    for (int c0 = 0; c0 < m->n_c && !rc; c0 += METRICS_C) {
        int n = m->n_c - c0 < METRICS_C ? m->n_c - c0 : METRICS_C;
        struct metrics_ask ask = {.c = m->c + c0, .n_c = n, .sums = m->sums && c0 == 0};
        const float *norm = (const float *)s->call.dense.norm + 2 * h.row;
        TRY(metrics_pass_init(g, &h.p, &h.x, norm, &ask, &pass, err));
        TRY(map_levels(s, &pass, c0, n, m, err));
        if (pass.sums && c0 == 0)
            TRY(sum_error(s, &pass, &h.p, m, err));
        metrics_pass_free(&pass);
        gpu_release(g, mark);
    }
out:
    metrics_pass_free(&pass);
    gpu_release(g, mark);
    return rc;
}

int session_map(struct accel_session *s, const struct attn_in *x, uint64_t data,
                struct accel_map *m, struct err *err)
{
    session_lock(s);
    m->time = (struct accel_time){0, 0, 0, 0};
    m->p_max = m->sum_err = NAN;
    int rc = map_locked(s, x, data, m, err);
    session_unlock(s);
    return rc;
}

/* ---- dense attention as a service ----------------------------------------------------------- */

static int reference_locked(struct accel_session *s, const struct attn_in *x, uint64_t data,
                            double *out, double *lse, struct err *err)
{
    int64_t n = x->nq * x->dv;
    struct dense_head h;
    float *part = NULL;
    int rc = 0;

    TRY(find_head(s, x, data, &h, err));
    TRY(gpu_get(&s->gpu, lse, s->call.dense.lse + h.row, x->nq * 8, err));
    if (!out)
        return 0;
    TRY(mem_alloc(&part, n, sizeof *part, "dense outputs", err));
    TRY(gpu_get(&s->gpu, part, s->call.dense.out + h.row * x->dv, n * (int64_t)sizeof *part, err));
    for (int64_t i = 0; i < n; i++)
        out[i] = part[i] * ldexp(1, h.v_exp);
out:
    free(part);
    return rc;
}

int session_reference(struct accel_session *s, const struct attn_in *x, uint64_t data, double *out,
                      double *lse, struct err *err)
{
    session_lock(s);
    int rc = reference_locked(s, x, data, out, lse, err);
    session_unlock(s);
    return rc;
}
