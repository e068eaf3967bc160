/*
 * replay_calls.c - a replay call by call: the GPU has all heads of a call at once, and what is done
 * head by head runs on threads. Groups of heads follow each other, and within one its calls.
 */
#include "sim/replay_cell.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/text.h"
#include "sim/callreader.h"
#include "sim/simulate_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A group of heads while it is replayed. */
struct work {
    struct replay *r;
    const struct call_group *g;
    int jobs;
    struct states *states; /* [g->n], owned: of each head */
    struct {
        char branch[16];
        double *ns;
    } * chosen; /* of each branch: [n_runs], owned */
    int64_t n_chosen, cap_chosen;

    /* A call, and a method on it. */
    int64_t call, run;
    struct sim_head *heads;   /* [g->n], the reader's */
    uint64_t data;            /* number of their q, k, v on the device */
    struct carry **carry;     /* [g->n], owned: of the branch */
    struct record *records;   /* [g->n], owned */
    bool *done;               /* [g->n], owned: has a record already */
    struct cell_run *cells;   /* [g->n], owned */
    struct sim_cell *sims;    /* [g->n], owned */
    struct call_outcome *out; /* [g->n], owned */
};

static const struct series *series_of(const struct work *w, int64_t head)
{
    return w->r->series + w->g->series[head];
}

static int work_init(struct work *w, struct err *err)
{
    int64_t n = w->g->n;
    int rc = 0;
    TRY(mem_zalloc(&w->states, n, sizeof *w->states, "heads of a call", err));
    TRY(mem_zalloc(&w->carry, n, sizeof *w->carry, "heads of a call", err));
    TRY(mem_zalloc(&w->records, n, sizeof *w->records, "heads of a call", err));
    TRY(mem_zalloc(&w->done, n, sizeof *w->done, "heads of a call", err));
    TRY(mem_zalloc(&w->cells, n, sizeof *w->cells, "heads of a call", err));
    TRY(mem_zalloc(&w->sims, n, sizeof *w->sims, "heads of a call", err));
    TRY(mem_zalloc(&w->out, n, sizeof *w->out, "heads of a call", err));
    for (int64_t i = 0; i < n; i++) {
        w->states[i].n_runs = w->r->n_runs;
        TRY(mem_zalloc(&w->states[i].shared, w->r->n_runs, sizeof *w->states[i].shared,
                       "state across branches", err));
    }
out:
    return rc;
}

static void work_free(struct work *w)
{
    for (int64_t i = 0; w->states && i < w->g->n; i++)
        states_free(w->states + i);
    for (int64_t i = 0; i < w->n_chosen; i++)
        free(w->chosen[i].ns);
    free(w->chosen);
    free(w->states);
    free(w->carry);
    free(w->records);
    free(w->done);
    free(w->cells);
    free(w->sims);
    free(w->out);
}

/* Where the time that chose a run's masks is kept for later calls of the branch. */
static int chosen_of(struct work *w, const char *branch, double **ns, struct err *err)
{
    int64_t i = 0;
    int rc = 0;
    while (i < w->n_chosen && strcmp(w->chosen[i].branch, branch) != 0)
        i++;
    if (i == w->n_chosen) {
        TRY(mem_grow(&w->chosen, &w->cap_chosen, i + 1, sizeof *w->chosen, "branches", err));
        snprintf(w->chosen[i].branch, sizeof w->chosen[i].branch, "%s", branch);
        w->chosen[i].ns = NULL;
        w->n_chosen++;
        TRY(mem_zalloc(&w->chosen[i].ns, w->r->n_runs, sizeof(double), "state across steps", err));
    }
    *ns = w->chosen[i].ns;
out:
    return rc;
}

/* ---- a method on a call --------------------------------------------------------------------- */

/* Identities of the cells of w->run, and which of them have a record. */
static int begin_records(struct work *w, struct record *of_call, bool *all_done, bool *call_done,
                         struct err *err)
{
    struct replay *r = w->r;
    const struct method_run *run = r->runs + w->run;
    int rc = 0;
    *all_done = true;
    for (int64_t i = 0; i < w->g->n; i++) {
        TRY(replay_identity(r, series_of(w, i), w->call, run, w->records + i, err));
        TRY(record_file_holds(r->records, w->records + i, w->done + i, err));
        *all_done &= w->done[i];
    }
    TRY(replay_call_identity(r, w->g, w->call, run, of_call, err));
    *call_done = true;
    if (r->device.timed)
        TRY(record_file_holds(r->records, of_call, call_done, err));
out:
    return rc;
}

/* Parameters of one head. */
static int begin_cell(void *work, int64_t i, int worker, struct err *err)
{
    struct work *w = work;
    struct sim_head *h = w->heads + i;
    struct record *rec = w->records + i;
    struct slots all = {w->carry[i] + w->run, w->states[i].shared + w->run};
    struct err own = {0};
    (void)worker;
    (void)err;
    rec->n_q = h->in.rows ? h->in.rows->n : h->in.x.nq;
    rec->n_k = h->in.x.nk;
    w->out[i] = (struct call_outcome){.record = rec};
    if (cell_run_init(w->r, series_of(w, i), w->run, &h->in, slots_of(w->r->runs + w->run, all),
                      rec, w->cells + i, &own) < 0)
        w->out[i].err = own;
    return 0;
}

static int run_cells(struct work *w, struct record *of_call, struct err *err)
{
    struct replay *r = w->r;
    double *choose_ns = NULL;
    int rc = 0;

    TRY(pool_run(w->jobs, w->g->n, begin_cell, w, err));
    for (int64_t i = 0; i < w->g->n; i++)
        w->sims[i] = w->cells[i].cell;
    TRY(sim_share_params(w->sims, w->out, w->g->n, err));
    if (r->runs[w->run].method->flags & METHOD_NEEDS_STEPS)
        TRY(chosen_of(w, trace_call(r->traces[series_of(w, 0)->trace], w->call)->branch, &choose_ns,
                      err));
    struct sim_call c = {.cells = w->sims,
                         .heads = w->out,
                         .n = (int)w->g->n,
                         .group = w->g->group,
                         .data = w->data,
                         .jobs = w->jobs,
                         .record = r->device.timed ? of_call : NULL,
                         .choose_ns = choose_ns ? choose_ns + w->run : NULL};
    TRY(sim_run_call(&c, err));
    for (int64_t i = 0; i < w->g->n; i++) {
        struct err *own = &w->out[i].err; /* keeps a failure */
        if (!own->code)
            cell_run_record(w->cells + i, w->records + i, own);
    }
out:
    return rc;
}

static void fail(struct record *rec, const struct err *err)
{
    rec->status = RECORD_ERROR;
    record_text(rec, &rec->reason, "%s", err->msg);
}

/* Write what has no record yet. `whole`: what ended the call for all heads. */
static int deliver_all(struct work *w, struct record *of_call, bool call_done,
                       const struct err *whole, struct err *err)
{
    struct replay *r = w->r;
    const struct method_run *run = r->runs + w->run;
    int rc = 0;
    for (int64_t i = 0; i < w->g->n; i++) {
        const struct err *own = whole->code ? whole : &w->out[i].err;
        if (own->code && replay_ends(r, own->code)) {
            *err = *own;
            return own->code;
        }
        if (own->code)
            fail(w->records + i, own);
        if (!w->done[i])
            TRY(replay_deliver(r, run, w->records + i, err));
    }
    if (whole->code)
        fail(of_call, whole);
    if (!call_done)
        TRY(replay_deliver(r, run, of_call, err));
out:
    return rc;
}

static int do_run(struct work *w, struct err *err)
{
    struct replay *r = w->r;
    struct record of_call;
    struct err whole = {0};
    bool all_done = false, call_done = false;
    int rc = 0;

    record_init(&of_call);
    for (int64_t i = 0; i < w->g->n; i++)
        record_init(w->records + i);
    TRY(begin_records(w, &of_call, &all_done, &call_done, err));
    if (all_done && call_done && !(r->runs[w->run].method->flags & METHOD_NEEDS_STEPS) &&
        !r->masks && !r->outputs)
        goto out;
    of_call.n_q = w->heads[0].in.rows ? w->heads[0].in.rows->n : w->heads[0].in.x.nq;
    of_call.n_k = w->heads[0].in.x.nk;
    run_cells(w, &of_call, &whole);
    rc = deliver_all(w, &of_call, call_done, &whole, err);
out:
    for (int64_t i = 0; i < w->g->n; i++) {
        cell_run_free(w->cells + i);
        record_free(w->records + i);
    }
    record_free(&of_call);
    return rc;
}

/* ---- a call --------------------------------------------------------------------------------- */

static void progress_call(struct work *w, const struct trace_call *c)
{
    char text[96];
    snprintf(text, sizeof text, "step %d layer %d, %lld heads", c->step, c->layer,
             (long long)w->g->n);
    for (int64_t i = 0; i < w->g->n; i++) {
        const struct series *s = series_of(w, i);
        int64_t cells = w->r->n_runs * (i == 0 && w->r->device.timed ? 2 : 1);
        progress_add(w->r->progress, s->cost / (double)s->n_calls, cells, text);
    }
}

static int do_call(struct work *w, int64_t call, struct err *err)
{
    struct replay *r = w->r;
    const struct trace_call *c = trace_call(r->traces[series_of(w, 0)->trace], call);
    int rc = 0;

    w->call = call;
    for (int64_t i = 0; i < w->g->n; i++)
        TRY(states_branch(w->states + i, c->branch, w->carry + i, err));
    w->data = device_numbers((int)w->g->n);
    for (w->run = 0; w->run < r->n_runs; w->run++)
        TRY(do_run(w, err));
    progress_call(w, c);
out:
    return rc;
}

/* ---- all calls ------------------------------------------------------------------------------ */

/* Is a run of a call still to do, or to be gone through again for its state? */
static int run_needed(struct replay *r, struct call_place at, const struct method_run *run,
                      bool *needed, struct err *err)
{
    const struct call_group *g = at.group;
    bool done = true;
    int rc = 0;
    *needed = run->method->flags & METHOD_NEEDS_STEPS;
    for (int64_t i = 0; i <= g->n && !*needed && !rc; i++) {
        struct record rec;
        record_init(&rec);
        rc = i < g->n ? replay_identity(r, r->series + g->series[i], at.call, run, &rec, err)
                      : replay_call_identity(r, g, at.call, run, &rec, err);
        if (!rc && (i < g->n || r->device.timed))
            rc = record_file_holds(r->records, &rec, &done, err);
        record_free(&rec);
        *needed = !done;
    }
    return rc;
}

static int call_needed(struct replay *r, struct call_place at, bool *needed, struct err *err)
{
    int rc = 0;
    *needed = r->masks || r->outputs;
    for (int64_t k = 0; k < r->n_runs && !*needed && !rc; k++)
        rc = run_needed(r, at, r->runs + k, needed, err);
    return rc;
}

/* Goes through the calls of all groups. */
struct walk {
    int64_t group, index;
};

static bool group_needed(const struct replay *r, const struct call_group *g)
{
    int64_t todo = 0;
    for (int64_t i = 0; i < g->n; i++)
        todo += r->series[g->series[i]].todo;
    return todo > 0 || r->masks || r->outputs;
}

/* The next call that is needed; at->group NULL: there is none. */
static int next_place(struct replay *r, struct walk *w, struct call_place *at, struct err *err)
{
    int rc = 0;
    for (; w->group < r->n_groups; w->group++, w->index = 0) {
        const struct call_group *g = r->groups + w->group;
        const struct series *s = r->series + g->series[0];
        while (w->index < s->n_calls && group_needed(r, g)) {
            bool needed = false;
            *at = (struct call_place){g, s->calls[w->index++]};
            rc = call_needed(r, *at, &needed, err);
            if (rc || needed)
                return rc;
        }
    }
    *at = (struct call_place){0};
    return 0;
}

/* The state of the group of `at`, in the place of another group's. */
static int enter_group(struct work *w, const struct call_group *g, struct err *err)
{
    if (w->g == g)
        return 0;
    struct work next = {.r = w->r, .g = g, .jobs = w->jobs};
    if (w->g)
        work_free(w);
    *w = next;
    return work_init(w, err);
}

int replay_calls(struct replay *r, int jobs, struct err *err)
{
    struct work w = {.r = r, .jobs = jobs};
    struct call_reader *reader = NULL;
    struct call_place at, next;
    struct walk walk = {0};
    int rc = 0;

    TRY(call_reader_new(r, jobs, r->read_ahead, &reader, err));
    TRY(next_place(r, &walk, &next, err));
    while (next.group) {
        at = next;
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED,
                 "interrupted; finished cells are kept, the same command continues");
        TRY(enter_group(&w, at.group, err));
        TRY(call_reader_take(reader, at, &w.heads, err));
        TRY(next_place(r, &walk, &next, err));
        call_reader_expect(reader, next);
        TRY(do_call(&w, at.call, err));
    }
out:
    if (w.g)
        work_free(&w);
    call_reader_free(&reader);
    return rc;
}
