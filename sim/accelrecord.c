/*
 * accelrecord.c - see accelrecord.h. The times of a call are of one launch over all heads, or of
 * the launches that chose all their masks; none is divided by anything.
 */
#include "sim/accelrecord.h"

#include <math.h>
#include <stdio.h>

/* Errors are those of the output as the GPU delivers it; recall is the mask's, by the reference,
 * unless the device measured both. */
static int add_chunk(struct run *run, const struct mask *m, const struct accel_outputs *o,
                     double tiles_pv, struct err *err)
{
    struct exact *exact = run->in->exact;
    const double *ref, *ref_lse;
    int64_t dv = run->in->x.dv;
    int rc = 0;
    if (!run->cell->device->metrics && run->cell->measure == MEASURE_ALL) {
        TRY(exact_attend(exact, m, NULL, run->lse_mask, err));
        TRY(exact_out(exact, m->row0, m->row1, &ref, err));
        TRY(exact_lse(exact, m->row0, m->row1, &ref_lse, err));
        metrics_add_rows(&run->acc, m->row0, m->row1 - m->row0, o->out + m->row0 * dv, ref,
                         run->lse_mask, o->lse + m->row0, ref_lse);
    }
    TRY(metrics_add_mask(&run->acc, m, tiles_pv, err));
    if (run->cell->sink)
        TRY(run->cell->sink(run->cell->sink_ctx, m, o->out ? o->out + m->row0 * dv : NULL,
                            o->lse ? o->lse + m->row0 : NULL, err));
out:
    return rc;
}

/* Counts of a mask that is not gone through: what stays on the device, what heads share. */
static int add_counts(struct run *run, const struct choice *c, double tiles_pv, struct err *err)
{
    if (c->units.on_device)
        return metrics_add_units(&run->acc, &c->lists, &c->units, tiles_pv, err);
    metrics_add_tally(&run->acc, &c->shared->tally);
    return 0;
}

int accel_add_masks(struct run *run, const struct choice *c, const struct accel_outputs *o,
                    struct err *err)
{
    const struct sim_cell *cell = run->cell;
    const struct attn_in *x = &run->in->x;
    bool there = cell->device->metrics || cell->measure != MEASURE_ALL;
    bool counted = c->units.on_device || (c->shared && o->tiles_pv < 0 && there);
    int rc = 0;
    if (counted && !sim_reads_masks(cell)) {
        struct mask rows;
        mask_full(&rows, x->nq, x->nk, 0, x->nq, x->causal);
        TRY(add_counts(run, c, o->tiles_pv, err));
        return cell->sink ? cell->sink(cell->sink_ctx, &rows, o->out, o->lse, err) : 0;
    }
    for (int64_t i = 0; i < c->n; i++)
        TRY(add_chunk(run, c->masks + i, o, o->tiles_pv < 0 || i == 0 ? o->tiles_pv : 0, err));
out:
    return rc;
}

static const char *kind_of(const struct choice *c)
{
    static const char *const kinds[] = {"own", "static", "reused"};
    return c->none ? "none" : kinds[c->origin.source];
}

static const char *where_of(const struct choice *c)
{
    return c->none ? "none" : c->gpu ? "cuda" : "cpu";
}

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

static int record_counters(const struct accel_counters *c, struct record *r, struct err *err)
{
    int rc = 0;
    if (*c->why)
        record_note(r, "counters=%s", c->why);
    if (isnan(c->tensor_pipe_pct))
        return 0;
    TRY(record_metric(r, "tensor_pipe_pct", c->tensor_pipe_pct, err));
    TRY(record_metric(r, "dram_read_bytes", c->dram_read_bytes, err));
    TRY(record_metric(r, "dram_write_bytes", c->dram_write_bytes, err));
out:
    return rc;
}

int record_accel(const struct run *run, const struct choice *c, const char *kernel,
                 const char *dense_kernel, int64_t pairs_exec, struct record *r, struct err *err)
{
    const struct attn_in *x = &run->in->x;

    record_note(r, "select_backend=%s;kernel=%s;dense_kernel=%s;operands=bf16", where_of(c), kernel,
                dense_kernel);
    if (!c->none)
        record_note(r, "select_kind=%s", kind_of(c));
    record_note(r, run->cell->device->metrics ? "metrics_backend=cuda;reference=dense-fp32"
                                              : "metrics_backend=cpu");
    return record_metric(r, "density_kernel",
                         (double)pairs_exec / (double)pairs_allowed(x->nq, x->nk, x->causal), err);
}

/* ---- times ---------------------------------------------------------------------------------- */

/* A total from q, k, v to the outputs: of `x`, all of `heads` heads. select NULL: nothing to
 * choose; where choosing costs the call nothing it is zeros. quant without samples: no operands to
 * make. total NULL: the sum of the medians. */
struct accel_total {
    const struct attn_in *x;
    int heads;
    const struct accel_time *select, *quant, *attend, *dense, *total;
};

static int record_total(const struct accel_total *t, struct record *r, struct err *err)
{
    const struct attn_in *x = t->x;
    const struct accel_time *quant = t->quant->samples && t->quant->median > 0 ? t->quant : NULL;
    double before = (quant ? quant->median : 0) + (t->select ? t->select->median : 0);
    double total = t->total ? t->total->median : t->attend->median + before;
    double pairs = t->heads * (double)pairs_allowed(x->nq, x->nk, x->causal);
    int rc = 0;
    if (t->total)
        TRY(record_time(r, "time_total_ns", t->total, err));
    else if (!t->select && !quant)
        TRY(record_time(r, "time_total_ns", t->attend, err));
    else
        TRY(record_metric(r, "time_total_ns", total, err));
    if (quant)
        TRY(record_time(r, "time_quant_ns", quant, err));
    if (t->select)
        TRY(record_time(r, "time_select_ns", t->select, err));
    if (t->select || quant)
        TRY(record_metric(r, "select_share", before / total, err));
    TRY(record_metric(r, "speedup", t->dense->median / total, err));
    TRY(record_metric(r, "speed_dense_eq", 4e-3 * x->d * pairs / total, err));
out:
    return rc;
}

/* Where the masks of the heads come from, as far as they agree. */
struct sources {
    bool none;    /* nothing to choose in any head */
    bool on_gpu;  /* every choice that this call makes is made on the GPU */
    bool any_own; /* some head's is made by this call */
    const char *kind, *where;
    int64_t calls; /* that share one choice, if all heads say the same; else 0 */
};

static struct sources sources_of(const struct call_record *c)
{
    struct sources s = {true,
                        true,
                        false,
                        kind_of(c->choices[0]),
                        where_of(c->choices[0]),
                        c->choices[0]->origin.calls};
    for (int i = 0; i < c->call->n; i++) {
        const struct choice *h = c->choices[i];
        s.none &= h->none;
        s.on_gpu &= h->none || h->gpu || choice_before(h);
        s.any_own |= !h->none && h->origin.source == SOURCE_OWN;
        s.kind = kind_of(h) == s.kind ? s.kind : "mixed";
        s.where = where_of(h) == s.where ? s.where : "mixed";
        s.calls = h->origin.calls == s.calls ? s.calls : 0;
    }
    return s;
}

/* The choice of masks that several calls use, as a share of one call; the call that chose bears its
 * share too. */
static int record_amortised(const struct call_record *c, const struct sources *s, struct err *err)
{
    if (!c->choose_ns || s->calls <= 1)
        return 0;
    if (s->any_own)
        *c->choose_ns = s->on_gpu && c->res->select.samples ? c->res->select.median : 0;
    if (!(*c->choose_ns > 0))
        return 0;
    return record_metric(c->record, "time_select_amortised_ns", *c->choose_ns / (double)s->calls,
                         err);
}

/* The phases of the launches, of so many heads. */
static int record_phases(const struct call_record *c, const struct sources *s, int heads,
                         struct err *err)
{
    static const struct accel_time nothing = {0};
    const struct accel_result *res = c->res;
    const struct attn_in *x = c->call->heads->x;
    struct record *r = c->record;
    double pairs = 0;
    int rc = 0;

    for (int i = c->call->copies; i < c->call->n; i++)
        pairs += (double)c->call->heads[i].pairs_exec;
    TRY(record_time(r, "time_attend_ns", &res->attend, err));
    TRY(record_time(r, "time_dense_ns", &res->dense, err));
    TRY(record_metric(r, "samples", (double)res->attend.samples, err));
    TRY(record_metric(r, "speed_exec", 4e-3 * x->d * pairs / res->attend.median, err));
    if (res->plan.samples)
        TRY(record_time(r, "time_plan_ns", &res->plan, err));
    if (res->build.samples)
        TRY(record_time(r, "time_build_ns", &res->build, err));
    if (s->on_gpu) {
        struct accel_total t = {.x = x,
                                .heads = heads,
                                .select = s->none               ? NULL
                                          : res->select.samples ? &res->select
                                                                : &nothing,
                                .quant = &res->quant,
                                .attend = &res->attend,
                                .dense = &res->dense,
                                .total = res->total.samples ? &res->total : NULL};
        TRY(record_total(&t, r, err));
    }
    TRY(record_amortised(c, s, err));
out:
    return rc;
}

int record_call(const struct call_record *c, struct err *err)
{
    const struct accel_result *res = c->res;
    struct sources s = sources_of(c);
    struct record *r = c->record;
    int rc = 0;

    r->status = RECORD_OK;
    record_note(r, "time=call;select_backend=%s;select_kind=%s;kernel=%s;dense_kernel=%s", s.where,
                s.kind, res->kernel, res->dense_kernel);
    if (res->sections > 1)
        record_note(r, "sections=%d", res->sections);
    TRY(record_metric(r, "call_heads", (double)c->call->n, err));
    TRY(record_metric(r, "call_heads_kv", (double)res->kv, err));
    TRY(record_metric(r, "call_launches", (double)res->launches, err));
    if (res->selections)
        TRY(record_metric(r, "call_selections", (double)res->selections, err));
    TRY(record_metric(r, "plan_balance", res->balance, err));
    TRY(record_metric(r, "host_plan_ns", res->host_plan_ns, err));
    TRY(record_counters(&res->counters, r, err));
    if (res->attend.samples)
        TRY(record_phases(c, &s, c->call->n, err));
out:
    return rc;
}

static void share(struct accel_time *t, int n)
{
    t->median /= n;
    t->q1 /= n;
    t->q3 /= n;
}

/* What one of n copies has of the launches. */
static struct accel_result share_of_one(const struct accel_result *all, int n)
{
    struct accel_result r = *all;
    struct accel_time *times[] = {&r.select, &r.build, &r.plan, &r.quant, &r.attend, &r.dense};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        share(times[i], n);
    r.total.samples = 0;
    r.host_plan_ns /= n;
    r.counters.dram_read_bytes /= n;
    r.counters.dram_write_bytes /= n;
    return r;
}

int record_copies(const struct call_record *c, struct err *err)
{
    struct accel_result one = share_of_one(c->res, c->call->n);
    struct call_record of_one = *c;
    struct sources s = sources_of(c);
    struct record *r = c->record;
    int rc = 0;

    of_one.res = &one;
    TRY(record_metric(r, "host_plan_ns", one.host_plan_ns, err));
    TRY(record_counters(&one.counters, r, err));
    if (!isnan(one.counters.tensor_pipe_pct)) {
        TRY(record_metric(r, "counter_copies", (double)c->call->n, err));
        TRY(record_metric(r, "counter_copies_kv", (double)one.kv, err));
    }
    if (!one.attend.samples)
        return 0;
    record_note(r, "time=copies");
    TRY(record_metric(r, "copies", (double)c->call->n, err));
    TRY(record_metric(r, "copies_kv", (double)one.kv, err));
    TRY(record_phases(&of_one, &s, 1, err));
out:
    return rc;
}
