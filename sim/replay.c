/*
 * replay.c - see replay.h: the plan, and its execution, one attention call after the other.
 *
 * The unit is a call of n heads of a group. With a device that takes whole calls, groups follow
 * each other, what is done head by head runs on threads, and a thread reads the next call
 * meanwhile. Else every head is a group of its own, and the threads have different groups.
 */
#include "sim/replay.h"

#include "core/buf.h"
#include "core/gemm.h"
#include "core/intmath.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/permute.h"
#include "core/pool.h"
#include "sim/budgetsearch.h"
#include "sim/decode/decodelayer.h"
#include "sim/simulate.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- series --------------------------------------------------------------------------------- */

/* Do the branches of a head have to be worked through together? */
static bool joins_branches(const struct replay *r)
{
    for (int64_t k = 0; k < r->n_runs; k++)
        if (r->runs[k].method->reuse.shares_branches)
            return true;
    return false;
}

static struct series *find_series(struct replay *r, int trace, const struct trace_call *c, int head)
{
    for (int64_t i = r->n_series - 1; i >= 0; i--) {
        struct series *s = r->series + i;
        if (s->trace == trace && s->layer == c->layer && s->head == head &&
            (!s->branch[0] || strcmp(s->branch, c->branch) == 0))
            return s;
    }
    return NULL;
}

static int add_call(struct replay *r, int trace, int64_t call, int head, struct err *err)
{
    const struct trace_call *c = trace_call(r->traces[trace], call);
    struct series *s = find_series(r, trace, c, head);
    if (!s) {
        PASS_ON(mem_grow(&r->series, &r->cap_series, r->n_series + 1, sizeof *s, "series", err));
        s = r->series + r->n_series++;
        memset(s, 0, sizeof *s);
        s->trace = trace;
        s->layer = c->layer;
        s->head = head;
        if (!joins_branches(r))
            snprintf(s->branch, sizeof s->branch, "%s", c->branch);
    }
    int64_t *grown = realloc(s->calls, (size_t)(s->n_calls + 1) * sizeof *grown);
    if (!grown)
        return err_set(err, ERR_NOMEM, "series: out of memory");
    s->calls = grown;
    s->calls[s->n_calls++] = call;
    return 0;
}

static int plan_trace(struct replay *r, int t, const struct call_filter *f, struct err *err)
{
    const struct trace *trace = r->traces[t];
    for (int64_t i = 0; i < trace_calls(trace); i++)
        for (int h = 0; h < trace_meta(trace)->heads; h++)
            if (call_filter_takes(f, trace, i, h))
                PASS_ON(add_call(r, t, i, h, err));
    return 0;
}

/* Heads that a calibration does not know are easily taken for calibrated ones. */
static void warn_of_absent(const struct replay *r, const struct method_run *run)
{
    int64_t absent = 0;
    for (int64_t i = 0; i < r->n_series; i++) {
        const struct series *s = r->series + i;
        absent += method_calib_lacks(run, s->layer,
                                     trace_head_number(trace_meta(r->traces[s->trace]), s->head),
                                     trace_meta(r->traces[s->trace])->n_k);
    }
    if (absent)
        log_warn(
            "%s has no parameters for %lld of %lld heads: they keep those given, with the note "
            "calib=absent",
            run->calib, (long long)absent, (long long)r->n_series);
}

static int check_calibrations(const struct replay *r, struct err *err)
{
    const char *order = r->load.permute ? r->load.permute : "none";
    for (int64_t k = 0; k < r->n_runs; k++) {
        for (int t = 0; t < r->n_traces; t++)
            PASS_ON(method_calib_fits(r->runs + k, trace_meta(r->traces[t])->name, order, err));
        warn_of_absent(r, r->runs + k);
    }
    return 0;
}

static int takes_head(const struct replay *r, const struct method_run *run, const struct series *s,
                      int64_t call, struct err *err)
{
    struct sim_head h;
    PASS_ON(head_shape(r->traces[s->trace], call, s->head, &r->load, &h, err));
    int rc = method_run_takes(run, &h.in, err);
    sim_head_free(&h);
    return rc;
}

/* A file that is of no use to any head is refused. */
static int check_takes(const struct replay *r, struct method_run *run, struct err *err)
{
    struct err first = {0};

    if (!run->method->session.takes)
        return 0;
    PASS_ON(method_run_open(run, err));
    for (int64_t i = 0; i < r->n_series; i++)
        for (int64_t c = 0; c < r->series[i].n_calls; c++) {
            struct err own = {0};
            if (takes_head(r, run, r->series + i, r->series[i].calls[c], &own) == 0)
                return 0;
            first = first.code ? first : own;
        }
    return err_set(err, first.code, "method %s fits none of the heads; the first: %s",
                   run->method->name, first.msg);
}

/* The decode phase takes whole layers: heads share caches, and methods choose over heads. */
static int check_decode(const struct replay *r, const struct call_select *sel, struct err *err)
{
    for (int64_t k = 0; k < r->n_runs; k++)
        if (r->runs[k].target)
            return err_set(err, ERR_USAGE,
                           "%s: a target is searched for in the prefill; with --phase decode sweep "
                           "%s=A,B,..., and `lacuna choose` finds what reaches it",
                           r->runs[k].method->name, r->runs[k].target->params);
    if (sel->heads && *sel->heads && strcmp(sel->heads, "all") != 0)
        return err_set(
            err, ERR_USAGE,
            "--phase decode replays all heads of a layer together, as caches and choices "
            "over heads need it: leave --heads out");
    return 0;
}

int replay_plan(struct replay *r, const struct call_select *sel, struct err *err)
{
    struct call_filter f = {0};
    int rc = r->decode ? check_decode(r, sel, err) : 0;

    for (int t = 0; t < r->n_traces && !rc; t++) {
        TRY(call_filter_init(&f, sel, trace_meta(r->traces[t]), err));
        TRY(plan_trace(r, t, &f, err));
        call_filter_free(&f);
    }
    TRY(rc);
    if (r->n_series == 0)
        TRY(call_select_empty("attention", sel, err));
    TRY(check_calibrations(r, err));
    for (int64_t k = 0; k < r->n_runs; k++)
        TRY(check_takes(r, r->runs + k, err));
out:
    call_filter_free(&f);
    return rc;
}

/* Are the heads of a call done together? */
static bool by_call(const struct replay *r)
{
    return r->device.calls || r->decode;
}

/* ---- groups --------------------------------------------------------------------------------- */

static bool same_group(const struct series *a, const struct series *b)
{
    return a->trace == b->trace && a->layer == b->layer && strcmp(a->branch, b->branch) == 0 &&
           a->n_calls == b->n_calls &&
           memcmp(a->calls, b->calls, (size_t)a->n_calls * sizeof *a->calls) == 0;
}

/* The KV head of a series, as stored. */
static int kv_of(const struct replay *r, const struct series *s)
{
    const struct trace_meta *m = trace_meta(r->traces[s->trace]);
    return s->head / (m->heads / m->kv_heads);
}

static struct series *series_of(const struct replay *r, const struct call_group *g, int64_t head)
{
    return r->series + g->series[head];
}

static const struct trace *trace_of(const struct replay *r, const struct call_group *g)
{
    return r->traces[series_of(r, g, 0)->trace];
}

static struct call_group *find_group(struct replay *r, const struct series *s)
{
    for (int64_t i = r->n_groups - 1; i >= 0; i--)
        if (same_group(series_of(r, r->groups + i, 0), s))
            return r->groups + i;
    return NULL;
}

static int add_series(struct replay *r, int64_t series, struct err *err)
{
    struct call_group *g = by_call(r) ? find_group(r, r->series + series) : NULL;
    if (!g) {
        PASS_ON(mem_grow(&r->groups, &r->cap_groups, r->n_groups + 1, sizeof *g, "calls", err));
        g = r->groups + r->n_groups++;
        *g = (struct call_group){.n = 0};
    }
    int64_t *grown = realloc(g->series, (size_t)(g->n + 1) * sizeof *grown);
    if (!grown)
        return err_set(err, ERR_NOMEM, "calls: out of memory");
    g->series = grown;
    int64_t at = g->n++;
    for (; at > 0 && r->series[g->series[at - 1]].head > r->series[series].head; at--)
        g->series[at] = g->series[at - 1];
    g->series[at] = series;
    return 0;
}

/* The largest number of heads in a row that share their KV head everywhere. */
static int group_size(const struct replay *r, const struct call_group *g)
{
    int64_t size = 0;
    for (int64_t i = 0, k; i < g->n; i = k) {
        int kv = kv_of(r, series_of(r, g, i));
        for (k = i + 1; k < g->n && kv_of(r, series_of(r, g, k)) == kv; k++)
            ;
        size = gcd(k - i, size);
    }
    return (int)size;
}

static int heads_text(const struct replay *r, struct call_group *g, struct err *err)
{
    const struct trace_meta *m = trace_meta(trace_of(r, g));
    OWN(buf_free) struct buf b = {0};
    for (int64_t i = 0, k; i < g->n && g->n < m->heads; i = k) {
        int first = trace_head_number(m, series_of(r, g, i)->head), last = first;
        for (k = i + 1; k < g->n; k++, last++)
            if (trace_head_number(m, series_of(r, g, k)->head) != last + 1)
                break;
        buf_printf(&b, "%s%d", b.len ? "," : "", first);
        if (last > first)
            buf_printf(&b, "-%d", last);
    }
    PASS_ON(buf_check(&b, "heads of a call", err));
    g->heads = strdup(buf_str(&b));
    if (!g->heads)
        return err_set(err, ERR_NOMEM, "heads of a call: out of memory");
    return 0;
}

/* Identity of the record of a head of a call. */
static int head_identity(const struct replay *r, const struct series *s, int64_t call,
                         const struct method_run *run, struct record *rec, struct err *err)
{
    const struct trace *t = r->traces[s->trace];
    const struct trace_meta *m = trace_meta(t);
    const struct trace_call *c = trace_call(t, call);

    snprintf(rec->trace, sizeof rec->trace, "%s", trace_id(t));
    record_text(rec, &rec->model, "%s", m->name);
    rec->step = c->step;
    rec->layer = s->layer;
    rec->head = trace_head_number(m, s->head);
    rec->kv_head = trace_kv_number(m, s->head / (m->heads / m->kv_heads));
    snprintf(rec->branch, sizeof rec->branch, "%s", c->branch);
    snprintf(rec->method, sizeof rec->method, "%s", run->method->name);
    rec->seed = r->seed;
    snprintf(rec->backend, sizeof rec->backend, "%s",
             r->device.accel ? r->device.accel->name : "cpu");
    snprintf(rec->precision, sizeof rec->precision, "%s",
             r->load.precision == PREC_F64 ? "f64" : "f32");
    snprintf(rec->permute, sizeof rec->permute, "%s", r->load.permute ? r->load.permute : "none");
    rec->scope = r->decode ? RECORD_OF_DECODE : RECORD_OF_HEAD;
    rec->n_q = r->decode ? trace_decode(m).steps : m->n_q;
    rec->n_k = m->n_k;
    rec->d = m->head_dim;
    rec->causal = trace_causal(m, &c->score);
    rec->timestep = c->timestep;
    return mem_dup(&rec->params, run->canonical, "record", err);
}

/* Identity of the record of head i of a call, or with i = n of the call itself; *done: there is
 * such a record already, or it is not wanted. */
static int find_record(const struct replay *r, const struct call_group *g, int64_t call,
                       const struct method_run *run, int64_t i, struct record *rec, bool *done,
                       struct err *err)
{
    record_init(rec);
    *done = i == g->n && !r->device.timed;
    if (*done)
        return 0;
    PASS_ON(head_identity(r, series_of(r, g, i < g->n ? i : 0), call, run, rec, err));
    if (i == g->n) {
        record_of_call(rec);
        PASS_ON(mem_dup(&rec->heads, g->heads, "record", err));
    }
    return record_file_holds(r->records, rec, done, err);
}

static int is_done(const struct replay *r, const struct call_group *g, int64_t call,
                   const struct method_run *run, int64_t i, bool *done, struct err *err)
{
    OWN(record_free) struct record rec = {0};
    return find_record(r, g, call, run, i, &rec, done, err);
}

/* Cells without a record, and what they cost. The calls' own cells belong to the first series,
 * whose cost they share. */
static int count_todo(struct replay *r, const struct call_group *g, struct err *err)
{
    const struct trace *t = trace_of(r, g);
    double width = (double)(trace_meta(t)->head_dim + trace_meta(t)->v_dim);
    for (int64_t i = 0; i < g->n + r->device.timed; i++) {
        struct series *s = series_of(r, g, i < g->n ? i : 0);
        for (int64_t at = 0; at < s->n_calls * r->n_runs; at++) {
            const struct method_run *run = r->runs + at % r->n_runs;
            bool done = false;
            PASS_ON(is_done(r, g, s->calls[at / r->n_runs], run, i, &done, err));
            s->cells++;
            s->todo += !done;
            s->searches += !done && i < g->n && run->target;
        }
        if (i < g->n && s->todo > 0)
            s->cost = (double)trace_call_pairs(t, s->calls[0]) * width *
                      (double)(s->todo + s->n_calls + BUDGET_EVALS / 2 * s->searches);
    }
    return 0;
}

int replay_groups(struct replay *r, struct err *err)
{
    int64_t cells = 0;
    for (int64_t i = 0; i < r->n_series; i++)
        PASS_ON(add_series(r, i, err));
    for (int64_t i = 0; i < r->n_groups; i++) {
        r->groups[i].ordinal = cells;
        cells += r->groups[i].n * series_of(r, r->groups + i, 0)->n_calls * r->n_runs;
        r->groups[i].group = group_size(r, r->groups + i);
        if (r->device.calls)
            PASS_ON(heads_text(r, r->groups + i, err));
        PASS_ON(count_todo(r, r->groups + i, err));
    }
    return 0;
}

/* ---- shards --------------------------------------------------------------------------------- */

/* What goes to a shard as a whole: unit[i] of series i, numbered from 0. Returns how many. */
static int64_t shard_units(const struct replay *r, bool by_kv, int64_t *unit)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_series; i++) {
        const struct series *s = r->series + i;
        unit[i] = -1;
        for (int64_t k = i - 1; k >= 0 && unit[i] < 0 && by_call(r); k--)
            if (same_group(s, r->series + k) && (!by_kv || kv_of(r, s) == kv_of(r, r->series + k)))
                unit[i] = unit[k];
        unit[i] = unit[i] < 0 ? n++ : unit[i];
    }
    return n;
}

/* Only shapes enter the cost here, never what is already recorded, so that every shard computes the
 * same split. */
static int assign_series(const struct replay *r, int64_t count, int64_t *owner, struct err *err)
{
    OWN(free_at) double *cost = NULL;
    OWN(free_at) int64_t *unit = NULL, *owners = NULL;
    int64_t n;

    PASS_ON(mem_zalloc(&cost, r->n_series, sizeof *cost, "shards", err));
    PASS_ON(mem_alloc(&unit, r->n_series, sizeof *unit, "shards", err));
    PASS_ON(mem_alloc(&owners, r->n_series, sizeof *owners, "shards", err));
    n = shard_units(r, false, unit);
    if (r->device.calls && n < count)
        n = shard_units(r, true, unit);
    for (int64_t i = 0; i < r->n_series; i++) {
        const struct series *s = r->series + i;
        const struct trace *t = r->traces[s->trace];
        const struct trace_meta *m = trace_meta(t);
        bool causal = trace_causal(m, &trace_call(t, s->calls[0])->score);
        cost[unit[i]] += (double)pairs_allowed(m->n_q, m->n_k, causal) *
                         (double)(m->head_dim + m->v_dim) * (double)s->n_calls;
    }
    PASS_ON(shard_assign(cost, n, count, owners, err));
    for (int64_t i = 0; i < r->n_series; i++)
        owner[i] = owners[unit[i]];
    return 0;
}

int replay_shard(struct replay *r, const struct shard *shard, struct err *err)
{
    OWN(free_at) int64_t *owner = NULL;
    int64_t kept = 0;

    r->shard = *shard;
    if (shard->count <= 1)
        return 0;
    PASS_ON(mem_alloc(&owner, r->n_series, sizeof *owner, "shards", err));
    PASS_ON(assign_series(r, shard->count, owner, err));
    for (int64_t i = 0; i < r->n_series; i++) {
        if (owner[i] == shard->index)
            r->series[kept++] = r->series[i];
        else
            free(r->series[i].calls);
    }
    r->n_series = kept;
    return 0;
}

/* ---- a cell --------------------------------------------------------------------------------- */

/* Dumps of one cell. Rows arrive in the order in which the method ran; outputs are stored in the
 * trace's order. */
struct dump {
    struct replay *replay;
    const struct record *record;
    const struct head_in *in;
    const char *order; /* of the method's rows and keys, beside the trace's */
    int64_t *perm;     /* perm[row of the method] = row of the trace; NULL = same */
    float *out;        /* [nq][dv] in the trace's order, as `lse` with dumped outputs; owned */
    double *lse;
};

/* A cell while it runs. */
struct cell_run {
    struct record record;
    bool done; /* has a record already */
    struct method_ctx ctx;
    struct dump dump;
    struct budget_found found;
    const struct method *method;
    void *params; /* owned */
};

static int dump_init(struct dump *d, struct replay *r, const struct record *rec,
                     const struct head_in *in, const char *method_order, struct err *err)
{
    const char *run_order = r->load.permute ? r->load.permute : "none";
    const char *order = method_order ? method_order : "none";

    *d = (struct dump){.replay = r, .record = rec, .in = in};
    if (strcmp(run_order, "none") != 0 && strcmp(order, "none") != 0)
        return err_set(err, ERR_USAGE,
                       "--permute %s and method %s with permute=%s: give one token order",
                       run_order, rec->method, order);
    if (in->order && strcmp(in->order, order) == 0)
        order = "none"; /* the trace has it already */
    else if (strcmp(order, "none") == 0)
        order = run_order;
    d->order = order;
    if (r->outputs && strcmp(order, "none") != 0) /* the method tells what is wrong with it */
        permute_make(order, &in->geom, in->x.nq, r->seed, &d->perm, NULL);
    return 0;
}

static void dump_free_rows(struct dump *d)
{
    free(d->out);
    free(d->lse);
    d->out = NULL;
    d->lse = NULL;
}

/* Rows are gathered until the head is whole. */
static int dump_outputs(struct dump *d, const struct mask *m, const double *out, const double *lse,
                        struct err *err)
{
    int64_t dv = d->in->x.dv;
    if (!d->out)
        PASS_ON(mem_alloc(&d->out, m->nq * dv, sizeof *d->out, "output rows", err));
    if (!d->lse)
        PASS_ON(mem_alloc(&d->lse, m->nq, sizeof *d->lse, "output rows", err));
    for (int64_t i = m->row0; i < m->row1; i++) {
        int64_t row = d->perm ? d->perm[i] : i;
        for (int64_t c = 0; c < dv; c++)
            d->out[row * dv + c] = (float)out[(i - m->row0) * dv + c];
        d->lse[row] = lse[i - m->row0];
    }
    if (m->row1 < m->nq)
        return 0;
    PASS_ON(outfile_put(d->replay->outputs, d->record, dv, d->out, d->lse, err));
    dump_free_rows(d);
    return 0;
}

static int dump_chunk(void *ctx, const struct mask *m, const double *out, const double *lse,
                      struct err *err)
{
    struct dump *d = ctx;
    if (d->replay->masks)
        PASS_ON(maskfile_put(d->replay->masks, d->record, d->order, m, err));
    if (d->replay->outputs)
        return dump_outputs(d, m, out, lse, err);
    return 0;
}

static void cell_free(struct cell_run *c)
{
    free(c->dump.perm);
    dump_free_rows(&c->dump);
    method_params_free(c->method, c->params);
    record_free(&c->record);
    memset(c, 0, sizeof *c);
}

static int end_dumps(const struct replay *r, int64_t ordinal, struct err *err)
{
    int rc = r->masks ? cellfile_end(maskfile_cellfile(r->masks), ordinal, err) : 0;
    return rc || !r->outputs ? rc : cellfile_end(r->outputs, ordinal, err);
}

/* A finished cell's record, and the tally. */
static int deliver(struct replay *r, const struct method_run *run, const struct record *rec,
                   struct err *err)
{
    int64_t *tally = rec->status == RECORD_OK     ? &r->done_ok
                     : rec->status == RECORD_SKIP ? &r->done_skip
                                                  : &r->done_error;
    __atomic_add_fetch(tally, 1, __ATOMIC_RELAXED);
    if (record_of_head(rec))
        setting_tally_add(&r->tally[run - r->runs], rec);
    return record_file_append(r->records, rec, err);
}

/* Does such a failure of a cell end the replay? Others are the cell's own, and its record says so.
 * A lack of memory can pass; a dump without the cell would stay. */
static bool ends_replay(const struct replay *r, int code)
{
    return code == ERR_IO || code == ERR_MACHINE || code == ERR_USAGE || code == ERR_INTERRUPTED ||
           (code == ERR_NOMEM && (r->masks || r->outputs));
}

/* ---- the loop ------------------------------------------------------------------------------- */

/* A call of a trace, with the heads of a group. */
struct place {
    const struct call_group *group; /* NULL: none */
    int64_t call;
    int64_t ordinal; /* of its first cell */
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

    /* The group at hand, with arrays [g->n], owned. */
    struct {
        const struct call_group *g;
        struct branch *branches;
        int64_t n_branches, cap_branches;
        struct carry *shared;   /* [heads][n_runs]: over all branches */
        struct cell_run *cells; /* of the decode phase [n_runs][g->n], as the next two */
        struct sim_cell *sims;
        struct call_outcome *out;
    } of;

    /* A call, and a method on it, with its part of the arrays. */
    struct place at;
    int64_t run;
    struct cell_run *cells;
    struct sim_cell *sims;
    struct call_outcome *out;
    struct sim_head *heads; /* [g->n], of the slot */
    const struct branch *branch;
    uint64_t data; /* number of the heads' q, k, v on the device */
};

/* ---- reading -------------------------------------------------------------------------------- */

/* Load the heads of one run of them that share their KV head. */
static int load_group(void *slot, int64_t item, int worker, struct err *err)
{
    struct slot *s = slot;
    const struct call_group *g = s->place.group;
    int64_t first = item * g->group;
    for (int64_t i = first; i < first + g->group; i++)
        PASS_ON(head_load_sharing(trace_of(s->r, g), s->place.call, series_of(s->r, g, i)->head,
                                  &s->r->load, i > first ? s->heads + first : NULL, s->heads + i,
                                  err));
    return 0;
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
            bool done = true;
            rc = is_done(r, at.group, at.call, r->runs + k, i, &done, err);
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
            *at = (struct place){g, s->calls[l->index], g->ordinal + l->index * g->n * r->n_runs};
            l->index++;
            int rc = call_needed(r, *at, &needed, err);
            if (rc || needed)
                return rc;
        }
    }
    *at = (struct place){0};
    return 0;
}

/* ---- the state of a group ------------------------------------------------------------------- */

static void leave_group(struct loop *l)
{
    int64_t n = l->of.g ? l->of.g->n * l->r->n_runs : 0;
    for (int64_t b = 0; b < l->of.n_branches; b++) {
        carries_free(l->of.branches[b].carry, n);
        free(l->of.branches[b].choose_ns);
    }
    carries_free(l->of.shared, n);
    free(l->of.branches);
    free(l->of.cells);
    free(l->of.sims);
    free(l->of.out);
    memset(&l->of, 0, sizeof l->of);
}

static int enter_group(struct loop *l, const struct call_group *g, struct err *err)
{
    if (l->of.g == g)
        return 0;
    leave_group(l);
    l->of.g = g;
    PASS_ON(mem_zalloc(&l->of.shared, g->n * l->r->n_runs, sizeof *l->of.shared, "state of methods",
                       err));
    int64_t cells = l->r->decode ? g->n * l->r->n_runs : g->n;
    PASS_ON(mem_zalloc(&l->of.cells, cells, sizeof *l->of.cells, "heads of a call", err));
    PASS_ON(mem_zalloc(&l->of.sims, cells, sizeof *l->of.sims, "heads of a call", err));
    return mem_zalloc(&l->of.out, cells, sizeof *l->of.out, "heads of a call", err);
}

/* The state of the branch, a new one where it has none. */
static int enter_branch(struct loop *l, const char *name, struct err *err)
{
    int64_t i = 0;
    while (i < l->of.n_branches && strcmp(l->of.branches[i].name, name) != 0)
        i++;
    if (i == l->of.n_branches) {
        PASS_ON(mem_grow(&l->of.branches, &l->of.cap_branches, i + 1, sizeof *l->of.branches,
                         "branches", err));
        struct branch *b = l->of.branches + l->of.n_branches++;
        *b = (struct branch){.carry = NULL};
        snprintf(b->name, sizeof b->name, "%s", name);
        PASS_ON(mem_zalloc(&b->carry, l->of.g->n * l->r->n_runs, sizeof *b->carry,
                           "state of methods", err));
        PASS_ON(
            mem_zalloc(&b->choose_ns, l->r->n_runs, sizeof *b->choose_ns, "state of methods", err));
    }
    l->branch = l->of.branches + i;
    return 0;
}

/* ---- a method on a call --------------------------------------------------------------------- */

static void take_run(struct loop *l, int64_t run)
{
    int64_t at = l->r->decode ? run * l->of.g->n : 0;
    l->run = run;
    l->cells = l->of.cells + at;
    l->sims = l->of.sims + at;
    l->out = l->of.out + at;
}

/* Parameters (searched where the run has a target), notes and dumps of the cell of head i. */
static int cell_init(struct loop *l, int64_t i, struct sim_cell *sim, struct err *err)
{
    struct replay *r = l->r;
    const struct method_run *run = r->runs + l->run;
    const struct method *method = run->method;
    const struct series *s = series_of(r, l->of.g, i);
    const struct head_in *in = &l->heads[i].in;
    struct cell_run *c = l->cells + i;
    struct record *rec = &c->record;
    int64_t at = i * r->n_runs + l->run;

    c->method = method;
    c->ctx = (struct method_ctx){.seed = r->seed,
                                 .carry = method->flags & METHOD_NEEDS_STEPS ? l->branch->carry + at
                                                                             : NULL,
                                 .shared = method->reuse.shares_branches ? l->of.shared + at : NULL,
                                 .session = run->session};
    *sim = (struct sim_cell){.method = method,
                             .ctx = &c->ctx,
                             .in = in,
                             .device = r->device.accel ? &r->device : NULL,
                             .sink = r->masks || r->outputs ? dump_chunk : NULL,
                             .sink_ctx = &c->dump};
    PASS_ON(method_params_for_head(run, rec->layer, rec->head, in->x.nk, &c->params, err));
    if (method_calib_lacks(run, rec->layer, rec->head, in->x.nk))
        record_note(rec, "calib=absent");
    PASS_ON(method_calib_note(run, rec->trace, rec, err));
    if (run->target)
        PASS_ON(budget_resolve(r, s, l->run, in, c->params, &c->found, err));
    PASS_ON(dump_init(&c->dump, r, rec, in,
                      method->params.order ? method->params.order(c->params) : NULL, err));
    sim->params = c->params;
    return 0;
}

/* Query rows and keys that count; the steps of a decode phase do anyway. */
static void set_shape(struct record *rec, const struct head_in *in)
{
    if (rec->scope == RECORD_OF_DECODE)
        return;
    rec->n_q = in->rows ? in->rows->n : in->x.nq;
    rec->n_k = in->x.nk;
}

static int begin_cell(void *loop, int64_t i, int worker, struct err *err)
{
    struct loop *l = loop;
    struct record *rec = &l->cells[i].record;
    struct err own = {0};
    set_shape(rec, &l->heads[i].in);
    l->out[i] = (struct call_outcome){.record = rec};
    if (cell_init(l, i, l->sims + i, &own) < 0)
        l->out[i].err = own;
    return 0;
}

/* All heads at once. */
static int run_call(struct loop *l, struct record *of_call, struct err *err)
{
    struct replay *r = l->r;
    const struct call_group *g = l->of.g;
    bool steps = r->runs[l->run].method->flags & METHOD_NEEDS_STEPS;
    struct sim_call c = {.cells = l->sims,
                         .heads = l->out,
                         .n = (int)g->n,
                         .group = g->group,
                         .data = l->data,
                         .jobs = l->jobs,
                         .record = r->device.timed ? of_call : NULL,
                         .choose_ns = steps ? l->branch->choose_ns + l->run : NULL};
    PASS_ON(sim_share_params(l->sims, l->out, g->n, err));
    return sim_run_call(&c, err);
}

static int run_cells(struct loop *l, struct record *of_call, struct err *err)
{
    const struct method_run *run = l->r->runs + l->run;
    PASS_ON(pool_run(l->jobs, l->of.g->n, begin_cell, l, err));
    if (l->r->device.calls)
        PASS_ON(run_call(l, of_call, err));
    for (int64_t i = 0; i < l->of.g->n; i++) {
        struct cell_run *c = l->cells + i;
        struct err *own = &l->out[i].err; /* keeps a failure */
        if (!own->code && !l->r->device.calls)
            sim_run(l->sims + i, &c->record, own);
        if (!own->code && run->target)
            budget_record(run->target, &c->found, &c->record, own);
    }
    return 0;
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
    for (int64_t i = 0; i < l->of.g->n; i++) {
        const struct err *own = whole->code ? whole : &l->out[i].err;
        if (own->code && ends_replay(r, own->code)) {
            *err = *own;
            return own->code;
        }
        PASS_ON(end_dumps(r, l->cells[i].record.ordinal, err));
        if (own->code)
            fail(&l->cells[i].record, own);
        if (!l->cells[i].done)
            PASS_ON(deliver(r, run, &l->cells[i].record, err));
    }
    if (whole->code)
        fail(of_call, whole);
    if (!call_done)
        return deliver(r, run, of_call, err);
    return 0;
}

/* The records of the heads; *all_done: each has one. */
static int find_heads(struct loop *l, bool *all_done, struct err *err)
{
    const struct call_group *g = l->of.g;
    *all_done = true;
    for (int64_t i = 0; i < g->n; i++) {
        struct cell_run *c = l->cells + i;
        PASS_ON(
            find_record(l->r, g, l->at.call, l->r->runs + l->run, i, &c->record, &c->done, err));
        c->record.ordinal = l->at.ordinal + l->run * g->n + i;
        *all_done &= c->done;
    }
    return 0;
}

static void free_cells(struct loop *l)
{
    for (int64_t i = 0; i < l->of.g->n; i++)
        cell_free(l->cells + i);
}

static int do_run(struct loop *l, struct err *err)
{
    struct replay *r = l->r;
    const struct method_run *run = r->runs + l->run;
    const struct call_group *g = l->of.g;
    struct record of_call;
    struct err whole = {0};
    bool all_done = true, call_done = false;
    int rc = 0;

    record_init(&of_call);
    TRY(find_heads(l, &all_done, err));
    TRY(find_record(r, g, l->at.call, run, g->n, &of_call, &call_done, err));
    if (all_done && call_done && !runs_anyway(r, run))
        goto out;
    set_shape(&of_call, &l->heads->in);
    run_cells(l, &of_call, &whole);
    rc = deliver_all(l, &of_call, call_done, &whole, err);
out:
    free_cells(l);
    record_free(&of_call);
    return rc;
}

/* ---- the decode phase ----------------------------------------------------------------------- */

/* Sums of columns that the trace has, one array for all heads; NULL: none. */
static int read_col_sums(struct loop *l, float **data, const float ***sums, struct err *err)
{
    const struct trace *t = trace_of(l->r, l->of.g);
    int64_t n = l->of.g->n, prompt = trace_meta(t)->decode_from;
    if (!trace_call(t, l->at.call)->has_col_sum)
        return 0;
    PASS_ON(mem_alloc(data, n * prompt, sizeof **data, "sums of columns", err));
    PASS_ON(mem_alloc(sums, n, sizeof **sums, "sums of columns", err));
    for (int64_t i = 0; i < n; i++) {
        (*sums)[i] = *data + i * prompt;
        PASS_ON(trace_read_values(t, l->at.call, TRACE_COL_SUM, series_of(l->r, l->of.g, i)->head,
                                  *data + i * prompt, err));
    }
    return 0;
}

/* A plan's heads run the settings of their entries. */
static void take_entry(struct loop *l, int64_t i)
{
    const struct method_session *m = &l->r->runs[l->run].method->session;
    struct cell_run *c = l->cells + i;
    if (!m->entry)
        return;
    const struct method_run *e = m->entry(l->r->runs[l->run].session, &l->heads[i].in);
    l->sims[i].method = e->method;
    l->sims[i].params = e->params;
    c->ctx.session = e->session;
    record_note(&c->record, "plan_method=%s;plan_params=%s", e->method->name, e->canonical);
}

/* Make the cells of a run; false: none of them is to do, or each has an error. */
static int begin_decode(struct loop *l, bool *wanted, struct err *err)
{
    bool all_done;
    *wanted = false;
    PASS_ON(find_heads(l, &all_done, err));
    if (all_done && !runs_anyway(l->r, l->r->runs + l->run))
        return 0;
    PASS_ON(pool_run(l->jobs, l->of.g->n, begin_cell, l, err));
    *wanted = true;
    for (int64_t i = 0; i < l->of.g->n; i++)
        take_entry(l, i);
    for (int64_t i = 0; i < l->of.g->n; i++)
        if (l->out[i].err.code) {
            *wanted = false;
            for (int64_t k = 0; k < l->of.g->n; k++)
                l->out[k].err = l->out[i].err;
            break;
        }
    return 0;
}

/* All runs on all heads. */
static int do_decode(struct loop *l, struct err *err)
{
    const struct call_group *g = l->of.g;
    struct decode_call c = {.heads = l->heads,
                            .n = (int)g->n,
                            .group = g->group,
                            .phase = trace_decode(trace_meta(trace_of(l->r, g))),
                            .jobs = l->jobs};
    const struct err none = {0};
    struct sim_call *runs = NULL;
    float *data = NULL;
    const float **sums = NULL;
    bool wanted;
    int rc = 0;

    TRY(mem_zalloc(&runs, l->r->n_runs, sizeof *runs, "settings", err));
    TRY(read_col_sums(l, &data, &sums, err));
    c.runs = runs;
    c.col_sum = sums;
    for (int64_t k = 0; k < l->r->n_runs; k++) {
        take_run(l, k);
        TRY(begin_decode(l, &wanted, err));
        if (wanted)
            runs[c.n_runs++] = (struct sim_call){.cells = l->sims, .heads = l->out};
    }
    if (c.n_runs)
        TRY(decode_run(&c, err));
    for (int64_t k = 0; k < l->r->n_runs; k++) {
        take_run(l, k);
        TRY(deliver_all(l, NULL, true, &none, err));
    }
out:
    for (int64_t k = 0; k < l->r->n_runs; k++) {
        take_run(l, k);
        free_cells(l);
    }
    free(runs);
    free(data);
    free(sums);
    return rc;
}

static void progress_call(struct loop *l, const struct trace_call *c)
{
    const struct replay *r = l->r;
    const struct series *first = series_of(r, l->of.g, 0);
    char text[96];
    if (by_call(r))
        snprintf(text, sizeof text, "step %d layer %d, %lld heads", c->step, c->layer,
                 (long long)l->of.g->n);
    else
        snprintf(text, sizeof text, "step %d layer %d head %d", c->step, c->layer,
                 trace_head_number(trace_meta(trace_of(r, l->of.g)), first->head));
    for (int64_t i = 0; i < l->of.g->n; i++) {
        const struct series *s = series_of(r, l->of.g, i);
        int64_t cells = r->n_runs * (i == 0 && r->device.timed ? 2 : 1);
        progress_add(r->progress, s->cost / (double)s->n_calls, cells, text);
    }
}

static int do_call(struct loop *l, struct err *err)
{
    const struct trace_call *c = trace_call(trace_of(l->r, l->of.g), l->at.call);
    PASS_ON(enter_branch(l, c->branch, err));
    l->data = device_numbers((int)l->of.g->n);
    if (l->r->decode)
        PASS_ON(do_decode(l, err));
    for (int64_t k = 0; k < l->r->n_runs && !l->r->decode; k++) {
        take_run(l, k);
        PASS_ON(do_run(l, err));
    }
    progress_call(l, c);
    return 0;
}

/* The calls of the groups [first, end). */
static int do_groups(struct replay *r, int64_t first, int64_t end, int jobs, struct err *err)
{
    struct loop l = {.r = r, .jobs = jobs, .group = first, .end = end};
    struct place next;
    int rc = 0;

    l.slots[0].r = l.slots[1].r = r;
    TRY(next_place(&l, &next, err));
    while (next.group) {
        l.at = next;
        if (interrupted())
            FAIL(err, ERR_INTERRUPTED,
                 "interrupted; finished cells are kept, the same command continues");
        TRY(enter_group(&l, l.at.group, err));
        TRY(take_call(&l, l.at, err));
        TRY(next_place(&l, &next, err));
        read_ahead(&l, next);
        TRY(do_call(&l, err));
    }
out:
    leave_group(&l);
    empty(l.slots);
    empty(l.slots + 1);
    return rc;
}

static int do_group(void *replay, int64_t item, int worker, struct err *err)
{
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
    rc = by_call(r) ? do_groups(r, 0, r->n_groups, jobs, err)
                    : pool_run(jobs, r->n_groups, do_group, r, err);
    progress_end(&r->progress);
    /* Also after a failure or an interruption: finished cells are kept. */
    struct err own = {0};
    int synced = record_file_sync(r->records, &own);
    return rc || !synced ? rc : err_set(err, synced, "%s", own.msg);
}

void replay_free(struct replay *r)
{
    for (int64_t i = 0; i < r->n_series; i++)
        free(r->series[i].calls);
    for (int64_t i = 0; i < r->n_groups; i++) {
        free(r->groups[i].series);
        free(r->groups[i].heads);
    }
    traces_close(&r->traces, r->n_traces);
    budget_book_free(&r->book);
    free(r->groups);
    free(r->series);
    free(r->tally);
    memset(r, 0, sizeof *r);
}
