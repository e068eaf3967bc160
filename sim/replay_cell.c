/*
 * replay_cell.c - see replay_cell.h.
 */
#include "sim/replay_cell.h"

#include "core/mem.h"
#include "core/permute.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void dump_free(struct dump *d)
{
    free(d->perm);
    free(d->out);
    free(d->lse);
}

static int dump_init(struct dump *d, struct replay *r, const struct record *rec,
                     const struct head_in *in, const char *method_order, struct err *err)
{
    const char *run_order = r->load.permute ? r->load.permute : "none";
    const char *order = method_order ? method_order : "none";
    int rc = 0;

    *d = (struct dump){.replay = r, .record = rec, .in = in};
    if (strcmp(run_order, "none") != 0 && strcmp(order, "none") != 0)
        FAIL(err, ERR_USAGE, "--permute %s and method %s with permute=%s: give one token order",
             run_order, rec->method, order);
    if (in->order && strcmp(in->order, order) == 0)
        order = "none"; /* the trace has it already */
    else if (strcmp(order, "none") == 0)
        order = run_order;
    d->order = order;
    if (!r->outputs || strcmp(order, "none") == 0)
        return 0;
    if (permute_make(order, &in->geom, in->x.nq, r->seed, &d->perm, NULL))
        return 0; /* the method answers with skip or an error of its own */
    TRY(mem_alloc(&d->out, in->x.nq * in->x.dv, sizeof(double), "output in trace order", err));
    TRY(mem_alloc(&d->lse, in->x.nq, sizeof(double), "log-sum-exp in trace order", err));
out:
    return rc;
}

static int dump_outputs(struct dump *d, const struct mask *m, const double *out, const double *lse,
                        struct err *err)
{
    int64_t dv = d->in->x.dv;
    if (!d->perm)
        return outfile_put(d->replay->outputs, d->record, dv, m->row0, m->row1, out, lse, err);
    for (int64_t i = m->row0; i < m->row1; i++) {
        memcpy(d->out + d->perm[i] * dv, out + (i - m->row0) * dv, (size_t)dv * sizeof *out);
        d->lse[d->perm[i]] = lse[i - m->row0];
    }
    if (m->row1 < m->nq)
        return 0;
    return outfile_put(d->replay->outputs, d->record, dv, 0, m->nq, d->out, d->lse, err);
}

static int dump_chunk(void *ctx, const struct mask *m, const double *out, const double *lse,
                      struct err *err)
{
    struct dump *d = ctx;
    int rc = 0;
    if (d->replay->masks)
        TRY(maskfile_put(d->replay->masks, d->record, d->order, m, err));
    if (d->replay->outputs)
        TRY(dump_outputs(d, m, out, lse, err));
out:
    return rc;
}

int replay_deliver(struct replay *r, const struct method_run *run, const struct record *rec,
                   struct err *err)
{
    int64_t *tally = rec->status == RECORD_OK     ? &r->done_ok
                     : rec->status == RECORD_SKIP ? &r->done_skip
                                                  : &r->done_error;
    __atomic_add_fetch(tally, 1, __ATOMIC_RELAXED);
    if (rec->scope == RECORD_OF_HEAD)
        setting_tally_add(&r->tally[run - r->runs], rec);
    return record_file_append(r->records, rec, err);
}

struct slots slots_of(const struct method_run *run, struct slots all)
{
    const struct method *m = run->method;
    return (struct slots){m->flags & METHOD_NEEDS_STEPS ? all.branch : NULL,
                          m->reuse.shares_branches ? all.shared : NULL};
}

int cell_run_init(struct replay *r, const struct series *s, int64_t run_index,
                  const struct head_in *in, struct slots slots, struct record *rec,
                  struct cell_run *c, struct err *err)
{
    const struct method_run *run = r->runs + run_index;
    const struct method *method = run->method;
    int rc = 0;

    *c = (struct cell_run){.run = run};
    c->ctx = (struct method_ctx){
        .seed = r->seed, .carry = slots.branch, .shared = slots.shared, .session = run->session};
    c->cell = (struct sim_cell){.method = method,
                                .ctx = &c->ctx,
                                .in = in,
                                .device = r->device.accel ? &r->device : NULL,
                                .sink = r->masks || r->outputs ? dump_chunk : NULL,
                                .sink_ctx = &c->dump};
    TRY(method_params_for_head(run, rec->layer, rec->head, in->x.nk, &c->params, err));
    if (method_calib_lacks(run, rec->layer, rec->head, in->x.nk))
        record_note(rec, "calib=absent");
    TRY(method_calib_note(run, rec->trace, rec, err));
    if (run->target)
        TRY(budget_resolve(r, s, run_index, in, c->params, &c->found, err));
    TRY(dump_init(&c->dump, r, rec, in,
                  method->params.order ? method->params.order(c->params) : NULL, err));
    c->cell.params = c->params;
out:
    return rc;
}

int cell_run_record(const struct cell_run *c, struct record *rec, struct err *err)
{
    return c->run->target ? budget_record(c->run->target, &c->found, rec, err) : 0;
}

void cell_run_free(struct cell_run *c)
{
    budget_found_free(&c->found);
    dump_free(&c->dump);
    if (c->params)
        opt_free(c->run->method->params.table, c->params);
    free(c->params);
    memset(c, 0, sizeof *c);
}

/* Other failures are the cell's own, and its record says so. A lack of memory can pass; a dump
 * without the cell would stay. */
bool replay_ends(const struct replay *r, int code)
{
    return code == ERR_IO || code == ERR_MACHINE || code == ERR_USAGE || code == ERR_INTERRUPTED ||
           (code == ERR_NOMEM && (r->masks || r->outputs));
}
