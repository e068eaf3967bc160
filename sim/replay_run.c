/*
 * replay_run.c - executing a plan: one task per series.
 */
#include "sim/replay.h"

#include "core/mem.h"
#include "core/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Dumps of one cell. */
struct dump {
    struct replay       *replay;
    const struct record *record;
    const struct head_in *in;
};

static int dump_chunk(void *ctx, const struct mask *m, const double *out, const double *lse,
                      struct err *err)
{
    struct dump *d = ctx;
    int          rc = 0;
    if (d->replay->masks)
        TRY(maskfile_put(d->replay->masks, d->record, m, err));
    if (d->replay->outputs)
        TRY(outfile_put(d->replay->outputs, d->record, d->in->x.dv, m->row0, m->row1, out, lse, err));
out:
    return rc;
}

/* A finished cell's record, and the tally. */
static int deliver(struct replay *r, const struct record *rec, struct err *err)
{
    int64_t *tally = rec->status == RECORD_OK     ? &r->done_ok
                     : rec->status == RECORD_SKIP ? &r->done_skip
                                                  : &r->done_error;
    __atomic_add_fetch(tally, 1, __ATOMIC_RELAXED);
    return record_file_append(r->records, rec, err);
}

static int run_cell(struct replay *r, const struct method_run *run, const struct head_in *in,
                    struct carry *carry, struct record *rec, struct err *err)
{
    struct method_ctx ctx = {.seed = r->seed, .carry = carry};
    struct dump       dump = {r, rec, in};
    void             *params = NULL;
    bool              dumps = r->masks || r->outputs;
    int               rc = method_params_for_head(run, rec->layer, rec->head, &params, err);
    if (!rc)
        rc = sim_run(run->method, params, &ctx, in, dumps ? dump_chunk : NULL, &dump, rec, err);
    if (params)
        opt_free(run->method->params, params);
    free(params);
    return rc;
}

/* Run one method on a loaded head unless its record exists. A method that carries state is run
 * again after an interruption, silently, so that later steps find what they expect. */
static int do_cell(struct replay *r, const struct series *s, int64_t call, int64_t run_index,
                   const struct sim_head *h, struct carry *carry, struct err *err)
{
    const struct method_run *run = r->runs + run_index;
    struct record            rec;
    struct buf               key = {0};
    struct err               cell = {0};
    int                      rc = 0;

    record_init(&rec);
    TRY(replay_identity(r, s, call, run, &rec, err));
    record_key(&rec, &key);
    TRY(buf_check(&key, "record key", err));
    bool done = record_file_has(r->records, buf_str(&key));
    bool carries = run->method->flags & METHOD_NEEDS_STEPS;
    if (done && !carries && !r->masks && !r->outputs)
        goto out;
    rec.n_q = h->in.x.nq;
    rec.n_k = h->in.x.nk;
    if (run_cell(r, run, &h->in, carries ? carry : NULL, &rec, &cell) < 0) {
        if (cell.code == ERR_IO || cell.code == ERR_MACHINE || cell.code == ERR_USAGE) {
            *err = cell;
            rc = cell.code;
            goto out;
        }
        rec.status = RECORD_ERROR;
        snprintf(rec.reason, sizeof rec.reason, "%.500s", cell.msg);
    }
    if (!done)
        TRY(deliver(r, &rec, err));
out:
    record_free(&rec);
    buf_free(&key);
    return rc;
}

static void progress_cell(struct replay *r, const struct series *s, const struct trace_call *c)
{
    char text[96];
    snprintf(text, sizeof text, "step %d layer %d head %d", c->step, s->layer, s->head);
    progress_add(r->progress, s->cost / (double)s->n_calls, r->n_runs, text);
}

/* Whether any cell of a call is still to do, or has to be gone through again for its state. */
static int call_needed(const struct replay *r, const struct series *s, int64_t call, bool *needed,
                       struct err *err)
{
    struct buf key = {0};
    int        rc = 0;
    *needed = r->masks || r->outputs;
    for (int64_t k = 0; k < r->n_runs && !*needed && !rc; k++) {
        struct record rec;
        record_init(&rec);
        rc = replay_identity(r, s, call, r->runs + k, &rec, err);
        buf_reset(&key);
        record_key(&rec, &key);
        record_free(&rec);
        *needed = (r->runs[k].method->flags & METHOD_NEEDS_STEPS) ||
                  !record_file_has(r->records, buf_str(&key));
    }
    buf_free(&key);
    return rc;
}

static int do_call(struct replay *r, const struct series *s, int64_t call, struct carry *carry,
                   struct err *err)
{
    struct sim_head h = {0};
    bool            needed;
    int             rc = 0;

    TRY(call_needed(r, s, call, &needed, err));
    if (!needed)
        return 0;
    TRY(head_load(r->traces[s->trace], call, s->head, &r->load, &h, err));
    for (int64_t k = 0; k < r->n_runs; k++)
        TRY(do_cell(r, s, call, k, &h, carry + k, err));
    progress_cell(r, s, trace_call(r->traces[s->trace], call));
out:
    sim_head_free(&h);
    return rc;
}

static int do_series(void *ctx, int64_t item, int worker, struct err *err)
{
    struct replay *r = ctx;
    struct series *s = r->series + item;
    struct carry  *carry = NULL;
    int            rc = 0;

    if (s->todo == 0 && !r->masks && !r->outputs)
        return 0;
    TRY(mem_zalloc(&carry, r->n_runs, sizeof *carry, "state across steps", err));
    for (int64_t c = 0; c < s->n_calls; c++) {
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED, "interrupted; finished cells are kept, the same command "
                                       "continues");
        TRY(do_call(r, s, s->calls[c], carry, err));
    }
out:
    for (int64_t k = 0; carry && k < r->n_runs; k++)
        if (carry[k].free)
            carry[k].free(carry[k].data);
    free(carry);
    return rc;
}

int replay_execute(struct replay *r, int jobs, struct err *err)
{
    double  cost = 0;
    int64_t cells = 0;
    for (int64_t i = 0; i < r->n_series; i++) {
        cost += r->series[i].cost;
        cells += r->series[i].todo ? r->series[i].cells : 0;
    }
    r->progress = progress_start("replay", cost, cells);
    int rc = pool_run(jobs, r->n_series, do_series, r, err);
    progress_end(&r->progress);
    return rc;
}
