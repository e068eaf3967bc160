/*
 * layerattn.c - see layerattn.h. Heads of a layer run in parallel, each on one thread.
 */
#include "eval/layerattn.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/text.h"
#include "sim/simhead.h"
#include "sim/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void layer_attn_free(struct layer_attn *a)
{
    free(a->elem);
    free(a->exec);
    free(a->is_dense);
    free(a->local_err);
    free(a->local_ref);
    memset(a, 0, sizeof *a);
}

int layer_attn_init(struct layer_attn *a, const struct method_run *run, const struct eval_how *how,
                    const struct llm_config *c, const char *model, int jobs, struct err *err)
{
    int64_t all = (int64_t)c->layers * c->heads;
    int rc = 0;

    *a = (struct layer_attn){.run = run, .how = how, .c = c, .model = model, .jobs = jobs};
    TRY(mem_zalloc(&a->elem, all, sizeof *a->elem, "densities", err));
    TRY(mem_zalloc(&a->exec, all, sizeof *a->exec, "densities", err));
    TRY(mem_zalloc(&a->is_dense, all, sizeof *a->is_dense, "densities", err));
    TRY(mem_zalloc(&a->local_err, c->layers, sizeof(double), "errors of layers", err));
    TRY(mem_zalloc(&a->local_ref, c->layers, sizeof(double), "errors of layers", err));
out:
    if (rc)
        layer_attn_free(a);
    return rc;
}

void layer_attn_reset(struct layer_attn *a)
{
    size_t all = (size_t)a->c->layers * (size_t)a->c->heads, layers = (size_t)a->c->layers;
    memset(a->elem, 0, all * sizeof *a->elem);
    memset(a->exec, 0, all * sizeof *a->exec);
    memset(a->is_dense, 0, all * sizeof *a->is_dense);
    memset(a->local_err, 0, layers * sizeof(double));
    memset(a->local_ref, 0, layers * sizeof(double));
    a->prefills = 0;
    a->was_skip_dense = false;
    a->skip[0] = '\0';
}

/* ---- one head ------------------------------------------------------------------------------- */

/* The heads of a layer. */
struct layer_job {
    struct layer_attn *a;
    int layer;
    const float *q;
    int64_t nq, nk;
    const struct nn_kv *kv;
    float *out;
    struct head_sum {
        double err, ref, kept; /* sums of squares; kept pairs of the rows that are the method's */
        char skip[256];
    } * sums; /* [heads] */
};

/* One head while its method runs. */
struct head_work {
    const struct layer_job *j;
    struct head_sum *sum;
    int head;
    struct head_in in;
    struct exact exact;
    float *q; /* owned */
    struct span *spans;
    int64_t cap_spans;
    struct record rec; /* identity for dumps, densities */
};

static int64_t method_rows(const struct layer_job *j)
{
    int64_t n = j->nq - j->a->dense_rows;
    return n > 0 ? n : 0;
}

static void put_rows(const struct layer_job *j, int head, int64_t row0, int64_t n, const double *x)
{
    int64_t d = j->kv->d, heads = j->a->c->heads;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < d; c++)
            j->out[((row0 + r) * heads + head) * d + c] = (float)x[r * d + c];
}

/* Kept pairs of the rows in front of the dense ones. */
static int count_kept(struct head_work *w, const struct mask *m, struct err *err)
{
    int64_t end = method_rows(w->j), need = mask_max_spans(m);
    int rc = 0;
    TRY(mem_grow(&w->spans, &w->cap_spans, need, sizeof *w->spans, "spans of a row", err));
    for (int64_t i = m->row0; i < m->row1 && i < end; i++) {
        int64_t n = mask_row_spans(m, i, w->spans);
        for (int64_t s = 0; s < n; s++)
            w->sum->kept += w->spans[s].hi - w->spans[s].lo;
    }
out:
    return rc;
}

/* Add what the rows [row0, row0 + n) are off from exact attention over the same q, k, v. */
static int add_errors(struct head_work *w, int64_t row0, int64_t n, const double *out,
                      struct err *err)
{
    const double *ref;
    int rc = exact_out(&w->exact, row0, row0 + n, &ref, err);
    for (int64_t i = 0; !rc && i < n * w->j->kv->d; i++) {
        w->sum->err += (out[i] - ref[i]) * (out[i] - ref[i]);
        w->sum->ref += ref[i] * ref[i];
    }
    return rc;
}

static int take_rows(void *ctx, const struct mask *m, const double *out, const double *lse,
                     struct err *err)
{
    struct head_work *w = ctx;
    const struct layer_attn *a = w->j->a;
    int64_t end = method_rows(w->j), n = (m->row1 < end ? m->row1 : end) - m->row0;
    int rc = 0;

    put_rows(w->j, w->head, m->row0, m->row1 - m->row0, out);
    if (a->decoding)
        return 0;
    if (a->dense_rows > 0)
        TRY(count_kept(w, m, err));
    if (a->how->local_errors && n > 0)
        TRY(add_errors(w, m->row0, n, out, err));
    if (a->how->masks)
        TRY(maskfile_put(a->how->masks, &w->rec, NULL, m, err));
out:
    return rc;
}

/* Exact attention of the rows from row0 on. */
static int dense_rows(struct head_work *w, int64_t row0, struct err *err)
{
    enum { STEP = 1024 };
    const struct layer_job *j = w->j;
    double *out = NULL, *lse = NULL;
    struct mask m;
    int rc = 0;

    TRY(mem_alloc(&out, STEP * j->kv->d, sizeof *out, "output of a head", err));
    TRY(mem_alloc(&lse, STEP, sizeof *lse, "log-sum-exp of a head", err));
    for (int64_t r = row0; r < j->nq; r += STEP) {
        int64_t end = r + STEP < j->nq ? r + STEP : j->nq;
        attn_full_mask(&w->in.x, r, end, &m);
        TRY(exact_attend(&w->exact, &m, out, lse, err));
        put_rows(j, w->head, r, end - r, out);
        if (j->a->how->local_errors && !j->a->decoding)
            TRY(add_errors(w, r, end - r, out, err));
    }
out:
    free(out);
    free(lse);
    return rc;
}

static int head_open(struct head_work *w, const struct layer_job *j, int head, struct err *err)
{
    const struct layer_attn *a = j->a;
    const struct llm_config *c = a->c;
    int d = c->head_dim, kv_head = head / (c->heads / c->kv_heads), rc = 0;
    int64_t at = kv_head * j->kv->n * d;

    *w = (struct head_work){.j = j, .sum = j->sums + head, .head = head};
    record_init(&w->rec);
    TRY(mem_alloc(&w->q, j->nq * d, sizeof *w->q, "queries of a head", err));
    nn_take_head(j->q, j->nq, c->heads, d, head, w->q);
    w->in = (struct head_in){
        .x = {.nq = j->nq,
              .nk = j->nk,
              .d = d,
              .dv = d,
              .q = w->q,
              .k = j->kv->k + at,
              .v = j->kv->v + at,
              .scale = 1 / sqrt(d),
              .causal = true,
              .reach = {.back = j->kv->reach.back < j->nk ? j->kv->reach.back : 0}},
        .src_dtype = a->how->round,
        .layer = j->layer,
        .head = head,
        .kv_head = kv_head,
        .n_heads = c->heads,
        .n_kv_heads = c->kv_heads,
        .n_layers = c->layers,
        .timestep = NAN,
        .branch = "main",
    };
    exact_init(&w->exact, &w->in.x, a->how->precision);
    w->in.exact = &w->exact;
    if (a->how->local_errors)
        exact_expect_out(&w->exact);
    utf8_copy(w->rec.model, sizeof w->rec.model, a->model);
    w->rec.layer = j->layer;
    w->rec.head = head;
    w->rec.kv_head = kv_head;
    w->rec.seed = a->how->seed;
    w->rec.n_q = j->nq;
    w->rec.n_k = j->nk;
    w->rec.d = d;
    w->rec.causal = true;
    snprintf(w->rec.method, sizeof w->rec.method, "%s", a->run->method->name);
    snprintf(w->rec.precision, sizeof w->rec.precision, "%s",
             a->how->precision == PREC_F64 ? "f64" : "f32");
    w->rec.params = strdup(a->run->canonical);
    if (!w->rec.params)
        FAIL(err, ERR_NOMEM, "record: out of memory");
out:
    return rc;
}

static void head_close(struct head_work *w)
{
    exact_free(&w->exact);
    record_free(&w->rec);
    free(w->q);
    free(w->spans);
}

/* The method on the head: w->rec receives status and counts. */
static int run_method(struct head_work *w, struct err *err)
{
    const struct layer_attn *a = w->j->a;
    const struct method_run *run = a->run;
    struct carry fresh[2] = {{0}}; /* text has one step: state begins and ends with the call */
    bool steps = run->method->flags & METHOD_NEEDS_STEPS;
    bool shares = run->method->flags & METHOD_SHARES_BRANCHES;
    struct method_ctx ctx = {
        .seed = a->how->seed, .carry = steps ? fresh : NULL, .shared = shares ? fresh + 1 : NULL};
    void *params = NULL;
    int rc = 0;

    TRY(method_params_for_head(run, w->j->layer, w->head, &params, err));
    struct sim_cell cell = {.method = run->method,
                            .params = params,
                            .ctx = &ctx,
                            .in = &w->in,
                            .device = a->how->device,
                            .measure = MEASURE_COUNTS,
                            .sink = take_rows,
                            .sink_ctx = w};
    TRY(sim_run(&cell, &w->rec, err));
out:
    for (int i = 0; i < 2; i++)
        if (fresh[i].free)
            fresh[i].free(fresh[i].data);
    if (params)
        opt_free(run->method->params, params);
    free(params);
    return rc;
}

/* Density of what a head did; 1 where it attended exactly. */
static void add_density(const struct head_work *w, bool is_dense)
{
    struct layer_attn *a = w->j->a;
    int64_t at = (int64_t)w->j->layer * a->c->heads + w->head, nq = w->j->nq, nk = w->j->nk;
    struct head_shape shape = attn_shape(&w->in.x);
    double allowed = (double)attn_pairs(&w->in.x);

    a->is_dense[at] = is_dense;
    if (is_dense) {
        a->elem[at] += 1;
        a->exec[at] += 1;
    } else if (a->dense_rows > 0) {
        double last = (double)pairs_within(&shape, method_rows(w->j), nq, 0, nk);
        a->elem[at] += (w->sum->kept + last) / allowed;
        a->exec[at] = NAN;
    } else {
        a->elem[at] += record_get(&w->rec, "density_elem");
        a->exec[at] += record_get(&w->rec, "density_exec");
    }
}

static int attend_head(void *ctx, int64_t head, int worker, struct err *err)
{
    const struct layer_job *j = ctx;
    struct layer_attn *a = j->a;
    struct head_work w = {0};
    bool is_dense = a->how->dense_head[(int64_t)j->layer * a->c->heads + head];
    int rc = 0;

    TRY(head_open(&w, j, (int)head, err));
    if (!is_dense) {
        TRY(run_method(&w, err));
        if (w.rec.status == RECORD_SKIP) {
            snprintf(w.sum->skip, sizeof w.sum->skip, "%.255s", w.rec.reason);
            is_dense = true;
            if (!a->how->skip_is_dense)
                goto out;
        }
    }
    if (is_dense)
        TRY(dense_rows(&w, 0, err));
    else if (a->dense_rows > 0)
        TRY(dense_rows(&w, method_rows(j), err));
    if (!a->decoding)
        add_density(&w, is_dense);
out:
    head_close(&w);
    return rc;
}

/* ---- the layer ------------------------------------------------------------------------------ */

static bool wholly_dense(const struct layer_attn *a, int layer, int64_t n)
{
    const bool *dense = a->how->dense_head + (int64_t)layer * a->c->heads;
    bool all = true;
    for (int h = 0; h < a->c->heads; h++)
        all = all && dense[h];
    return all || n < a->how->dense_below || (a->decoding && !a->how->decode_method) ||
           (!a->decoding && a->dense_rows >= n);
}

static void count_dense_layer(struct layer_attn *a, int layer)
{
    for (int h = 0; h < a->c->heads; h++) {
        int64_t at = (int64_t)layer * a->c->heads + h;
        a->is_dense[at] = true;
        a->elem[at] += 1;
        a->exec[at] += 1;
    }
}

/* Sums of the heads in their order; METHOD_SKIP if a head has no answer. */
static int add_heads(struct layer_job *j)
{
    struct layer_attn *a = j->a;
    for (int h = 0; h < a->c->heads; h++) {
        const struct head_sum *s = j->sums + h;
        a->local_err[j->layer] += s->err;
        a->local_ref[j->layer] += s->ref;
        if (!s->skip[0])
            continue;
        a->was_skip_dense = true;
        if (!a->how->skip_is_dense) {
            snprintf(a->skip, sizeof a->skip, "layer %d head %d: %s", j->layer, h, s->skip);
            return METHOD_SKIP;
        }
    }
    return 0;
}

int layer_attn_attend(void *ctx, int layer, const float *q, int64_t nq, const struct nn_kv *kv,
                      int64_t nk, float *out, struct err *err)
{
    struct layer_attn *a = ctx;
    struct layer_job j = {a, layer, q, nq, nk, kv, out, NULL};
    int rc = 0;

    if (!a->decoding && layer == 0)
        a->prefills++;
    if (wholly_dense(a, layer, nk)) {
        if (!a->decoding)
            count_dense_layer(a, layer);
        TRY(nn_attention(q, kv, nq, nk, a->c->heads, 1 / sqrt(a->c->head_dim), true, a->jobs, out,
                         NULL, err));
    } else {
        TRY(mem_zalloc(&j.sums, a->c->heads, sizeof *j.sums, "sums of heads", err));
        rc = pool_run(a->jobs, a->c->heads, attend_head, &j, err);
        if (!rc)
            rc = add_heads(&j);
    }
out:
    free(j.sums);
    return rc;
}
