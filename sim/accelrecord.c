/*
 * accelrecord.c - see accelrecord.h.
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
        TRY(run->cell->sink(run->cell->sink_ctx, m, o->out + m->row0 * dv, o->lse + m->row0, err));
out:
    return rc;
}

/* Counts of a mask that is not gone through: what stays on the device, what heads share. */
static int add_counts(struct run *run, const struct choice *c, double tiles_pv, struct err *err)
{
    if (c->units.there)
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
    bool counted = c->units.there || (c->shared && o->tiles_pv < 0 && there);
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

int record_time(struct record *r, const char *name, const struct accel_time *t, struct err *err)
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

int record_counters(const struct accel_counters *c, struct record *r, struct err *err)
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
    static const char *const kinds[] = {"own", "static", "reused"};
    const struct attn_in *x = &run->in->x;

    record_note(r, "select_backend=%s;kernel=%s;dense_kernel=%s;operands=bf16",
                c->none  ? "none"
                : c->gpu ? "cuda"
                         : "cpu",
                kernel, dense_kernel);
    if (!c->none)
        record_note(r, "select_kind=%s", kinds[c->origin.source]);
    record_note(r, run->cell->device->metrics ? "metrics_backend=cuda;reference=dense-fp32"
                                              : "metrics_backend=cpu");
    return record_metric(r, "density_kernel",
                         (double)pairs_exec / (double)pairs_allowed(x->nq, x->nk, x->causal), err);
}

int record_total(const struct accel_total *t, struct record *r, struct err *err)
{
    const struct attn_in *x = t->x;
    const struct accel_time *quant =
        t->quant && t->quant->samples && t->quant->median > 0 ? t->quant : NULL;
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
