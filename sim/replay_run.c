/*
 * replay_run.c - execute a plan: one task per series.
 */
#include "sim/budgetrun.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/permute.h"
#include "core/pool.h"
#include "sim/simulate.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Dumps of one cell. Rows arrive in the order in which the method ran; outputs are stored in the
 * trace's order, so reordered ones are gathered first. */
struct dump {
    struct replay *replay;
    const struct record *record;
    const struct head_in *in;
    const char *order; /* of the method's rows and keys, beside the trace's */
    int64_t *perm;     /* perm[row of the method] = row of the trace; NULL = same */
    double *out, *lse; /* whole head in the trace's order, with perm only */
};

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

/* The method's reason, of the first cell that has one. */
static void tell_why(struct run_tally *t, const struct record *rec)
{
    const char *notes = rec->notes.len ? rec->notes.data : "", *at = strstr(notes, "full=");
    if (!at || (at > notes && at[-1] != ';') || __atomic_exchange_n(&t->told, 1, __ATOMIC_RELAXED))
        return;
    at += strlen("full=");
    snprintf(t->why, sizeof t->why, "%.*s", (int)strcspn(at, ";"), at);
}

/* A finished cell's record, and the tally. */
static int deliver(struct replay *r, const struct method_run *run, const struct record *rec,
                   struct err *err)
{
    int64_t *tally = rec->status == RECORD_OK     ? &r->done_ok
                     : rec->status == RECORD_SKIP ? &r->done_skip
                                                  : &r->done_error;
    __atomic_add_fetch(tally, 1, __ATOMIC_RELAXED);
    if (rec->status == RECORD_OK) {
        struct run_tally *own = &r->tally[run - r->runs];
        __atomic_add_fetch(&own->ok, 1, __ATOMIC_RELAXED);
        if (record_get(rec, "density_elem") == 1) {
            __atomic_add_fetch(&own->full, 1, __ATOMIC_RELAXED);
            tell_why(own, rec);
        }
    }
    return record_file_append(r->records, rec, err);
}

/* What one method run carries from call to call: for the branch at hand, and for all branches. */
struct slots {
    struct carry *branch, *shared; /* NULL: the method has no such state */
};

static int run_cell(struct replay *r, const struct series *s, int64_t run_index,
                    const struct head_in *in, struct slots slots, struct record *rec,
                    struct err *err)
{
    const struct method_run *run = r->runs + run_index;
    struct budget_found found = {0};
    struct method_ctx ctx = {
        .seed = r->seed, .carry = slots.branch, .shared = slots.shared, .session = run->session};
    struct dump dump = {0};
    const struct method *method = run->method;
    void *params = NULL;
    struct sim_cell cell = {.method = method,
                            .ctx = &ctx,
                            .in = in,
                            .device = r->device.accel ? &r->device : NULL,
                            .sink = r->masks || r->outputs ? dump_chunk : NULL,
                            .sink_ctx = &dump};
    int rc = 0;

    TRY(method_params_for_head(run, rec->layer, rec->head, in->x.nk, &params, err));
    if (method_calib_lacks(run, rec->layer, rec->head, in->x.nk))
        record_note(rec, "calib=absent");
    TRY(method_calib_note(run, rec->trace, rec, err));
    if (run->target)
        TRY(budget_resolve(r, s, run_index, in, params, &found, err));
    TRY(dump_init(&dump, r, rec, in, method->order ? method->order(params) : NULL, err));
    cell.params = params;
    TRY(sim_run(&cell, rec, err));
    if (run->target)
        TRY(budget_record(run->target, &found, rec, err));
out:
    budget_found_free(&found);
    dump_free(&dump);
    if (params)
        opt_free(method->params, params);
    free(params);
    return rc;
}

/* Other failures are the cell's own, and its record says so. A lack of memory can pass; a dump
 * without the cell would stay. */
static bool ends_replay(const struct replay *r, int code)
{
    return code == ERR_IO || code == ERR_MACHINE || code == ERR_USAGE || code == ERR_INTERRUPTED ||
           (code == ERR_NOMEM && (r->masks || r->outputs));
}

/* Run one method on a loaded head unless its record exists. A method that carries state is run
 * again after an interruption, silently, so that later steps find what they expect. */
static int do_cell(struct replay *r, const struct series *s, int64_t call, int64_t run_index,
                   const struct sim_head *h, struct slots slots, struct err *err)
{
    const struct method_run *run = r->runs + run_index;
    struct record rec;
    struct buf key = {0};
    struct err cell = {0};
    int rc = 0;

    record_init(&rec);
    TRY(replay_identity(r, s, call, run, &rec, err));
    record_key(&rec, &key);
    TRY(buf_check(&key, "record key", err));
    bool done = record_file_has(r->records, buf_str(&key));
    bool carries = run->method->flags & METHOD_NEEDS_STEPS;
    if (!carries)
        slots.branch = NULL;
    if (!(run->method->flags & METHOD_SHARES_BRANCHES))
        slots.shared = NULL;
    if (done && !carries && !r->masks && !r->outputs)
        goto out;
    rec.n_q = h->in.rows ? h->in.rows->n : h->in.x.nq;
    rec.n_k = h->in.x.nk;
    if (run_cell(r, s, run_index, &h->in, slots, &rec, &cell) < 0) {
        if (ends_replay(r, cell.code)) {
            *err = cell;
            rc = cell.code;
            goto out;
        }
        rec.status = RECORD_ERROR;
        utf8_copy(rec.reason, sizeof rec.reason, cell.msg);
    }
    if (!done)
        TRY(deliver(r, run, &rec, err));
out:
    record_free(&rec);
    buf_free(&key);
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
    struct buf key = {0};
    int rc = 0;
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

/* State of a series: one slot per run and branch, and one per run for all branches. */
struct states {
    struct branch_state {
        char name[16];
        struct carry *carry; /* [n_runs], owned */
    } * branches;
    int64_t n, cap, n_runs;
    struct carry *shared; /* [n_runs], owned */
};

static void slots_free(struct carry *c, int64_t n)
{
    for (int64_t k = 0; c && k < n; k++)
        if (c[k].free)
            c[k].free(c[k].data);
    free(c);
}

static void states_free(struct states *st)
{
    for (int64_t b = 0; b < st->n; b++)
        slots_free(st->branches[b].carry, st->n_runs);
    slots_free(st->shared, st->n_runs);
    free(st->branches);
}

static int states_branch(struct states *st, const char *name, struct carry **out, struct err *err)
{
    int rc = 0;
    for (int64_t b = 0; b < st->n; b++)
        if (strcmp(st->branches[b].name, name) == 0) {
            *out = st->branches[b].carry;
            return 0;
        }
    TRY(mem_grow(&st->branches, &st->cap, st->n + 1, sizeof *st->branches, "branches", err));
    struct branch_state *b = &st->branches[st->n];
    memset(b, 0, sizeof *b);
    snprintf(b->name, sizeof b->name, "%s", name);
    TRY(mem_zalloc(&b->carry, st->n_runs, sizeof *b->carry, "state across steps", err));
    st->n++;
    *out = b->carry;
out:
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
    char what[64] = "replay";
    if (r->shard.count > 1)
        snprintf(what, sizeof what, "replay, shard %lld of %lld", (long long)r->shard.index,
                 (long long)r->shard.count);
    r->progress = progress_start(what, cost, cells);
    rc = pool_run(jobs, r->n_series, do_series, r, err);
    progress_end(&r->progress);
    /* Also after a failure or an interruption: finished cells are kept. */
    struct err own = {0};
    int synced = record_file_sync(r->records, &own);
    return rc || !synced ? rc : err_set(err, synced, "%s", own.msg);
}
