/*
 * trace_check.c - dense attention of a few rows, with the keys in pieces:
 *
 *   O_i = sum_j e^{s_ij - m} v_j / (sum_j e^{s_ij - m} + e^{z - m}),   LSE_i = m + ln sum_j e^{s_ij
 * - m}
 *
 * with a running maximum m (online softmax), all in double; s has the call's cap and bias, j its
 * window or chunk, z is a sink. Padding text is no key j and no row i.
 * Memory is one piece of keys and values, whatever the length; time O(rows n d) per head.
 */
#include "capture/trace/trace_tools.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"
#include "core/trace.h"

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
    int64_t *at;             /* [n] query rows, as stored */
    int64_t *row;            /* [n] the same as rows of x: of a sample, positions */
    float *q, *out, *lse;    /* [n][d], [n][dv], [n] as stored */
    double *max, *sum, *acc; /* [n], [n], [n][dv] */
    float *k, *v;            /* [PIECE][d], [PIECE][dv] */
    double v_max;            /* largest |v| of the head */
    float *rel;              /* [2 n_k - 1], NULL: no relative bias */
    struct attn_in x;        /* the head's shape, scale, reach, cap, bias and sink */
    struct trace_span padding;
};

static void rows_free(struct rows *r)
{
    free(r->at);
    free(r->row);
    free(r->q);
    free(r->out);
    free(r->lse);
    free(r->max);
    free(r->sum);
    free(r->acc);
    free(r->k);
    free(r->v);
    free(r->rel);
}

static bool in_span(const struct trace_span *s, int64_t at)
{
    return at >= s->first && at < s->first + s->count;
}

/* Row i of n: the first, the last and evenly between, padding left out. */
static int64_t row_at(const struct trace_meta *m, const struct trace_span *padding, int64_t i,
                      int64_t n)
{
    int64_t last = m->n_q - padding->count - 1, at = n > 1 ? i * last / (n - 1) : last;
    return at < padding->first ? at : at + padding->count;
}

static int rows_init(const struct check *c, int64_t call, struct rows *r, struct err *err)
{
    const struct trace_meta *m = trace_meta(c->t);
    struct trace_span padding = trace_padding(m, &trace_call(c->t, call)->score);
    int64_t valid = m->n_q - padding.count;
    struct row_sample s;
    bool sampled = trace_rows(c->t, &s);
    memset(r, 0, sizeof *r);
    r->padding = padding;
    r->n = c->rows < valid ? c->rows : valid;
    PASS_ON(mem_alloc(&r->at, r->n, sizeof *r->at, "rows", err));
    PASS_ON(mem_alloc(&r->row, r->n, sizeof *r->row, "rows", err));
    PASS_ON(mem_alloc(&r->q, r->n * m->head_dim, sizeof *r->q, "rows of q", err));
    PASS_ON(mem_alloc(&r->out, r->n * m->v_dim, sizeof *r->out, "rows of out", err));
    PASS_ON(mem_alloc(&r->lse, r->n, sizeof *r->lse, "lse", err));
    PASS_ON(mem_alloc(&r->max, r->n, sizeof *r->max, "softmax", err));
    PASS_ON(mem_zalloc(&r->sum, r->n, sizeof *r->sum, "softmax", err));
    PASS_ON(mem_zalloc(&r->acc, r->n * m->v_dim, sizeof *r->acc, "softmax", err));
    PASS_ON(mem_alloc(&r->k, PIECE * (int64_t)m->head_dim, sizeof *r->k, "keys", err));
    PASS_ON(mem_alloc(&r->v, PIECE * (int64_t)m->v_dim, sizeof *r->v, "values", err));
    for (int64_t i = 0; i < r->n; i++) {
        r->at[i] = row_at(m, &padding, i, r->n);
        r->row[i] = sampled ? s.at[r->at[i]] : r->at[i];
        r->max[i] = -INFINITY;
    }
    return 0;
}

/* Cap and bias of a scaled product of the row at position p with key j. */
static double modified(const struct score_mods *mods, double s, int64_t p, int64_t j)
{
    int64_t distance = j - p;
    if (mods->softcap > 0)
        s = mods->softcap * tanh(s / mods->softcap);
    if (mods->rel)
        s += mods->rel[distance];
    s += pair_bias_at(&mods->pair, p, j);
    return s - mods->alibi * fabs((double)distance);
}

/* Key j for row i. */
static void add_key(struct rows *r, const struct trace_meta *m, int64_t i, int64_t j,
                    const float *k, const float *v)
{
    const float *q = r->q + i * m->head_dim;
    double *acc = r->acc + i * m->v_dim, s = 0;
    for (int d = 0; d < m->head_dim; d++)
        s += (double)q[d] * k[d];
    s = modified(&r->x.mods, s * r->x.scale, r->row[i] + r->x.nk - r->x.nq, j);
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

/* Keys k0 to k0 + n, whose k and v are in r. */
static void add_piece(const struct trace_meta *m, int64_t k0, int64_t n, struct rows *r)
{
    for (int64_t j = 0; j < n; j++) {
        const float *k = r->k + j * m->head_dim, *v = r->v + j * m->v_dim;
        if (in_span(&r->padding, k0 + j))
            continue;
        for (int d = 0; d < m->v_dim; d++)
            r->v_max = fmax(r->v_max, fabs((double)v[d]));
        for (int64_t i = 0; i < r->n; i++)
            if (k0 + j >= attn_first(&r->x, r->row[i]) && k0 + j < attn_limit(&r->x, r->row[i]))
                add_key(r, m, i, k0 + j, k, v);
    }
}

static int run_rows(const struct check *c, int64_t call, int head, struct rows *r, struct err *err)
{
    const struct trace_meta *m = trace_meta(c->t);
    const struct trace_call *info = trace_call(c->t, call);
    int kv = head / (m->heads / m->kv_heads);
    for (int64_t i = 0; i < r->n; i++) {
        PASS_ON(trace_read(c->t, call, TRACE_Q, head, r->at[i], 1, r->q + i * m->head_dim, err));
        if (info->has_out)
            PASS_ON(
                trace_read(c->t, call, TRACE_OUT, head, r->at[i], 1, r->out + i * m->v_dim, err));
        if (info->has_lse)
            PASS_ON(trace_read(c->t, call, TRACE_LSE, head, r->at[i], 1, r->lse + i, err));
    }
    for (int64_t k0 = 0; k0 < m->n_k; k0 += PIECE) {
        int64_t n = m->n_k - k0 < PIECE ? m->n_k - k0 : PIECE;
        PASS_ON(trace_read(c->t, call, TRACE_K, kv, k0, n, r->k, err));
        PASS_ON(trace_read(c->t, call, TRACE_V, kv, k0, n, r->v, err));
        add_piece(m, k0, n, r);
    }
    return 0;
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
            double want = r->acc[i * m->v_dim + d] / r->sum[i] * attn_key_share(&r->x, lse),
                   have = r->out[i * m->v_dim + d];
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

/* The sums of columns of a head, where all queries of the prompt are there; text of the first
 * difference. */
static int check_columns(const struct check *c, int64_t call, int head, char what[200],
                         struct err *err)
{
    const struct trace_meta *m = trace_meta(c->t);
    int64_t n = m->decode_from, d = m->head_dim;
    OWN(free_at) float *q = NULL, *k = NULL, *have = NULL, *rel = NULL;
    OWN(free_at) double *sum = NULL;
    OWN(attn_release) struct attn_ops ops = {0};
    struct attn_in in;
    PASS_ON(mem_alloc(&q, n * d, sizeof *q, "queries", err));
    PASS_ON(mem_alloc(&k, n * d, sizeof *k, "keys", err));
    PASS_ON(mem_alloc(&have, n, sizeof *have, "sums of columns", err));
    PASS_ON(mem_zalloc(&sum, n, sizeof *sum, "sums of columns", err));
    PASS_ON(trace_attn(c->t, call, head, &in, &rel, err));
    PASS_ON(trace_read(c->t, call, TRACE_Q, head, 0, n, q, err));
    PASS_ON(trace_read(c->t, call, TRACE_K, head / (m->heads / m->kv_heads), 0, n, k, err));
    PASS_ON(trace_read_values(c->t, call, TRACE_COL_SUM, head, have, err));
    in.nq = in.nk = n;
    in.q = q;
    in.k = k;
    PASS_ON(attn_prepare(&ops, &in, PREC_F64, err));
    PASS_ON(attn_column_sums(&ops, 0, ops.in.nq, true, sum, err));
    for (int64_t j = 0; j < n && !what[0]; j++)
        if (!(fabs(have[j] - sum[j]) <= 1e-6 * sum[j] + 1e-12))
            snprintf(what, 200, "col_sum of key %lld is %.9g, q and k give %.9g", (long long)j,
                     have[j], sum[j]);
    return 0;
}

static int check_rows(struct check *c, int64_t call, int head, struct rows *r, char what[200],
                      struct err *err)
{
    PASS_ON(rows_init(c, call, r, err));
    PASS_ON(trace_attn(c->t, call, head, &r->x, &r->rel, err));
    PASS_ON(run_rows(c, call, head, r, err));
    compare(c, call, r, what);
    return 0;
}

static int check_head(void *ctx, int64_t item, int worker, struct err *err)
{
    struct check *c = ctx;
    const struct trace_meta *m = trace_meta(c->t);
    int64_t call = item / m->heads;
    int head = (int)(item % m->heads);
    const struct trace_call *info = trace_call(c->t, call);
    OWN(rows_free) struct rows r = {0};
    char what[200] = "", object[128];
    bool columns = info->has_col_sum && m->n_q == m->n_k;
    if (!info->has_out && !info->has_lse && !columns)
        return 0;
    if (info->has_out || info->has_lse)
        PASS_ON(check_rows(c, call, head, &r, what, err));
    if (columns && !what[0])
        PASS_ON(check_columns(c, call, head, what, err));
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
    return 0;
}

int trace_check_attention(const struct trace *t, int jobs, int64_t rows, trace_bad_fn *bad,
                          void *ctx, int64_t *n_bad, int64_t *n_rows, struct err *err)
{
    struct check c = {.t = t, .rows = rows, .bad = bad, .ctx = ctx};
    int64_t items = trace_calls(t) * trace_meta(t)->heads;
    int rc = 0;
    pthread_mutex_init(&c.lock, NULL);
    if (rows > 0 && trace_meta(t)->decode_from)
        TRY(gemm_ready(err));
    if (rows > 0) {
        c.progress = progress_start("attention", (double)items, items);
        rc = pool_run(jobs, items, check_head, &c, err);
        progress_end(&c.progress);
    }
    *n_bad = c.n_bad;
    *n_rows = c.n_rows;
out:
    pthread_mutex_destroy(&c.lock);
    return rc;
}
