/*
 * replay_run.c - execute a plan: one task per series, or call by call.
 */
#include "sim/replay_cell.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run_cell(struct replay *r, const struct series *s, int64_t run_index,
                    const struct head_in *in, struct slots slots, struct record *rec,
                    struct err *err)
{
    struct cell_run c;
    int rc = 0;
    TRY(cell_run_init(r, s, run_index, in, slots, rec, &c, err));
    TRY(sim_run(&c.cell, rec, err));
    TRY(cell_run_record(&c, rec, err));
out:
    cell_run_free(&c);
    return rc;
}

/* Run one method on a loaded head unless its record exists. A method that carries state is run
 * again after an interruption, silently, so that later steps find what they expect. */
static int do_cell(struct replay *r, const struct series *s, int64_t call, int64_t run_index,
                   const struct sim_head *h, struct slots slots, struct err *err)
{
    const struct method_run *run = r->runs + run_index;
    struct record rec;
    struct err cell = {0};
    bool done;
    int rc = 0;

    record_init(&rec);
    TRY(replay_identity(r, s, call, run, &rec, err));
    TRY(record_file_holds(r->records, &rec, &done, err));
    bool carries = run->method->flags & METHOD_NEEDS_STEPS;
    slots = slots_of(run, slots);
    if (done && !carries && !r->masks && !r->outputs)
        goto out;
    rec.n_q = h->in.rows ? h->in.rows->n : h->in.x.nq;
    rec.n_k = h->in.x.nk;
    if (run_cell(r, s, run_index, &h->in, slots, &rec, &cell) < 0) {
        if (replay_ends(r, cell.code)) {
            *err = cell;
            rc = cell.code;
            goto out;
        }
        rec.status = RECORD_ERROR;
        record_text(&rec, &rec.reason, "%s", cell.msg);
    }
    if (!done)
        TRY(replay_deliver(r, run, &rec, err));
out:
    record_free(&rec);
    return rc;
}

static void progress_cell(struct replay *r, const struct series *s, const struct trace_call *c)
{
    char text[96];
    snprintf(text, sizeof text, "step %d layer %d head %d", c->step, s->layer,
             trace_head_number(trace_meta(r->traces[s->trace]), s->head));
    progress_add(r->progress, s->cost / (double)s->n_calls, r->n_runs, text);
}

/* Whether any cell of a call is still to do, or has to be gone through again for its state. */
static int call_needed(const struct replay *r, const struct series *s, int64_t call, bool *needed,
                       struct err *err)
{
    int rc = 0;
    *needed = r->masks || r->outputs;
    for (int64_t k = 0; k < r->n_runs && !*needed && !rc; k++) {
        struct record rec;
        bool done = false;
        record_init(&rec);
        rc = replay_identity(r, s, call, r->runs + k, &rec, err);
        rc = rc ? rc : record_file_holds(r->records, &rec, &done, err);
        record_free(&rec);
        *needed = (r->runs[k].method->flags & METHOD_NEEDS_STEPS) || !done;
    }
    return rc;
}

static int do_call(struct replay *r, const struct series *s, int64_t call, struct states *st,
                   struct err *err)
{
    struct sim_head h = {0};
    struct carry *carry;
    bool needed;
    int rc = 0;

    TRY(call_needed(r, s, call, &needed, err));
    if (!needed)
        return 0;
    TRY(states_branch(st, trace_call(r->traces[s->trace], call)->branch, &carry, err));
    TRY(head_load(r->traces[s->trace], call, s->head, &r->load, &h, err));
    for (int64_t k = 0; k < r->n_runs; k++)
        TRY(do_cell(r, s, call, k, &h, (struct slots){carry + k, st->shared + k}, err));
    progress_cell(r, s, trace_call(r->traces[s->trace], call));
out:
    sim_head_free(&h);
    return rc;
}

static int do_series(void *ctx, int64_t item, int worker, struct err *err)
{
    struct replay *r = ctx;
    struct series *s = r->series + item;
    struct states st = {.n_runs = r->n_runs};
    int rc = 0;

    if (s->todo == 0 && !r->masks && !r->outputs)
        return 0;
    TRY(mem_zalloc(&st.shared, r->n_runs, sizeof *st.shared, "state across branches", err));
    for (int64_t c = 0; c < s->n_calls; c++) {
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED,
                 "interrupted; finished cells are kept, the same command "
                 "continues");
        TRY(do_call(r, s, s->calls[c], &st, err));
    }
out:
    states_free(&st);
    return rc;
}

int replay_execute(struct replay *r, int jobs, struct err *err)
{
    double cost = 0;
    int64_t cells = 0;
    for (int64_t i = 0; i < r->n_series; i++) {
        cost += r->series[i].cost;
        cells += r->series[i].todo ? r->series[i].cells : 0;
    }
    int rc = gemm_ready(err);
    for (int64_t k = 0; k < r->n_runs && !rc; k++)
        rc = method_run_open(&r->runs[k], err);
    if (!rc && !r->book)
        rc = budget_book_open(r, jobs, &r->book, err);
    if (!rc && !r->tally)
        rc = mem_zalloc(&r->tally, r->n_runs, sizeof *r->tally, "tally", err);
    if (rc)
        return rc;
    char what[64];
    shard_what(&r->shard, "replay", what);
    r->progress = progress_start(what, cost, cells);
    device_meter(&r->device, r->progress);
    rc = r->device.calls ? replay_calls(r, jobs, err)
                         : pool_run(jobs, r->n_series, do_series, r, err);
    progress_end(&r->progress);
    /* Also after a failure or an interruption: finished cells are kept. */
    struct err own = {0};
    int synced = record_file_sync(r->records, &own);
    return rc || !synced ? rc : err_set(err, synced, "%s", own.msg);
}
