/*
 * calibrate.c - see calibrate.h.
 */
#include "sim/calibrate.h"

#include "core/gemm.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"
#include "core/version.h"
#include "sim/devicemap.h"
#include "sim/journal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- plan ----------------------------------------------------------------------------------- */

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

static int fill_job(const struct calibrate *c, const struct call_filter *f, struct calibrate_job *j,
                    struct err *err)
{
    int rc = 0;
    for (int64_t t = 0; t < c->n_traces; t++)
        for (int64_t i = 0; i < trace_calls(c->traces[t]); i++) {
            const struct trace_meta *m = trace_meta(c->traces[t]);
            const struct trace_call *call = trace_call(c->traces[t], i);
            if (m->n_k < j->from || m->n_k >= j->below)
                break;
            for (int h = 0; h < m->heads; h++) {
                if ((j->layer >= 0 && call->layer != j->layer) || (j->head >= 0 && h != j->head) ||
                    !call_filter_takes(f, c->traces[t], i, h))
                    continue;
                TRY(mem_grow(&j->samples, &j->cap, j->n + 1, sizeof *j->samples, "samples", err));
                j->samples[j->n++] = (struct calibrate_sample){t, i, call->layer, h};
            }
        }
out:
    return rc;
}

/* A job for a layer and head (-1: all) and the lengths of a segment, unless it has no samples. */
static int add_job(struct calibrate *c, const struct call_filter *f, int layer, int head,
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
    rc = fill_job(c, f, j, err);
    if (rc || j->n > 0)
        c->n_jobs++;
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

int calibrate_plan(struct calibrate *c, const struct call_select *sel, const char *segments,
                   struct err *err)
{
    const struct trace_meta *m = trace_meta(c->traces[0]);
    bool model = c->per == CALIBRATE_MODEL, by_head = c->per == CALIBRATE_HEAD;
    struct call_filter f = {0};
    int rc = 0;

    TRY(same_model(c, err));
    TRY(parse_segments(c, segments, err));
    TRY(call_filter_init(&f, sel, m, err));
    for (int l = 0; l < (model ? 1 : m->layers); l++)
        for (int h = 0; h < (by_head ? m->heads : 1); h++)
            for (int64_t s = 0; s <= c->n_segments; s++)
                TRY(add_job(c, &f, model ? -1 : l, by_head ? h : -1, s, err));
    if (c->n_jobs == 0)
        TRY(call_select_empty("captured", sel, err));
out:
    call_filter_free(&f);
    return rc;
}

static bool sample_causal(const struct calibrate *c, const struct calibrate_sample *s)
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

/* ---- execution ------------------------------------------------------------------------------ */

struct execution {
    struct calibrate *c;
    struct progress *progress;
    struct journal *journal; /* NULL: none */
    int jobs;
    pthread_mutex_t turn; /* of the search that has the device: its head stays there */
};

bool calibrate_on_device(const struct calibrate *c, char why[160])
{
    const struct method *me = c->run->method;
    if (!me->search.on_device)
        return method_refuses(why, "its search has no GPU side");
    if (!me->search.on_device(c->run->params, why))
        return false;
    for (int64_t j = 0; j < c->n_jobs; j++)
        for (int64_t s = 0; s < c->jobs[j].n; s++) {
            const struct calibrate_sample *of = c->jobs[j].samples + s;
            const struct trace_meta *m = trace_meta(c->traces[of->trace]);
            struct attn_in x = {.nq = m->n_q,
                                .nk = m->n_k,
                                .d = m->head_dim,
                                .dv = m->v_dim,
                                .scale = m->scale,
                                .causal = sample_causal(c, of)};
            if (!device_judges(&c->device, &x, why))
                return false;
        }
    return true;
}

/* The public number of a job's head; -1: all. */
static int job_head(const struct calibrate *c, const struct calibrate_job *j)
{
    return j->head < 0 ? -1 : trace_head_number(trace_meta(c->traces[0]), j->head);
}

/* "layer 3 head 1", "layer 3", "all heads" */
static void job_name(const struct calibrate *c, const struct calibrate_job *j, char text[64])
{
    if (j->layer < 0)
        snprintf(text, 64, "all heads");
    else if (j->head < 0)
        snprintf(text, 64, "layer %d", j->layer);
    else
        snprintf(text, 64, "layer %d head %d", j->layer, job_head(c, j));
    size_t n = strlen(text);
    if (c->n_segments && j->below < INT64_MAX)
        snprintf(text + n, 64 - n, ", %lld to %lld tokens", (long long)j->from,
                 (long long)j->below - 1);
    else if (c->n_segments)
        snprintf(text + n, 64 - n, ", from %lld tokens on", (long long)j->from);
}

static double job_cost(const struct calibrate *c, const struct calibrate_job *j)
{
    double pairs = 0;
    for (int64_t s = 0; s < j->n; s++) {
        const struct trace_meta *m = trace_meta(c->traces[j->samples[s].trace]);
        pairs += (double)pairs_allowed(m->n_q, m->n_k, sample_causal(c, j->samples + s));
    }
    return pairs;
}

/* A copy of a text of a job's result. */
static int keep(char **to, const char *text, struct err *err)
{
    *to = strdup(text);
    return *to ? 0 : err_set(err, ERR_NOMEM, "calibration: out of memory");
}

static int search(const struct calibrate *c, struct calibrate_job *j, const struct head_in *samples,
                  struct err *err)
{
    struct method_ctx ctx = {.seed = c->load.seed};
    struct buf b = {0};
    struct jw w;
    int rc;

    for (int64_t s = 0; s < j->n; s++)
        if (!attn_is_plain(&samples[s].x))
            return keep(&j->skip, "searches know no window, chunk, cap, bias or sink", err);
    jw_init(&w, &b, 0);
    jw_obj(&w);
    rc = c->run->method->search.calibrate(&ctx, c->run->params, samples, (int)j->n, &w, err);
    jw_obj_end(&w);
    if (rc == METHOD_SKIP)
        rc = keep(&j->skip, ctx.skip, err);
    else if (rc == 0 && (rc = buf_check(&b, "calibration of a head", err)) == 0)
        rc = keep(&j->text, buf_str(&b), err);
    buf_free(&b);
    return rc;
}

/* The search with the device, where there is one, to itself. */
static int search_in_turn(struct execution *x, struct calibrate_job *j,
                          const struct head_in *samples, struct err *err)
{
    struct device_judge *judges = NULL;
    int rc = 0;
    if (!x->c->device.accel)
        return search(x->c, j, samples, err);
    TRY(mem_zalloc(&judges, j->n, sizeof *judges, "samples", err));
    for (int64_t s = 0; s < j->n; s++)
        device_judge_attach(judges + s, &x->c->device, samples + s, x->jobs);
    pthread_mutex_lock(&x->turn);
    rc = interrupted() ? err_set(err, ERR_INTERRUPTED, "calibration interrupted")
                       : search(x->c, j, samples, err);
    pthread_mutex_unlock(&x->turn);
    for (int64_t s = 0; s < j->n; s++)
        device_judge_detach(judges + s);
out:
    free(judges);
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
    int rc = 0;

    job_name(c, j, label);
    if (j->text || j->skip)
        goto out; /* the journal had it */
    TRY(mem_zalloc(&heads, j->n, sizeof *heads, "samples", err));
    TRY(mem_zalloc(&samples, j->n, sizeof *samples, "samples", err));
    for (int64_t s = 0; s < j->n; s++) {
        const struct calibrate_sample *at = &j->samples[s];
        TRY(head_load(c->traces[at->trace], at->call, at->head, &c->load, &heads[s], err));
        samples[s] = heads[s].in;
    }
    TRY(search_in_turn(x, j, samples, err));
    if (x->journal)
        TRY(journal_add(x->journal, item, j->text, j->skip, err));
    progress_add(x->progress, job_cost(c, j), 1, label);
out:
    for (int64_t s = 0; heads && s < j->n; s++)
        sim_head_free(&heads[s]);
    free(heads);
    free(samples);
    return rc ? err_prefix(err, "%s", label) : 0;
}

/* What makes two calibrations the same, as one line: all options, inputs and samples. */
static int identity_text(const struct calibrate *c, struct buf *b, struct err *err)
{
    struct jw w;
    jw_init(&w, b, 0);
    jw_obj(&w);
    jw_kstr(&w, "method", c->run->method->name);
    jw_kstr(&w, "lacuna", lacuna_version());
    jw_kint(&w, "per", c->per);
    jw_kint(&w, "seed", (int64_t)c->load.seed);
    jw_kint(&w, "precision", c->load.precision);
    jw_kstr(&w, "permute", c->load.permute ? c->load.permute : "none");
    if (c->device.accel)
        jw_kstr(&w, "backend", c->device.accel->name);
    jw_key(&w, "params");
    jw_obj(&w);
    opt_json(c->run->method->params.table, c->run->params, &w);
    jw_obj_end(&w);
    jw_key(&w, "segments");
    jw_arr(&w);
    for (int64_t i = 0; i < c->n_segments; i++)
        jw_int(&w, c->segments[i]);
    jw_arr_end(&w);
    jw_key(&w, "samples");
    jw_arr(&w);
    for (int64_t i = 0; i < c->n_jobs; i++)
        for (int64_t s = 0; s < c->jobs[i].n; s++) {
            const struct calibrate_sample *at = &c->jobs[i].samples[s];
            char text[128];
            snprintf(text, sizeof text, "%lld %s %lld %d", (long long)i,
                     trace_id(c->traces[at->trace]), (long long)at->call, at->head);
            jw_str(&w, text);
        }
    jw_arr_end(&w);
    jw_obj_end(&w);
    return buf_check(b, "identity of the calibration", err);
}

/* Takes results over into the jobs. */
static int take(void *ctx, int64_t job, const char *text, const char *skip, struct err *err)
{
    struct calibrate *c = ctx;
    if (job < 0 || job >= c->n_jobs || c->jobs[job].text || c->jobs[job].skip)
        return 0;
    struct calibrate_job *j = &c->jobs[job];
    return text ? keep(&j->text, text, err) : keep(&j->skip, skip, err);
}

int calibrate_execute(struct calibrate *c, const char *journal, int jobs, struct err *err)
{
    struct execution x = {.c = c, .jobs = jobs, .turn = PTHREAD_MUTEX_INITIALIZER};
    struct buf id = {0};
    double total = 0;
    int64_t todo = 0;
    int rc = 0;

    TRY(identity_text(c, &id, err));
    if (journal)
        TRY(journal_open(journal, buf_str(&id), take, c, &x.journal, err));
    for (int64_t i = 0; i < c->n_jobs; i++)
        if (!c->jobs[i].text && !c->jobs[i].skip) {
            total += job_cost(c, &c->jobs[i]);
            todo++;
        }
    if (todo < c->n_jobs)
        log_info("%s: %lld of %lld searches are already done", journal,
                 (long long)(c->n_jobs - todo), (long long)c->n_jobs);
    TRY(gemm_ready(err));
    x.progress = progress_start("calibrate", total, todo);
    device_meter(&c->device, x.progress);
    rc = pool_run(jobs, c->n_jobs, run_job, &x, err);
    progress_end(&x.progress);
out:
    journal_close(&x.journal);
    pthread_mutex_destroy(&x.turn);
    buf_free(&id);
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

/* Is it the first sample of its layer and head? */
static bool first_of_head(const struct calibrate_job *j, int64_t s)
{
    for (int64_t i = 0; i < s; i++)
        if (j->samples[i].layer == j->samples[s].layer && j->samples[i].head == j->samples[s].head)
            return false;
    return true;
}

/* The lengths that a job stands for; nothing without segments. */
static void write_lengths(const struct calibrate *c, const struct calibrate_job *j, struct jw *w)
{
    if (!c->n_segments)
        return;
    jw_key(w, "tokens");
    jw_arr(w);
    jw_int(w, j->from);
    if (j->below < INT64_MAX)
        jw_int(w, j->below);
    else
        jw_null(w);
    jw_arr_end(w);
}

/* What a search found, without the table of all that it judged. */
static void write_head(const struct calibrate *c, const struct calibrate_job *j,
                       const struct calibrate_sample *at, const json_t *params, struct jw *w)
{
    const char *key;
    json_t *v;
    jw_obj(w);
    jw_kint(w, "layer", at->layer);
    jw_kint(w, "head", trace_head_number(trace_meta(c->traces[0]), at->head));
    write_lengths(c, j, w);
    json_object_foreach((json_t *)(uintptr_t)params, key, v)
    {
        if (strcmp(key, "grid") == 0)
            continue;
        jw_key(w, key);
        jw_value(w, v);
    }
    jw_obj_end(w);
}

static void write_heads(const struct calibrate *c, struct jw *w)
{
    jw_key(w, "heads");
    jw_arr(w);
    for (int64_t i = 0; i < c->n_jobs; i++) {
        const struct calibrate_job *j = &c->jobs[i];
        json_t *v = j->text ? json_loads(j->text, 0, NULL) : NULL;
        for (int64_t s = 0; v && s < j->n; s++)
            if (first_of_head(j, s))
                write_head(c, j, j->samples + s, v, w);
        json_decref(v);
    }
    jw_arr_end(w);
}

static void write_grids(const struct calibrate *c, struct jw *w)
{
    bool any = false;
    for (int64_t i = 0; i < c->n_jobs; i++) {
        const struct calibrate_job *j = &c->jobs[i];
        json_t *v = j->text ? json_loads(j->text, 0, NULL) : NULL;
        const json_t *grid = json_object_get(v, "grid");
        if (grid && !any) {
            jw_key(w, "grids");
            jw_arr(w);
            any = true;
        }
        if (grid) {
            jw_obj(w);
            jw_kint(w, "layer", j->layer);
            jw_kint(w, "head", job_head(c, j));
            write_lengths(c, j, w);
            jw_key(w, "grid");
            jw_value(w, grid);
            jw_obj_end(w);
        }
        json_decref(v);
    }
    if (any)
        jw_arr_end(w);
}

/* The rows of one job: where it is, then the numbers of the grid. */
static void grid_rows(const struct calibrate *c, const struct calibrate_job *j, const json_t *grid,
                      struct buf *csv)
{
    size_t r, k;
    json_t *row, *x;
    json_array_foreach(json_object_get(grid, "rows"), r, row)
    {
        buf_printf(csv, "%d,%d,%lld,", j->layer, job_head(c, j), (long long)j->from);
        if (j->below < INT64_MAX)
            buf_printf(csv, "%lld", (long long)j->below);
        json_array_foreach(row, k, x)
        {
            char text[32];
            num_text(json_number_value(x), text);
            buf_printf(csv, ",%s", text);
        }
        buf_puts(csv, "\n");
    }
}

bool calibrate_grid(const struct calibrate *c, struct buf *csv)
{
    bool any = false;
    for (int64_t i = 0; i < c->n_jobs; i++) {
        json_t *v = c->jobs[i].text ? json_loads(c->jobs[i].text, 0, NULL) : NULL, *name;
        const json_t *grid = json_object_get(v, "grid");
        size_t k;
        if (grid && !any) {
            buf_puts(csv, "layer,head,tokens_from,tokens_below");
            json_array_foreach(json_object_get(grid, "columns"), k, name)
                buf_printf(csv, ",%s", json_string_value(name));
            buf_puts(csv, "\n");
        }
        any |= grid != NULL;
        if (grid)
            grid_rows(c, &c->jobs[i], grid, csv);
        json_decref(v);
    }
    return any;
}

void calibrate_write(const struct calibrate *c, struct jw *w)
{
    jw_obj(w);
    static const char *const per[] = {"head", "layer", "model"};
    jw_kstr(w, "method", c->run->method->name);
    if (c->name)
        jw_kstr(w, "name", c->name);
    jw_kstr(w, "per", per[c->per]);
    jw_kstr(w, "lacuna", lacuna_version());
    jw_kstr(w, "model", trace_meta(c->traces[0])->name);
    jw_kint(w, "seed", (int64_t)c->load.seed);
    jw_kstr(w, "precision", c->load.precision == PREC_F64 ? "f64" : "f32");
    jw_kstr(w, "permute", c->load.permute ? c->load.permute : "none");
    if (c->device.accel)
        jw_kstr(w, "backend", c->device.accel->name);
    jw_key(w, "params");
    jw_obj(w);
    opt_json(c->run->method->params.table, c->run->params, w);
    jw_obj_end(w);
    write_traces(c, w);
    write_heads(c, w);
    write_grids(c, w);
    jw_obj_end(w);
}

void calibrate_free(struct calibrate *c)
{
    for (int64_t i = 0; i < c->n_jobs; i++) {
        free(c->jobs[i].samples);
        free(c->jobs[i].text);
        free(c->jobs[i].skip);
    }
    free(c->jobs);
    free(c->segments);
    c->segments = NULL;
    c->n_segments = 0;
    c->jobs = NULL;
    c->n_jobs = c->cap_jobs = 0;
}
