/*
 * replay_plan.c - the cells of a replay: which exist, which are still to do, and which shard does
 * them.
 */
#include "sim/budgetrun.h"

#include "core/indexlist.h"
#include "core/json.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wanted {
    int64_t *layers, n_layers, *heads, n_heads, *steps, n_steps; /* NULL = all */
};

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
    int rc = 0;
    const struct trace_call *c = trace_call(r->traces[trace], call);
    struct series *s = find_series(r, trace, c, head);
    if (!s) {
        TRY(mem_grow(&r->series, &r->cap_series, r->n_series + 1, sizeof *s, "series", err));
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
        FAIL(err, ERR_NOMEM, "series: out of memory");
    s->calls = grown;
    s->calls[s->n_calls++] = call;
out:
    return rc;
}

static int plan_trace(struct replay *r, int t, const struct wanted *w, const char *branch,
                      struct err *err)
{
    int rc = 0;
    const struct trace *trace = r->traces[t];
    for (int64_t i = 0; i < trace_calls(trace); i++) {
        const struct trace_call *c = trace_call(trace, i);
        if (!index_list_has(w->layers, w->n_layers, c->layer) ||
            !index_list_has(w->steps, w->n_steps, c->step) ||
            (branch && *branch && strcmp(branch, c->branch) != 0))
            continue;
        for (int h = 0; h < trace_meta(trace)->heads; h++)
            if (index_list_has(w->heads, w->n_heads, trace_head_number(trace_meta(trace), h)))
                TRY(add_call(r, t, i, h, err));
    }
out:
    return rc;
}

static int parse_list(const char *text, int64_t limit, const char *what, int64_t **list, int64_t *n,
                      struct err *err)
{
    *list = NULL;
    *n = -1;
    if (!text || !*text || strcmp(text, "all") == 0)
        return 0;
    return index_list_parse(text, limit, what, list, n, err);
}

/* Cells without a record, and what they cost. */
static int count_todo(struct replay *r, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < r->n_series; i++) {
        struct series *s = r->series + i;
        const struct trace_meta *m = trace_meta(r->traces[s->trace]);
        const struct trace *t = r->traces[s->trace];
        double pairs = (double)trace_call_pairs(t, s->calls[0]);
        for (int64_t c = 0; c < s->n_calls; c++)
            for (int64_t k = 0; k < r->n_runs; k++) {
                struct record rec;
                bool done = false;
                record_init(&rec);
                rc = replay_identity(r, s, s->calls[c], r->runs + k, &rec, err);
                rc = rc ? rc : record_file_holds(r->records, &rec, &done, err);
                record_free(&rec);
                if (rc)
                    return rc;
                s->cells++;
                s->todo += !done;
                s->searches += !done && r->runs[k].target;
            }
        s->cost = pairs * (double)(m->head_dim + m->v_dim) *
                  (double)(s->todo + s->n_calls + BUDGET_EVALS / 2 * s->searches);
        if (s->todo == 0)
            s->cost = 0;
    }
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
    int rc = 0;
    for (int64_t k = 0; k < r->n_runs; k++) {
        for (int t = 0; t < r->n_traces; t++)
            TRY(method_calib_fits(r->runs + k, trace_meta(r->traces[t])->name, order, err));
        warn_of_absent(r, r->runs + k);
    }
out:
    return rc;
}

int replay_plan(struct replay *r, const struct replay_select *sel, struct err *err)
{
    int rc = 0;
    struct wanted w = {0};

    for (int t = 0; t < r->n_traces; t++) {
        const struct trace_meta *m = trace_meta(r->traces[t]);
        TRY(parse_list(sel->layers, m->layers, "--layers", &w.layers, &w.n_layers, err));
        TRY(parse_list(sel->heads, m->head_ids[0] ? -1 : m->heads, "--heads", &w.heads, &w.n_heads,
                       err));
        TRY(parse_list(sel->steps, -1, "--steps", &w.steps, &w.n_steps, err));
        TRY(plan_trace(r, t, &w, sel->branch, err));
        free(w.layers);
        free(w.heads);
        free(w.steps);
        memset(&w, 0, sizeof w);
    }
    if (r->n_series == 0)
        FAIL(err, ERR_USAGE, "no attention call matches --layers %s --heads %s --steps %s%s%s",
             sel->layers ? sel->layers : "all", sel->heads ? sel->heads : "all",
             sel->steps ? sel->steps : "all", sel->branch && *sel->branch ? " --branch " : "",
             sel->branch ? sel->branch : "");
    TRY(check_calibrations(r, err));
    TRY(count_todo(r, err));
out:
    free(w.layers);
    free(w.heads);
    free(w.steps);
    return rc;
}

/* What goes to a shard as a whole: unit[i] of series i, numbered from 0. Returns how many. */
static int64_t shard_units(const struct replay *r, bool by_kv, int64_t *unit)
{
    int64_t n = 0;
    for (int64_t i = 0; i < r->n_series; i++) {
        const struct series *s = r->series + i;
        unit[i] = -1;
        for (int64_t k = i - 1; k >= 0 && unit[i] < 0 && r->device.calls; k--)
            if (replay_same_group(s, r->series + k) &&
                (!by_kv || replay_kv(r, s) == replay_kv(r, r->series + k)))
                unit[i] = unit[k];
        unit[i] = unit[i] < 0 ? n++ : unit[i];
    }
    return n;
}

/* Only shapes enter the cost here, never what is already recorded, so that every shard computes the
 * same split. */
static int assign_series(const struct replay *r, int64_t count, int64_t *owner, struct err *err)
{
    double *cost = NULL;
    int64_t *unit = NULL, *owners = NULL, n;
    int rc = 0;

    TRY(mem_zalloc(&cost, r->n_series, sizeof *cost, "shards", err));
    TRY(mem_alloc(&unit, r->n_series, sizeof *unit, "shards", err));
    TRY(mem_alloc(&owners, r->n_series, sizeof *owners, "shards", err));
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
    TRY(shard_assign(cost, n, count, owners, err));
    for (int64_t i = 0; i < r->n_series; i++)
        owner[i] = owners[unit[i]];
out:
    free(cost);
    free(unit);
    free(owners);
    return rc;
}

int replay_shard(struct replay *r, const struct shard *shard, struct err *err)
{
    int rc = 0;
    int64_t *owner = NULL, kept = 0;

    r->shard = *shard;
    if (shard->count <= 1)
        return 0;
    TRY(mem_alloc(&owner, r->n_series, sizeof *owner, "shards", err));
    TRY(assign_series(r, shard->count, owner, err));
    for (int64_t i = 0; i < r->n_series; i++) {
        if (owner[i] == shard->index)
            r->series[kept++] = r->series[i];
        else
            free(r->series[i].calls);
    }
    r->n_series = kept;
out:
    free(owner);
    return rc;
}

int replay_identity(const struct replay *r, const struct series *s, int64_t call,
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
    rec->n_q = m->n_q;
    rec->n_k = m->n_k;
    rec->d = m->head_dim;
    rec->causal = trace_causal(m, &c->score);
    rec->timestep = c->timestep;
    rec->params = strdup(run->canonical);
    return rec->params ? 0 : err_set(err, ERR_NOMEM, "record: out of memory");
}

void replay_free(struct replay *r)
{
    for (int64_t i = 0; i < r->n_series; i++)
        free(r->series[i].calls);
    for (int64_t i = 0; i < r->n_traces; i++)
        trace_close(&r->traces[i]);
    budget_book_free(&r->book);
    replay_groups_free(r);
    free(r->series);
    free(r->traces);
    free(r->tally);
    memset(r, 0, sizeof *r);
}
