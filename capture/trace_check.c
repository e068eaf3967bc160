/*
 * trace_check.c - dense attention of a few rows, with the keys in pieces:
 *
 *   O_i = sum_j e^{s_ij - m} v_j / sum_j e^{s_ij - m},   LSE_i = m + ln sum_j e^{s_ij - m}
 *
 * with a running maximum m (online softmax), all in double. Memory is one piece of keys and values,
 * whatever the length; time O(rows n d) per head.
 */
#include "capture/trace_check.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIECE 1024 /* keys at a time */

struct check {
    const struct trace *t;
    int64_t rows;
    trace_bad_fn *bad;
    void *ctx;
    int64_t n_bad, n_rows;
    struct progress *progress;
    pthread_mutex_t lock;
};

/* The rows of one head under test and their running softmax. */
struct rows {
    int64_t n;
    int64_t *at;             /* [n] query rows */
    float *q, *out, *lse;    /* [n][d], [n][dv], [n] as stored */
    double *max, *sum, *acc; /* [n], [n], [n][dv] */
    float *k, *v;            /* [PIECE][d], [PIECE][dv] */
    double v_max;            /* largest |v| of the head */
};

static void rows_free(struct rows *r)
{
    free(r->at);
    free(r->q);
    free(r->out);
    free(r->lse);
    free(r->max);
    free(r->sum);
    free(r->acc);
    free(r->k);
    free(r->v);
}

static int rows_init(struct rows *r, const struct trace_meta *m, int64_t want, struct err *err)
{
    int rc = 0;
    memset(r, 0, sizeof *r);
    r->n = want < m->n_q ? want : m->n_q;
    TRY(mem_alloc(&r->at, r->n, sizeof *r->at, "rows", err));
    TRY(mem_alloc(&r->q, r->n * m->head_dim, sizeof *r->q, "rows of q", err));
    TRY(mem_alloc(&r->out, r->n * m->v_dim, sizeof *r->out, "rows of out", err));
    TRY(mem_alloc(&r->lse, r->n, sizeof *r->lse, "lse", err));
    TRY(mem_alloc(&r->max, r->n, sizeof *r->max, "softmax", err));
    TRY(mem_zalloc(&r->sum, r->n, sizeof *r->sum, "softmax", err));
    TRY(mem_zalloc(&r->acc, r->n * m->v_dim, sizeof *r->acc, "softmax", err));
    TRY(mem_alloc(&r->k, PIECE * (int64_t)m->head_dim, sizeof *r->k, "keys", err));
    TRY(mem_alloc(&r->v, PIECE * (int64_t)m->v_dim, sizeof *r->v, "values", err));
    for (int64_t i = 0; i < r->n; i++) {
        r->at[i] = r->n > 1 ? i * (m->n_q - 1) / (r->n - 1) : m->n_q - 1;
        r->max[i] = -INFINITY;
    }
out:
    return rc;
}

/* One key for row i. */
static void add_key(struct rows *r, const struct trace_meta *m, int64_t i, const float *k,
                    const float *v)
{
    const float *q = r->q + i * m->head_dim;
    double *acc = r->acc + i * m->v_dim, s = 0;

    for (int d = 0; d < m->head_dim; d++)
        s += (double)q[d] * k[d];
    s *= m->scale;
    if (s > r->max[i]) {
        double shrink = exp(r->max[i] - s);
        r->sum[i] *= shrink;
        for (int d = 0; d < m->v_dim; d++)
            acc[d] *= shrink;
        r->max[i] = s;
    }
    double p = exp(s - r->max[i]);
    r->sum[i] += p;
    for (int d = 0; d < m->v_dim; d++)
        acc[d] += p * v[d];
}

static int run_rows(const struct check *c, int64_t call, int head, struct rows *r, struct err *err)
{
    const struct trace_meta *m = trace_meta(c->t);
    const struct trace_call *info = trace_call(c->t, call);
    int kv = head / (m->heads / m->kv_heads), rc = 0;

    for (int64_t i = 0; i < r->n; i++) {
        TRY(trace_read(c->t, call, TRACE_Q, head, r->at[i], 1, r->q + i * m->head_dim, err));
        if (info->has_out)
            TRY(trace_read(c->t, call, TRACE_OUT, head, r->at[i], 1, r->out + i * m->v_dim, err));
        if (info->has_lse)
            TRY(trace_read(c->t, call, TRACE_LSE, head, r->at[i], 1, r->lse + i, err));
    }
    for (int64_t k0 = 0; k0 < m->n_k; k0 += PIECE) {
        int64_t n = m->n_k - k0 < PIECE ? m->n_k - k0 : PIECE;
        TRY(trace_read(c->t, call, TRACE_K, kv, k0, n, r->k, err));
        TRY(trace_read(c->t, call, TRACE_V, kv, k0, n, r->v, err));
        for (int64_t j = 0; j < n * m->v_dim; j++)
            r->v_max = fmax(r->v_max, fabs((double)r->v[j]));
        for (int64_t i = 0; i < r->n; i++) {
            /* The last query sees the last key. */
            int64_t limit = m->causal ? r->at[i] + m->n_k - m->n_q + 1 - k0 : n;
            for (int64_t j = 0; j < n && j < limit; j++)
                add_key(r, m, i, r->k + j * m->head_dim, r->v + j * m->v_dim);
        }
    }
out:
    return rc;
}

static double half_ulp(enum dtype t)
{
    return t == DT_BF16 ? 0x1p-8 : t == DT_F16 ? 0x1p-11 : 0x1p-24;
}

/* Text of the first difference, "" when all rows agree. */
static void compare(const struct check *c, int64_t call, const struct rows *r, char what[200])
{
    const struct trace_meta *m = trace_meta(c->t);
    const struct trace_call *info = trace_call(c->t, call);
    bool exact = strcmp(m->compute, "float32") == 0 || strcmp(m->compute, "float64") == 0;
    double slack = (exact ? 1e-5 : 0x1p-8) * r->v_max, lse_slack = exact ? 1e-3 : 2e-2;

    what[0] = '\0';
    for (int64_t i = 0; i < r->n; i++) {
        double lse = r->max[i] + log(r->sum[i]);
        if (info->has_lse && !(fabs(lse - r->lse[i]) <= lse_slack)) {
            snprintf(what, 200, "lse of query %lld is %.9g, q and k give %.9g", (long long)r->at[i],
                     r->lse[i], lse);
            return;
        }
        for (int d = 0; info->has_out && d < m->v_dim; d++) {
            double want = r->acc[i * m->v_dim + d] / r->sum[i], have = r->out[i * m->v_dim + d];
            if (!(fabs(have - want) <= 1.01 * half_ulp(m->dtype) * fabs(want) + slack)) {
                snprintf(what, 200,
                         "out of query %lld, dim %d, is %.9g, dense attention of q, k, v "
                         "gives %.9g",
                         (long long)r->at[i], d, have, want);
                return;
            }
        }
    }
}

static int check_head(void *ctx, int64_t item, int worker, struct err *err)
{
    struct check *c = ctx;
    const struct trace_meta *m = trace_meta(c->t);
    int64_t call = item / m->heads;
    int head = (int)(item % m->heads), rc = 0;
    const struct trace_call *info = trace_call(c->t, call);
    struct rows r = {0};
    char what[200], object[128];

    if (!info->has_out && !info->has_lse)
        return 0;
    TRY(rows_init(&r, m, c->rows, err));
    TRY(run_rows(c, call, head, &r, err));
    compare(c, call, &r, what);
    snprintf(object, sizeof object, "/calls/step-%03d/%s/layer-%02d", info->step, info->branch,
             info->layer);
    pthread_mutex_lock(&c->lock);
    c->n_rows += r.n;
    if (what[0]) {
        c->n_bad++;
        c->bad(c->ctx, object, head, what);
    }
    pthread_mutex_unlock(&c->lock);
    progress_add(c->progress, 1, 1, object);
out:
    rows_free(&r);
    return rc;
}

int trace_check_attention(const struct trace *t, int jobs, int64_t rows, trace_bad_fn *bad,
                          void *ctx, int64_t *n_bad, int64_t *n_rows, struct err *err)
{
    struct check c = {.t = t, .rows = rows, .bad = bad, .ctx = ctx};
    int64_t items = trace_calls(t) * trace_meta(t)->heads;
    int rc = 0;

    pthread_mutex_init(&c.lock, NULL);
    if (rows > 0) {
        c.progress = progress_start("attention", (double)items, items);
        rc = pool_run(jobs, items, check_head, &c, err);
        progress_end(&c.progress);
    }
    pthread_mutex_destroy(&c.lock);
    *n_bad = c.n_bad;
    *n_rows = c.n_rows;
    return rc;
}
