/*
 * replay_loop.c - execute a plan, one attention call after the other.
 *
 * The unit is a call of n heads of a group. With a device that takes whole calls, groups follow
 * each other, what is done head by head runs on threads, and a thread reads the next call
 * meanwhile. Else every head is a group of its own, and the threads have different groups.
 */
#include "sim/replay_cell.h"

#include "core/gemm.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/text.h"
#include "sim/simulate_call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A call of a trace, with the heads of a group. */
struct place {
    const struct call_group *group; /* NULL: none */
    int64_t call;
};

/* A call in memory, or on its way there. Reading is thread-safe by itself: HDF5 is behind its lock
 * (core/h5util.h), and nothing else of a trace changes after it was opened. */
struct slot {
    const struct replay *r;
    int jobs; /* threads that read it */
    struct place place;
    struct sim_head *heads; /* [place.group->n], owned */
    int rc;
    struct err err;
    pthread_t thread;
    bool running;
};

/* What a run carries over the calls of a branch. */
struct branch {
    char name[16];
    struct carry *carry; /* [heads][n_runs], owned */
    double *choose_ns;   /* [n_runs], owned: device time that chose a call's masks */
};

/* The loop over the calls of some groups. */
struct loop {
    struct replay *r;
    int jobs;             /* threads for what is done head by head */
    int64_t group, end;   /* groups that are still to be looked at */
    int64_t index;        /* the next call of `group` */
    struct slot slots[2]; /* the call at hand, and the next one */
    int taken;

    /* Of the group at hand, [g->n] each, owned. */
    const struct call_group *g;
    struct branch *branches;
    int64_t n_branches, cap_branches;
    struct carry *shared; /* [heads][n_runs]: over all branches */
    struct record *records;
    bool *done; /* has a record already */
    struct cell_run *cells;
    struct sim_cell *sims;
    struct call_outcome *out;

    /* A call, and a method on it. */
    int64_t call, run;
    struct sim_head *heads; /* [g->n], of the slot */
    const struct branch *branch;
    uint64_t data; /* number of the heads' q, k, v on the device */
};

static const struct series *series_of(const struct replay *r, const struct call_group *g,
                                      int64_t head)
{
    return r->series + g->series[head];
}

static const struct trace *trace_of(const struct replay *r, const struct call_group *g)
{
    return r->traces[series_of(r, g, 0)->trace];
}

/* ---- reading -------------------------------------------------------------------------------- */

/* Load the heads of one run of them that share their KV head. */
static int load_group(void *slot, int64_t item, int worker, struct err *err)
{
    struct slot *s = slot;
    const struct call_group *g = s->place.group;
    int64_t first = item * g->group;
    int rc = 0;
    (void)worker;
    for (int64_t i = first; i < first + g->group; i++)
        TRY(head_load_sharing(trace_of(s->r, g), s->place.call, series_of(s->r, g, i)->head,
                              &s->r->load, i > first ? s->heads + first : NULL, s->heads + i, err));
out:
    return rc;
}

static void *load(void *slot)
{
    struct slot *s = slot;
    const struct call_group *g = s->place.group;
    s->rc = mem_zalloc(&s->heads, g->n, sizeof *s->heads, "heads of a call", &s->err);
    if (!s->rc)
        s->rc = pool_run(s->jobs, g->n / g->group, load_group, s, &s->err);
    return NULL;
}

static void empty(struct slot *s)
{
    if (s->running)
        pthread_join(s->thread, NULL);
    /* The later heads of a run borrow keys and values of its first one. */
    for (int64_t i = s->heads ? s->place.group->n - 1 : -1; i >= 0; i--)
        sim_head_free(s->heads + i);
    free(s->heads);
    *s = (struct slot){.r = s->r};
}

/* The heads of the call at `at`; they stay the slot's. What went wrong while it was read ahead is
 * told here. */
static int take_call(struct loop *l, struct place at, struct err *err)
{
    struct slot *s = l->slots + !l->taken;
    empty(l->slots + l->taken);
    l->taken = !l->taken;
    if (s->running)
        pthread_join(s->thread, NULL);
    s->running = false;
    if (!s->heads) {
        s->place = at;
        s->jobs = l->jobs;
        load(s);
    }
    l->heads = s->heads;
    return s->rc ? err_set(err, s->rc, "%s", s->err.msg) : 0;
}

/* Read the call that will be taken next meanwhile; one processor stays with the call at hand. */
static void read_ahead(struct loop *l, struct place next)
{
    struct slot *s = l->slots + !l->taken;
    if (!l->r->read_ahead || !next.group)
        return;
    empty(s);
    s->place = next;
    s->jobs = l->jobs > 1 ? l->jobs - 1 : 1;
    /* Without a thread it is read when it is taken. */
    s->running = pthread_create(&s->thread, NULL, load, s) == 0;
}

/* ---- which calls ---------------------------------------------------------------------------- */

/* Identity of the record of head i of a call, or with i = n of the call itself; *done: there is
 * such a record already, or it is not wanted. */
static int find_record(const struct replay *r, struct place at, const struct method_run *run,
                       int64_t i, struct record *rec, bool *done, struct err *err)
{
    const struct call_group *g = at.group;
    int rc = 0;
    *done = i == g->n && !r->device.timed;
    if (*done)
        return 0;
    if (i < g->n)
        TRY(replay_identity(r, series_of(r, g, i), at.call, run, rec, err));
    else
        TRY(replay_call_identity(r, g, at.call, run, rec, err));
    TRY(record_file_holds(r->records, rec, done, err));
out:
    return rc;
}

/* Is a run to go through a call whatever is recorded: for its state, or for dumps? A method that
 * carries state runs again after an interruption, silently, so that later steps find what they
 * expect. */
static bool runs_anyway(const struct replay *r, const struct method_run *run)
{
    return run->method->flags & METHOD_NEEDS_STEPS || r->masks || r->outputs;
}

static int call_needed(const struct replay *r, struct place at, bool *needed, struct err *err)
{
    int rc = 0;
    *needed = false;
    for (int64_t k = 0; k < r->n_runs && !*needed && !rc; k++) {
        *needed = runs_anyway(r, r->runs + k);
        for (int64_t i = 0; i <= at.group->n && !*needed && !rc; i++) {
            struct record rec;
            bool done = true;
            record_init(&rec);
            rc = find_record(r, at, r->runs + k, i, &rec, &done, err);
            record_free(&rec);
            *needed = !done;
        }
    }
    return rc;
}

static bool group_needed(const struct replay *r, const struct call_group *g)
{
    int64_t todo = 0;
    for (int64_t i = 0; i < g->n; i++)
        todo += series_of(r, g, i)->todo;
    return todo > 0 || r->masks || r->outputs;
}

/* The next call that is needed; at->group NULL: there is none. */
static int next_place(struct loop *l, struct place *at, struct err *err)
{
    const struct replay *r = l->r;
    for (; l->group < l->end; l->group++, l->index = 0) {
        const struct call_group *g = r->groups + l->group;
        const struct series *s = series_of(r, g, 0);
        while (l->index < s->n_calls && group_needed(r, g)) {
            bool needed = false;
            *at = (struct place){g, s->calls[l->index++]};
            int rc = call_needed(r, *at, &needed, err);
            if (rc || needed)
                return rc;
        }
    }
    *at = (struct place){0};
    return 0;
}

/* ---- the state of a group ------------------------------------------------------------------- */

static void carries_free(struct carry *c, int64_t n)
{
    for (int64_t i = 0; c && i < n; i++)
        if (c[i].free)
            c[i].free(c[i].data);
    free(c);
}

static void leave_group(struct loop *l)
{
    int64_t n = l->g ? l->g->n * l->r->n_runs : 0;
    for (int64_t b = 0; b < l->n_branches; b++) {
        carries_free(l->branches[b].carry, n);
        free(l->branches[b].choose_ns);
    }
    carries_free(l->shared, n);
    free(l->branches);
    free(l->records);
    free(l->done);
    free(l->cells);
    free(l->sims);
    free(l->out);
    l->branches = NULL;
    l->n_branches = l->cap_branches = 0;
    l->shared = NULL;
    l->records = NULL;
    l->done = NULL;
    l->cells = NULL;
    l->sims = NULL;
    l->out = NULL;
    l->g = NULL;
}

static int enter_group(struct loop *l, const struct call_group *g, struct err *err)
{
    int64_t n = g->n;
    int rc = 0;
    if (l->g == g)
        return 0;
    leave_group(l);
    l->g = g;
    TRY(mem_zalloc(&l->shared, n * l->r->n_runs, sizeof *l->shared, "state of methods", err));
    TRY(mem_zalloc(&l->records, n, sizeof *l->records, "heads of a call", err));
    TRY(mem_zalloc(&l->done, n, sizeof *l->done, "heads of a call", err));
    TRY(mem_zalloc(&l->cells, n, sizeof *l->cells, "heads of a call", err));
    TRY(mem_zalloc(&l->sims, n, sizeof *l->sims, "heads of a call", err));
    TRY(mem_zalloc(&l->out, n, sizeof *l->out, "heads of a call", err));
out:
    return rc;
}

/* The state of the branch, a new one where it has none. */
static int enter_branch(struct loop *l, const char *name, struct err *err)
{
    int64_t i = 0;
    int rc = 0;
    while (i < l->n_branches && strcmp(l->branches[i].name, name) != 0)
        i++;
    if (i == l->n_branches) {
        TRY(mem_grow(&l->branches, &l->cap_branches, i + 1, sizeof *l->branches, "branches", err));
        struct branch *b = l->branches + l->n_branches++;
        *b = (struct branch){.carry = NULL};
        snprintf(b->name, sizeof b->name, "%s", name);
        TRY(mem_zalloc(&b->carry, l->g->n * l->r->n_runs, sizeof *b->carry, "state of methods",
                       err));
        TRY(mem_zalloc(&b->choose_ns, l->r->n_runs, sizeof *b->choose_ns, "state of methods", err));
    }
    l->branch = l->branches + i;
out:
    return rc;
}

/* ---- a method on a call --------------------------------------------------------------------- */

/* Parameters of one head. */
static int begin_cell(void *loop, int64_t i, int worker, struct err *err)
{
    struct loop *l = loop;
    const struct replay *r = l->r;
    struct sim_head *h = l->heads + i;
    struct record *rec = l->records + i;
    int64_t at = i * r->n_runs + l->run;
    struct slots slots =
        slots_of(r->runs + l->run, (struct slots){l->branch->carry + at, l->shared + at});
    struct err own = {0};
    (void)worker;
    (void)err;
    rec->n_q = h->in.rows ? h->in.rows->n : h->in.x.nq;
    rec->n_k = h->in.x.nk;
    l->out[i] = (struct call_outcome){.record = rec};
    if (cell_run_init(l->r, series_of(r, l->g, i), l->run, &h->in, slots, rec, l->cells + i, &own) <
        0)
        l->out[i].err = own;
    return 0;
}

/* All heads at once. */
static int run_call(struct loop *l, struct record *of_call, struct err *err)
{
    struct replay *r = l->r;
    bool steps = r->runs[l->run].method->flags & METHOD_NEEDS_STEPS;
    int rc = 0;
    for (int64_t i = 0; i < l->g->n; i++)
        l->sims[i] = l->cells[i].cell;
    TRY(sim_share_params(l->sims, l->out, l->g->n, err));
    struct sim_call c = {.cells = l->sims,
                         .heads = l->out,
                         .n = (int)l->g->n,
                         .group = l->g->group,
                         .data = l->data,
                         .jobs = l->jobs,
                         .record = r->device.timed ? of_call : NULL,
                         .choose_ns = steps ? l->branch->choose_ns + l->run : NULL};
    TRY(sim_run_call(&c, err));
out:
    return rc;
}

static int run_cells(struct loop *l, struct record *of_call, struct err *err)
{
    int rc = 0;
    TRY(pool_run(l->jobs, l->g->n, begin_cell, l, err));
    if (l->r->device.calls)
        TRY(run_call(l, of_call, err));
    for (int64_t i = 0; i < l->g->n; i++) {
        struct err *own = &l->out[i].err; /* keeps a failure */
        if (!own->code && !l->r->device.calls)
            sim_run(&l->cells[i].cell, l->records + i, own);
        if (!own->code)
            cell_run_record(l->cells + i, l->records + i, own);
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
static int deliver_all(struct loop *l, struct record *of_call, bool call_done,
                       const struct err *whole, struct err *err)
{
    struct replay *r = l->r;
    const struct method_run *run = r->runs + l->run;
    int rc = 0;
    for (int64_t i = 0; i < l->g->n; i++) {
        const struct err *own = whole->code ? whole : &l->out[i].err;
        if (own->code && replay_ends(r, own->code)) {
            *err = *own;
            return own->code;
        }
        if (own->code)
            fail(l->records + i, own);
        if (!l->done[i])
            TRY(replay_deliver(r, run, l->records + i, err));
    }
    if (whole->code)
        fail(of_call, whole);
    if (!call_done)
        TRY(replay_deliver(r, run, of_call, err));
out:
    return rc;
}

static int do_run(struct loop *l, struct err *err)
{
    struct replay *r = l->r;
    const struct method_run *run = r->runs + l->run;
    const struct place at = {l->g, l->call};
    struct record of_call;
    struct err whole = {0};
    bool all_done = true, call_done = false;
    int rc = 0;

    record_init(&of_call);
    for (int64_t i = 0; i < l->g->n; i++)
        record_init(l->records + i);
    for (int64_t i = 0; i < l->g->n; i++) {
        TRY(find_record(r, at, run, i, l->records + i, l->done + i, err));
        all_done &= l->done[i];
    }
    TRY(find_record(r, at, run, l->g->n, &of_call, &call_done, err));
    if (all_done && call_done && !runs_anyway(r, run))
        goto out;
    of_call.n_q = l->heads[0].in.rows ? l->heads[0].in.rows->n : l->heads[0].in.x.nq;
    of_call.n_k = l->heads[0].in.x.nk;
    run_cells(l, &of_call, &whole);
    rc = deliver_all(l, &of_call, call_done, &whole, err);
out:
    for (int64_t i = 0; i < l->g->n; i++) {
        cell_run_free(l->cells + i);
        record_free(l->records + i);
    }
    record_free(&of_call);
    return rc;
}

/* ---- the loop ------------------------------------------------------------------------------- */

static void progress_call(struct loop *l, const struct trace_call *c)
{
    const struct replay *r = l->r;
    const struct series *first = series_of(r, l->g, 0);
    char text[96];
    if (r->device.calls)
        snprintf(text, sizeof text, "step %d layer %d, %lld heads", c->step, c->layer,
                 (long long)l->g->n);
    else
        snprintf(text, sizeof text, "step %d layer %d head %d", c->step, c->layer,
                 trace_head_number(trace_meta(trace_of(r, l->g)), first->head));
    for (int64_t i = 0; i < l->g->n; i++) {
        const struct series *s = series_of(r, l->g, i);
        int64_t cells = r->n_runs * (i == 0 && r->device.timed ? 2 : 1);
        progress_add(r->progress, s->cost / (double)s->n_calls, cells, text);
    }
}

static int do_call(struct loop *l, int64_t call, struct err *err)
{
    const struct trace_call *c = trace_call(trace_of(l->r, l->g), call);
    int rc = 0;
    l->call = call;
    TRY(enter_branch(l, c->branch, err));
    l->data = device_numbers((int)l->g->n);
    for (l->run = 0; l->run < l->r->n_runs; l->run++)
        TRY(do_run(l, err));
    progress_call(l, c);
out:
    return rc;
}

/* The calls of the groups [first, end). */
static int do_groups(struct replay *r, int64_t first, int64_t end, int jobs, struct err *err)
{
    struct loop l = {.r = r, .jobs = jobs, .group = first, .end = end};
    struct place at, next;
    int rc = 0;

    l.slots[0].r = l.slots[1].r = r;
    TRY(next_place(&l, &next, err));
    while (next.group) {
        at = next;
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED,
                 "interrupted; finished cells are kept, the same command continues");
        TRY(enter_group(&l, at.group, err));
        TRY(take_call(&l, at, err));
        TRY(next_place(&l, &next, err));
        read_ahead(&l, next);
        TRY(do_call(&l, at.call, err));
    }
out:
    leave_group(&l);
    empty(l.slots);
    empty(l.slots + 1);
    return rc;
}

static int do_group(void *replay, int64_t item, int worker, struct err *err)
{
    (void)worker;
    return do_groups(replay, item, item + 1, 1, err);
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
    rc = r->device.calls ? do_groups(r, 0, r->n_groups, jobs, err)
                         : pool_run(jobs, r->n_groups, do_group, r, err);
    progress_end(&r->progress);
    /* Also after a failure or an interruption: finished cells are kept. */
    struct err own = {0};
    int synced = record_file_sync(r->records, &own);
    return rc || !synced ? rc : err_set(err, synced, "%s", own.msg);
}
