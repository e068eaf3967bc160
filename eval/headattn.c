/*
 * headattn.c - see headattn.h.
 */
#include "eval/headattn.h"
#include "eval/headwork.h"

#include "core/mem.h"
#include "core/permute.h"
#include "sim/accelattend.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    if (w->j->dense_rows > 0)
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

    record_text(r, &r->model, "%s", a->model);
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

bool layer_may_stay(const struct layer_job *j)
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

int head_open(struct head_work *w, const struct layer_job *j, int head, struct err *err)
{
    static const char *const branches[] = {"cond", "uncond"};
    const struct layer_attn *a = j->a;
    const struct attn_shape *c = &a->shape;
    int d = c->head_dim, kv_head = head / (c->heads / c->kv_heads), rc = 0;
    int64_t at = kv_head * j->kv->n * d;
    const float *q = j->q;

    *w = (struct head_work){.j = j, .sum = j->sums + head, .head = head};
    record_init(&w->rec);
    if (a->there) {
        q += (head * a->there_tokens + j->row0) * d;
    } else {
        TRY(mem_alloc(&w->q, j->nq * d, sizeof *w->q, "queries of a head", err));
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
    };
    find_there(w);
    exact_init(&w->exact, &w->in.x, a->how->precision);
    w->in.exact = &w->exact;
    if (a->how->local_errors)
        exact_expect_out(&w->exact);
    TRY(describe(w, err));
out:
    return rc;
}

void head_close(struct head_work *w)
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

int method_begin(struct head_work *w, struct err *err)
{
    const struct layer_attn *a = w->j->a;
    const struct method_run *run = a->run;
    int64_t at = (int64_t)w->j->layer * a->shape.heads + w->head;
    bool steps = run->method->flags & METHOD_NEEDS_STEPS;
    bool shares = run->method->reuse.shares_branches;
    struct carry *mine =
        a->carry ? a->carry + (int64_t)a->branch * a->shape.layers * a->shape.heads + at : w->fresh;
    int rc = 0;

    w->ctx = (struct method_ctx){.seed = a->how->seed,
                                 .carry = steps ? mine : NULL,
                                 .shared = !shares     ? NULL
                                           : a->shared ? a->shared + at
                                                       : w->fresh + 1,
                                 .session = run->session};
    TRY(method_params_for_head(run, w->j->layer, w->head, w->in.x.nk, &w->params, err));
    w->sum->lacks_calib = method_calib_lacks(run, w->j->layer, w->head, w->in.x.nk);
    if (run->target) {
        TRY(budget_resolve_head(run, &w->in, a->how->device, a->how->seed, w->params, &w->found,
                                err));
        w->sum->searched = w->found.params[0] != '\0';
        w->sum->found = w->found.answer;
    }
    TRY(find_order(w, w->params, err));
out:
    return rc;
}

struct sim_cell method_cell(struct head_work *w, const struct sim_device *device)
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
    int rc = 0;
    TRY(method_begin(w, err));
    struct sim_cell cell = method_cell(w, NULL);
    TRY(sim_run(&cell, &w->rec, err));
out:
    return rc;
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
    int rc = 0;
    record_no_metrics(rec);
    if (!r->attend.samples)
        return 0;
    TRY(record_metric(rec, "time_total_ns", r->attend.median / n, err));
    TRY(record_metric(rec, "time_dense_ns", r->dense.median / n, err));
    TRY(record_metric(rec, "host_plan_ns", r->host_plan_ns / n, err));
out:
    return rc;
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
    int rc = 0;
    if (!w->j->a->decoding)
        TRY(dense_on_device(w, &done, err));
    if (!done && w->j->stays)
        FAIL(err, ERR_RUN, "the GPU did not attend to a head whose outputs were to stay there");
    if (!done)
        TRY(dense_rows(w, 0, err));
out:
    return rc;
}

int method_end(struct head_work *w, bool is_dense, struct err *err)
{
    const struct layer_job *j = w->j;
    int rc = 0;
    if (!is_dense && w->rec.status == RECORD_SKIP) {
        snprintf(w->sum->skip, sizeof w->sum->skip, "%.255s", w->rec.reason);
        is_dense = true;
        if (!j->a->how->skip_is_dense)
            return 0;
    }
    if (is_dense)
        TRY(attend_dense_head(w, err));
    else if (j->dense_rows > 0)
        TRY(dense_rows(w, method_rows(j), err));
    if (!j->a->decoding)
        add_density(w, is_dense);
out:
    return rc;
}

int head_attend(void *ctx, int64_t head, int worker, struct err *err)
{
    const struct layer_job *j = ctx;
    struct head_work w = {0};
    bool is_dense = head_is_dense(j, (int)head);
    int rc = 0;

    TRY(head_open(&w, j, (int)head, err));
    if (!is_dense)
        TRY(run_method(&w, err));
    TRY(method_end(&w, is_dense, err));
out:
    head_close(&w);
    return rc;
}
