/*
 * evalrun.c - see evalrun.h. A task's cells share one lockstep run; in each cell the settings whose
 * records are there stand still.
 */
#include "eval/evalrun.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/npy.h"
#include "core/pool.h"
#include "core/progress.h"
#include "eval/likelihood.h"

#include <stdlib.h>
#include <string.h>

void eval_run_free(struct eval_run *r)
{
    for (int i = 0; r->tasks && i < r->n_tasks; i++)
        eval_task_close(r->tasks + i);
    free(r->tasks);
    free(r->owner);
    free(r->tally);
    free(r->how.dense_head);
    memset(r, 0, sizeof *r);
}

int64_t eval_memory(const struct eval_run *r)
{
    int64_t most = 0;
    for (int i = 0; i < r->n_tasks; i++) {
        int64_t n =
            lockstep_bytes(&r->m->llm.c, r->n_runs + 1, r->tasks[i].cap, r->tasks[i].decodes);
        most = n > most ? n : most;
    }
    return most;
}

/* Does it fit a head in a sequence of n tokens? Else `err` has the first reason. */
static bool takes_some(const struct eval_model *m, const struct method_run *run, int64_t n,
                       struct err *err)
{
    struct attn_shape c = eval_model_shape(m);
    for (int at = 0; at < c.layers * c.heads; at++) {
        struct err own = {0};
        struct head_in in = {.x = {.nq = n, .nk = n, .d = c.head_dim, .dv = c.head_dim},
                             .layer = at / c.heads,
                             .head = at % c.heads,
                             .branch = "main"};
        in.x.causal = c.causal;
        if (method_run_takes(run, &in, &own) == 0)
            return true;
        *err = err->code ? *err : own;
    }
    return false;
}

int eval_check_file(const struct eval_run *r, struct method_run *run, struct err *err)
{
    struct err why = {0};
    bool some = !run->method->session.takes || r->how.prefill_chunk;
    PASS_ON(some ? 0 : method_run_open(run, err));
    for (int i = 0; i < r->n_tasks && !some; i++)
        some = r->tasks[i].decodes || takes_some(r->m, run, r->tasks[i].cap, &why);
    if (!some)
        return err_set(err, why.code, "method %s fits none of the heads; the first: %s",
                       run->method->name, why.msg);
    return 0;
}

/* The records of one cell, [n_runs + 1]; done[i]: it is there already. */
struct cell_records {
    struct record *rec; /* owned */
    bool *done;         /* owned */
    int n;
};

static void cell_records_free(struct cell_records *c)
{
    for (int i = 0; c->rec && i < c->n; i++)
        record_free(c->rec + i);
    free(c->rec);
    free(c->done);
}

static int cell_records(const struct eval_run *r, const struct eval_task *t, int64_t cell,
                        struct cell_records *c, struct err *err)
{
    struct eval_subject m = {r->m->name, r->m->weights, eval_model_shape(r->m)};
    OWN(buf_free) struct buf name = {0};
    *c = (struct cell_records){.n = r->n_runs + 1};
    PASS_ON(mem_zalloc(&c->rec, c->n, sizeof *c->rec, "records", err));
    PASS_ON(mem_zalloc(&c->done, c->n, sizeof *c->done, "records", err));
    PASS_ON(t->kind->cell_name(t, cell, &name, err));
    for (int i = 0; i < c->n; i++) {
        record_init(c->rec + i);
        PASS_ON(eval_identity(&m, &r->how, buf_str(&name), i ? r->runs + i - 1 : NULL, c->rec + i,
                              err));
        PASS_ON(record_file_holds(r->records, c->rec + i, c->done + i, err));
    }
    return 0;
}

/* r->owner: which shard does each cell, tasks one after the other. Nothing that is recorded already
 * enters, so that every shard comes to the same split. */
static int assign_cells(struct eval_run *r, struct err *err)
{
    OWN(free_at) double *cost = NULL;
    int64_t n = 0, at = 0;
    for (int i = 0; i < r->n_tasks; i++)
        n += r->tasks[i].cells;
    free(r->owner);
    r->owner = NULL;
    PASS_ON(mem_alloc(&r->owner, n, sizeof *r->owner, "shards", err));
    PASS_ON(mem_alloc(&cost, n, sizeof *cost, "shards", err));
    for (int i = 0; i < r->n_tasks; i++)
        for (int64_t k = 0; k < r->tasks[i].cells; k++)
            cost[at++] = r->tasks[i].kind->cell_cost(r->tasks + i, k);
    return shard_assign(cost, n, r->shard.count, r->owner, err);
}

static bool owned(const struct eval_run *r, int task, int64_t cell)
{
    for (int i = 0; i < task; i++)
        cell += r->tasks[i].cells;
    return r->owner[cell] == r->shard.index;
}

/* A finished cell is not done again for what an earlier call did not measure in it. */
static int count_lacking(struct eval_run *r, const struct record *rec, struct err *err)
{
    bool lacks = false;
    if (r->how.local_errors)
        PASS_ON(record_file_lacks(r->records, rec, RECORD_LOCAL, &lacks, err));
    r->count.no_local_errors += lacks;
    lacks = false;
    if (r->wants_times)
        PASS_ON(record_file_lacks(r->records, rec, RECORD_TIMES, &lacks, err));
    r->count.no_times += lacks;
    return 0;
}

int eval_plan(struct eval_run *r, struct err *err)
{
    OWN(cell_records_free) struct cell_records c = {0};
    r->count = (struct eval_count){0};
    PASS_ON(assign_cells(r, err));
    for (int i = 0; i < r->n_tasks; i++)
        for (int64_t k = 0; k < r->tasks[i].cells; k++) {
            if (!owned(r, i, k))
                continue;
            PASS_ON(cell_records(r, r->tasks + i, k, &c, err));
            r->count.all += c.n;
            for (int j = 0; j < c.n; j++)
                r->count.todo += !c.done[j];
            for (int j = 1; j < c.n; j++)
                PASS_ON(count_lacking(r, c.rec + j, err));
            cell_records_free(&c);
            c = (struct cell_records){0};
        }
    return 0;
}

/* ---- one cell ------------------------------------------------------------------------------- */

/* What was generated in the cell, on the disk before its records: a cell is done when its record is
 * there. */
static int deliver_predictions(struct eval_run *r, const struct cell_records *c,
                               const struct cell_run *run, struct err *err)
{
    bool any = false;
    for (int i = 0; i < c->n; i++) {
        if (c->done[i] || !run->predicted[i].data)
            continue;
        any = true;
        PASS_ON(predictions_add(r->predictions, c->rec + i, run->prompt_id,
                                buf_str(run->predicted + i), err));
    }
    if (any)
        return predictions_sync(r->predictions, err);
    return 0;
}

static int deliver(struct eval_run *r, struct cell_records *c, struct cell_run *run,
                   struct err *err)
{
    PASS_ON(deliver_predictions(r, c, run, err));
    for (int i = 0; i < c->n; i++) {
        struct record *rec = c->rec + i;
        const struct stream *s = run->l->s + i;
        if (c->done[i])
            continue;
        rec->status = s->status;
        if (s->status == RECORD_OK)
            PASS_ON(eval_record_layers(run->l, i, rec, err));
        else
            record_text(rec, &rec->reason, "%s", s->reason);
        PASS_ON(eval_append(r->records, rec, &r->count, i ? r->tally + i - 1 : NULL, err));
    }
    return 0;
}

/* nll [streams][tokens] of a text, exact attention first; NAN where a method did not run. */
static int dump_nll(const struct eval_run *r, const struct cell_run *run, struct err *err)
{
    int64_t streams = run->l->n_streams, n = run->scores[0].n, shape[2] = {streams, n};
    OWN(free_at) float *x = NULL;
    PASS_ON(mem_alloc(&x, streams * n, sizeof *x, "likelihoods", err));
    for (int64_t i = 0; i < streams; i++)
        for (int64_t k = 0; k < n; k++)
            x[i * n + k] =
                run->scores[i].n == n ? (float)run->scores[i].v[k].nll : __builtin_nanf("");
    return npy_write(r->dump_nll, DT_F32, 2, shape, x, err);
}

static int do_cell(struct eval_run *r, struct eval_task *t, int64_t cell, struct lockstep *l,
                   struct err *err)
{
    struct cell_records c = {0};
    struct cell_run run = {.m = r->m, .l = l};
    bool any = false;
    int rc = 0;
    TRY(cell_records(r, t, cell, &c, err));
    for (int i = 0; i < c.n; i++)
        any = any || !c.done[i];
    if (!any && !r->dump_nll && !r->how.masks)
        goto out;
    run.rec = c.rec;
    TRY(mem_zalloc(&run.predicted, c.n, sizeof *run.predicted, "predictions", err));
    TRY(mem_zalloc(&run.scores, c.n, sizeof *run.scores, "likelihoods", err));
    lockstep_reset(l);
    for (int i = 1; i < c.n; i++) /* exact attention always runs: the others are compared with it */
        l->s[i].idle = c.done[i] && !r->dump_nll && !r->how.masks;
    TRY(t->kind->run(t, cell, &run, err));
    TRY(deliver(r, &c, &run, err));
    if (r->dump_nll)
        TRY(dump_nll(r, &run, err));
out:
    if (rc)
        err_prefix(err, "%s", c.rec && c.rec[0].task ? c.rec[0].task : t->kind->name);
    for (int i = 0; i < c.n; i++) {
        if (run.predicted)
            buf_free(run.predicted + i);
        if (run.scores)
            scores_free(run.scores + i);
    }
    free(run.predicted);
    free(run.scores);
    cell_records_free(&c);
    return rc;
}

static int do_task(struct eval_run *r, struct eval_task *t, struct layer_attn *attn,
                   struct progress *p, struct err *err)
{
    OWN(lockstep_close) struct lockstep l = {0};
    OWN(buf_free) struct buf name = {0};
    double since = clock_ns();
    PASS_ON(lockstep_open(&l, (struct llm_model *)(uintptr_t)&r->m->llm, attn, r->n_runs, t->cap,
                          t->decodes, r->how.round, r->jobs, r->on, err));
    log_debug("the model was made ready in %.3f s", 1e-9 * (clock_ns() - since));
    for (int64_t i = 0; i < t->cells; i++) {
        if (!owned(r, (int)(t - r->tasks), i))
            continue;
        if (interrupted())
            return err_set(err, ERR_INTERRUPTED,
                           "interrupted; finished cells are kept, the same command continues");
        PASS_ON(do_cell(r, t, i, &l, err));
        buf_reset(&name);
        PASS_ON(t->kind->cell_name(t, i, &name, err));
        progress_add(p, (double)t->cap, 1, buf_str(&name));
    }
    return 0;
}

int eval_execute(struct eval_run *r, struct err *err)
{
    struct attn_shape shape = eval_model_shape(r->m);
    struct layer_attn *attn = NULL;
    struct progress *p = NULL;
    double cost = 0;
    int64_t cells = 0;
    int rc = 0, synced;
    struct err own = {0};
    TRY(mem_zalloc(&attn, r->n_runs, sizeof *attn, "settings", err));
    TRY(mem_zalloc(&r->tally, r->n_runs, sizeof *r->tally, "settings", err));
    for (int i = 0; i < r->n_runs; i++)
        TRY(layer_attn_init(attn + i, r->runs + i, &r->how, &shape, r->m->name, r->jobs, err));
    for (int i = 0; i < r->n_tasks; i++) {
        for (int64_t k = 0; k < r->tasks[i].cells; k++)
            if (owned(r, i, k)) {
                cost += (double)r->tasks[i].cap;
                cells++;
            }
    }
    char what[64];
    shard_what(&r->shard, "eval", what);
    p = progress_start(what, cost, cells);
    for (int i = 0; i < r->n_tasks; i++)
        TRY(do_task(r, r->tasks + i, attn, p, err));
out:
    progress_end(&p);
    for (int i = 0; attn && i < r->n_runs; i++)
        layer_attn_free(attn + i);
    free(attn);
    synced = record_file_sync(r->records, &own);
    return rc || !synced ? rc : err_set(err, synced, "%s", own.msg);
}
