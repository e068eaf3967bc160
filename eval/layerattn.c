/*
 * layerattn.c - see layerattn.h. Heads of a layer run in parallel, each on one thread, or on a GPU
 * as one call.
 */
#include "eval/layerattn.h"

#include "core/accel.h"
#include "core/mem.h"
#include "core/permute.h"
#include "core/pool.h"
#include "core/record.h"
#include "sim/accelattend.h"
#include "sim/blocks/exact.h"
#include "sim/budgetsearch.h"
#include "sim/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one head ------------------------------------------------------------------------------- */

/* What a head leaves to the sums of its layer. */
struct head_sum {
    double err, ref, kept; /* sums of squares; kept pairs of the rows that are the method's */
    char skip[256];        /* why the method does not apply; "": it does */
    bool searched, lacks_calib;
    struct budget_answer found; /* with `searched` */
};

/* The heads of a layer, or of a part of its rows. */
struct layer_job {
    struct layer_attn *a;
    int layer;
    const float
        *q; /* [nq][heads * d]; with a->there of the whole prefill, [heads][there_tokens][d] */
    int64_t nq, nk;
    int64_t row0;       /* of the rows in the prefill */
    int64_t dense_rows; /* last of them that attend exactly */
    double share;       /* of the prefill's pairs */
    const struct nn_kv *kv;
    float *out;
    bool stays;            /* outputs go to a->there->out, and not to out */
    int64_t ordinal;       /* of its first head, for dumped masks */
    struct head_sum *sums; /* [heads] */
};

/* Does the head attend exactly whatever the method is? */
static bool head_is_dense(const struct layer_job *j, int head)
{
    return j->a->how->dense_head[(int64_t)j->layer * j->a->shape.heads + head];
}

/* One head while its method runs. */
struct head_work {
    const struct layer_job *j;
    struct head_sum *sum;
    int head;
    struct head_in in;
    struct accel_operands there;
    struct exact exact;
    float *q;      /* NULL: the layer's are by head; owned */
    int64_t *perm; /* row i of the method is row perm[i] of the model; NULL: the same; owned */
    struct span *spans;
    int64_t cap_spans;
    struct record rec; /* identity for dumps, densities */

    /* What its method has. */
    struct carry fresh[2]; /* text has one step: state begins and ends with the call; owned */
    struct method_ctx ctx;
    struct budget_found found;
    void *params; /* owned */
};

static int64_t method_rows(const struct layer_job *j)
{
    int64_t n = j->nq - j->dense_rows;
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
    PASS_ON(mem_grow(&w->spans, &w->cap_spans, need, sizeof *w->spans, "spans of a row", err));
    for (int64_t i = m->row0; i < m->row1 && i < end; i++) {
        int64_t n = mask_row_spans(m, i, w->spans);
        for (int64_t s = 0; s < n; s++)
            w->sum->kept += w->spans[s].hi - w->spans[s].lo;
    }
    return 0;
}

/* Add what the rows [row0, row0 + n) are off from exact attention over the same q, k, v. */
static int add_errors(struct head_work *w, int64_t row0, int64_t n, const double *out,
                      struct err *err)
{
    int64_t d = w->j->kv->d;
    const double *ref;
    PASS_ON(w->perm ? exact_out(&w->exact, 0, w->j->nq, &ref, err)
                    : exact_out(&w->exact, row0, row0 + n, &ref, err));
    for (int64_t r = 0; r < n; r++) {
        const double *x = out + r * d, *y = ref + (w->perm ? w->perm[row0 + r] : r) * d;
        for (int64_t c = 0; c < d; c++) {
            w->sum->err += (x[c] - y[c]) * (x[c] - y[c]);
            w->sum->ref += y[c] * y[c];
        }
    }
    return 0;
}

static int take_rows(void *ctx, const struct mask *m, const double *out, const double *lse,
                     struct err *err)
{
    struct head_work *w = ctx;
    const struct layer_attn *a = w->j->a;
    int64_t end = method_rows(w->j), n = (m->row1 < end ? m->row1 : end) - m->row0;
    put_rows(w, m->row0, m->row1 - m->row0, out);
    if (a->decoding)
        return 0;
    if (w->j->dense_rows > 0)
        PASS_ON(count_kept(w, m, err));
    if (a->how->local_errors && n > 0)
        PASS_ON(add_errors(w, m->row0, n, out, err));
    if (a->how->masks)
        return maskfile_put(a->how->masks, &w->rec, NULL, m, err);
    return 0;
}

/* Exact attention of the rows from row0 on. */
static int dense_rows(struct head_work *w, int64_t row0, struct err *err)
{
    enum { STEP = 1024 };
    const struct layer_job *j = w->j;
    OWN(free_at) double *out = NULL, *lse = NULL;
    struct mask m;
    PASS_ON(mem_alloc(&out, STEP * j->kv->d, sizeof *out, "output of a head", err));
    PASS_ON(mem_alloc(&lse, STEP, sizeof *lse, "log-sum-exp of a head", err));
    for (int64_t r = row0; r < j->nq; r += STEP) {
        int64_t end = r + STEP < j->nq ? r + STEP : j->nq;
        attn_full_mask(&w->in.x, r, end, &m);
        PASS_ON(exact_attend(&w->exact, &m, out, lse, err));
        put_rows(w, r, end - r, out);
        if (j->a->how->local_errors && !j->a->decoding)
            PASS_ON(add_errors(w, r, end - r, out, err));
    }
    return 0;
}

/* Identity, for dumped masks. */
static int describe(struct head_work *w, struct err *err)
{
    const struct layer_attn *a = w->j->a;
    struct record *r = &w->rec;
    record_text(r, &r->model, "%s", a->model);
    r->ordinal = w->j->ordinal + w->head;
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
    return mem_dup(&r->params, a->run->canonical, "record", err);
}

static bool layer_may_stay(const struct layer_job *j)
{
    const struct layer_attn *a = j->a;
    const struct eval_how *how = a->how;
    const struct decoder_operands *o = a->there;
    const struct attn_shape *c = &a->shape;
    const struct method *m = a->run->method;
    const char *order = m->params.order && c->geom.t ? m->params.order(a->run->params) : "none";
    struct attn_in x = {.nq = j->nq,
                        .nk = j->nk,
                        .d = c->head_dim,
                        .dv = c->head_dim,
                        .scale = 1,
                        .causal = c->causal};
    int64_t bq = ACCEL_TILE, bk = ACCEL_TILE;
    char why[160];
    bool moves =
        order && (strcmp(order, "none") != 0 || (m->params.order && c->geom.t && a->run->calib));
    return o && o->out && o->padded == c->head_dim && how->device && !a->decoding && !moves &&
           !how->local_errors && !how->masks && j->dense_rows == 0 &&
           how->device->accel->supports(how->device->session, &x, &bq, &bk, why);
}

/* The head on the device, as what the methods' kernels take. */
static void find_there(struct head_work *w)
{
    const struct layer_job *j = w->j;
    const struct decoder_operands *o = j->a->there;
    if (!o || o->padded != w->in.x.d)
        return;
    int64_t row = 2 * o->padded, head = j->a->there_tokens * row;
    w->there = (struct accel_operands){.q = (const char *)o->q + w->head * head + j->row0 * row,
                                       .k = (const char *)o->k + w->in.kv_head * head,
                                       .v = (const char *)o->v + w->in.kv_head * head};
    if (j->stays) {
        w->there.stride = (int64_t)j->a->shape.heads * w->in.x.d;
        w->there.out = o->out + j->row0 * w->there.stride + (int64_t)w->head * w->in.x.d;
    }
    w->in.x.on_device = &w->there;
}

static int layer_queries(const struct head_in *in, int g, float *q, struct err *err)
{
    const struct layer_job *j = ((const struct head_work *)in->queries_from)->j;
    const struct layer_attn *a = j->a;
    int head = in->kv_head * (in->n_heads / in->n_kv_heads) + g, d = in->x.d;
    if (a->there)
        memcpy(q, j->q + (head * a->there_tokens + j->row0) * d, (size_t)(j->nq * d) * sizeof *q);
    else
        nn_take_head(j->q, j->nq, a->shape.heads, d, head, q);
    return 0;
}

static int head_open(struct head_work *w, const struct layer_job *j, int head, struct err *err)
{
    static const char *const branches[] = {"cond", "uncond"};
    const struct layer_attn *a = j->a;
    const struct attn_shape *c = &a->shape;
    int d = c->head_dim, kv_head = head / (c->heads / c->kv_heads);
    int64_t at = kv_head * j->kv->n * d;
    const float *q = j->q;
    *w = (struct head_work){.j = j, .sum = j->sums + head, .head = head};
    record_init(&w->rec);
    if (a->there) {
        q += (head * a->there_tokens + j->row0) * d;
    } else {
        PASS_ON(mem_alloc(&w->q, j->nq * d, sizeof *w->q, "queries of a head", err));
        nn_take_head(j->q, j->nq, c->heads, d, head, w->q);
        q = w->q;
    }
    w->in = (struct head_in){
        .x = {.nq = j->nq,
              .nk = j->nk,
              .d = d,
              .dv = d,
              .q = q,
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
        .queries = layer_queries,
        .queries_from = w,
    };
    find_there(w);
    exact_init(&w->exact, &w->in.x, a->how->precision);
    w->in.exact = &w->exact;
    if (a->how->local_errors)
        exact_expect_out(&w->exact);
    return describe(w, err);
}

static void head_close(struct head_work *w)
{
    for (int i = 0; i < 2; i++)
        if (w->fresh[i].free)
            w->fresh[i].free(w->fresh[i].data);
    method_params_free(w->j->a->run->method, w->params);
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
    const char *order = m->params.order ? m->params.order(params) : NULL;
    struct err none = {0};
    if (!order || strcmp(order, "none") == 0 || !w->in.geom.t)
        return 0;
    if (permute_make(order, &w->in.geom, w->in.x.nq, w->j->a->how->seed, &w->perm, &none))
        w->perm = NULL;
    return none.code == ERR_NOMEM ? err_set(err, ERR_NOMEM, "%s", none.msg) : 0;
}

static int method_begin(struct head_work *w, struct err *err)
{
    const struct layer_attn *a = w->j->a;
    const struct method_run *run = a->run;
    int64_t at = (int64_t)w->j->layer * a->shape.heads + w->head;
    bool steps = run->method->flags & METHOD_NEEDS_STEPS;
    bool shares = run->method->reuse.shares_branches;
    struct carry *mine =
        a->carry ? a->carry + (int64_t)a->branch * a->shape.layers * a->shape.heads + at : w->fresh;
    w->ctx = (struct method_ctx){.seed = a->how->seed,
                                 .carry = steps ? mine : NULL,
                                 .shared = !shares     ? NULL
                                           : a->shared ? a->shared + at
                                                       : w->fresh + 1,
                                 .session = run->session};
    PASS_ON(method_params_for_head(run, w->j->layer, w->head, w->in.x.nk, &w->params, err));
    w->sum->lacks_calib = method_calib_lacks(run, w->j->layer, w->head, w->in.x.nk);
    if (run->target) {
        PASS_ON(budget_resolve_head(run, &w->in, a->how->device, a->how->seed, w->params, &w->found,
                                    err));
        w->sum->searched = w->found.params[0] != '\0';
        w->sum->found = w->found.answer;
    }
    return find_order(w, w->params, err);
}

static struct sim_cell method_cell(struct head_work *w, const struct sim_device *device)
{
    const struct layer_attn *a = w->j->a;
    return (struct sim_cell){.method = a->run->method,
                             .params = w->params,
                             .ctx = &w->ctx,
                             .in = &w->in,
                             .device = device,
                             .measure = MEASURE_COUNTS,
                             .sink = w->j->stays ? NULL : take_rows,
                             .sink_ctx = w,
                             .sink_rows = !a->how->masks && w->j->dense_rows == 0};
}

/* The method on the head: w->rec receives status and counts. */
static int run_method(struct head_work *w, struct err *err)
{
    PASS_ON(method_begin(w, err));
    struct sim_cell cell = method_cell(w, NULL);
    return sim_run(&cell, &w->rec, err);
}

/* Density of what a head did; 1 where it attended exactly. */
static void add_density(const struct head_work *w, bool is_dense)
{
    struct layer_attn *a = w->j->a;
    int64_t at = (int64_t)w->j->layer * a->shape.heads + w->head, nq = w->j->nq, nk = w->j->nk;
    struct head_shape shape = attn_shape(&w->in.x);
    double elem = 1, exec = 1, share = w->j->share;
    if (!is_dense && w->j->dense_rows > 0) {
        double last = (double)pairs_within(&shape, method_rows(w->j), nq, 0, nk);
        elem = (w->sum->kept + last) / (double)attn_pairs(&w->in.x);
        exec = NAN;
    } else if (!is_dense) {
        elem = record_get(&w->rec, "density_elem");
        exec = record_get(&w->rec, "density_exec");
    }
    a->calls[at] += share;
    a->elem[at] += share * elem;
    a->exec[at] += share * exec;
    /* A call that the method itself ran exactly, by its schedule, is not sparse either. */
    if (!is_dense && !(record_get(&w->rec, "dense_call") == 1)) {
        a->sparse[at] += share * elem;
        a->sparse_calls[at] += share;
    }
    a->attn_ns[at] +=
        w->j->dense_rows > 0 && !is_dense ? NAN : record_get(&w->rec, "time_total_ns");
    a->dense_ns[at] += record_get(&w->rec, "time_dense_ns");
    a->plan_ns[at] += record_get(&w->rec, "host_plan_ns");
}

/* The times of a launch of n copies, as those of one. */
static int take_times(struct record *rec, const struct accel_result *r, int n, struct err *err)
{
    record_no_metrics(rec);
    if (!r->attend.samples)
        return 0;
    PASS_ON(record_metric(rec, "time_total_ns", r->attend.median / n, err));
    PASS_ON(record_metric(rec, "time_dense_ns", r->dense.median / n, err));
    return record_metric(rec, "host_plan_ns", r->host_plan_ns / n, err);
}

/* The head on the device as exact attention, a call of its copies. *done: it was. */
static int dense_on_device(struct head_work *w, bool *done, struct err *err)
{
    const struct sim_device *on = w->j->a->how->device;
    const struct attn_in *x = &w->in.x;
    const struct accel_heads of_call = {w->in.n_heads, w->in.n_kv_heads};
    const struct attend_how how = {.jobs = 1};
    struct accel_heads n = {1, 1};
    struct accel_call call = {.unmeasured = true};
    struct accel_result r;
    char why[160];
    int rc = 0;
    if (!x->on_device)
        return 0;
    if (on->accel->copies)
        n = on->accel->copies(on->session, x, of_call);
    call.n = n.q;
    call.group = n.q / n.kv;
    call.copies = n.q - 1;
    call.data = device_numbers(n.q);
    TRY(mem_zalloc(&call.heads, n.q, sizeof *call.heads, "copies of a head", err));
    for (int i = 0; i < n.q; i++)
        call.heads[i].x = x;
    struct accel_head *own = call.heads + call.copies;
    if (!accel_keeps_output(x))
        TRY(mem_alloc(&own->out, x->nq * x->dv, sizeof *own->out, "output of a head", err));
    rc = accel_attend_masks(on->accel, on->session, &how, &call, &r, why, err);
    *done = rc == 0;
    rc = rc == METHOD_SKIP ? 0 : rc;
    if (!*done)
        goto out;
    if (own->out)
        put_rows(w, 0, x->nq, own->out);
    if (own->out && w->j->a->how->local_errors)
        TRY(add_errors(w, 0, x->nq, own->out, err));
    TRY(take_times(&w->rec, &r, n.q, err));
out:
    if (call.heads)
        free(call.heads[call.copies].out);
    free(call.heads);
    return rc;
}

static int attend_dense_head(struct head_work *w, struct err *err)
{
    bool done = false;
    if (!w->j->a->decoding)
        PASS_ON(dense_on_device(w, &done, err));
    if (!done && w->j->stays)
        return err_set(err, ERR_RUN,
                       "the GPU did not attend to a head whose outputs were to stay there");
    if (!done)
        return dense_rows(w, 0, err);
    return 0;
}

static int method_end(struct head_work *w, bool is_dense, struct err *err)
{
    const struct layer_job *j = w->j;
    if (!is_dense && w->rec.status == RECORD_SKIP) {
        snprintf(w->sum->skip, sizeof w->sum->skip, "%.255s", w->rec.reason);
        is_dense = true;
        if (!j->a->how->skip_is_dense)
            return 0;
    }
    if (is_dense)
        PASS_ON(attend_dense_head(w, err));
    else if (j->dense_rows > 0)
        PASS_ON(dense_rows(w, method_rows(j), err));
    if (!j->a->decoding)
        add_density(w, is_dense);
    return 0;
}

static int head_attend(void *ctx, int64_t head, int worker, struct err *err)
{
    const struct layer_job *j = ctx;
    OWN(head_close) struct head_work w = {0};
    bool is_dense = head_is_dense(j, (int)head);
    PASS_ON(head_open(&w, j, (int)head, err));
    if (!is_dense)
        PASS_ON(run_method(&w, err));
    return method_end(&w, is_dense, err);
}

/* ---- the heads of a layer as one call on a GPU ---------------------------------------------- */

struct layer_call {
    struct layer_job *j;
    struct sim_device device;
    int *at; /* [n]: heads whose method runs */
    int n;
    struct head_work *heads;   /* [n] */
    struct sim_cell *cells;    /* [n] */
    struct call_outcome *outs; /* [n] */
    struct record of_call;
};

static bool layer_is_call(const struct layer_job *j)
{
    const struct sim_device *d = j->a->how->device;
    return d && !j->a->decoding;
}

static int begin_head(void *call, int64_t i, int worker, struct err *err)
{
    struct layer_call *c = call;
    struct head_work *w = c->heads + i;
    (void)worker;
    PASS_ON(head_open(w, c->j, c->at[i], err));
    PASS_ON(method_begin(w, err));
    c->cells[i] = method_cell(w, &c->device);
    c->outs[i] = (struct call_outcome){.record = &w->rec};
    return 0;
}

/* The call's times belong to its heads in equal parts. */
static int share_times(const struct layer_call *c, struct record *r, struct err *err)
{
    static const char *const names[] = {"time_total_ns", "time_dense_ns", "host_plan_ns"};
    for (size_t i = 0; i < sizeof names / sizeof *names && r->status == RECORD_OK; i++)
        if (!isnan(record_get(&c->of_call, names[i])))
            PASS_ON(record_metric(r, names[i], record_get(&c->of_call, names[i]) / c->n, err));
    return 0;
}

static int end_head(void *call, int64_t i, int worker, struct err *err)
{
    struct layer_call *c = call;
    struct head_work *w = c->heads + i;
    (void)worker;
    if (c->outs[i].err.code) {
        *err = c->outs[i].err;
        return err->code;
    }
    PASS_ON(share_times(c, &w->rec, err));
    return method_end(w, false, err);
}

static int dense_head(void *job, int64_t head, int worker, struct err *err)
{
    const struct layer_job *j = job;
    return head_is_dense(j, (int)head) ? head_attend(job, head, worker, err) : 0;
}

static int run_call(struct layer_call *c, struct err *err)
{
    const struct attn_shape *shape = &c->j->a->shape;
    struct sim_call call = {.cells = c->cells,
                            .heads = c->outs,
                            .n = c->n,
                            .group = c->n == shape->heads ? shape->heads / shape->kv_heads : 1,
                            .data = device_numbers(c->n),
                            .jobs = c->j->a->jobs,
                            .record = c->device.timed ? &c->of_call : NULL};
    PASS_ON(pool_run(c->j->a->jobs, c->n, begin_head, c, err));
    PASS_ON(sim_share_params(c->cells, c->outs, c->n, err));
    PASS_ON(sim_run_call(&call, err));
    return pool_run(c->j->a->jobs, c->n, end_head, c, err);
}

static int find_heads(struct layer_call *c, struct err *err)
{
    int heads = c->j->a->shape.heads;
    PASS_ON(mem_alloc(&c->at, heads, sizeof *c->at, "heads of a layer", err));
    for (int h = 0; h < heads; h++)
        if (!head_is_dense(c->j, h))
            c->at[c->n++] = h;
    PASS_ON(mem_zalloc(&c->heads, c->n, sizeof *c->heads, "heads of a layer", err));
    PASS_ON(mem_zalloc(&c->cells, c->n, sizeof *c->cells, "heads of a layer", err));
    return mem_zalloc(&c->outs, c->n, sizeof *c->outs, "heads of a layer", err);
}

static int call_attend(struct layer_job *j, struct err *err)
{
    struct layer_call c = {.j = j, .device = *j->a->how->device};
    int rc = 0;
    c.device.calls = true;
    record_init(&c.of_call);
    TRY(find_heads(&c, err));
    if (c.n)
        TRY(run_call(&c, err));
    if (c.n < j->a->shape.heads)
        TRY(pool_run(j->a->jobs, j->a->shape.heads, dense_head, j, err));
out:
    for (int i = 0; c.heads && i < c.n; i++)
        if (c.heads[i].j)
            head_close(c.heads + i);
    record_free(&c.of_call);
    free(c.at);
    free(c.heads);
    free(c.cells);
    free(c.outs);
    return rc;
}

/* ---- the layer's sums ----------------------------------------------------------------------- */

static int64_t all_heads(const struct layer_attn *a)
{
    return (int64_t)a->shape.layers * a->shape.heads;
}

/* The sums, [layers * heads]; those of layers use the first [layers]. */
enum { LAYER_SUMS = 10 };
static double **sum_of(struct layer_attn *a, int i)
{
    double **const sums[LAYER_SUMS] = {&a->calls,        &a->elem,     &a->exec,     &a->sparse,
                                       &a->sparse_calls, &a->attn_ns,  &a->dense_ns, &a->plan_ns,
                                       &a->local_err,    &a->local_ref};
    return sums[i];
}

void layer_attn_free(struct layer_attn *a)
{
    carries_free(a->carry, a->branches * all_heads(a));
    carries_free(a->shared, all_heads(a));
    for (int i = 0; i < LAYER_SUMS; i++)
        free(*sum_of(a, i));
    memset(a, 0, sizeof *a);
}

int layer_attn_init(struct layer_attn *a, const struct method_run *run, const struct eval_how *how,
                    const struct attn_shape *shape, const char *model, int jobs, struct err *err)
{
    *a = (struct layer_attn){.run = run, .how = how, .shape = *shape, .model = model, .jobs = jobs};
    a->timestep = a->exact_ns = NAN;
    for (int i = 0; i < LAYER_SUMS; i++)
        PASS_ON(mem_zalloc(sum_of(a, i), all_heads(a), sizeof(double), "sums of heads", err));
    return 0;
}

int layer_attn_keep_state(struct layer_attn *a, int branches, struct err *err)
{
    a->branches = branches;
    PASS_ON(
        mem_zalloc(&a->carry, branches * all_heads(a), sizeof *a->carry, "state of methods", err));
    return mem_zalloc(&a->shared, all_heads(a), sizeof *a->shared, "state of methods", err);
}

void layer_attn_reset(struct layer_attn *a)
{
    for (int i = 0; i < LAYER_SUMS; i++)
        memset(*sum_of(a, i), 0, (size_t)all_heads(a) * sizeof(double));
    a->target = (struct target_sum){0};
    a->heads_without_calib = 0;
    a->was_skip_dense = false;
    a->skip[0] = '\0';
}

/* ---- the layer ------------------------------------------------------------------------------ */

bool layer_attn_is_dense(const struct layer_attn *a, int layer, int64_t n)
{
    const bool *dense = a->how->dense_head + (int64_t)layer * a->shape.heads;
    bool all = true;
    for (int h = 0; h < a->shape.heads; h++)
        all = all && dense[h];
    return all || n < a->how->dense_below || (a->decoding && !a->how->decode_method) ||
           (!a->decoding && a->dense_rows >= n);
}

void layer_attn_count_dense(struct layer_attn *a, int layer)
{
    for (int h = 0; h < a->shape.heads; h++) {
        int64_t at = (int64_t)layer * a->shape.heads + h;
        a->calls[at]++;
        a->elem[at] += 1;
        a->exec[at] += 1;
        a->attn_ns[at] += a->exact_ns;
        a->dense_ns[at] += a->exact_ns;
        a->plan_ns[at] += isnan(a->exact_ns) ? NAN : 0; /* the model's own launch has no plan */
    }
}

/* Sums of the heads in their order; METHOD_SKIP if a head has no answer. */
static int add_heads(struct layer_job *j)
{
    struct layer_attn *a = j->a;
    for (int h = 0; h < a->shape.heads; h++) {
        const struct head_sum *s = j->sums + h;
        if (s->searched) {
            a->target.n++;
            a->target.evals += s->found.evals;
            a->target.ends[s->found.end]++;
            a->target.miss += s->found.value - a->run->target->value;
        }
        a->heads_without_calib += s->lacks_calib && !a->decoding;
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

static int attend_rows(struct layer_job *j, struct err *err)
{
    const struct layer_attn *a = j->a;
    int rc = 0;
    struct cellfile *masks = a->how->masks ? maskfile_cellfile(a->how->masks) : NULL;
    TRY(mem_zalloc(&j->sums, a->shape.heads, sizeof *j->sums, "sums of heads", err));
    j->ordinal = masks ? cellfile_next(masks) : 0;
    TRY(layer_is_call(j) ? call_attend(j, err)
                         : pool_run(a->jobs, a->shape.heads, head_attend, j, err));
    for (int h = 0; masks && h < a->shape.heads; h++)
        TRY(cellfile_end(masks, j->ordinal + h, err));
    rc = add_heads(j);
out:
    free(j->sums);
    j->sums = NULL;
    return rc;
}

/* Calls of at most `step` rows, each against the keys up to its last row. */
static int attend_in_chunks(const struct layer_job *whole, int64_t step, struct err *err)
{
    const struct attn_shape *c = &whole->a->shape;
    int64_t width = (int64_t)c->heads * c->head_dim, nq = whole->nq, before = whole->nk - nq;
    struct head_shape all = {nq, whole->nk, c->causal, whole->kv->reach};
    double pairs = (double)pairs_within(&all, 0, nq, 0, whole->nk);
    for (int64_t r = 0; r < nq; r += step) {
        int64_t end = r + step < nq ? r + step : nq, dense = whole->dense_rows - (nq - end);
        struct layer_job j = *whole;
        j.q += whole->a->there ? 0 : r * width;
        j.out += r * width;
        j.nq = end - r;
        j.nk = before + end;
        j.row0 = r;
        j.dense_rows = dense < 0 ? 0 : dense < j.nq ? dense : j.nq;
        j.share = (double)pairs_within(&all, r, end, 0, whole->nk) / pairs;
        PASS_ON(attend_rows(&j, err));
    }
    return 0;
}

int layer_attn_attend(void *ctx, int layer, const float *q, int64_t nq, const struct nn_kv *kv,
                      int64_t nk, float *out, struct err *err)
{
    struct layer_attn *a = ctx;
    const struct attn_shape *c = &a->shape;
    int64_t step = a->decoding ? 0 : a->how->prefill_chunk;
    struct layer_job j = {.a = a,
                          .layer = layer,
                          .q = q,
                          .nq = nq,
                          .nk = nk,
                          .dense_rows = a->dense_rows,
                          .share = 1,
                          .kv = kv,
                          .out = out};
    a->stayed = false;
    if (a->there && layer_attn_is_dense(a, layer, nk))
        return err_set(err, ERR_RUN, "a layer that attends exactly was not left to the device");
    if (layer_attn_is_dense(a, layer, nk)) {
        if (!a->decoding)
            layer_attn_count_dense(a, layer);
        return nn_attention(q, kv, nq, nk, c->heads, 1 / sqrt(c->head_dim), c->causal, a->jobs, out,
                            NULL, err);
    }
    a->stayed = j.stays = layer_may_stay(&j);
    return step > 0 && step < nq ? attend_in_chunks(&j, step, err) : attend_rows(&j, err);
}

static bool exact_after_all(void *ctx, int layer, int64_t n)
{
    struct layer_attn *a = ctx;
    bool dense = layer_attn_is_dense(a, layer, n);
    if (dense)
        layer_attn_count_dense(a, layer);
    return dense;
}

static void set_there(void *ctx, const struct decoder_operands *there, int64_t n)
{
    struct layer_attn *a = ctx;
    a->there = there;
    a->there_tokens = n;
}

static bool stayed(void *ctx)
{
    return ((const struct layer_attn *)ctx)->stayed;
}

struct layer_attention layer_attn_own(struct layer_attn *a)
{
    return (struct layer_attention){a, layer_attn_attend, exact_after_all, set_there, stayed};
}
