/*
 * simulate_accel.c - run a method on a head on the GPU (core/accel.h): masks of the CPU reference
 * or of the device, attention, metrics and times, all into the record.
 */
#include "core/intmath.h"
#include "core/accel.h"
#include "core/mem.h"
#include "sim/accelattend.h"
#include "sim/simulate_run.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int record_time(struct record *r, const char *name, const struct accel_time *t,
                       struct err *err)
{
    char key[48];
    int rc = 0;
    TRY(record_metric(r, name, t->median, err));
    snprintf(key, sizeof key, "%s_q1", name);
    TRY(record_metric(r, key, t->q1, err));
    snprintf(key, sizeof key, "%s_q3", name);
    TRY(record_metric(r, key, t->q3, err));
out:
    return rc;
}

/* Where a head's mask was chosen. */
struct selected {
    bool none, gpu; /* nothing to choose; chosen, or built, on the GPU */
    bool compared;  /* the reference has chosen too */
    struct mask_origin origin;
    struct accel_time time; /* on the GPU */
    int64_t differs;        /* units in which the GPU's mask and the reference's differ */
};

/* Does the choice cost this call nothing, because there is none or it was made before? */
static bool chosen_before(const struct selected *sel)
{
    return !sel->none && sel->origin.source != SOURCE_OWN;
}

/* The choice of a mask that several calls use, as a share of one call. */
static int record_amortised(const struct run *run, const struct selected *sel, struct record *r,
                            struct err *err)
{
    struct carry *carry = run->cell->ctx->carry;
    if (!carry || sel->origin.calls <= 1)
        return 0;
    if (sel->origin.source == SOURCE_OWN)
        carry->choose_ns = sel->gpu ? sel->time.median : 0;
    if (!(carry->choose_ns > 0))
        return 0;
    return record_metric(r, "time_select_amortised_ns",
                         carry->choose_ns / (double)sel->origin.calls, err);
}

static int record_total(const struct attn_in *x, const struct accel_result *res,
                        const struct selected *sel, struct record *r, struct err *err)
{
    static const struct accel_time nothing = {0};
    const struct accel_time *choice = chosen_before(sel) ? &nothing : &sel->time;
    double total = res->attend.median + (sel->none ? 0 : choice->median);
    double pairs = (double)pairs_allowed(x->nq, x->nk, x->causal);
    int rc = 0;
    if (sel->none) {
        TRY(record_time(r, "time_total_ns", &res->attend, err));
    } else {
        TRY(record_time(r, "time_select_ns", choice, err));
        TRY(record_metric(r, "time_total_ns", total, err));
        TRY(record_metric(r, "select_share", choice->median / total, err));
    }
    TRY(record_metric(r, "speedup", res->dense.median / total, err));
    TRY(record_metric(r, "speed_dense_eq", 4e-3 * x->d * pairs / total, err));
out:
    return rc;
}

/* Nothing where counters were not asked for. */
static int record_counters(const struct accel_result *res, struct record *r, struct err *err)
{
    const struct accel_counters *c = &res->counters;
    int rc = 0;
    if (*c->why)
        record_note(r, "counters=%s", c->why);
    if (isnan(c->tensor_pipe_pct))
        return 0;
    TRY(record_metric(r, "tensor_pipe_pct", c->tensor_pipe_pct, err));
    TRY(record_metric(r, "dram_read_bytes", c->dram_read_bytes, err));
    TRY(record_metric(r, "dram_write_bytes", c->dram_write_bytes, err));
    TRY(record_metric(r, "counter_copies", (double)res->copies.q, err));
    TRY(record_metric(r, "counter_copies_kv", (double)res->copies.kv, err));
out:
    return rc;
}

/* A total only where everything from q, k, v to the output ran on the GPU. */
static int record_times(const struct run *run, const struct accel_result *res,
                        const struct selected *sel, struct record *r, struct err *err)
{
    static const char *const kinds[] = {"own", "static", "reused"};
    const struct attn_in *x = &run->in->x;
    int rc = 0;

    record_note(r, "select_backend=%s;kernel=%s;dense_kernel=%s;operands=bf16",
                sel->none  ? "none"
                : sel->gpu ? "cuda"
                           : "cpu",
                res->kernel, res->dense_kernel);
    if (!sel->none)
        record_note(r, "select_kind=%s", kinds[sel->origin.source]);
    TRY(record_metric(r, "host_plan_ns", res->host_plan_ns, err));
    record_note(r, res->rows ? "metrics_backend=cuda;reference=dense-fp32" : "metrics_backend=cpu");
    TRY(record_metric(r, "density_kernel",
                      (double)res->pairs_exec / (double)pairs_allowed(x->nq, x->nk, x->causal),
                      err));
    if (sel->compared)
        TRY(record_metric(r, "mask_diff", (double)sel->differs, err));
    TRY(record_counters(res, r, err));
    if (!res->attend.samples)
        return rc;
    TRY(record_time(r, "time_attend_ns", &res->attend, err));
    TRY(record_time(r, "time_dense_ns", &res->dense, err));
    if (res->rows)
        TRY(record_time(r, "time_metrics_ns", &res->metrics, err));
    TRY(record_metric(r, "samples", (double)res->attend.samples, err));
    TRY(record_metric(r, "copies", (double)res->copies.q, err));
    TRY(record_metric(r, "copies_kv", (double)res->copies.kv, err));
    TRY(record_metric(r, "speed_exec", 4e-3 * x->d * (double)res->pairs_exec / res->attend.median,
                      err));
    if (sel->gpu && sel->origin.source == SOURCE_STATIC)
        TRY(record_time(r, "time_build_ns", &sel->time, err));
    if (sel->none || sel->gpu || chosen_before(sel))
        TRY(record_total(x, res, sel, r, err));
    TRY(record_amortised(run, sel, r, err));
out:
    return rc;
}

/* Errors are those of the output as the GPU delivers it; recall is the mask's, by the reference,
 * unless the device measured both. */
static int add_chunk(struct run *run, const struct mask *m, const struct accel_result *res,
                     double tiles_pv, struct err *err)
{
    struct exact *exact = run->in->exact;
    const double *ref, *ref_lse;
    int64_t dv = run->in->x.dv;
    int rc = 0;
    if (!res->rows && run->cell->measure == MEASURE_ALL) {
        TRY(exact_attend(exact, m, NULL, run->lse_mask, err));
        TRY(exact_out(exact, m->row0, m->row1, &ref, err));
        TRY(exact_lse(exact, m->row0, m->row1, &ref_lse, err));
        metrics_add_rows(&run->acc, m->row0, m->row1 - m->row0, res->out + m->row0 * dv, ref,
                         run->lse_mask, res->lse + m->row0, ref_lse);
    }
    TRY(metrics_add_mask(&run->acc, m, tiles_pv, err));
    if (run->cell->sink)
        TRY(run->cell->sink(run->cell->sink_ctx, m, res->out + m->row0 * dv, res->lse + m->row0,
                            err));
out:
    return rc;
}

static int select_all(struct run *run, int64_t step, struct mask *masks, struct err *err)
{
    int64_t nq = run->in->x.nq, n = 0;
    int rc = 0;
    double t = run_clock(run);
    for (int64_t r = 0; r < nq; r += step, n++) {
        TRY(run->method->select(run->state, r, r + step < nq ? r + step : nq, masks + n, err));
        TRY(mask_check(masks + n, err));
    }
    run->ns_select = run_clock(run) - t;
out:
    return rc;
}

/* The rows of chunk *m, as the lists of the whole head have them, in the place of *m. Counts what
 * differs. */
static int take_rows(const struct mask *whole, struct mask *m, int64_t *differs, struct err *err)
{
    struct mask part = {0};
    int rc = 0;

    TRY(mask_lists_rows(whole, m->row0, m->row1, &part, err));
    part.exec = m->exec;
    part.exec_bq = m->exec_bq;
    part.exec_bk = m->exec_bk;
    *differs += mask_lists_differ(&part, m);
    mask_free(m);
    *m = part;
    part = (struct mask){0};
out:
    mask_free(&part);
    return rc;
}

/* Tiles of the whole head's lists that a band does not touch, and the other way round. */
static int compare_tiles(const struct mask *whole, const struct mask *m, int64_t *differs,
                         struct err *err)
{
    int32_t *col = NULL;
    int rc = 0;

    TRY(mem_alloc(&col, ceil_div(m->nk, whole->bk), sizeof *col, "tiles of a band", err));
    for (int64_t r = m->row0; r < m->row1; r += whole->bq) {
        int64_t from = whole->ptr[r / whole->bq], to = whole->ptr[r / whole->bq + 1];
        int64_t last = r + whole->bq < m->row1 ? r + whole->bq : m->row1;
        int64_t n = mask_union_tiles(m, r, last, whole->bk, col, err);
        if (n < 0) {
            rc = (int)n;
            goto out;
        }
        *differs += list_differ(whole->col + from, to - from, col, n);
    }
out:
    free(col);
    return rc;
}

/* One chunk's mask as the GPU chose it. */
static int take_mask(const struct mask *whole, struct mask *m, int64_t *differs, struct err *err)
{
    if (whole->form == MASK_FULL && m->form == MASK_FULL)
        return 0;
    if (whole->form == MASK_LISTS && m->form == MASK_BAND)
        return compare_tiles(whole, m, differs, err);
    if (whole->form == m->form && whole->bq == m->bq && whole->bk == m->bk)
        return take_rows(whole, m, differs, err);
    return err_set(err, ERR_RUN, "the GPU selects units of %lld x %lld, the reference does not",
                   (long long)whole->bq, (long long)whole->bk);
}

/* Is the mask of the head one band? */
static bool whole_band(const struct mask *masks, int64_t n, struct mask *band)
{
    *band = masks[0];
    band->row1 = masks[n - 1].row1;
    for (int64_t i = 0; i < n; i++)
        if (masks[i].form != MASK_BAND || masks[i].sink != band->sink ||
            masks[i].window != band->window || masks[i].dense_from != band->dense_from)
            return false;
    return true;
}

/* Ask the GPU for the head's mask: by the method's rule, or by its parameters and, where that is
 * so, the band that they make. METHOD_SKIP with the reason when it does not choose for this method,
 * or masks of this form. */
static int ask_accel(struct run *run, const struct mask *band, const union method_rule *rule,
                     struct mask *whole, struct accel_time *time, struct err *err)
{
    const struct sim_device *device = run->cell->device;
    struct method_ctx *ctx = run->cell->ctx;
    struct accel_choice c = {.method = run->method->name,
                             .options = run->method->params,
                             .params = run->cell->params,
                             .seed = ctx->seed,
                             .x = &run->in->x,
                             .data = run->map.data,
                             .call = {run->in->n_heads, run->in->n_kv_heads},
                             .shape = band,
                             .rule = rule};
    char why[160] = "the back end does not select";
    int rc = ACCEL_NO_SELECT;

    if (device->accel->select)
        rc = device->accel->select(device->session, &c, whole, time, why, err);
    return rc == ACCEL_NO_SELECT ? method_skip(ctx, "%s", why) : rc;
}

/* Replace the reference's masks by those that the GPU chooses. METHOD_SKIP as ask_accel. */
static int select_on_accel(struct run *run, struct mask *masks, int64_t n, struct selected *sel,
                           struct err *err)
{
    struct mask whole = {0}, band;
    const struct mask *shape = whole_band(masks, n, &band) ? &band : NULL;
    int rc = ask_accel(run, shape, NULL, &whole, &sel->time, err);
    for (int64_t i = 0; i < n && !rc; i++)
        rc = take_mask(&whole, masks + i, &sel->differs, err);
    sel->gpu = sel->compared = !rc;
    mask_free(&whole);
    return rc;
}

/* Let the GPU choose by the method's rule, before the method itself would. METHOD_SKIP as
 * ask_accel. */
static int adopt_from_accel(struct run *run, struct selected *sel, struct err *err)
{
    union method_rule rule;
    struct mask whole = {0};
    char why[160] = "";
    int rc = 0;
    if (!run->method->rule(run->state, &rule, why))
        return method_skip(run->cell->ctx, "%s", why);
    rc = ask_accel(run, NULL, &rule, &whole, &sel->time, err);
    if (!rc)
        rc = run->method->adopt(run->state, &whole, err);
    sel->gpu = !rc;
    mask_free(&whole);
    return rc;
}

/* rows: of a chunk. measure: the device does the metrics. */
static int result_init(struct run *run, bool measure, int64_t rows, struct accel_result *res,
                       struct err *err)
{
    const struct attn_in *x = &run->in->x;
    int rc = 0;
    TRY(mem_alloc(&res->lse, x->nq, sizeof(double), "method log-sum-exp", err));
    if (run->cell->sink || !measure)
        TRY(mem_alloc(&res->out, x->nq * x->dv, sizeof(double), "method output", err));
    if (measure) {
        TRY(mem_alloc(&res->rows, x->nq, sizeof *res->rows, "errors of rows", err));
        TRY(mem_alloc(&res->mass, x->nq, sizeof(double), "kept mass of rows", err));
        TRY(mem_alloc(&res->dense_lse, x->nq, sizeof(double), "dense log-sum-exp", err));
    } else {
        TRY(mem_alloc(&run->lse_mask, rows, sizeof(double), "mask log-sum-exp", err));
    }
out:
    return rc;
}

static void result_free(struct accel_result *res)
{
    free(res->out);
    free(res->lse);
    free(res->rows);
    free(res->mass);
    free(res->dense_lse);
}

/* Choose the masks of all chunks; the device's own in place of the reference's where it chooses. */
static int select_masks(struct run *run, int64_t step, struct mask *masks, int64_t n,
                        struct selected *sel, struct err *err)
{
    const struct method *me = run->method;
    enum select_where where = run->cell->device->select;
    int rc = 0, refused = 0;

    if (me->origin)
        sel->origin = me->origin(run->state);
    bool own = sel->origin.source == SOURCE_OWN && !sel->none;
    if (own && me->rule && where != SELECT_CPU)
        refused = adopt_from_accel(run, sel, err);
    if (refused < 0)
        return refused;
    TRY(select_all(run, step, masks, err));
    if (!me->rule && !sel->none && where != SELECT_CPU && sel->origin.source != SOURCE_REUSED)
        refused = select_on_accel(run, masks, n, sel, err);
    if (refused < 0 || (refused == METHOD_SKIP && own && where == SELECT_GPU))
        rc = refused;
out:
    return rc;
}

static void masks_free(struct mask *masks, int64_t n)
{
    for (int64_t i = 0; masks && i < n; i++)
        mask_free(masks + i);
    free(masks);
}

/* The masks of all n chunks, and no more than their counts. */
static int mask_on_accel(struct run *run, int64_t step, int64_t n, struct err *err)
{
    struct selected sel = {.none = strcmp(run->method->name, "dense") == 0};
    struct mask *masks = NULL;
    int rc = 0;

    TRY(mem_zalloc(&masks, n, sizeof *masks, "masks", err));
    if ((rc = select_masks(run, step, masks, n, &sel, err)) != 0)
        goto out;
    for (int64_t i = 0; i < n; i++) {
        TRY(metrics_add_mask(&run->acc, masks + i, -1, err));
        if (run->cell->sink)
            TRY(run->cell->sink(run->cell->sink_ctx, masks + i, NULL, NULL, err));
    }
out:
    masks_free(masks, n);
    return rc;
}

int run_on_accel(struct run *run, struct record *r, struct err *err)
{
    const struct sim_device *device = run->cell->device;
    const struct attn_in *x = &run->in->x;
    struct accel_result res = {0};
    struct selected sel = {.none = strcmp(run->method->name, "dense") == 0};
    struct accel_filter filter;
    struct accel_head head = {
        .x = x, .data = run->map.data, .call = {run->in->n_heads, run->in->n_kv_heads}};
    struct mask *masks = NULL;
    char why[160] = "the method's own arithmetic has no CUDA kernel";
    bool own = run_own_arithmetic(run);
    int64_t step = run_chunk_rows(run), n = ceil_div(x->nq, step);
    int rc = 0;

    if (run->cell->measure == MEASURE_MASK)
        return mask_on_accel(run, step, n, err);
    if (own && !(run->method->filter && run->method->filter(run->state, &filter, why)))
        return method_skip(run->cell->ctx, "%s", why);
    TRY(mem_zalloc(&masks, n, sizeof *masks, "masks", err));
    TRY(result_init(run, device->metrics, step < x->nq ? step : x->nq, &res, err));
    if ((rc = select_masks(run, step, masks, n, &sel, err)) != 0)
        goto out;
    head.filter = own ? &filter : NULL;
    rc = accel_attend_masks(device->accel, device->session, &head, masks, n, &res, why, err);
    if (rc) {
        rc = rc == METHOD_SKIP ? method_skip(run->cell->ctx, "%s", why) : rc;
        goto out;
    }
    if (own)
        run->method->filtered(run->state, res.tiles_pv);
    for (int64_t i = 0; i < n; i++)
        TRY(add_chunk(run, masks + i, &res, !own ? -1 : i == 0 ? res.tiles_pv : 0, err));
    if (res.rows)
        metrics_add_measured(&run->acc, &res);
    TRY(record_times(run, &res, &sel, r, err));
    device_map_lse(&run->map, &res.dense_lse);
out:
    masks_free(masks, n);
    result_free(&res);
    return rc;
}
