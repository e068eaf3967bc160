/*
 * cmd_calibrate.c - `lacuna calibrate`: per-head parameters of a method from captured inputs.
 */
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/sealed.h"
#include "core/shard.h"
#include "sim/rates.h"
#include "sim/calibrate.h"
#include "sim/devicemap.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct calibrate_opts {
    struct common_opts c;
    int backend, precision, per;
    char *out, *name, *layers, *heads, *steps, *branch, *permute, *segments, *grid;
    bool allow_nonfinite;
};

static const char *const precisions[] = {"f64", "f32", NULL};
static const char *const backends[] = {"cpu", "cuda", NULL};
static const char *const pers[] = {"head", "layer", "model", NULL};

static const struct opt options[] = {
    OPT_AS("output", OPT_STR, struct calibrate_opts, out, NULL,
           .help = "Calibration file to write (JSON).", .short_name = 'o', .arg = "FILE"),
    OPT_ENUM(struct calibrate_opts, per, "head", pers,
             "What shares parameters: every head has its own, all heads of a layer, or all of the "
             "model; their samples are then searched together, and lie in memory together."),
    OPT_STR(struct calibrate_opts, segments, NULL, "LIST",
            "Lengths at which prompts have parameters of their own, as in "
            "16384,49152,81920,114688: traces of each segment are searched by themselves, and a "
            "replay takes those of its own length."),
    OPT_STR(struct calibrate_opts, grid, NULL, "FILE.csv",
            "Write every setting that was judged, with its density, recall and error, of methods "
            "that search a grid (sampleattention, flexprefill); the result has it as well.",
            .flags = OPT_IDENTITY_NOT),
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
            "voxel:AxBxC."),
    OPT_AS("allow-nonfinite", OPT_BOOL, struct calibrate_opts, allow_nonfinite, "0",
           .help = "Use heads whose q, k or v hold NaN or infinity."),
    COMMON_OPTS,
    {0},
};

static int run(const struct app *app, int argc, char **argv, struct err *err);

const struct command cmd_calibrate = {
    "calibrate",
    "calibrate METHOD[:key=value]... T.h5... -o CALIB.json",
    "search a method's parameters per layer and head",
    run,
    options,
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

/* ---- arguments ------------------------------------------------------------------------------ */

static int parse_method(const struct app *app, const char *text, struct method_run **runs,
                        int64_t *n, struct err *err)
{
    int rc = method_runs_parse(app->methods, text, runs, n, err);
    if (rc)
        return rc;
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

static int check_output(const struct calibrate_opts *o, const struct str_list *args,
                        struct err *err)
{
    struct stat st;
    int rc = 0;
    for (int64_t i = 1; i < args->n; i++)
        TRY(refuse_input(o->out, args->items[i], err));
    if (o->out && stat(o->out, &st) == 0 && S_ISDIR(st.st_mode))
        FAIL(err, ERR_USAGE, "calibrate: %s is a directory, a file is written", o->out);
    if (!o->out && !o->c.dry_run)
        FAIL(err, ERR_USAGE, "calibrate: -o FILE is missing");
    if (o->out && !o->c.force && !o->c.dry_run && access(o->out, F_OK) == 0)
        FAIL(err, ERR_USAGE, "calibrate: %s exists; --force overwrites it", o->out);
out:
    return rc;
}

/* ---- results -------------------------------------------------------------------------------- */

/* Seconds of all searches: dense passes on the CPU, or settings judged one after the other on the
 * GPU. Rates are measured. NAN: the method does not say. */
static int estimate(const struct calibrate *c, const struct calibrate_cost *cost, int jobs,
                    double *seconds, struct err *err)
{
    const struct method *me = c->run->method;
    const struct trace_meta *m = trace_meta(c->traces[0]);
    struct judge_rate judge;
    double rate;
    int rc = 0;
    if (c->device.accel) {
        TRY(device_judge_rate(&c->device, m->head_dim, m->causal, &judge, err));
        *seconds = me->search.trials *
                   (judge.fixed * (double)cost->all_samples + judge.per_pair * cost->pairs);
    } else {
        TRY(attn_rate(c->load.precision, &rate, err));
        *seconds = me->search.passes > 0 ? me->search.passes * 2 * cost->flop / rate / jobs : NAN;
    }
out:
    return rc;
}

static int print_plan(const struct calibrate *c, const struct calibrate_opts *o, struct err *err)
{
    struct calibrate_cost cost = calibrate_costs(c);
    struct buf b = {0};
    struct jw w;
    int jobs = cmd_jobs(&o->c), rc;
    double seconds;

    jobs = jobs > c->n_jobs ? (int)c->n_jobs : jobs;
    if ((rc = estimate(c, &cost, jobs, &seconds, err)) != 0)
        return rc;
    jw_init(&w, &b, 2);
    jw_obj(&w);
    jw_kstr(&w, "method", c->run->method->name);
    jw_kstr(&w, "backend", c->device.accel ? c->device.accel->name : "cpu");
    jw_kint(&w, "heads", c->n_jobs);
    jw_kint(&w, "samples_per_head", cost.samples);
    jw_kint(&w, "bytes_to_read", cost.bytes);
    jw_kint(&w, "memory_bytes_per_thread", cost.memory);
    jw_kint(&w, "threads", jobs);
    jw_knum(&w, "estimated_seconds", seconds);
    jw_obj_end(&w);
    if ((rc = buf_check(&b, "plan", err)) == 0) {
        if (o->c.json)
            printf("%s\n", buf_str(&b));
        else
            printf("%lld searches (per %s) with up to %lld samples each, %.1f MB to read, about "
                   "%.1f MB "
                   "of memory per thread, %d threads, about %.0f s\n",
                   (long long)c->n_jobs, pers[o->per], (long long)cost.samples,
                   (double)cost.bytes / 1e6, (double)cost.memory / 1e6, jobs, seconds);
    }
    buf_free(&b);
    return rc;
}

static void report_skips(const struct calibrate *c)
{
    for (int64_t i = 0; i < c->n_jobs; i++)
        if (c->jobs[i].skip)
            log_warn("layer %d head %d (-1: all) skipped: %s", c->jobs[i].layer, c->jobs[i].head,
                     c->jobs[i].skip);
}

static int write_result(const struct calibrate *c, const struct calibrate_opts *o, struct err *err)
{
    struct buf b = {0}, summary = {0};
    struct jw w;
    int64_t skipped = calibrate_skipped(c);
    int rc = 0;

    report_skips(c);
    if (skipped == c->n_jobs)
        FAIL(err, ERR_RUN, "no head could be calibrated: %s", c->jobs[0].skip);
    jw_init(&w, &b, 2);
    calibrate_write(c, &w);
    seal_put(&b, 0);
    buf_puts(&b, "\n");
    TRY(buf_check(&b, "calibration file", err));
    TRY(file_write_atomic(o->out, buf_str(&b), b.len, err));
    if (!o->c.json) {
        log_info("%s: %lld %s, %lld skipped", o->out, (long long)(c->n_jobs - skipped),
                 c->per == CALIBRATE_HEAD && !c->n_segments ? "heads" : "searches",
                 (long long)skipped);
        goto out;
    }
    jw_init(&w, &summary, 2);
    jw_obj(&w);
    jw_kstr(&w, "file", o->out);
    jw_kstr(&w, "method", c->run->method->name);
    jw_kint(&w, "heads", c->n_jobs - skipped);
    jw_kint(&w, "skipped", skipped);
    jw_obj_end(&w);
    TRY(buf_check(&summary, "summary", err));
    printf("%s\n", buf_str(&summary));
out:
    buf_free(&b);
    buf_free(&summary);
    return rc;
}

static int write_grid(const struct calibrate *c, const struct calibrate_opts *o, struct err *err)
{
    struct buf csv = {0};
    int rc = 0;
    if (!calibrate_grid(c, &csv))
        FAIL(err, ERR_USAGE,
             "calibrate: %s searches no grid whose settings could be written to %s; %s is complete",
             c->run->method->name, o->grid, o->out);
    TRY(buf_check(&csv, o->grid, err));
    TRY(file_write_atomic(o->grid, csv.data, csv.len, err));
out:
    buf_free(&csv);
    return rc;
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
    int rc = 0;

    if (o->backend == 0)
        return 0;
    if (!app->accel)
        FAIL(err, ERR_MACHINE, "calibrate: --backend cuda needs a build with CUDA (make CUDA=1)");
    TRY(shard_from_env("0/1", &shard, err)); /* a calibration has no parts */
    how.local_rank = shard.local;
    c->device = (struct sim_device){.accel = app->accel, .metrics = true};
    TRY(app->accel->open(&how, &c->device.session, err));
    if (calibrate_on_device(c, why))
        return 0;
    log_warn("calibrate: %s is searched on the CPU: %s", c->run->method->name, why);
    app->accel->close(&c->device.session);
    c->device = (struct sim_device){0};
out:
    return rc;
}

static int run(const struct app *app, int argc, char **argv, struct err *err)
{
    struct calibrate_opts o;
    struct calibrate c = {0};
    struct str_list args = {0};
    struct method_run *runs = NULL;
    struct buf name = {0}, journal = {0};
    int64_t n_runs = 0;
    bool done = false;
    int rc = 0;

    TRY(cmd_begin(&cmd_calibrate, &o, argc, argv, &args, &done, err));
    if (done)
        goto out;
    if (args.n == 0)
        FAIL(err, ERR_USAGE,
             "calibrate: no method given (lacuna calibrate METHOD T.h5... -o FILE)");
    TRY(parse_method(app, args.items[0], &runs, &n_runs, err));
    c.run = &runs[0];
    c.per = (enum calibrate_per)o.per;
    c.load.precision = o.precision == 0 ? PREC_F64 : PREC_F32;
    c.load.seed = (uint64_t)o.c.seed;
    c.load.allow_nonfinite = o.allow_nonfinite;
    TRY(choose_order(&c, &o, err));
    TRY(check_output(&o, &args, err));
    if (args.n < 2)
        FAIL(err, ERR_USAGE, "calibrate: no trace given (lacuna calibrate METHOD T.h5... -o FILE)");
    TRY(traces_open(args.items + 1, args.n - 1, &c.traces, &c.n_traces, err));
    TRY(traces_whole(c.traces, c.n_traces, "the searches need all rows of a head", err));
    TRY(calibrate_plan(&c, &(struct call_select){o.layers, o.heads, o.steps, o.branch}, o.segments,
                       err));
    TRY(open_backend(app, &o, &c, err));
    if (o.c.dry_run) {
        TRY(print_plan(&c, &o, err));
        goto out;
    }
    TRY(name_result(&o, &name, err));
    c.name = buf_str(&name);
    buf_printf(&journal, "%s.journal", o.out);
    TRY(buf_check(&journal, o.out, err));
    if (o.c.force)
        unlink(buf_str(&journal));
    TRY(calibrate_execute(&c, buf_str(&journal), cmd_jobs(&o.c), err));
    TRY(write_result(&c, &o, err));
    if (o.grid)
        TRY(write_grid(&c, &o, err));
    unlink(buf_str(&journal));
out:
    if (c.device.accel)
        c.device.accel->close(&c.device.session);
    calibrate_free(&c);
    buf_free(&name);
    buf_free(&journal);
    traces_close(&c.traces, c.n_traces);
    method_runs_free(runs, n_runs);
    opt_free(options, &o);
    str_list_free(&args);
    return rc;
}
