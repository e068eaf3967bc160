/*
 * calibrate_plan.c - what a calibration searches: jobs with their samples, and what they cost.
 */
#include "sim/calibrate.h"

#include "core/indexlist.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

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

/* What takes part. */
struct choice {
    struct wanted layers, heads, steps;
    const char *branch;
};

static bool takes_call(const struct choice *w, const struct calibrate_job *j,
                       const struct trace_call *c)
{
    return (j->layer < 0 || c->layer == j->layer) &&
           index_list_has(w->layers.list, w->layers.n, c->layer) &&
           index_list_has(w->steps.list, w->steps.n, c->step) &&
           (!w->branch || !*w->branch || strcmp(w->branch, c->branch) == 0);
}

static int fill_job(const struct calibrate *c, const struct choice *w, struct calibrate_job *j,
                    struct err *err)
{
    int rc = 0;
    for (int64_t t = 0; t < c->n_traces; t++)
        for (int64_t i = 0; i < trace_calls(c->traces[t]); i++) {
            const struct trace_meta *m = trace_meta(c->traces[t]);
            const struct trace_call *call = trace_call(c->traces[t], i);
            if (m->n_k < j->from || m->n_k >= j->below)
                break;
            for (int h = 0; h < m->heads && takes_call(w, j, call); h++) {
                if ((j->head >= 0 && h != j->head) ||
                    !index_list_has(w->heads.list, w->heads.n, trace_head_number(m, h)))
                    continue;
                TRY(mem_grow(&j->samples, &j->cap, j->n + 1, sizeof *j->samples, "samples", err));
                j->samples[j->n++] = (struct calibrate_sample){t, i, call->layer, h};
            }
        }
out:
    return rc;
}

/* A job for a layer and head (-1: all) and the lengths of a segment, unless it has no samples. */
static int add_segment(struct calibrate *c, const struct choice *w, int layer, int head,
                       int64_t segment, struct err *err)
{
    int rc = mem_grow(&c->jobs, &c->cap_jobs, c->n_jobs + 1, sizeof *c->jobs, "jobs", err);
    if (rc)
        return rc;
    struct calibrate_job *j = &c->jobs[c->n_jobs];
    *j =
        (struct calibrate_job){.layer = layer,
                               .head = head,
                               .from = segment > 0 ? c->segments[segment - 1] : 0,
                               .below = segment < c->n_segments ? c->segments[segment] : INT64_MAX};
    rc = fill_job(c, w, j, err);
    if (rc || j->n > 0)
        c->n_jobs++;
    return rc;
}

static int add_job(struct calibrate *c, const struct choice *w, int layer, int head,
                   struct err *err)
{
    int rc = 0;
    for (int64_t s = 0; s <= c->n_segments && !rc; s++)
        rc = add_segment(c, w, layer, head, s, err);
    return rc;
}

/* "16384,49152": ascending lengths. */
static int parse_segments(struct calibrate *c, const char *text, struct err *err)
{
    const char *all = text;
    int64_t cap = 0;
    int rc = 0;
    while (text && *text) {
        char *end;
        long long n = strtoll(text, &end, 10);
        int64_t last = c->n_segments ? c->segments[c->n_segments - 1] : 0;
        if (end == text || (*end && *end != ',') || n <= last)
            FAIL(err, ERR_USAGE,
                 "--segments '%s': ascending numbers of tokens were expected, as 16384,49152", all);
        TRY(mem_grow(&c->segments, &cap, c->n_segments + 1, sizeof *c->segments, "segments", err));
        c->segments[c->n_segments++] = n;
        text = end + (*end == ',');
    }
out:
    return rc;
}

int calibrate_plan(struct calibrate *c, const struct calibrate_select *sel, struct err *err)
{
    const struct trace_meta *m = trace_meta(c->traces[0]);
    struct choice w = {.branch = sel->branch};
    int rc = 0;

    TRY(same_model(c, err));
    TRY(parse_segments(c, sel->segments, err));
    TRY(wanted_parse(&w.layers, sel->layers, m->layers, "--layers", err));
    TRY(wanted_parse(&w.heads, sel->heads, m->head_ids[0] ? -1 : m->heads, "--heads", err));
    TRY(wanted_parse(&w.steps, sel->steps, -1, "--steps", err));
    for (int l = 0; l < (c->per == CALIBRATE_MODEL ? 1 : m->layers); l++)
        for (int h = 0; h < (c->per == CALIBRATE_HEAD ? m->heads : 1); h++)
            TRY(add_job(c, &w, c->per == CALIBRATE_MODEL ? -1 : l,
                        c->per == CALIBRATE_HEAD ? h : -1, err));
    if (c->n_jobs == 0)
        FAIL(err, ERR_USAGE, "no captured call matches --layers %s --heads %s --steps %s%s%s",
             sel->layers ? sel->layers : "all", sel->heads ? sel->heads : "all",
             sel->steps ? sel->steps : "all", sel->branch && *sel->branch ? " --branch " : "",
             sel->branch ? sel->branch : "");
out:
    free(w.layers.list);
    free(w.heads.list);
    free(w.steps.list);
    return rc;
}

bool sample_causal(const struct calibrate *c, const struct calibrate_sample *s)
{
    const struct trace *t = c->traces[s->trace];
    return trace_causal(trace_meta(t), &trace_call(t, s->call)->score);
}

struct calibrate_cost calibrate_costs(const struct calibrate *c)
{
    struct calibrate_cost cost = {0};
    for (int64_t i = 0; i < c->n_jobs; i++) {
        const struct calibrate_job *j = &c->jobs[i];
        int64_t memory = 0;
        for (int64_t s = 0; s < j->n; s++) {
            const struct trace_meta *m = trace_meta(c->traces[j->samples[s].trace]);
            memory += head_load_memory(m, c->load.precision);
            cost.bytes += head_load_bytes(m);
            double pairs = (double)pairs_allowed(m->n_q, m->n_k, sample_causal(c, j->samples + s));
            cost.pairs += pairs;
            cost.flop += 2 * pairs * (double)(m->head_dim + m->v_dim);
        }
        cost.all_samples += j->n;
        cost.samples = j->n > cost.samples ? j->n : cost.samples;
        cost.memory = memory > cost.memory ? memory : cost.memory;
    }
    return cost;
}
