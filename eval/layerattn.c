/*
 * layerattn.c - see layerattn.h. Heads of a layer run in parallel, each on one thread.
 */
#include "eval/layerattn.h"

#include "core/mem.h"
#include "core/permute.h"
#include "core/pool.h"
#include "core/text.h"
#include "sim/simhead.h"
#include "sim/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int64_t all_heads(const struct layer_attn *a)
{
    return (int64_t)a->shape.layers * a->shape.heads;
}

static void carries_free(struct carry *c, int64_t n)
{
    for (int64_t i = 0; c && i < n; i++)
        if (c[i].free)
            c[i].free(c[i].data);
    free(c);
}

void layer_attn_free(struct layer_attn *a)
{
    carries_free(a->carry, a->branches * all_heads(a));
    carries_free(a->shared, all_heads(a));
    free(a->calls);
    free(a->elem);
    free(a->exec);
    free(a->sparse);
    free(a->sparse_calls);
    free(a->local_err);
    free(a->local_ref);
    memset(a, 0, sizeof *a);
}

int layer_attn_init(struct layer_attn *a, const struct method_run *run, const struct eval_how *how,
                    const struct attn_shape *shape, const char *model, int jobs, struct err *err)
{
    int rc = 0;

    *a = (struct layer_attn){.run = run, .how = how, .shape = *shape, .model = model, .jobs = jobs};
    a->timestep = NAN;
    TRY(mem_zalloc(&a->calls, all_heads(a), sizeof *a->calls, "densities", err));
    TRY(mem_zalloc(&a->elem, all_heads(a), sizeof *a->elem, "densities", err));
    TRY(mem_zalloc(&a->exec, all_heads(a), sizeof *a->exec, "densities", err));
    TRY(mem_zalloc(&a->sparse, all_heads(a), sizeof *a->sparse, "densities", err));
    TRY(mem_zalloc(&a->sparse_calls, all_heads(a), sizeof *a->sparse_calls, "densities", err));
    TRY(mem_zalloc(&a->local_err, shape->layers, sizeof(double), "errors of layers", err));
    TRY(mem_zalloc(&a->local_ref, shape->layers, sizeof(double), "errors of layers", err));
out:
    if (rc)
        layer_attn_free(a);
    return rc;
}

int layer_attn_keep_state(struct layer_attn *a, int branches, struct err *err)
{
    int rc = 0;
    a->branches = branches;
    TRY(mem_zalloc(&a->carry, branches * all_heads(a), sizeof *a->carry, "state of methods", err));
    TRY(mem_zalloc(&a->shared, all_heads(a), sizeof *a->shared, "state of methods", err));
out:
    return rc;
}

void layer_attn_reset(struct layer_attn *a)
{
    size_t all = (size_t)all_heads(a), layers = (size_t)a->shape.layers;
    memset(a->calls, 0, all * sizeof *a->calls);
    memset(a->elem, 0, all * sizeof *a->elem);
    memset(a->exec, 0, all * sizeof *a->exec);
    memset(a->sparse, 0, all * sizeof *a->sparse);
    memset(a->sparse_calls, 0, all * sizeof *a->sparse_calls);
    memset(a->local_err, 0, layers * sizeof(double));
    memset(a->local_ref, 0, layers * sizeof(double));
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
    float *q;      /* owned */
    int64_t *perm; /* row i of the method is row perm[i] of the model; NULL: the same; owned */
    struct span *spans;
    int64_t cap_spans;
    struct record rec; /* identity for dumps, densities */
};

static int64_t method_rows(const struct layer_job *j)
{
    int64_t n = j->nq - j->a->dense_rows;
    return n > 0 ? n : 0;
}

static void put_rows(const struct head_work *w, int64_t row0, int64_t n, const double *x)
{
    const struct layer_job *j = w->j;
    int64_t d = j->kv->d, heads = j->a->shape.heads;
    for (int64_t r = 0; r < n; r++) {
        int64_t row = w->perm ? w->perm[row0 + r] : row0 + r;
        for (int64_t c = 0; c < d; c++)
            j->out[(row * heads + w->head) * d + c] = (float)x[r * d + c];
    }
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
    int64_t d = w->j->kv->d;
    const double *ref;
    int rc = w->perm ? exact_out(&w->exact, 0, w->j->nq, &ref, err)
                     : exact_out(&w->exact, row0, row0 + n, &ref, err);
    for (int64_t r = 0; !rc && r < n; r++) {
        const double *x = out + r * d, *y = ref + (w->perm ? w->perm[row0 + r] : r) * d;
        for (int64_t c = 0; c < d; c++) {
            w->sum->err += (x[c] - y[c]) * (x[c] - y[c]);
            w->sum->ref += y[c] * y[c];
        }
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

    put_rows(w, m->row0, m->row1 - m->row0, out);
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
        put_rows(w, r, end - r, out);
        if (j->a->how->local_errors && !j->a->decoding)
            TRY(add_errors(w, r, end - r, out, err));
    }
out:
    free(out);
    free(lse);
    return rc;
}

/* Identity, for dumped masks. */
static int describe(struct head_work *w, struct err *err)
{
    const struct layer_attn *a = w->j->a;
    struct record *r = &w->rec;

    utf8_copy(r->model, sizeof r->model, a->model);
    r->layer = w->in.layer;
    r->head = w->head;
    r->kv_head = w->in.kv_head;
    r->seed = a->how->seed;
    r->n_q = w->j->nq;
    r->n_k = w->j->nk;
    r->d = a->shape.head_dim;
    r->causal = a->shape.causal;
    snprintf(r->method, sizeof r->method, "%s", a->run->method->name);
    snprintf(r->precision, sizeof r->precision, "%s",
             a->how->precision == PREC_F64 ? "f64" : "f32");
    r->params = strdup(a->run->canonical);
    return r->params ? 0 : err_set(err, ERR_NOMEM, "record: out of memory");
}

static int head_open(struct head_work *w, const struct layer_job *j, int head, struct err *err)
{
    static const char *const branches[] = {"cond", "uncond"};
    const struct layer_attn *a = j->a;
    const struct attn_shape *c = &a->shape;
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
              .causal = c->causal,
              .reach = {.back = j->kv->reach.back < j->nk ? j->kv->reach.back : 0}},
        .src_dtype = a->how->round,
        .geom = c->geom,
        .layer = j->layer,
        .head = head,
        .kv_head = kv_head,
        .n_heads = c->heads,
        .n_kv_heads = c->kv_heads,
        .n_layers = c->layers,
        .step = a->step,
        .n_steps = a->n_steps,
        .timestep = a->timestep,
        .branch = a->carry ? branches[a->branch] : "main",
    };
    exact_init(&w->exact, &w->in.x, a->how->precision);
    w->in.exact = &w->exact;
    if (a->how->local_errors)
        exact_expect_out(&w->exact);
    TRY(describe(w, err));
out:
    return rc;
}

static void head_close(struct head_work *w)
{
    exact_free(&w->exact);
    record_free(&w->rec);
    free(w->q);
    free(w->perm);
    free(w->spans);
}

/* Where the method's rows belong, if it asks for another order of tokens. Where it cannot have it,
 * it answers with a skip of its own. */
static int find_order(struct head_work *w, const void *params, struct err *err)
{
    const struct method *m = w->j->a->run->method;
    const char *order = m->order ? m->order(params) : NULL;
    struct err none = {0};
    if (!order || strcmp(order, "none") == 0 || !w->in.geom.t)
        return 0;
    if (permute_make(order, &w->in.geom, w->in.x.nq, w->j->a->how->seed, &w->perm, &none))
        w->perm = NULL;
    return none.code == ERR_NOMEM ? err_set(err, ERR_NOMEM, "%s", none.msg) : 0;
}

/* The method on the head: w->rec receives status and counts. */
static int run_method(struct head_work *w, struct err *err)
{
    const struct layer_attn *a = w->j->a;
    const struct method_run *run = a->run;
    int64_t at = (int64_t)w->j->layer * a->shape.heads + w->head;
    struct carry fresh[2] = {{0}}; /* text has one step: state begins and ends with the call */
    bool steps = run->method->flags & METHOD_NEEDS_STEPS;
    bool shares = run->method->flags & METHOD_SHARES_BRANCHES;
    struct carry *mine = a->carry ? a->carry + a->branch * all_heads(a) + at : fresh;
    struct method_ctx ctx = {.seed = a->how->seed,
                             .carry = steps ? mine : NULL,
                             .shared = !shares     ? NULL
                                       : a->shared ? a->shared + at
                                                   : fresh + 1,
                             .session = run->session};
    void *params = NULL;
    int rc = 0;

    TRY(method_params_for_head(run, w->j->layer, w->head, w->in.x.nk, &params, err));
    TRY(find_order(w, params, err));
    struct sim_cell cell = {.method = run->method,
                            .params = params,
                            .ctx = &ctx,
                            .in = &w->in,
                            .device = a->decoding ? NULL : a->how->device,
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
    int64_t at = (int64_t)w->j->layer * a->shape.heads + w->head, nq = w->j->nq, nk = w->j->nk;
    struct head_shape shape = attn_shape(&w->in.x);
    double elem = 1, exec = 1;

    if (!is_dense && a->dense_rows > 0) {
        double last = (double)pairs_within(&shape, method_rows(w->j), nq, 0, nk);
        elem = (w->sum->kept + last) / (double)attn_pairs(&w->in.x);
        exec = NAN;
    } else if (!is_dense) {
        elem = record_get(&w->rec, "density_elem");
        exec = record_get(&w->rec, "density_exec");
    }
    a->calls[at]++;
    a->elem[at] += elem;
    a->exec[at] += exec;
    /* A call that the method itself ran exactly, by its schedule, is not sparse either. */
    if (!is_dense && !(record_get(&w->rec, "dense_call") == 1)) {
        a->sparse[at] += elem;
        a->sparse_calls[at]++;
    }
}

static int attend_head(void *ctx, int64_t head, int worker, struct err *err)
{
    const struct layer_job *j = ctx;
    struct layer_attn *a = j->a;
    struct head_work w = {0};
    bool is_dense = a->how->dense_head[(int64_t)j->layer * a->shape.heads + head];
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
    const bool *dense = a->how->dense_head + (int64_t)layer * a->shape.heads;
    bool all = true;
    for (int h = 0; h < a->shape.heads; h++)
        all = all && dense[h];
    return all || n < a->how->dense_below || (a->decoding && !a->how->decode_method) ||
           (!a->decoding && a->dense_rows >= n);
}

static void count_dense_layer(struct layer_attn *a, int layer)
{
    for (int h = 0; h < a->shape.heads; h++) {
        int64_t at = (int64_t)layer * a->shape.heads + h;
        a->calls[at]++;
        a->elem[at] += 1;
        a->exec[at] += 1;
    }
}

/* Sums of the heads in their order; METHOD_SKIP if a head has no answer. */
static int add_heads(struct layer_job *j)
{
    struct layer_attn *a = j->a;
    for (int h = 0; h < a->shape.heads; h++) {
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
    const struct attn_shape *c = &a->shape;
    struct layer_job j = {a, layer, q, nq, nk, kv, out, NULL};
    int rc = 0;

    if (wholly_dense(a, layer, nk)) {
        if (!a->decoding)
            count_dense_layer(a, layer);
        return nn_attention(q, kv, nq, nk, c->heads, 1 / sqrt(c->head_dim), c->causal, a->jobs, out,
                            NULL, err);
    }
    TRY(mem_zalloc(&j.sums, c->heads, sizeof *j.sums, "sums of heads", err));
    TRY(pool_run(a->jobs, c->heads, attend_head, &j, err));
    rc = add_heads(&j);
out:
    free(j.sums);
    return rc;
}
