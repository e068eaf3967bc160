/*
 * simulate.c - the flow of one head: dense reference once, then for each method prepare, and per
 * row chunk select, attend, count. Memory is linear in N: only a chunk's mask and output exist.
 */
#include "sim/simulate.h"

#include "core/clock.h"
#include "core/intmath.h"
#include "core/mem.h"
#include "sim/reorder.h"
#include "sim/simulate_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a chunk: enough that per-chunk work vanishes; and pairs, so that even a list of single
 * entries that keeps everything stays below a gigabyte at any length. */
#define CHUNK_ROWS 2048
#define CHUNK_PAIRS ((int64_t)1 << 27)

static int copy_rows(float **dst, const float *src, int64_t n, int d, const char *what,
                     struct err *err)
{
    int rc = mem_alloc(dst, n * d, sizeof(float), what, err);
    if (!rc)
        memcpy(*dst, src, (size_t)(n * d) * sizeof(float));
    return rc;
}

int sim_head_operands(struct sim_head *h, enum precision prec, struct err *err)
{
    h->in.ops = &h->ops;
    return attn_prepare(&h->ops, &h->in.x, prec, err);
}

int sim_head_reference(struct sim_head *h, enum precision prec, struct err *err)
{
    int rc = 0;
    const struct attn_in *x = &h->in.x;
    struct mask full;

    TRY(sim_head_operands(h, prec, err));
    TRY(mem_alloc(&h->out, x->nq * x->dv, sizeof(double), "dense output", err));
    TRY(mem_alloc(&h->lse, x->nq, sizeof(double), "dense log-sum-exp", err));
    mask_full(&full, x->nq, x->nk, 0, x->nq, x->causal);
    TRY(attn_rows(&h->ops, &full, h->out, h->lse, err));
    h->in.out = h->out;
    h->in.lse = h->lse;
out:
    return rc;
}

int sim_head_init(struct sim_head *h, const struct head_in *in, enum precision prec,
                  struct err *err)
{
    int rc = 0;
    const struct attn_in *x = &in->x;

    memset(h, 0, sizeof *h);
    h->in = *in;
    TRY(copy_rows(&h->q, x->q, x->nq, x->d, "queries", err));
    TRY(copy_rows(&h->k, x->k, x->nk, x->d, "keys", err));
    TRY(copy_rows(&h->v, x->v, x->nk, x->dv, "values", err));
    h->in.x.q = h->q;
    h->in.x.k = h->k;
    h->in.x.v = h->v;
    TRY(sim_head_reference(h, prec, err));
out:
    if (rc)
        sim_head_free(h);
    return rc;
}

void sim_head_free(struct sim_head *h)
{
    attn_release(&h->ops);
    free(h->q);
    free(h->k);
    free(h->v);
    free(h->out);
    free(h->lse);
    memset(h, 0, sizeof *h);
}

int64_t run_chunk_rows(const struct run *run)
{
    int64_t unit = run->method->unit_rows ? run->method->unit_rows(run->state) : 1;
    int64_t step = unit / gcd(unit, 128) * 128;
    int64_t want =
        CHUNK_PAIRS / run->in->x.nk < CHUNK_ROWS ? CHUNK_PAIRS / run->in->x.nk : CHUNK_ROWS;
    return want <= step ? step : ceil_div(want, step) * step;
}

static int attend_chunk(struct run *run, const struct mask *m, double *tiles_pv, struct err *err)
{
    const struct method *me = run->method;
    struct attend_stats stats = {-1, 0};
    bool own = run_own_arithmetic(run);
    int rc = 0;

    double t = clock_ns();
    if (own)
        TRY(me->attend(run->state, m, run->out, run->lse, &stats, err));
    else
        TRY(attn_rows(run->in->ops, m, run->out, run->lse, err));
    run->ns_attend += clock_ns() - t;
    /* Recall belongs to the mask, whatever the arithmetic did with it. */
    if (own)
        TRY(attn_rows(run->in->ops, m, NULL, run->lse_mask, err));
    *tiles_pv = stats.tiles_pv;
    metrics_add_rows(&run->acc, m->row0, m->row1 - m->row0, run->out,
                     run->in->out + m->row0 * run->in->x.dv, own ? run->lse_mask : run->lse,
                     run->lse, run->in->lse + m->row0);
out:
    return rc;
}

static int run_chunk(struct run *run, int64_t row0, int64_t row1, struct err *err)
{
    struct mask m = {0};
    double tiles_pv, t = clock_ns();
    int rc = 0;

    TRY(run->method->select(run->state, row0, row1, &m, err));
    run->ns_select += clock_ns() - t;
    TRY(mask_check(&m, err));
    if (m.row0 != row0 || m.row1 != row1)
        FAIL(err, ERR_RUN, "the mask covers rows %lld..%lld, asked for %lld..%lld",
             (long long)m.row0, (long long)m.row1, (long long)row0, (long long)row1);
    TRY(attend_chunk(run, &m, &tiles_pv, err));
    TRY(metrics_add_mask(&run->acc, &m, tiles_pv, err));
    if (run->sink)
        TRY(run->sink(run->sink_ctx, &m, run->out, run->lse, err));
out:
    mask_free(&m);
    return rc;
}

static int run_chunks(struct run *run, struct err *err)
{
    const struct attn_in *x = &run->in->x;
    int64_t step = run_chunk_rows(run), rows = step < x->nq ? step : x->nq;
    int rc = 0;

    TRY(mem_alloc(&run->out, rows * x->dv, sizeof(double), "method output", err));
    TRY(mem_alloc(&run->lse, rows, sizeof(double), "method log-sum-exp", err));
    TRY(mem_alloc(&run->lse_mask, rows, sizeof(double), "mask log-sum-exp", err));
    for (int64_t r = 0; r < x->nq; r += step)
        TRY(run_chunk(run, r, r + step < x->nq ? r + step : x->nq, err));
out:
    return rc;
}

static int run_prepare(struct run *run, const void *params, struct method_ctx *ctx, struct err *err)
{
    unsigned need = run->in->x.causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL;
    if (!(run->method->flags & need))
        return method_skip(ctx, run->in->x.causal ? "bidirectional only" : "causal only");
    double t = clock_ns();
    int rc = run->method->prepare(ctx, params, run->in, &run->state, err);
    run->ns_prepare = clock_ns() - t;
    return rc;
}

static int run_record(struct run *run, struct record *r, struct err *err)
{
    int rc = 0;
    TRY(metrics_finish(&run->acc, run->in->x.nq, run->in->x.nk, r, err));
    if (run->method->report)
        TRY(run->method->report(run->state, r, err));
    TRY(record_metric(r, "host_prepare_ns", run->ns_prepare, err));
    TRY(record_metric(r, "host_select_ns", run->ns_select, err));
    if (run->out)
        TRY(record_metric(r, "host_attend_ns", run->ns_attend, err));
    r->status = RECORD_OK;
out:
    return rc;
}

static int run_method(const struct method *method, const void *params, struct method_ctx *ctx,
                      const struct head_in *in, sim_sink_fn *sink, void *sink_ctx, struct record *r,
                      struct err *err)
{
    struct run run = {.method = method, .in = in, .sink = sink, .sink_ctx = sink_ctx};
    int rc = run_prepare(&run, params, ctx, err);

    if (rc)
        goto out;
    TRY(metrics_init(&run.acc, in->x.nq, in->x.dv, err));
    TRY(ctx->accel ? run_on_accel(&run, params, ctx, r, err) : run_chunks(&run, err));
    TRY(run_record(&run, r, err));
out:
    if (rc == METHOD_SKIP) {
        r->status = RECORD_SKIP;
        snprintf(r->reason, sizeof r->reason, "%s", ctx->skip);
        rc = 0;
    }
    if (run.method->release)
        run.method->release(run.state);
    metrics_free(&run.acc);
    free(run.out);
    free(run.lse);
    free(run.lse_mask);
    free(run.accel_lse);
    ctx->accel_lse = NULL;
    ctx->accel_data = 0;
    return rc < 0 ? err_prefix(err, "%s", method->name) : rc;
}

/* A method that asks for a token order: everything runs on the reordered head. */
static int run_reordered(const struct method *method, const void *params, struct method_ctx *ctx,
                         const struct head_in *in, sim_sink_fn *sink, void *sink_ctx,
                         struct record *r, struct err *err)
{
    struct sim_head h = {0};
    int rc = 0;

    if (!in->geom.t || in->x.causal || in->x.nq != in->x.nk) {
        r->status = RECORD_SKIP;
        snprintf(r->reason, sizeof r->reason, "token order '%s' needs a bidirectional video trace",
                 method->order(params));
        return 0;
    }
    if (in->order) {
        r->status = RECORD_SKIP;
        snprintf(r->reason, sizeof r->reason,
                 "token order '%s' of tokens that are already in order "
                 "'%s'",
                 method->order(params), in->order);
        return 0;
    }
    TRY(sim_head_reorder(in, method->order(params), ctx->seed, &h, err));
    TRY(run_method(method, params, ctx, &h.in, sink, sink_ctx, r, err));
out:
    sim_head_free(&h);
    return rc;
}

int sim_run(const struct method *method, const void *params, struct method_ctx *ctx,
            const struct head_in *in, sim_sink_fn *sink, void *sink_ctx, struct record *r,
            struct err *err)
{
    const char *order = method->order ? method->order(params) : NULL;
    if (order && strcmp(order, "none") != 0 && !(in->order && strcmp(in->order, order) == 0))
        return run_reordered(method, params, ctx, in, sink, sink_ctx, r, err);
    return run_method(method, params, ctx, in, sink, sink_ctx, r, err);
}
