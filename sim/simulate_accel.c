/*
 * simulate_accel.c - run a method on a head on the GPU (core/accel.h): masks of the CPU reference
 * or of the device, attention, metrics and times through copies of the head, all into the record.
 */
#include "core/accel.h"
#include "core/mem.h"
#include "sim/accelattend.h"
#include "sim/accelrecord.h"
#include "sim/freshmask.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The choice of a mask that several calls use, as a share of one call. */
static int record_amortised(const struct run *run, const struct choice *c,
                            const struct accel_time *choice, struct record *r, struct err *err)
{
    struct carry *carry = run->cell->ctx->carry;
    if (!carry || c->origin.calls <= 1)
        return 0;
    if (c->origin.source == SOURCE_OWN)
        carry->choose_ns = c->gpu ? choice->median : 0;
    if (!(carry->choose_ns > 0))
        return 0;
    return record_metric(r, "time_select_amortised_ns", carry->choose_ns / (double)c->origin.calls,
                         err);
}

static int record_copies(const struct accel_result *res, struct record *r, struct err *err)
{
    int rc = 0;
    TRY(record_counters(&res->counters, r, err));
    if (isnan(res->counters.tensor_pipe_pct))
        return 0;
    TRY(record_metric(r, "counter_copies", (double)res->copies.q, err));
    TRY(record_metric(r, "counter_copies_kv", (double)res->copies.kv, err));
out:
    return rc;
}

/* A total only where everything from q, k, v to the output ran on the GPU. */
static int record_times(const struct run *run, const struct accel_result *res,
                        const struct choice *c, const struct accel_time *choice, struct record *r,
                        struct err *err)
{
    static const struct accel_time nothing = {0};
    const struct attn_in *x = &run->in->x;
    const struct accel_time *select = c->none ? NULL : choice_before(c) ? &nothing : choice;
    int rc = 0;

    if (!res->attend.samples)
        return 0;
    record_note(r, "time=copies");
    TRY(record_time(r, "time_attend_ns", &res->attend, err));
    TRY(record_time(r, "time_dense_ns", &res->dense, err));
    if (res->rows)
        TRY(record_time(r, "time_metrics_ns", &res->metrics, err));
    TRY(record_metric(r, "samples", (double)res->attend.samples, err));
    TRY(record_metric(r, "copies", (double)res->copies.q, err));
    TRY(record_metric(r, "copies_kv", (double)res->copies.kv, err));
    TRY(record_metric(r, "speed_exec", 4e-3 * x->d * (double)res->pairs_exec / res->attend.median,
                      err));
    if (c->gpu && c->origin.source == SOURCE_STATIC)
        TRY(record_time(r, "time_build_ns", choice, err));
    if (c->none || c->gpu || choice_before(c)) {
        struct accel_total t = {x, 1, select, &res->quant, &res->attend, &res->dense, NULL};
        TRY(record_total(&t, r, err));
    }
    TRY(record_amortised(run, c, choice, r, err));
out:
    return rc;
}

/* Choose the head's mask. *time: on the GPU, where it chose. */
static int choose(struct run *run, struct choice *c, struct accel_time *time, struct err *err)
{
    const struct sim_device *device = run->cell->device;
    struct mask whole = {0};
    char why[160] = "the back end does not select";
    int rc = 0, answer = ACCEL_NO_SELECT;

    TRY(fresh_mask_of_head(run, err));
    TRY(choice_begin(run, c, err));
    struct accel_choice question = choice_question(run, c);
    if (question.method && device->accel->select)
        answer = device->accel->select(device->session, &question, &whole, time, why, err);
    if (answer < 0) {
        rc = answer;
        goto out;
    }
    rc = choice_end(run, c, question.method && answer == 0 ? &whole : NULL, why, err);
out:
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
    if ((run->cell->sink || !measure) && !accel_stays(x))
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

/* The masks of all chunks, and no more than their counts. */
static int mask_on_accel(struct run *run, struct err *err)
{
    struct accel_time time;
    struct choice c = {0};
    int rc = 0;

    TRY(choice_init(run, &c, err));
    if ((rc = choose(run, &c, &time, err)) != 0)
        goto out;
    for (int64_t i = 0; i < c.n; i++) {
        TRY(metrics_add_mask(&run->acc, c.masks + i, -1, err));
        if (run->cell->sink)
            TRY(run->cell->sink(run->cell->sink_ctx, c.masks + i, NULL, NULL, err));
    }
out:
    choice_free(&c);
    return rc;
}

int run_on_accel(struct run *run, struct record *r, struct err *err)
{
    const struct sim_device *device = run->cell->device;
    const struct attn_in *x = &run->in->x;
    struct accel_result res = {0};
    struct accel_time time = {NAN, NAN, NAN, 0};
    struct choice c = {0};
    struct accel_head head = {
        .x = x, .data = run->map.data, .call = {run->in->n_heads, run->in->n_kv_heads}};
    enum arith_kind kind = run->arith.kind;
    char why[160];
    int rc = 0;

    if (run->cell->measure == MEASURE_MASK)
        return mask_on_accel(run, err);
    if (kind == ARITH_CPU)
        return method_skip(run->cell->ctx, "%s", run->why_cpu);
    TRY(choice_init(run, &c, err));
    TRY(result_init(run, device->metrics, c.step < x->nq ? c.step : x->nq, &res, err));
    if ((rc = choose(run, &c, &time, err)) != 0)
        goto out;
    head.filter = kind == ARITH_FILTER ? &run->arith.filter : NULL;
    head.own = kind == ARITH_KERNEL ? &run->arith.own : NULL;
    head.added = run->arith.added;
    rc = accel_attend_masks(device->accel, device->session, &head, c.masks, c.n, &res, why, err);
    if (rc) {
        rc = rc == METHOD_SKIP ? method_skip(run->cell->ctx, "%s", why) : rc;
        goto out;
    }
    if (run_hears(run))
        TRY(run->method->arith.done(run->state, res.tiles_pv, res.lse, err));
    struct accel_outputs o = {res.out, res.lse, kind == ARITH_FILTER ? res.tiles_pv : -1};
    TRY(accel_add_masks(run, &c, &o, err));
    if (res.rows)
        metrics_add_measured(&run->acc, &res);
    TRY(record_accel(run, &c, res.kernel, res.dense_kernel, res.pairs_exec, r, err));
    TRY(record_metric(r, "host_plan_ns", res.host_plan_ns, err));
    TRY(record_copies(&res, r, err));
    TRY(record_times(run, &res, &c, &time, r, err));
    device_map_lse(&run->map, &res.dense_lse);
out:
    choice_free(&c);
    result_free(&res);
    return rc;
}
