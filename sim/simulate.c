/*
 * simulate.c - the flow of one method on one head: prepare, and per row chunk select, attend,
 * count. Memory is linear in N: only a chunk's mask and output exist.
 */
#include "sim/simulate.h"

#include "core/intmath.h"
#include "core/mem.h"
#include "core/method_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a chunk: enough that per-chunk work vanishes; and pairs, so that even a list of single
 * entries that keeps everything stays below a gigabyte at any length. */
#define CHUNK_ROWS 2048
#define CHUNK_PAIRS ((int64_t)1 << 27)

int64_t run_chunk_rows(const struct run *run)
{
    int64_t step = run->unit_rows / gcd(run->unit_rows, 128) * 128;
    int64_t want = MIN(CHUNK_PAIRS / run->in->x.nk, CHUNK_ROWS);
    return want <= step ? step : ceil_div(want, step) * step;
}

/* Query rows of the head: all, or those of its sample. */
static int64_t head_rows(const struct head_in *in)
{
    return in->rows ? in->rows->n : in->x.nq;
}

/* A method's own arithmetic knows the keys alone; the sink's part of the softmax has no value. */
static void share_with_sink(const struct attn_in *x, int64_t rows, const double *lse, double *out)
{
    for (int64_t i = 0; x->mods.has_sink && i < rows; i++) {
        double share = attn_key_share(x, lse[i]);
        for (int c = 0; c < x->dv; c++)
            out[i * x->dv + c] *= share;
    }
}

static int attend_chunk(struct run *run, const struct mask *m, double *tiles_pv, struct err *err)
{
    const struct method *me = run->method;
    struct exact *exact = run->in->exact;
    bool own = run->arith.kind != ARITH_SOFTMAX; /* not exact softmax over its mask */
    const double *ref, *ref_lse;
    *tiles_pv = -1;
    double t = run_clock(run);
    if (own)
        PASS_ON(me->arith.attend(run->state, m, run->out, run->lse, tiles_pv, err));
    if (own)
        share_with_sink(&run->in->x, m->row1 - m->row0, run->lse, run->out);
    else
        PASS_ON(exact_attend(exact, m, run->out, run->lse, err));
    run->ns_attend += run_clock(run) - t;
    if (run->cell->measure != MEASURE_ALL)
        return 0;
    /* Recall belongs to the mask, whatever the arithmetic did with it. */
    if (own)
        PASS_ON(exact_attend(exact, m, NULL, run->lse_mask, err));
    PASS_ON(exact_out(exact, m->row0, m->row1, &ref, err));
    PASS_ON(exact_lse(exact, m->row0, m->row1, &ref_lse, err));
    metrics_add_rows(&run->acc, m->row0, m->row1 - m->row0, run->out, ref,
                     own ? run->lse_mask : run->lse, run->lse, ref_lse);
    return 0;
}

static int run_chunk(struct run *run, int64_t row0, int64_t row1, struct err *err)
{
    OWN(mask_free) struct mask m = {0};
    double tiles_pv = -1, t = run_clock(run);
    PASS_ON(run->method->select(run->state, row0, row1, &m, err));
    mask_within(&m, &run->in->x.reach);
    run->ns_select += run_clock(run) - t;
    PASS_ON(mask_check(&m, err));
    if (m.row0 != row0 || m.row1 != row1)
        return err_set(err, ERR_RUN, "the mask covers rows %lld..%lld, asked for %lld..%lld",
                       (long long)m.row0, (long long)m.row1, (long long)row0, (long long)row1);
    if (run->cell->measure != MEASURE_MASK)
        PASS_ON(attend_chunk(run, &m, &tiles_pv, err));
    PASS_ON(metrics_add_mask(&run->acc, &m, tiles_pv, err));
    if (run->cell->sink)
        return run->cell->sink(run->cell->sink_ctx, &m, run->out, run->lse, err);
    return 0;
}

/* The sampled rows, group by group, each with sums of its own. */
static int run_groups(struct run *run, int64_t step, struct err *err)
{
    const struct row_sample *s = run->in->rows;
    int64_t n = row_sample_groups(s);
    struct metrics_acc all = run->acc;
    int rc = 0;
    TRY(mem_zalloc(&run->part, n, sizeof *run->part, "sums of groups of rows", err));
    run->n_part = n;
    for (int64_t g = 0; g < n && rc == 0; g++) {
        struct row_span span = row_sample_span(s, g);
        int64_t end = span.pos + span.rows;
        TRY(metrics_init(&run->acc, span.rows, run->in->x.dv, err));
        run->acc.row0 = span.pos;
        for (int64_t r = span.pos; r < end && rc == 0; r += step)
            rc = run_chunk(run, r, MIN(r + step, end), err);
        run->part[g] = run->acc;
    }
    if (rc == 0)
        metrics_merge(&all, run->part, n);
out:
    run->acc = all;
    return rc;
}

static int run_chunks(struct run *run, struct err *err)
{
    const struct attn_in *x = &run->in->x;
    int64_t step = run_chunk_rows(run), rows = MIN(step, x->nq);
    if (run->cell->measure != MEASURE_MASK) {
        PASS_ON(mem_alloc(&run->out, rows * x->dv, sizeof(double), "method output", err));
        PASS_ON(mem_alloc(&run->lse, rows, sizeof(double), "method log-sum-exp", err));
        PASS_ON(mem_alloc(&run->lse_mask, rows, sizeof(double), "mask log-sum-exp", err));
    }
    if (run->in->rows)
        return run_groups(run, step, err);
    for (int64_t r = 0; r < x->nq; r += step)
        PASS_ON(run_chunk(run, r, MIN(r + step, x->nq), err));
    return 0;
}

int sim_admits(const struct sim_cell *cell)
{
    const struct attn_in *x = &cell->in->x;
    char why[128];
    for (int i = 0; i < 3; i++)
        if (cell->in->nonfinite[i])
            return method_skip(
                cell->ctx, "%c holds NaN or infinity: softmax of its rows has no value", "qkv"[i]);
    if (!(cell->method->flags & (x->causal ? METHOD_CAUSAL : METHOD_BIDIRECTIONAL)))
        return method_skip(cell->ctx, x->causal ? "bidirectional only" : "causal only");
    if (!method_combines(cell->method, x, why))
        return method_skip(cell->ctx, "%s %s", cell->method->name, why);
    return 0;
}

int run_start(struct run *run, struct err *err)
{
    struct method_ctx *ctx = run->cell->ctx;
    const struct method *m = run->method;
    const struct attn_in *x = &run->in->x;
    const struct row_sample *rows = run->in->rows;
    PASS_ON(sim_admits(run->cell));
    if (run->cell->device && !attn_is_plain(x))
        return method_skip(ctx, "the GPU kernels know no window, chunk, cap, bias or sink: "
                                "--backend cpu replays this call");
    if (rows && run->cell->device)
        return method_skip(ctx, "the GPU kernels take whole heads: --backend cpu replays sampled "
                                "rows");
    if (rows && !(m->flags & METHOD_ROWS))
        return method_skip(ctx, "%s chooses from all query rows; the trace holds a sample",
                           m->name);
    double t = run_clock(run);
    int rc = method_prepare(m, ctx, run->cell->params, run->in, &run->state, err);
    run->ns_prepare = run_clock(run) - t;
    if (rc)
        return rc;
    run->unit_rows = ctx->unit_rows;
    run->source = method_origin(m, run->state).source;
    method_arithmetic(m, run->state, &run->arith, run->why_cpu);
    /* Groups of rows that a method takes together must lie within the sample's. */
    if (rows && rows->group % run->unit_rows != 0)
        return method_skip(ctx,
                           "%s chooses for %lld rows together; the sample has groups of %lld: "
                           "capture with --rows NxR, R a multiple of both",
                           m->name, (long long)run->unit_rows, (long long)rows->group);
    return metrics_init(&run->acc, head_rows(run->in), x->dv, err);
}

/* What the head adds to scaled products and causality, and what its sink takes. */
static int record_score(struct run *run, struct record *r, struct err *err)
{
    const struct attn_in *x = &run->in->x;
    const struct row_sample *s = run->in->rows;
    const double *lse;
    double sum = 0;
    if (x->reach.back)
        record_note(r, "window_left=%lld", (long long)x->reach.back - 1);
    if (x->reach.ahead)
        record_note(r, "window_right=%lld", (long long)x->reach.ahead - 1);
    if (x->reach.chunk)
        record_note(r, "chunk=%lld", (long long)x->reach.chunk);
    if (x->reach.prefix)
        record_note(r, "prefix=%lld", (long long)x->reach.prefix);
    if (x->mods.softcap > 0)
        record_note(r, "softcap=%g", x->mods.softcap);
    if (x->mods.alibi != 0)
        record_note(r, "alibi=%.9g", x->mods.alibi);
    if (x->mods.rel)
        record_note(r, "rel_bias=1");
    if (x->mods.pair.b)
        record_note(r, "bias=1");
    if (!x->mods.has_sink)
        return 0;
    record_note(r, "sink=%.9g", x->mods.sink);
    for (int64_t g = 0; g < (s ? row_sample_groups(s) : 1); g++) {
        struct row_span span = s ? row_sample_span(s, g) : (struct row_span){0, x->nq, 0};
        PASS_ON(exact_lse(run->in->exact, span.pos, span.pos + span.rows, &lse, err));
        for (int64_t i = 0; i < span.rows; i++)
            sum += 1 - attn_key_share(x, lse[i]);
    }
    return record_metric(r, "sink_mass_mean", sum / (double)head_rows(run->in), err);
}

/* What the method itself counted; of sampled rows only where that is right. */
static int own_report(struct run *run, struct record *r, struct err *err)
{
    const struct method *m = run->method;
    if (!m->report)
        return 0;
    if (run->in->rows && !(m->flags & METHOD_ROWS_REPORT)) {
        record_note(r, "own_numbers=left out");
        return 0;
    }
    return m->report(run->state, r, err);
}

static int record_sample(struct run *run, struct record *r, struct err *err)
{
    const struct row_sample *s = run->in->rows;
    if (!s)
        return 0;
    record_note(r, "rows=%lldx%lld", (long long)run->n_part, (long long)s->group);
    return metrics_errors(&run->acc, run->part, run->n_part, run->cell->measure == MEASURE_ALL, r,
                          err);
}

/* The cost of the choice unless nobody says it, after `report`, which may know more about what is
 * multiplied. */
static int record_cost(const struct run *run, struct record *r, struct err *err)
{
    const struct attn_in *x = &run->in->x;
    const struct method *me = run->method;
    struct select_cost cost = {0, 0};
    bool none = me->flags & METHOD_KEEPS_ALL || run->source != SOURCE_OWN;
    double exec = record_get(r, "pairs_exec");
    if (none || (me->cost && me->cost(run->state, &cost))) {
        PASS_ON(record_metric(r, "cost_select_flops", cost.flops, err));
        PASS_ON(record_metric(r, "cost_select_bytes", cost.bytes, err));
    }
    if (!isnan(exec))
        return record_metric(r, "cost_attend_flops", 2 * (double)(x->d + x->dv) * exec, err);
    return 0;
}

/* As the kernels are called: "filter", "int8", "filter-int8-f16". */
static void note_arith(const struct accel_filter *f, struct record *r)
{
    const char *type = !f->quant.levels ? "" : f->quant.e4m3 ? "int8" : "int8-f16";
    bool skips = !type[0] || f->pv < INFINITY;
    record_note(r, "arith=%s%s%s", skips ? "filter" : "", skips && type[0] ? "-" : "", type);
}

/* Dense attention under a method's name says nothing about the method: say why it is so. */
static void note_full(const struct run *run, struct record *r)
{
    char why[160] = "";
    if (run->acc.tally.counts.pairs_kept == run->acc.tally.counts.pairs_allowed &&
        run->method->why_full && run->method->why_full(run->state, why))
        record_note(r, "full=%s", why);
}

int run_record(struct run *run, struct record *r, struct err *err)
{
    int64_t nq = head_rows(run->in), nk = run->in->x.nk;
    r->status = RECORD_OK;
    if (run->cell->measure == MEASURE_MASK)
        return metrics_counts(&run->acc, nq, nk, r, err);
    if (run->cell->measure == MEASURE_COUNTS) {
        PASS_ON(metrics_counts(&run->acc, nq, nk, r, err));
        return own_report(run, r, err);
    }
    PASS_ON(record_score(run, r, err));
    PASS_ON(metrics_finish(&run->acc, nq, nk, run->in->rows != NULL, r, err));
    PASS_ON(record_sample(run, r, err));
    PASS_ON(own_report(run, r, err));
    if (!run->in->rows)
        PASS_ON(record_cost(run, r, err));
    note_full(run, r);
    if (run->arith.kind == ARITH_FILTER)
        note_arith(&run->arith.filter, r);
    PASS_ON(record_metric(r, "host_prepare_ns", run->ns_prepare, err));
    PASS_ON(record_metric(r, "host_select_ns", run->ns_select, err));
    if (run->out)
        return record_metric(r, "host_attend_ns", run->ns_attend, err);
    return 0;
}

void run_skipped(const struct run *run, struct record *r)
{
    r->status = RECORD_SKIP;
    record_text(r, &r->reason, "%s", run->cell->ctx->skip);
}

void run_end(struct run *run)
{
    method_release(run->method, run->state);
    if (run->map.device)
        device_map_detach(&run->map);
    metrics_free(&run->acc);
    for (int64_t g = 0; g < run->n_part; g++)
        metrics_free(&run->part[g]);
    free(run->part);
    free(run->out);
    free(run->lse);
    free(run->lse_mask);
}

static int run_method(const struct sim_cell *cell, struct record *r, struct err *err)
{
    struct run run = {.cell = cell, .method = cell->method, .in = cell->in};
    if (cell->measure == MEASURE_ALL) /* errors of the output are taken against dense attention */
        exact_expect_out(cell->in->exact);
    int rc = run_start(&run, err);
    rc = rc ? rc : run_chunks(&run, err);
    rc = rc ? rc : run_record(&run, r, err);
    if (rc == METHOD_SKIP) {
        run_skipped(&run, r);
        rc = 0;
    }
    run_end(&run);
    return rc < 0 ? err_prefix(err, "%s", cell->method->name) : rc;
}

/* Why the head cannot be put into another order; NULL: it can. */
static const char *order_is_fixed(const struct head_in *in)
{
    if (!in->geom.t || in->x.causal || in->x.nq != in->x.nk)
        return " needs a bidirectional video trace";
    if (reach_any(&in->x.reach) || score_has_bias(&in->x.mods))
        return " of a head whose window, chunk or bias depends on positions";
    return NULL;
}

int run_reorder(const struct sim_cell *cell, struct sim_head *h, bool *moved, struct record *r,
                struct err *err)
{
    const struct head_in *in = cell->in;
    const char *order =
        cell->method->params.order ? cell->method->params.order(cell->params) : NULL;
    *moved = order && strcmp(order, "none") != 0 && !(in->order && strcmp(in->order, order) == 0);
    if (!*moved)
        return 0;
    const char *why = order_is_fixed(in);
    if (why)
        record_text(r, &r->reason, "token order '%s'%s", order, why);
    else if (in->order)
        record_text(r, &r->reason, "token order '%s' of tokens that are already in order '%s'",
                    order, in->order);
    else
        return sim_head_reorder(in, order, cell->ctx->seed, h, err);
    r->status = RECORD_SKIP;
    *moved = false;
    return METHOD_SKIP;
}

int sim_run(const struct sim_cell *cell, struct record *r, struct err *err)
{
    struct sim_cell here = *cell;
    OWN(sim_head_free) struct sim_head h = {0};
    bool moved;
    if (cell->device)
        return sim_run_head(cell, r, err);
    int rc = run_reorder(cell, &h, &moved, r, err);
    if (moved && !rc)
        here.in = &h.in;
    if (rc == 0)
        rc = run_method(&here, r, err);
    return rc == METHOD_SKIP ? 0 : rc;
}
