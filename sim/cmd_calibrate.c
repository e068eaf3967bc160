/*
 * cmd_calibrate.c - `lacuna calibrate`: see calibrate.h.
 */
#include "sim/calibrate.h"

#include "core/cmd.h"
#include "core/fileio.h"
#include "core/gemm.h"
#include "core/text.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/progress.h"
#include "core/sealed.h"
#include "core/shard.h"
#include "core/version.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const calibrate_pers[] = {"head", "layer", "model", NULL};

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
                PASS_ON(
                    mem_grow(&j->samples, &j->cap, j->n + 1, sizeof *j->samples, "samples", err));
                j->samples[j->n++] = (struct calibrate_sample){t, i, call->layer, h};
            }
        }
    return 0;
}

/* A job for a layer and head (-1: all) and the lengths of a segment, unless it has no samples. */
static int add_job(struct calibrate *c, const struct call_filter *f, int layer, int head,
                   int64_t segment, struct err *err)
{
    PASS_ON(mem_grow(&c->jobs, &c->cap_jobs, c->n_jobs + 1, sizeof *c->jobs, "jobs", err));
    struct calibrate_job *j = &c->jobs[c->n_jobs];
    *j =
        (struct calibrate_job){.layer = layer,
                               .head = head,
                               .from = segment > 0 ? c->segments[segment - 1] : 0,
                               .below = segment < c->n_segments ? c->segments[segment] : INT64_MAX};
    int rc = fill_job(c, f, j, err);
    if (rc || j->n > 0)
        c->n_jobs++;
    return rc;
}

/* "16384,49152": ascending lengths. */
static int parse_segments(struct calibrate *c, const char *text, struct err *err)
{
    const char *all = text;
    int64_t cap = 0;
    while (text && *text) {
        char *end;
        long long n = strtoll(text, &end, 10);
        int64_t last = c->n_segments ? c->segments[c->n_segments - 1] : 0;
        if (end == text || (*end && *end != ',') || n <= last)
            return err_set(
                err, ERR_USAGE,
                "--segments '%s': ascending numbers of tokens were expected, as 16384,49152", all);
        PASS_ON(
            mem_grow(&c->segments, &cap, c->n_segments + 1, sizeof *c->segments, "segments", err));
        c->segments[c->n_segments++] = n;
        text = end + (*end == ',');
    }
    return 0;
}

int calibrate_plan(struct calibrate *c, const struct call_select *sel, const char *segments,
                   struct err *err)
{
    const struct trace_meta *m = trace_meta(c->traces[0]);
    bool model = c->per == CALIBRATE_MODEL, by_head = c->per == CALIBRATE_HEAD;
    OWN(call_filter_free) struct call_filter f = {0};
    PASS_ON(same_model(c, err));
    PASS_ON(parse_segments(c, segments, err));
    PASS_ON(call_filter_init(&f, sel, m, err));
    for (int l = 0; l < (model ? 1 : m->layers); l++)
        for (int h = 0; h < (by_head ? m->heads : 1); h++)
            for (int64_t s = 0; s <= c->n_segments; s++)
                PASS_ON(add_job(c, &f, model ? -1 : l, by_head ? h : -1, s, err));
    if (c->n_jobs == 0)
        return call_select_empty("captured", sel, err);
    return 0;
}

static bool sample_causal(const struct calibrate *c, const struct calibrate_sample *s)
{
    const struct trace *t = c->traces[s->trace];
    return trace_causal(trace_meta(t), &trace_call(t, s->call)->score);
}

/* Allowed pairs of all samples. */
static double job_pairs(const struct calibrate *c, const struct calibrate_job *j)
{
    double pairs = 0;
    for (int64_t s = 0; s < j->n; s++)
        pairs += (double)trace_call_pairs(c->traces[j->samples[s].trace], j->samples[s].call);
    return pairs;
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
        }
        const struct trace_meta *m = trace_meta(c->traces[0]); /* of the shape of all */
        cost.flop += 2 * job_pairs(c, j) * (double)(m->head_dim + m->v_dim);
        cost.samples = j->n > cost.samples ? j->n : cost.samples;
        cost.memory = memory > cost.memory ? memory : cost.memory;
    }
    return cost;
}

/* ---- journal --------------------------------------------------------------------------------- */

#define JOURNAL_MOST ((size_t)1 << 30)

struct journal {
    int fd;
    pthread_mutex_t lock;
    char *path;
};

void journal_close(struct journal **j)
{
    if (!*j)
        return;
    if ((*j)->fd >= 0)
        close((*j)->fd);
    pthread_mutex_destroy(&(*j)->lock);
    free((*j)->path);
    free(*j);
    *j = NULL;
}

static int write_line(struct journal *j, struct buf *line, struct err *err)
{
    PASS_ON(buf_check(line, j->path, err));
    PASS_ON(mem_check_short(err));
    pthread_mutex_lock(&j->lock);
    int rc = io_write(j->fd, j->path, line->data, (int64_t)line->len, err);
    rc = rc ? rc : io_sync_data(j->fd, j->path, err);
    pthread_mutex_unlock(&j->lock);
    return rc;
}

int journal_add(struct journal *j, int64_t job, const char *text, const char *skip, struct err *err)
{
    OWN(buf_free) struct buf line = {0};
    struct jw w;
    jw_init(&w, &line, 0);
    jw_row(&w, JW_INT("job", job), JW_STR(text ? "found" : "skip", text ? text : skip));
    seal_put(&line, 0);
    buf_puts(&line, "\n");
    return write_line(j, &line, err);
}

static int take_line(const struct journal *j, char *line, size_t len, journal_sink *sink, void *ctx,
                     struct err *err)
{
    OWN(json_decrefp) json_t *o = NULL;
    int64_t job = 0;
    const char *text = NULL, *skip = NULL;
    PASS_ON(seal_json(line, len, j->path, &o, err));
    PASS_ON(jget_int(o, "job", j->path, &job, err));
    PASS_ON(jget_str_opt(o, "found", j->path, &text, err));
    PASS_ON(jget_str_opt(o, "skip", j->path, &skip, err));
    return sink(ctx, job, text, skip, err);
}

/* The first line is the identity, the others are jobs. *end: where the last whole line ends. */
static int take_lines(const struct journal *j, const char *identity, struct buf *b,
                      journal_sink *sink, void *ctx, size_t *end, struct err *err)
{
    *end = 0;
    for (size_t at = 0; at < b->len;) {
        char *nl = memchr(b->data + at, '\n', b->len - at);
        if (!nl)
            break;
        size_t len = (size_t)(nl - b->data) - at;
        *nl = '\0';
        bool other = at == 0 && strcmp(b->data, identity) != 0;
        if (other && at + len + 1 == b->len)
            return 0; /* nothing was found yet: the file is begun anew */
        if (other)
            return err_set(
                err, ERR_USAGE,
                "%s holds the beginning of a calibration with other settings or inputs: repeat its "
                "command to go on, or give --force to start anew",
                j->path);
        if (at)
            PASS_ON(take_line(j, b->data + at, len, sink, ctx, err));
        at += len + 1;
        *end = at;
    }
    return 0;
}

int journal_open(const char *path, const char *identity, journal_sink *sink, void *ctx,
                 struct journal **out, struct err *err)
{
    OWN(journal_close) struct journal *j = NULL;
    OWN(buf_free) struct buf b = {0};
    size_t end = 0;
    PASS_ON(mem_zalloc(&j, 1, sizeof *j, "journal", err));
    pthread_mutex_init(&j->lock, NULL);
    j->fd = -1;
    PASS_ON(mem_dup(&j->path, path, path, err));
    PASS_ON(io_append_open(path, &j->fd, err));
    PASS_ON(buf_read_file(&b, path, JOURNAL_MOST, err));
    PASS_ON(take_lines(j, identity, &b, sink, ctx, &end, err));
    if (ftruncate(j->fd, (off_t)end) != 0)
        return err_sys(err, ERR_IO, "%s", path);
    if (end == 0) {
        buf_reset(&b);
        buf_printf(&b, "%s\n", identity);
        PASS_ON(write_line(j, &b, err));
    }
    *out = HAND_OVER(j);
    return 0;
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

/* A copy of a text of a job's result. */
static int keep(char **to, const char *text, struct err *err)
{
    return mem_dup(to, text, "calibration", err);
}

static int search(const struct calibrate *c, struct calibrate_job *j, const struct head_in *samples,
                  struct err *err)
{
    struct method_ctx ctx = {.seed = c->load.seed};
    OWN(buf_free) struct buf b = {0};
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
    return rc;
}

/* The search with the device, where there is one, to itself. */
static int search_in_turn(struct execution *x, struct calibrate_job *j,
                          const struct head_in *samples, struct err *err)
{
    OWN(free_at) struct device_judge *judges = NULL;
    int rc = 0;
    if (!x->c->device.accel)
        return search(x->c, j, samples, err);
    PASS_ON(mem_zalloc(&judges, j->n, sizeof *judges, "samples", err));
    for (int64_t s = 0; s < j->n; s++)
        device_judge_attach(judges + s, &x->c->device, samples + s, x->jobs);
    pthread_mutex_lock(&x->turn);
    rc = interrupted() ? err_set(err, ERR_INTERRUPTED, "calibration interrupted")
                       : search(x->c, j, samples, err);
    pthread_mutex_unlock(&x->turn);
    for (int64_t s = 0; s < j->n; s++)
        device_judge_detach(judges + s);
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
    progress_add(x->progress, job_pairs(c, j), 1, label);
out:
    for (int64_t s = 0; heads && s < j->n; s++)
        sim_head_free(&heads[s]);
    free(heads);
    free(samples);
    return rc ? err_prefix(err, "%s", label) : 0;
}

/* What the search ran with, as members of an object. */
static void write_settings(const struct calibrate *c, struct jw *w)
{
    jw_members(w, JW_STR("per", calibrate_pers[c->per]), JW_STR("lacuna", lacuna_version()),
               JW_STR("model", trace_meta(c->traces[0])->name),
               JW_INT("seed", (int64_t)c->load.seed),
               JW_STR("precision", c->load.precision == PREC_F64 ? "f64" : "f32"),
               JW_STR("permute", c->load.permute ? c->load.permute : "none"));
    if (c->device.accel)
        jw_kstr(w, "backend", c->device.accel->name);
    jw_kobj(w, "params");
    opt_json(c->run->method->params.table, c->run->params, w);
    jw_obj_end(w);
}

/* What makes two calibrations the same, as one line: all options, inputs and samples. */
static int identity_text(const struct calibrate *c, struct buf *b, struct err *err)
{
    struct jw w;
    jw_init(&w, b, 0);
    jw_obj(&w);
    jw_kstr(&w, "method", c->run->method->name);
    write_settings(c, &w);
    jw_karr(&w, "segments");
    for (int64_t i = 0; i < c->n_segments; i++)
        jw_int(&w, c->segments[i]);
    jw_arr_end(&w);
    jw_karr(&w, "samples");
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
            total += job_pairs(c, &c->jobs[i]);
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
    jw_karr(w, "traces");
    for (int64_t t = 0; t < c->n_traces; t++)
        jw_row(w, JW_STR("path", trace_path(c->traces[t])), JW_STR("id", trace_id(c->traces[t])));
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
    jw_karr(w, "tokens");
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
    jw_members(w, JW_INT("layer", at->layer),
               JW_INT("head", trace_head_number(trace_meta(c->traces[0]), at->head)));
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
    jw_karr(w, "heads");
    for (int64_t i = 0; i < c->n_jobs; i++) {
        const struct calibrate_job *j = &c->jobs[i];
        OWN(json_decrefp) json_t *v = j->text ? json_loads(j->text, 0, NULL) : NULL;
        for (int64_t s = 0; v && s < j->n; s++)
            if (first_of_head(j, s))
                write_head(c, j, j->samples + s, v, w);
    }
    jw_arr_end(w);
}

static void write_grids(const struct calibrate *c, struct jw *w)
{
    bool any = false;
    for (int64_t i = 0; i < c->n_jobs; i++) {
        const struct calibrate_job *j = &c->jobs[i];
        OWN(json_decrefp) json_t *v = j->text ? json_loads(j->text, 0, NULL) : NULL;
        const json_t *grid = json_object_get(v, "grid");
        if (grid && !any) {
            jw_karr(w, "grids");
            any = true;
        }
        if (grid) {
            jw_obj(w);
            jw_members(w, JW_INT("layer", j->layer), JW_INT("head", job_head(c, j)));
            write_lengths(c, j, w);
            jw_key(w, "grid");
            jw_value(w, grid);
            jw_obj_end(w);
        }
    }
    if (any)
        jw_arr_end(w);
}

void calibrate_write(const struct calibrate *c, struct jw *w)
{
    jw_obj(w);
    jw_kstr(w, "method", c->run->method->name);
    if (c->name)
        jw_kstr(w, "name", c->name);
    write_settings(c, w);
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

/* ---- the command ---------------------------------------------------------------------------- */

struct calibrate_opts {
    struct common_opts c;
    int backend, precision, per;
    char *out, *name, *layers, *heads, *steps, *branch, *permute, *segments;
    bool allow_nonfinite;
};

static const char *const precisions[] = {"f64", "f32", NULL};
static const char *const backends[] = {"cpu", "cuda", NULL};

static const struct opt options[] = {
    OPT_AS("output", OPT_STR, struct calibrate_opts, out, NULL,
           .help = "Calibration file to write (JSON).", .short_name = 'o', .arg = "FILE"),
    OPT_ENUM(struct calibrate_opts, per, "head", calibrate_pers,
             "What shares parameters: every head has its own, all heads of a layer, or all of the "
             "model; their samples are then searched together, and lie in memory together."),
    OPT_STR(struct calibrate_opts, segments, NULL, "LIST",
            "Lengths at which prompts have parameters of their own, as in "
            "16384,49152,81920,114688: traces of each segment are searched by themselves, and a "
            "replay takes those of its own length."),
    OPT_ENUM(
        struct calibrate_opts, backend, "cpu", backends,
        "Where settings are judged: attention over their masks, its error and recall. A search "
        "without a GPU side runs on the CPU, and a warning says why."),
    OPT_STR(struct calibrate_opts, name, NULL, "NAME",
            "Name of the calibration in tables; default: the file's without its suffix."),
    OPT_ENUM(struct calibrate_opts, precision, "f32", precisions,
             "Arithmetic of exact attention: f32 (fast, agrees to about 1e-6, far below any "
             "bound) or f64."),
    OPT_STR(struct calibrate_opts, layers, "all", "LIST", "Layers, as in 0,4-7."),
    OPT_STR(struct calibrate_opts, heads, "all", "LIST", "Query heads."),
    OPT_STR(struct calibrate_opts, steps, "all", "LIST", "Denoising steps."),
    OPT_STR(struct calibrate_opts, branch, "", "NAME",
            "Guidance branch, such as cond; all if empty."),
    OPT_STR(struct calibrate_opts, permute, "none", "NAME",
            "Token order of video traces: none, row, column, time, random, hilbert, "
            "voxel:AxBxC or tile:AxBxC."),
    OPT_AS("allow-nonfinite", OPT_BOOL, struct calibrate_opts, allow_nonfinite, "0",
           .help = "Use heads whose q, k or v hold NaN or infinity."),
    COMMON_OPTS,
    {0},
};

/* ---- arguments ------------------------------------------------------------------------------ */

static int parse_method(const struct app *app, const char *text, struct method_run **runs,
                        int64_t *n, struct err *err)
{
    PASS_ON(method_runs_parse(app->methods, text, runs, n, err));
    const struct method *m = (*runs)[0].method;
    if (!m->search.calibrate) {
        char names[256] = "";
        size_t used = 0;
        for (const struct method *const *k = app->methods; *k; k++)
            if ((*k)->search.calibrate && used < sizeof names)
                used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                         used ? ", " : "", (*k)->name);
        return err_set(err, ERR_USAGE, "calibrate: method %s has nothing to search; these have: %s",
                       m->name, names);
    }
    if (*n != 1)
        return err_set(err, ERR_USAGE, "calibrate: '%s' is a sweep of %lld settings; give one",
                       text, (long long)*n);
    if ((*runs)[0].target)
        return err_set(err, ERR_USAGE,
                       "calibrate: '%s': a target (@...) is for replay; here the method's own "
                       "search runs, with its options",
                       text);
    if ((*runs)[0].calib)
        return err_set(err, ERR_USAGE, "calibrate: calib= is for replay; here the file is written");
    return 0;
}

/* A method's own token order is applied while heads are loaded. */
static int choose_order(struct calibrate *c, const struct calibrate_opts *o, struct err *err)
{
    const struct method *m = c->run->method;
    const char *own = m->params.order ? m->params.order(c->run->params) : NULL;
    c->load.permute = o->permute;
    if (!own || !strcmp(own, "none"))
        return 0;
    if (strcmp(o->permute, "none") != 0)
        return err_set(err, ERR_USAGE,
                       "calibrate: --permute %s and permute=%s of the method: give one", o->permute,
                       own);
    c->load.permute = own;
    return 0;
}

/* *journal receives the name of the journal. */
static int check_output(const struct calibrate_opts *o, const struct str_list *args,
                        struct buf *journal, struct err *err)
{
    struct stat st;
    for (int64_t i = 1; i < args->n; i++)
        PASS_ON(refuse_input(o->out, args->items[i], err));
    if (o->out && stat(o->out, &st) == 0 && S_ISDIR(st.st_mode))
        return err_set(err, ERR_USAGE, "calibrate: %s is a directory, a file is written", o->out);
    if (!o->out && !o->c.dry_run)
        return err_set(err, ERR_USAGE, "calibrate: -o FILE is missing");
    if (!o->out || o->c.dry_run)
        return 0;
    /* A journal beside it is of a calibration that was stopped before its end (journal_open). */
    buf_printf(journal, "%s.journal", o->out);
    PASS_ON(buf_check(journal, o->out, err));
    return refuse_existing(o->out, o->c.force || access(buf_str(journal), F_OK) == 0, err);
}

/* ---- results -------------------------------------------------------------------------------- */

static int print_plan(const struct calibrate *c, const struct calibrate_opts *o, struct err *err)
{
    struct calibrate_cost cost = calibrate_costs(c);
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    int jobs = cmd_jobs(&o->c);
    double rate, passes = c->run->method->search.passes;
    char read[24], memory[24], time[48] = "of unknown time";
    jobs = jobs > c->n_jobs ? (int)c->n_jobs : jobs;
    PASS_ON(attn_rate(c->load.precision, &rate, err));
    bool known = passes > 0 && !c->device.accel;
    double seconds = known ? passes * 2 * cost.flop / rate / jobs : NAN;
    jw_init(&w, &b, 2);
    jw_row(&w, JW_STR("method", c->run->method->name),
           JW_STR("backend", c->device.accel ? c->device.accel->name : "cpu"),
           JW_INT("heads", c->n_jobs), JW_INT("samples_per_head", cost.samples),
           JW_INT("bytes_to_read", cost.bytes), JW_INT("memory_bytes_per_thread", cost.memory),
           JW_INT("threads", jobs), JW_NUM("estimated_seconds", seconds));
    PASS_ON(buf_check(&b, "plan", err));
    bytes_text((double)cost.bytes, read);
    bytes_text((double)cost.memory, memory);
    if (known)
        estimate_text(seconds, time);
    if (o->c.json)
        printf("%s\n", buf_str(&b));
    else
        printf("%lld searches (per %s) with up to %lld samples each, %s to read, about %s of "
               "memory per thread, %d threads, %s\n",
               (long long)c->n_jobs, calibrate_pers[o->per], (long long)cost.samples, read, memory,
               jobs, time);
    return 0;
}

static void report_skips(const struct calibrate *c)
{
    for (int64_t i = 0; i < c->n_jobs; i++)
        if (c->jobs[i].skip)
            log_warn("layer %d head %d (-1: all) skipped: %s", c->jobs[i].layer, c->jobs[i].head,
                     c->jobs[i].skip);
}

/* How many searches found that a parameter is best off. */
static int64_t found_off(const struct calibrate *c, const struct opt *o)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_jobs; i++) {
        OWN(json_decrefp) json_t *v = c->jobs[i].text ? json_loads(c->jobs[i].text, 0, NULL) : NULL;
        const char *found = json_string_value(json_object_get(v, o->name));
        n += o->flags & OPT_OFF && found && strcmp(found, "off") == 0;
    }
    return n;
}

/* ", pv=off in 3" of every such parameter. */
static void tell_off(const struct calibrate *c, struct buf *b)
{
    for (const struct opt *o = c->run->method->params.table; o->type != OPT_END; o++) {
        int64_t n = found_off(c, o);
        if (n)
            buf_printf(b, ", %s=off in %lld", o->name, (long long)n);
    }
}

static int write_result(const struct calibrate *c, const struct calibrate_opts *o, struct err *err)
{
    OWN(buf_free) struct buf b = {0}, summary = {0}, off = {0};
    struct jw w;
    int64_t skipped = calibrate_skipped(c);
    report_skips(c);
    if (skipped == c->n_jobs)
        return err_set(err, ERR_RUN, "no head could be calibrated: %s", c->jobs[0].skip);
    jw_init(&w, &b, 2);
    calibrate_write(c, &w);
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    PASS_ON(buf_check(&b, "calibration file", err));
    PASS_ON(file_write_atomic(o->out, buf_str(&b), b.len, err));
    if (!o->c.json) {
        tell_off(c, &off);
        PASS_ON(buf_check(&off, "summary", err));
        log_info("%s: %lld %s, %lld skipped%s", o->out, (long long)(c->n_jobs - skipped),
                 c->per == CALIBRATE_HEAD && !c->n_segments ? "heads" : "searches",
                 (long long)skipped, buf_str(&off));
        return 0;
    }
    jw_init(&w, &summary, 2);
    jw_row(&w, JW_STR("file", o->out), JW_STR("method", c->run->method->name),
           JW_INT("heads", c->n_jobs - skipped), JW_INT("skipped", skipped));
    PASS_ON(buf_check(&summary, "summary", err));
    printf("%s\n", buf_str(&summary));
    return 0;
}

/* A name stands in a note and in the parameters of tables. */
static int name_result(const struct calibrate_opts *o, struct buf *b, struct err *err)
{
    const char *slash = strrchr(o->out, '/'), *from = o->name ? o->name
                                                      : slash ? slash + 1
                                                              : o->out;
    size_t len = strlen(from);
    if (!o->name && len > 5 && strcmp(from + len - 5, ".json") == 0)
        len -= 5;
    for (size_t i = 0; i < len && i < 64; i++)
        buf_put(b, strchr(":;@, ", from[i]) ? "-" : from + i, 1);
    return buf_check(b, "name", err);
}

/* Take the GPU that the launcher's local rank picks, or say why the search runs on the CPU. */
static int open_backend(const struct app *app, const struct calibrate_opts *o, struct calibrate *c,
                        struct err *err)
{
    struct accel_options how = {.events = true}; /* nothing is timed: the least to open */
    struct shard shard;
    char why[160] = "";
    if (o->backend == 0)
        return 0;
    if (!app->accel)
        return err_set(err, ERR_MACHINE,
                       "calibrate: --backend cuda needs a build with CUDA (make CUDA=1)");
    PASS_ON(shard_from_env("0/1", &shard, err)); /* a calibration has no parts */
    how.local_rank = shard.local;
    c->device = (struct sim_device){.accel = app->accel, .metrics = true};
    PASS_ON(app->accel->open(&how, &c->device.session, err));
    if (calibrate_on_device(c, why))
        return 0;
    log_warn("calibrate: %s is searched on the CPU: %s", c->run->method->name, why);
    app->accel->close(&c->device.session);
    c->device = (struct sim_device){0};
    return 0;
}

static int run(const struct app *app, void *opts, struct str_list *args, struct err *err)
{
    struct calibrate_opts *o = opts;
    struct calibrate c = {0};
    struct method_run *runs = NULL;
    struct buf name = {0}, journal = {0};
    int64_t n_runs = 0;
    int rc = 0;
    if (args->n == 0)
        FAIL(err, ERR_USAGE,
             "calibrate: no method given (lacuna calibrate METHOD T.h5... -o FILE)");
    TRY(parse_method(app, args->items[0], &runs, &n_runs, err));
    c.run = &runs[0];
    c.per = (enum calibrate_per)o->per;
    c.load.precision = o->precision == 0 ? PREC_F64 : PREC_F32;
    c.load.seed = (uint64_t)o->c.seed;
    c.load.allow_nonfinite = o->allow_nonfinite;
    TRY(choose_order(&c, o, err));
    TRY(check_output(o, args, &journal, err));
    if (args->n < 2)
        FAIL(err, ERR_USAGE, "calibrate: no trace given (lacuna calibrate METHOD T.h5... -o FILE)");
    TRY(traces_open(args->items + 1, args->n - 1, &c.traces, &c.n_traces, err));
    TRY(traces_whole(c.traces, c.n_traces, "the searches need all rows of a head", err));
    TRY(calibrate_plan(&c, &(struct call_select){o->layers, o->heads, o->steps, o->branch},
                       o->segments, err));
    TRY(open_backend(app, o, &c, err));
    if (o->c.dry_run) {
        TRY(print_plan(&c, o, err));
        goto out;
    }
    TRY(name_result(o, &name, err));
    c.name = buf_str(&name);
    if (o->c.force)
        unlink(buf_str(&journal));
    TRY(calibrate_execute(&c, buf_str(&journal), cmd_jobs(&o->c), err));
    TRY(write_result(&c, o, err));
    unlink(buf_str(&journal));
out:
    if (c.device.accel)
        c.device.accel->close(&c.device.session);
    calibrate_free(&c);
    buf_free(&name);
    buf_free(&journal);
    traces_close(&c.traces, c.n_traces);
    method_runs_free(runs, n_runs);
    return rc;
}

const struct command cmd_calibrate = {
    "calibrate",
    "calibrate METHOD[:key=value]... T.h5... -o CALIB.json",
    "search a method's parameters per layer and head",
    run,
    options,
    sizeof(struct calibrate_opts),
    "Every (layer, head) of the traces is searched on its own, over all captured inputs of it\n"
    "(or, with --per layer, the heads of a layer together, with --per model all heads),\n"
    "with the method's search options: `lacuna list methods METHOD` shows them, with defaults and\n"
    "ranges. All traces must be of one model.\n"
    "The result is applied by a replay with METHOD:calib=CALIB.json, under the settings given "
    "here.\n"
    "A parameter given beside calib= wins over these settings and over the values of heads; the\n"
    "records then name both, as in calib=...:tau=0.9. Heads that the file lacks have its settings\n"
    "alone. It holds for traces of this model, replayed in this token order; others are refused."
    "\n\n"
    "Examples:\n"
    "  lacuna calibrate spargeattn:l1=0.08:l2=0.09 a.h5 b.h5 -o sparge.json\n"
    "  lacuna replay t.h5 -m spargeattn:calib=sparge.json -o out\n",
};
