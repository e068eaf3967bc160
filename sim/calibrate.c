/*
 * calibrate.c - plan, execution and result of a calibration, see calibrate.h.
 */
#include "sim/calibrate.h"

#include "core/gemm.h"
#include "core/indexlist.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"
#include "core/version.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plan ----------------------------------------------------------------------------------- */

struct wanted {
    int64_t *list, n; /* NULL = all */
};

static int wanted_parse(struct wanted *w, const char *text, int64_t limit, const char *what,
                        struct err *err)
{
    *w = (struct wanted){NULL, -1};
    if (!text || !*text || !strcmp(text, "all"))
        return 0;
    return index_list_parse(text, limit, what, &w->list, &w->n, err);
}

/* The parameters of a head are meant for one model: all traces must be of its shape. */
static int same_model(const struct calibrate *c, struct err *err)
{
    const struct trace_meta *a = trace_meta(c->traces[0]);
    for (int64_t t = 1; t < c->n_traces; t++) {
        const struct trace_meta *b = trace_meta(c->traces[t]);
        if (strcmp(a->name, b->name) || strcmp(a->weights_id, b->weights_id))
            return err_set(err, ERR_INPUT,
                           "%s is of model %s, %s of %s: calibrate one model at a "
                           "time",
                           trace_path(c->traces[0]), a->name, trace_path(c->traces[t]), b->name);
        if (a->layers != b->layers || a->heads != b->heads || a->kv_heads != b->kv_heads ||
            a->head_dim != b->head_dim || a->v_dim != b->v_dim || a->causal != b->causal ||
            strcmp(a->head_ids, b->head_ids))
            return err_set(err, ERR_INPUT, "%s and %s differ in layers, heads or head dimension",
                           trace_path(c->traces[0]), trace_path(c->traces[t]));
    }
    return 0;
}

static int add_sample(struct calibrate_job *j, int64_t trace, int64_t call, struct err *err)
{
    int rc = mem_grow(&j->trace, &j->cap_trace, j->n + 1, sizeof *j->trace, "samples", err);
    if (!rc)
        rc = mem_grow(&j->call, &j->cap_call, j->n + 1, sizeof *j->call, "samples", err);
    if (rc)
        return rc;
    j->trace[j->n] = trace;
    j->call[j->n++] = call;
    return 0;
}

static int fill_job(const struct calibrate *c, const struct wanted *steps, const char *branch,
                    struct calibrate_job *j, struct err *err)
{
    for (int64_t t = 0; t < c->n_traces; t++)
        for (int64_t i = 0; i < trace_calls(c->traces[t]); i++) {
            const struct trace_call *call = trace_call(c->traces[t], i);
            if (call->layer != j->layer || !index_list_has(steps->list, steps->n, call->step) ||
                (branch && *branch && strcmp(branch, call->branch)))
                continue;
            int rc = add_sample(j, t, i, err);
            if (rc)
                return rc;
        }
    return 0;
}

int calibrate_plan(struct calibrate *c, const struct calibrate_select *sel, struct err *err)
{
    const struct trace_meta *m = trace_meta(c->traces[0]);
    struct wanted layers = {0}, heads = {0}, steps = {0};
    int rc = 0;

    TRY(same_model(c, err));
    TRY(wanted_parse(&layers, sel->layers, m->layers, "--layers", err));
    TRY(wanted_parse(&heads, sel->heads, m->head_ids[0] ? -1 : m->heads, "--heads", err));
    TRY(wanted_parse(&steps, sel->steps, -1, "--steps", err));
    for (int l = 0; l < m->layers; l++)
        for (int h = 0; h < m->heads; h++) {
            if (!index_list_has(layers.list, layers.n, l) ||
                !index_list_has(heads.list, heads.n, trace_head_number(m, h)))
                continue;
            TRY(mem_grow(&c->jobs, &c->cap_jobs, c->n_jobs + 1, sizeof *c->jobs, "jobs", err));
            struct calibrate_job *j = &c->jobs[c->n_jobs];
            *j = (struct calibrate_job){.layer = l, .head = h};
            rc = fill_job(c, &steps, sel->branch, j, err);
            if (rc || j->n > 0)
                c->n_jobs++;
            if (rc)
                goto out;
        }
    if (c->n_jobs == 0)
        FAIL(err, ERR_USAGE, "no captured call matches --layers %s --heads %s --steps %s%s%s",
             sel->layers ? sel->layers : "all", sel->heads ? sel->heads : "all",
             sel->steps ? sel->steps : "all", sel->branch && *sel->branch ? " --branch " : "",
             sel->branch ? sel->branch : "");
out:
    free(layers.list);
    free(heads.list);
    free(steps.list);
    return rc;
}

struct calibrate_cost calibrate_costs(const struct calibrate *c)
{
    struct calibrate_cost cost = {0};
    for (int64_t i = 0; i < c->n_jobs; i++) {
        const struct calibrate_job *j = &c->jobs[i];
        int64_t memory = 0;
        for (int64_t s = 0; s < j->n; s++) {
            const struct trace_meta *m = trace_meta(c->traces[j->trace[s]]);
            memory += head_load_memory(m, c->load.precision);
            cost.bytes += head_load_bytes(m);
        }
        cost.samples = j->n > cost.samples ? j->n : cost.samples;
        cost.memory = memory > cost.memory ? memory : cost.memory;
    }
    return cost;
}

/* ---- execution ------------------------------------------------------------------------------ */

struct execution {
    struct calibrate *c;
    struct progress *progress;
};

static double job_cost(const struct calibrate *c, const struct calibrate_job *j)
{
    double pairs = 0;
    for (int64_t s = 0; s < j->n; s++) {
        const struct trace_meta *m = trace_meta(c->traces[j->trace[s]]);
        pairs += (double)pairs_allowed(m->n_q, m->n_k, m->causal);
    }
    return pairs;
}

static int search(const struct calibrate *c, struct calibrate_job *j, const struct head_in *samples,
                  struct err *err)
{
    const struct method *method = c->run->method;
    struct method_ctx ctx = {.seed = c->load.seed};
    struct buf b = {0};
    struct jw w;
    int rc;

    for (int64_t s = 0; s < j->n; s++)
        if (!attn_is_plain(&samples[s].x))
            return (j->skip = strdup("searches know no window, chunk, cap, bias or sink"))
                       ? 0
                       : err_set(err, ERR_NOMEM, "calibration: out of memory");
    jw_init(&w, &b, 0);
    jw_obj(&w);
    jw_kint(&w, "layer", j->layer);
    jw_kint(&w, "head", trace_head_number(trace_meta(c->traces[0]), j->head));
    rc = method->calibrate(&ctx, c->run->params, samples, (int)j->n, &w, err);
    jw_obj_end(&w);
    if (rc == METHOD_SKIP) {
        rc = 0;
        if (!(j->skip = strdup(ctx.skip)))
            rc = err_set(err, ERR_NOMEM, "calibration: out of memory");
    } else if (rc == 0 && (rc = buf_check(&b, "calibration of a head", err)) == 0) {
        if (!(j->text = strdup(buf_str(&b))))
            rc = err_set(err, ERR_NOMEM, "calibration: out of memory");
    }
    buf_free(&b);
    return rc;
}

static int run_job(void *ctx, int64_t item, int worker, struct err *err)
{
    struct execution *x = ctx;
    struct calibrate *c = x->c;
    struct calibrate_job *j = &c->jobs[item];
    struct sim_head *heads = NULL;
    struct head_in *samples = NULL;
    char label[64];
    int rc = 0, number = trace_head_number(trace_meta(c->traces[0]), j->head);

    TRY(mem_zalloc(&heads, j->n, sizeof *heads, "samples", err));
    TRY(mem_zalloc(&samples, j->n, sizeof *samples, "samples", err));
    for (int64_t s = 0; s < j->n; s++) {
        TRY(head_load(c->traces[j->trace[s]], j->call[s], j->head, &c->load, &heads[s], err));
        samples[s] = heads[s].in;
    }
    TRY(search(c, j, samples, err));
    snprintf(label, sizeof label, "layer %d head %d", j->layer, number);
    progress_add(x->progress, job_cost(c, j), 1, label);
out:
    for (int64_t s = 0; heads && s < j->n; s++)
        sim_head_free(&heads[s]);
    free(heads);
    free(samples);
    return rc ? err_prefix(err, "layer %d head %d", j->layer, number) : 0;
}

int calibrate_execute(struct calibrate *c, int jobs, struct err *err)
{
    double total = 0;
    for (int64_t i = 0; i < c->n_jobs; i++)
        total += job_cost(c, &c->jobs[i]);
    int rc = gemm_ready(err);
    if (rc)
        return rc;
    struct execution x = {c, progress_start("calibrate", total, c->n_jobs)};
    rc = pool_run(jobs, c->n_jobs, run_job, &x, err);
    progress_end(&x.progress);
    return rc;
}

/* ---- result --------------------------------------------------------------------------------- */

int64_t calibrate_skipped(const struct calibrate *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_jobs; i++)
        n += c->jobs[i].skip != NULL;
    return n;
}

static void write_traces(const struct calibrate *c, struct jw *w)
{
    jw_key(w, "traces");
    jw_arr(w);
    for (int64_t t = 0; t < c->n_traces; t++) {
        jw_obj(w);
        jw_kstr(w, "path", trace_path(c->traces[t]));
        jw_kstr(w, "id", trace_id(c->traces[t]));
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static void write_heads(const struct calibrate *c, struct jw *w)
{
    jw_key(w, "heads");
    jw_arr(w);
    for (int64_t i = 0; i < c->n_jobs; i++) {
        json_t *v = c->jobs[i].text ? json_loads(c->jobs[i].text, 0, NULL) : NULL;
        if (v)
            jw_value(w, v);
        json_decref(v);
    }
    jw_arr_end(w);
}

void calibrate_write(const struct calibrate *c, struct jw *w)
{
    jw_obj(w);
    jw_kstr(w, "method", c->run->method->name);
    jw_kstr(w, "lacuna", lacuna_version());
    jw_kstr(w, "model", trace_meta(c->traces[0])->name);
    jw_kint(w, "seed", (int64_t)c->load.seed);
    jw_kstr(w, "precision", c->load.precision == PREC_F64 ? "f64" : "f32");
    jw_kstr(w, "permute", c->load.permute ? c->load.permute : "none");
    jw_key(w, "params");
    jw_obj(w);
    opt_json(c->run->method->params, c->run->params, w);
    jw_obj_end(w);
    write_traces(c, w);
    write_heads(c, w);
    jw_obj_end(w);
}

void calibrate_free(struct calibrate *c)
{
    for (int64_t i = 0; i < c->n_jobs; i++) {
        free(c->jobs[i].trace);
        free(c->jobs[i].call);
        free(c->jobs[i].text);
        free(c->jobs[i].skip);
    }
    free(c->jobs);
    c->jobs = NULL;
    c->n_jobs = c->cap_jobs = 0;
}
