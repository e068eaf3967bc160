/*
 * cmd_eval.c - `lacuna eval`: options, and the directory that receives the records.
 */
#include "capture/wan_config.h"
#include "core/buf.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/gemm.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/mem.h"
#include "core/record.h"
#include "core/shard.h"
#include "eval/evalargs.h"
#include "eval/evalrun.h"
#include "sim/staticmasks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int print_plan(const struct eval_opts *o, const struct eval_count *t, int64_t memory,
                      struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    if (!o->c.json) {
        printf("%lld records (%lld already done, %lld to do), about %.1f MB of memory\n",
               (long long)t->all, (long long)(t->all - t->todo), (long long)t->todo,
               (double)memory / 1e6);
        return 0;
    }
    jw_init(&w, &b, 2);
    jw_row(&w, JW_INT("records", t->all), JW_INT("records_done", t->all - t->todo),
           JW_INT("records_to_do", t->todo), JW_INT("memory_bytes", memory));
    printf("%s\n", buf_str(&b));
    return buf_check(&b, "plan", err);
}

static void say_lacking(const char *what, int64_t n)
{
    if (n)
        log_warn("finished records without %s: %lld, not done again; --force or another -o "
                 "measures them",
                 what, (long long)n);
}

static int print_result(const struct eval_opts *o, const struct eval_count *t, struct err *err)
{
    struct buf b = {0};
    struct jw w;
    long long before = (long long)(t->all - t->todo);
    if (!o->c.json) {
        log_info("%s: %lld ok, %lld skipped, %lld failed, %lld already done", o->out,
                 (long long)t->ok, (long long)t->skip, (long long)t->error, before);
    } else {
        jw_init(&w, &b, 2);
        jw_row(&w, JW_STR("directory", o->out), JW_INT("ok", t->ok), JW_INT("skip", t->skip),
               JW_INT("error", t->error), JW_INT("already_done", before));
        printf("%s\n", buf_str(&b));
        buf_free(&b);
    }
    return t->error ? err_set(err, ERR_RUN, "%lld cells failed; their records in %s say why",
                              (long long)t->error, o->out)
                    : 0;
}

/* DIR/STEM.jsonl, or the shard's own. */
static void shard_path(const struct eval_opts *o, const struct shard *shard, const char *stem,
                       char *path, size_t size)
{
    char name[96];
    shard_file_name(shard, stem, "jsonl", name);
    snprintf(path, size, "%s/%s", o->out, name);
}

/* The records of a run, and its manifest. */
static int open_records(const struct app *app, const struct eval_opts *o, const char *weights,
                        const struct shard *shard, struct record_file **records,
                        struct maskfile **masks, struct manifest **manifest, struct err *err)
{
    char path[4096], name[96];
    PASS_ON(make_dirs(o->out, err));
    shard_path(o, shard, "records", path, sizeof path);
    PASS_ON((o->c.force ? record_file_reopen : record_file_open)(path, records, err));
    shard_file_name(shard, "manifest", "json", name);
    if (o->dump_masks)
        PASS_ON(maskfile_create(o->dump_masks,
                                o->c.force || manifest_killed(o->out, name, app->argc, app->argv),
                                masks, err));
    PASS_ON(manifest_start_as(o->out, name, app->argc, app->argv, manifest, err));
    if (o->c.force)
        manifest_accept_changes(*manifest);
    PASS_ON(manifest_input(*manifest, o->model, weights, err));
    PASS_ON(manifest_write(*manifest, err));
    manifest_num(*manifest, "seed", (double)o->c.seed);
    if (o->c.force)
        return record_file_clear(*records, err);
    return 0;
}

static int peek_records(const struct eval_opts *o, const struct shard *shard,
                        struct record_file **records, struct err *err)
{
    char path[4096];
    if (!o->out || o->c.force)
        return 0;
    shard_path(o, shard, "records", path, sizeof path);
    return record_file_peek(path, records, err);
}

/* The GPU for the methods' attention; *d has to outlive how. */
static int open_device(const struct app *app, const struct eval_opts *o, const struct shard *shard,
                       struct sim_device *d, struct eval_how *how, struct err *err)
{
    /* Timed launches hold as many copies of a head as its call has heads. */
    struct accel_options want = {.local_rank = shard->local,
                                 .samples = (int)o->samples,
                                 .copies = o->samples ? 0 : 1,
                                 .events = o->samples == 0}; /* CUPTI takes time to start */
    if (o->device == 0)
        return o->samples == 0 ? 0
                               : err_set(err, ERR_USAGE,
                                         "eval: --samples times launches on a GPU: it needs "
                                         "--device cuda");
    if (!app->accel)
        return err_set(err, ERR_MACHINE,
                       "eval: --device cuda needs a build with CUDA (make CUDA=1)");
    *d = (struct sim_device){
        .accel = app->accel, .select = SELECT_AUTO, .dense = true, .timed = o->samples > 0};
    how->device = d;
    if (o->c.dry_run)
        return 0;
    PASS_ON(static_masks_new(static_masks_room(), cmd_jobs(&o->c), &d->statics, err));
    return app->accel->open(&want, &d->session, err);
}

static void close_device(struct sim_device *d)
{
    if (d->accel)
        d->accel->close(&d->session);
    static_masks_free(&d->statics);
}

/* ---- parameters that a replay found --------------------------------------------------------- */

/* The records of one search: one per head, all with the same note. */
struct search_seen {
    char found[256]; /* "tau=0.03", "" before the first */
    double target, miss, keys;
    int64_t cells;
};

static bool is_of(const struct method_run *run, const char *model, const struct record *r)
{
    return strcmp(r->method, run->method->name) == 0 && strcmp(r->params, run->canonical) == 0 &&
           strcmp(r->model, model) == 0;
}

/* Why there is nothing to take: the search ended in skips or errors, or there was none. */
static int found_nothing(const struct method_run *run, const char *dir, const char *model,
                         const struct record *r, int64_t n, struct err *err)
{
    static const char *const ends[] = {
        [RECORD_OK] = "found no value", [RECORD_SKIP] = "was skipped", [RECORD_ERROR] = "failed"};
    const char *name = run->method->name, *colon = method_run_colon(run);
    for (int64_t i = 0; i < n; i++)
        if (is_of(run, model, r + i))
            return err_set(err, ERR_INPUT,
                           "--found %s: the search of %s%s%s %s%s%.300s; leave it out", dir, name,
                           colon, run->canonical, ends[r[i].status], r[i].reason[0] ? ": " : "",
                           r[i].reason);
    return err_set(err, ERR_INPUT,
                   "--found %s: no record of %s on a trace of %s: replay one with -m '%s%s%s' "
                   "first",
                   dir, name, model, name, colon, run->canonical);
}

static int find_search(const struct method_run *run, const char *dir, const char *model,
                       const struct record *r, int64_t n, struct search_seen *s, struct err *err)
{
    char found[sizeof s->found];
    size_t len;
    for (int64_t i = 0; i < n; i++) {
        bool counts = r[i].status == RECORD_OK && is_of(run, model, r + i);
        const char *note = counts ? record_note_value(r + i, "found", &len) : NULL;
        if (!note)
            continue;
        snprintf(found, sizeof found, "%.*s", (int)len, note);
        if (s->cells && strcmp(found, s->found) != 0)
            return err_set(
                err, ERR_INPUT,
                "--found %s: %s%s%s was found as %s on one trace and %s on another: give the "
                "records of one",
                dir, run->method->name, method_run_colon(run), run->canonical, s->found, found);
        memcpy(s->found, found, sizeof found);
        s->target = record_get(r + i, "budget_target");
        s->miss = record_get(r + i, "budget_miss");
        s->keys = (double)r[i].n_k;
        s->cells++;
    }
    if (!s->cells)
        return found_nothing(run, dir, model, r, n, err);
    return 0;
}

/* "sale:dense_below=0" and "tau=0.03" become a run of "sale:dense_below=0:tau=0.03". */
static int replace_run(const struct method *const *methods, const char *found,
                       struct method_run *run, struct err *err)
{
    const char *given = run->canonical, *at = strrchr(given, '@');
    struct method_run *made = NULL;
    struct buf text = {0};
    int64_t n = 0;
    int rc = 0;
    /* Records are data: they set what was searched and nothing else. */
    TRY(budget_apply(run->target, run->method, found, run->params, err));
    buf_puts(&text, run->method->name);
    if (at > given) {
        buf_puts(&text, ":");
        buf_put(&text, given, (size_t)(at - given));
    }
    buf_printf(&text, ":%s", found);
    TRY(buf_check(&text, "method", err));
    TRY(method_runs_parse(methods, buf_str(&text), &made, &n, err));
    struct method_run old = *run;
    *run = made[0];
    made[0] = old;
    if (old.session)
        TRY(method_run_open(run, err));
out:
    method_runs_free(made, n);
    buf_free(&text);
    return rc;
}

/* Give every run with a target per=model the parameters that the records of `dir` (a directory or a
 * file) found for the same method text on a trace of this model: it becomes that setting, without a
 * target. ERR_INPUT where the records have none, or different ones of several traces. */
static int found_params_take(const struct method *const *methods, const char *dir,
                             const char *model, struct method_run *runs, int64_t n, struct err *err)
{
    struct record *r = NULL;
    int64_t n_r = 0, taken = 0;
    int rc = 0;
    TRY(records_load(dir, &r, &n_r, err));
    for (int64_t i = 0; i < n; i++) {
        struct search_seen s = {0};
        if (!runs[i].target || runs[i].target->per != TARGET_PER_MODEL)
            continue;
        TRY(find_search(runs + i, dir, model, r, n_r, &s, err));
        const char *name = runs[i].method->name, *colon = method_run_colon(runs + i);
        log_info("%s%s%s: %s, as found on %lld heads of %.0f keys", name, colon, runs[i].canonical,
                 s.found, (long long)s.cells, s.keys);
        if (fabs(s.miss) > 0.05 * fabs(s.target))
            log_warn("%s%s%s: the search in %s ended at %.3g", name, colon, runs[i].canonical, dir,
                     s.target + s.miss);
        if ((rc = replace_run(methods, s.found, runs + i, err)) != 0) {
            err_prefix(err, "--found %s", dir);
            goto out;
        }
        taken++;
    }
    if (!taken)
        FAIL(err, ERR_USAGE, "--found %s: no method is given with a target and :per=model", dir);
out:
    records_free(r, n_r);
    return rc;
}

/* ---- video ---------------------------------------------------------------------------------- */

/* The GPU for the whole model, too, where it has kernels of its head dimension. */
static int choose_denoiser(const struct app *app, const struct eval_opts *o, struct video_eval *v,
                           struct err *err)
{
    if (o->device == 0)
        return 0;
    if (v->model.c.head_dim > 128 && o->samples)
        return err_set(err, ERR_USAGE,
                       "eval: --samples times whole evaluations on the GPU, which has no head dims "
                       "above 128 as %s needs",
                       v->name);
    if (v->model.c.head_dim > 128) {
        log_warn("the GPU has no head dims above 128, which %s needs: the methods attend there, "
                 "everything else runs on the CPU",
                 v->name);
        return 0;
    }
    v->device = app->denoiser;
    v->how.all_on_device = true;
    return 0;
}

static int eval_video(const struct app *app, const struct eval_opts *o, struct method_run *runs,
                      int64_t n_runs, struct err *err)
{
    struct video_eval v = {
        .ask = o->video,
        .runs = runs,
        .n_runs = (int)n_runs,
        .frames = o->save_frames,
        .samples = (int)o->samples,
        .jobs = cmd_jobs(&o->c),
    };
    const struct shard all = {0, 1, 0};
    struct sim_device device = {0};
    struct manifest *manifest = NULL;
    int rc = 0;
    v.ask.who = "eval";
    v.ask.model = o->model;
    v.ask.seed = (uint64_t)o->c.seed;
    TRY(eval_check_kind(o, true, err));
    TRY(video_eval_open(&v, err));
    if (o->found)
        TRY(found_params_take(app->methods, o->found, v.name, runs, n_runs, err));
    TRY(eval_how_options(o, &v.shape, DT_F32, &v.how, err));
    TRY(open_device(app, o, &all, &device, &v.how, err));
    TRY(choose_denoiser(app, o, &v, err));
    for (int64_t i = 0; i < n_runs; i++)
        TRY(method_calib_fits(runs + i, v.name, "none", err));
    TRY(gemm_ready(err));
    if (o->c.dry_run)
        TRY(peek_records(o, &all, &v.records, err));
    else
        TRY(open_records(app, o, v.weights, &all, &v.records, &v.how.masks, &manifest, err));
    TRY(video_eval_plan(&v, err));
    say_lacking("the times of --samples", v.count.no_times);
    if (o->c.dry_run)
        TRY(print_plan(o, &v.count, video_eval_memory(&v), err));
    else
        TRY(video_eval_run(&v, err));
out:
    record_file_close(&v.records);
    rc = manifest_end(&manifest, rc, err);
    setting_tally_warn(runs, v.tally, n_runs);
    close_device(&device);
    video_eval_close(&v);
    return rc || o->c.dry_run ? rc : print_result(o, &v.count, err);
}

/* ---- text ----------------------------------------------------------------------------------- */

static int open_tasks(const struct eval_opts *o, struct eval_run *r, struct err *err)
{
    if (o->tasks.n == 0)
        return err_set(err, ERR_USAGE, "eval: no task given (--task NAME or FILE)");
    PASS_ON(mem_zalloc(&r->tasks, o->tasks.n, sizeof *r->tasks, "tasks", err));
    for (int64_t i = 0; i < o->tasks.n; i++) {
        PASS_ON(eval_task_open(o->tasks.items[i], r->m, &o->ask, r->tasks + i, err));
        r->n_tasks++;
    }
    PASS_ON(eval_check_tasks(o, r->tasks, r->n_tasks, err));
    bool one = r->n_tasks == 1 && r->tasks[0].cells == 1 && !r->tasks[0].decodes;
    if (o->dump_masks && o->prefill_chunk)
        return err_set(err, ERR_USAGE,
                       "eval: --dump-masks writes one mask per head, --prefill-chunk makes "
                       "several");
    if ((o->dump_nll || o->dump_masks) && !one)
        return err_set(err, ERR_USAGE, "eval: --dump-nll and --dump-masks take one --task, a text");
    return 0;
}

static int run_language(const struct app *app, const struct eval_opts *o, struct eval_run *r,
                        struct err *err)
{
    struct manifest *manifest = NULL;
    char path[4096];
    int rc = 0;
    TRY(gemm_ready(err));
    if (o->c.dry_run) {
        TRY(peek_records(o, &r->shard, &r->records, err));
    } else {
        for (int64_t i = 0; i < o->tasks.n; i++) {
            TRY(refuse_input(o->dump_masks, o->tasks.items[i], err));
            TRY(refuse_input(o->dump_nll, o->tasks.items[i], err));
        }
        TRY(open_records(app, o, r->m->weights, &r->shard, &r->records, &r->how.masks, &manifest,
                         err));
        shard_path(o, &r->shard, "predictions", path, sizeof path);
        TRY(predictions_open(path, r->records, o->c.force, &r->predictions, err));
    }
    TRY(eval_plan(r, err));
    if (!o->c.dry_run)
        TRY(eval_execute(r, err));
    if (r->how.masks)
        TRY(maskfile_commit(&r->how.masks, err));
out:
    maskfile_abort(&r->how.masks);
    record_file_close(&r->records);
    predictions_close(&r->predictions);
    return manifest_end(&manifest, rc, err);
}

/* The GPU for prefills too, where it has all that the model needs: else the methods' attention
 * alone runs there. */
static int choose_decoder(const struct app *app, const struct eval_opts *o, struct eval_run *r,
                          struct lockstep_on *on, struct err *err)
{
    const struct llm_config *c = &r->m->llm.c;
    const char *lacks =
        c->head_dim > 128 ? "head dims above 128" : llm_device_lacks(c, c->max_positions);
    if (o->device == 0)
        return 0;
    if (lacks[0] && o->samples)
        return err_set(
            err, ERR_USAGE,
            "eval: --samples times whole prefills on the GPU, which has no %s as %s needs", lacks,
            r->m->name);
    if (lacks[0]) {
        log_warn("the GPU has no %s, which %s needs: the methods attend there, everything else "
                 "runs on the CPU",
                 lacks, r->m->name);
        return 0;
    }
    if (r->how.round != DT_F32 && r->how.round != DT_BF16)
        return err_set(err, ERR_USAGE,
                       "eval: --qkv model with --device cuda needs a bfloat16 checkpoint (%s is "
                       "%s): operands are rounded to bfloat16 there",
                       r->m->name, dtype_name(r->how.round));
    *on = (struct lockstep_on){app->decoder, r->shard.local, (int)o->samples};
    r->on = on;
    r->how.all_on_device = true;
    return 0;
}

/* Appends a file that can be read again. */
static bool read_regular(const char *path, struct buf *b)
{
    struct stat st;
    struct err none = {0};
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) &&
           buf_read_file(b, path, EVAL_TEXT_MAX, &none) == 0;
}

/* Parameters are searched on another text than those of the tasks, whatever their files are called.
 * A task that is no file and a pipe have their names alone. */
static int refuse_task_text(const struct eval_opts *o, struct err *err)
{
    OWN(buf_free) struct buf text = {0}, task = {0};
    bool read = read_regular(o->calibrate_inside, &text);
    for (int64_t i = 0; i < o->tasks.n; i++) {
        const char *name = o->tasks.items[i];
        bool same = strcmp(name, o->calibrate_inside) == 0;
        buf_reset(&task);
        if (!same && read && read_regular(name, &task))
            same = task.len == text.len && memcmp(buf_str(&task), buf_str(&text), text.len) == 0;
        if (same)
            return err_set(err, ERR_USAGE,
                           "--calibrate-inside %s: the text is a --task, too (%s): calibrate on "
                           "another one",
                           o->calibrate_inside, name);
    }
    return 0;
}

/* Parameters that are searched inside the model before anything is evaluated; not in a dry run. */
static int calibrate_runs(const struct app *app, const struct eval_opts *o,
                          const struct eval_run *r, struct method_run *runs, struct err *err)
{
    struct calib_inside c = {.m = r->m,
                             .how = &r->how,
                             .text = o->calibrate_inside,
                             .tokens = o->calibrate_tokens,
                             .dir = o->out,
                             .jobs = r->jobs};
    int searched = 0;
    if (!o->calibrate_inside || o->c.dry_run)
        return 0;
    PASS_ON(refuse_task_text(o, err));
    for (int i = 0; i < r->n_runs; i++) {
        if (!runs[i].method->search.calibrate || runs[i].calib || runs[i].target)
            continue;
        searched++;
        PASS_ON(calib_inside(&c, app->methods, runs + i, err));
    }
    if (!searched)
        return err_set(
            err, ERR_USAGE,
            "--calibrate-inside %s: no method is given that can be calibrated and has neither "
            "calib= nor a target",
            o->calibrate_inside);
    return 0;
}

static int eval_language(const struct app *app, struct eval_opts *o, struct method_run *runs,
                         int64_t n_runs, struct err *err)
{
    OWN(eval_model_close) struct eval_model m = {0};
    OWN(eval_run_free)
    struct eval_run r = {.runs = runs, .n_runs = (int)n_runs, .dump_nll = o->dump_nll};
    OWN(close_device) struct sim_device device = {0};
    struct lockstep_on on;
    struct stopwatch watch = {.since = clock_ns()};
    PASS_ON(eval_check_kind(o, false, err));
    PASS_ON(eval_model_open(&m, o->model, o->bos, err));
    stopwatch_lap(&watch, "model");
    if (o->found)
        PASS_ON(found_params_take(app->methods, o->found, m.name, runs, n_runs, err));
    PASS_ON(eval_task_options(o, err));
    struct attn_shape shape = eval_model_shape(&m);
    PASS_ON(eval_how_options(o, &shape, m.llm.c.dtype, &r.how, err));
    PASS_ON(shard_from_env(o->shard, &r.shard, err));
    shard_warn_bound("eval");
    PASS_ON(open_device(app, o, &r.shard, &device, &r.how, err));
    stopwatch_lap(&watch, "device");
    r.m = &m;
    PASS_ON(choose_decoder(app, o, &r, &on, err));
    r.jobs = cmd_jobs(&o->c);
    PASS_ON(calibrate_runs(app, o, &r, runs, err));
    for (int i = 0; i < r.n_runs; i++)
        PASS_ON(method_calib_fits(runs + i, m.name, "none", err));
    r.wants_times = o->samples > 0;
    PASS_ON(open_tasks(o, &r, err));
    for (int i = 0; i < r.n_runs; i++)
        PASS_ON(eval_check_file(&r, runs + i, err));
    stopwatch_lap(&watch, "tasks");
    PASS_ON(run_language(app, o, &r, err));
    stopwatch_lap(&watch, "cells");
    stopwatch_log(&watch, "eval");
    say_lacking("the errors of --local-errors", r.count.no_local_errors);
    say_lacking("the times of --samples", r.count.no_times);
    setting_tally_warn(runs, r.tally, r.n_runs);
    return o->c.dry_run ? print_plan(o, &r.count, eval_memory(&r), err)
                        : print_result(o, &r.count, err);
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct eval_opts *o = opts;
    struct method_run *runs = NULL;
    int64_t n_all = 0, n_runs = 0;
    int rc = 0;
    if (rest->n)
        FAIL(err, ERR_USAGE, "eval: unexpected argument '%s'", rest->items[0]);
    if (!o->model)
        FAIL(err, ERR_USAGE, "eval: --model DIR is missing");
    if (!o->out && !o->c.dry_run)
        FAIL(err, ERR_USAGE, "eval: -o DIR is missing");
    TRY(foreign_refuse(o->model, err));
    mem_return_large_blocks();
    TRY(eval_methods(app->methods, o, &runs, &n_all, &n_runs, err));
    for (int64_t i = 0; i < n_runs && !o->c.dry_run; i++)
        TRY(method_run_open(runs + i, err));
    if (wan_config_is(o->model))
        TRY(eval_video(app, o, runs, n_runs, err));
    else
        TRY(eval_language(app, o, runs, n_runs, err));
out:
    method_runs_free(runs, n_all);
    free(o->ask.tokens);
    free(o->ask.depths);
    return rc;
}

const struct command cmd_eval = {
    "eval",
    "eval --model DIR -m METHOD[:key=value]... --task TASK... -o DIR\n"
    "eval --model DIR -m METHOD[:key=value]... --size TxHxW --steps 50 -o DIR",
    "run a model with a method as its attention and measure what that costs in quality",
    run,
    eval_options,
    sizeof(struct eval_opts),
    "Exact attention and all methods go through the model layer by layer together, so that every\n"
    "number is a comparison within one run. One JSON line per task cell and setting is appended "
    "to\n"
    "DIR/records.jsonl (scope model); cells that are already there are not done again.\n\n"
    "Tasks:\n"
    "  FILE                 likelihoods of a text\n"
    "  FILE.jsonl           questions, a JSON line each: prompt, answers, metric (doc/eval.md)\n"
    "  needle               one key and value in a long text; the value is asked for\n"
    "  multi:n=8            n of them; one is asked for\n"
    "  kv                   nothing but keys and values\n"
    "  chain:h=4            every value leads to the next key\n"
    "  copy:lines=12:cue=3  the first lines of a passage again; it goes on as before\n"
    "  track:h=4            names that have one value (English)\n\n"
    "Examples:\n"
    "  lacuna eval --model datasets/models/code-lm -m streaming -m sale --task core/mask.c -o out\n"
    "  lacuna eval --model DIR -m spargeattn:tau=0.5,0.9 --dense-layers 0 --task t.txt -n 4K -o "
    "out\n"
    "  lacuna eval --model DIR -m sale --task needle --tokens 2K,8K --depth 0,0.5,1 --trials 5 -o "
    "out\n",
};
