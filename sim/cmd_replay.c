/*
 * cmd_replay.c - `lacuna replay`: methods over the heads of traces, one record per cell.
 */
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/text.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/mem.h"
#include "core/permute.h"
#include "core/shard.h"
#include "sim/decode/decodelayer.h"
#include "sim/devicemap.h"
#include "sim/replay.h"
#include "sim/staticmasks.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct replay_opts {
    struct common_opts c;
    struct str_list methods;
    int phase, backend, select_backend, metrics_backend, precision, l2, timer;
    int64_t samples, copies;
    char *layers, *heads, *steps, *branch, *permute, *shard;
    char *dump_masks, *dump_outputs, *out;
    bool allow_nonfinite, counters, read_ahead, ceilings;
};

enum { DEFAULT_SAMPLES = 20 }; /* as in the table: on a CPU another number would change nothing */

static const char *const phases[] = {"prefill", "decode", NULL};
static const char *const backends[] = {"cpu", "cuda", NULL};
static const char *const select_backends[] = {"auto", "cpu", "cuda", NULL};
static const char *const metrics_backends[] = {"auto", "cpu", "cuda", NULL};
static const char *const l2_states[] = {"warm", "cold", NULL};
static const char *const timers[] = {"cupti", "events", NULL};
static const char *const precisions[] = {"f64", "f32", NULL};

static const struct opt options[] = {
    OPT_AS("method", OPT_LIST, struct replay_opts, methods, NULL,
           .help = "Method with parameters, NAME[:key=value]...[@METRIC=TARGET]; key=a,b,c sweeps. "
                   "Repeatable.",
           .flags = OPT_MAIN, .short_name = 'm', .arg = "METHOD"),
    OPT_AS("output", OPT_STR, struct replay_opts, out, NULL,
           .help =
               "Directory for records.jsonl and manifest.json; an interrupted run continues there.",
           .flags = OPT_MAIN, .short_name = 'o', .arg = "DIR"),
    OPT_ENUM(struct replay_opts, phase, "prefill", phases,
             "Which rows: all of a call at once, or those of generated tokens one by one, so that "
             "keys can be evicted between them.",
             .flags = OPT_MAIN),
    OPT_ENUM(struct replay_opts, backend, "cpu", backends, "Where the methods run.",
             .flags = OPT_MAIN),
    OPT_AS("select-backend", OPT_ENUM, struct replay_opts, select_backend, "auto",
           .values = select_backends,
           .help =
               "With cuda: where masks are chosen; auto = on the GPU where the method has a GPU "
               "side."),
    OPT_AS("metrics-backend", OPT_ENUM, struct replay_opts, metrics_backend, "auto",
           .values = metrics_backends,
           .help =
               "With cuda: where recall, errors and the statistics of the exact map are computed; "
               "auto = on the GPU, cpu = against the exact reference."),
    OPT_ENUM(struct replay_opts, precision, "f64", precisions,
             "Arithmetic of the exact reference: f64 (as the metrics are defined) or f32 "
             "(faster, agrees to about 1e-6).",
             .flags = OPT_MAIN),
    OPT_INT(
        struct replay_opts, samples, "20", 0, 1000, "",
        "With cuda: timed runs of everything from choosing the masks to the outputs, in turns with "
        "dense attention; 0 = no times.",
        .arg = "N"),
    OPT_INT(struct replay_opts, copies, NULL, 0, 1024, "",
            "With cuda: replay heads one by one and time a head by a launch of N copies of it, "
            "divided by N; 0 = as many as the trace has query heads, but no more than keep the GPU "
            "busy. Not given: all heads of a call at once, whose times are the call's.",
            .arg = "N"),
    OPT_BOOL(
        struct replay_opts, ceilings, "0",
        "With cuda: measure the GPU's best rates again. Otherwise those that DIR keeps of this "
        "GPU and driver stand in the manifest."),
    OPT_AS("read-ahead", OPT_BOOL, struct replay_opts, read_ahead, "1",
           .help = "With cuda: read and check the next call while the GPU has the present one; "
                   "both are in "
                   "memory then. 0 = read each when it is needed."),
    OPT_BOOL(struct replay_opts, counters, "0",
             "With cuda: read hardware counters of each attention (tensor pipe, bytes of GPU "
             "memory) instead of timing it; where that is not permitted, a note in the record "
             "says so."),
    OPT_ENUM(struct replay_opts, l2, "warm", l2_states,
             "With cuda: state of the L2 cache before a timed launch, as the last one left it "
             "or overwritten."),
    OPT_ENUM(struct replay_opts, timer, "cupti", timers,
             "With cuda: kernel times from CUPTI (events without it) or from CUDA events."),
    OPT_STR(struct replay_opts, layers, "all", "LIST", "Layers, as in 0,4-7.", .flags = OPT_MAIN),
    OPT_STR(struct replay_opts, heads, "all", "LIST", "Query heads.", .flags = OPT_MAIN),
    OPT_STR(struct replay_opts, steps, "all", "LIST", "Denoising steps."),
    OPT_STR(struct replay_opts, branch, "", "NAME", "Guidance branch, such as cond; all if empty."),
    OPT_STR(struct replay_opts, permute, "none", "NAME",
            "Token order of video traces: none, row, column, time, random, hilbert, "
            "voxel:AxBxC or tile:AxBxC."),
    OPT_AS("dump-masks", OPT_STR, struct replay_opts, dump_masks, NULL,
           .help = "Write every mask to this HDF5 file.", .arg = "FILE"),
    OPT_AS("dump-outputs", OPT_STR, struct replay_opts, dump_outputs, NULL,
           .help = "Write every method's output and log-sum-exp to this HDF5 file.", .arg = "FILE"),
    OPT_AS("allow-nonfinite", OPT_BOOL, struct replay_opts, allow_nonfinite, "0",
           .help = "Skip heads whose q, k or v hold NaN or infinity; else refuse the trace."),
    OPT_STR(struct replay_opts, shard, NULL, "I/N",
            "Do part I of N (from 0); default: from the environment of mpirun, srun or a job "
            "array."),
    COMMON_OPTS,
    {0},
};

static void records_path(const char *dir, const struct shard *s, char *path, size_t size)
{
    char name[96];
    shard_file_name(s, "records", "jsonl", name);
    snprintf(path, size, "%s/%s", dir, name);
}

struct totals {
    int64_t cells, todo, searches, bytes, memory;
    double flop;
};

/* Of the decode phase a thread's part of the layer that all of them work on. */
static int64_t memory_per_thread(const struct replay *r, const struct trace_meta *m, int jobs)
{
    return r->decode ? decode_memory(m, r->load.precision) / jobs
                     : head_load_memory(m, r->load.precision);
}

static struct totals plan_totals(const struct replay *r, int jobs)
{
    struct totals t = {0};
    for (int64_t i = 0; i < r->n_series; i++) {
        const struct series *s = r->series + i;
        const struct trace_meta *m = trace_meta(r->traces[s->trace]);
        int64_t mem = memory_per_thread(r, m, jobs);
        t.cells += s->cells;
        t.todo += s->todo;
        t.searches += s->searches;
        t.flop += 2 * s->cost;
        if (s->todo)
            t.bytes += s->n_calls * head_load_bytes(m);
        if (mem > t.memory)
            t.memory = mem;
    }
    return t;
}

static void print_totals(const struct totals *t, int jobs, double seconds)
{
    char searched[64] = "", read[24], memory[24], time[48];
    bytes_text((double)t->bytes, read);
    bytes_text((double)t->memory, memory);
    estimate_text(seconds, time);
    if (t->searches)
        snprintf(searched, sizeof searched, ", %lld of them searched", (long long)t->searches);
    printf("%lld cells (%lld already done, %lld to do%s), %s to read, about %s of memory "
           "per thread, %d threads, %s\n",
           (long long)t->cells, (long long)(t->cells - t->todo), (long long)t->todo, searched, read,
           memory, jobs, time);
}

static int print_plan(const struct replay *r, const struct replay_opts *o,
                      const struct shard *shard, struct err *err)
{
    int jobs = cmd_jobs(&o->c);
    struct totals t = plan_totals(r, jobs);
    double rate = 1;
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    PASS_ON(attn_rate(r->load.precision, &rate, err));
    double seconds = t.flop / rate / jobs;
    jw_init(&w, &b, 2);
    jw_obj(&w);
    jw_members(&w, JW_INT("cells", t.cells), JW_INT("cells_done", t.cells - t.todo),
               JW_INT("cells_to_do", t.todo), JW_INT("cells_searched", t.searches),
               JW_INT("bytes_to_read", t.bytes), JW_INT("memory_bytes_per_thread", t.memory),
               JW_INT("threads", jobs), JW_NUM("estimated_seconds", seconds),
               JW_INT("shard", shard->index), JW_INT("shards", shard->count));
    if (r->device.accel)
        jw_kint(&w, "local_rank", shard->local);
    jw_obj_end(&w);
    PASS_ON(buf_check(&b, "plan", err));
    if (o->c.json)
        printf("%s\n", buf_str(&b));
    else
        print_totals(&t, jobs, seconds);
    if (r->device.accel && !o->c.json)
        printf("shard %lld of %lld, with the GPU of local rank %d\n", (long long)shard->index,
               (long long)shard->count, shard->local);
    return 0;
}

static int print_result(const struct replay *r, const struct replay_opts *o, int64_t before,
                        struct err *err)
{
    struct buf b = {0};
    struct jw w;
    setting_tally_warn(r->runs, r->tally, r->n_runs);
    if (!o->c.json) {
        log_info("%s: %lld ok, %lld skipped, %lld failed, %lld already done", o->out,
                 (long long)r->done_ok, (long long)r->done_skip, (long long)r->done_error,
                 (long long)before);
    } else {
        jw_init(&w, &b, 2);
        jw_row(&w, JW_STR("directory", o->out), JW_INT("ok", r->done_ok),
               JW_INT("skip", r->done_skip), JW_INT("error", r->done_error),
               JW_INT("already_done", before));
        printf("%s\n", buf_str(&b));
        buf_free(&b);
    }
    if (r->done_error)
        return err_set(err, ERR_RUN, "%lld cells failed; their records in %s say why",
                       (long long)r->done_error, o->out);
    return 0;
}

/* What a dry run counts as done: nothing under --force, which redoes everything. */
static int peek_records(const struct replay_opts *o, struct replay *r, const struct shard *shard,
                        struct err *err)
{
    char path[4096];
    if (!o->out || o->c.force)
        return 0;
    records_path(o->out, shard, path, sizeof path);
    return record_file_peek(path, &r->records, err);
}

static int begin_outputs(const struct app *app, const struct replay_opts *o, struct replay *r,
                         const struct shard *shard, struct manifest **manifest, struct err *err)
{
    char path[4096], name[96];
    for (int t = 0; t < r->n_traces; t++) {
        if ((o->dump_masks || o->dump_outputs) && trace_meta(r->traces[t])->row_group)
            return err_set(err, ERR_USAGE,
                           "%s holds a sample of query rows: dumps are of whole masks and outputs",
                           trace_path(r->traces[t]));
        PASS_ON(refuse_input(o->dump_masks, trace_path(r->traces[t]), err));
        PASS_ON(refuse_input(o->dump_outputs, trace_path(r->traces[t]), err));
    }
    if (o->dump_masks && o->dump_outputs && strcmp(o->dump_masks, o->dump_outputs) == 0)
        return err_set(err, ERR_USAGE, "--dump-masks and --dump-outputs name one file: %s",
                       o->dump_masks);
    PASS_ON(make_dirs(o->out, err));
    records_path(o->out, shard, path, sizeof path);
    if (o->c.force)
        PASS_ON(record_file_reopen(path, &r->records, err));
    else
        PASS_ON(record_file_open(path, &r->records, err));
    shard_file_name(shard, "manifest", "json", name);
    bool replace = o->c.force || manifest_killed(o->out, name, app->argc, app->argv);
    if (o->dump_masks)
        PASS_ON(maskfile_create(o->dump_masks, replace, &r->masks, err));
    if (o->dump_outputs)
        PASS_ON(outfile_create(o->dump_outputs, replace, &r->outputs, err));
    PASS_ON(manifest_start_as(o->out, name, app->argc, app->argv, manifest, err));
    if (o->c.force)
        manifest_accept_changes(*manifest);
    for (int64_t i = 0; i < r->n_traces; i++)
        PASS_ON(manifest_input(*manifest, trace_path(r->traces[i]), trace_id(r->traces[i]), err));
    return 0;
}

/* Dumps become files on success only; records are good at any time. */
static int end_outputs(struct replay *r, struct manifest **manifest, int run_rc, struct err *err)
{
    int rc = run_rc;
    if (rc == 0 && r->masks)
        rc = maskfile_commit(&r->masks, err);
    if (rc == 0 && r->outputs)
        rc = cellfile_commit(&r->outputs, err);
    maskfile_abort(&r->masks);
    cellfile_abort(&r->outputs);
    record_file_close(&r->records);
    return manifest_end(manifest, rc, err);
}

/* Which GPU this process has: of several, the launcher's local rank picks one. */
static void say_gpu(const json_t *gpu, int local_rank)
{
    const char *name = json_string_value(json_object_get(gpu, "name"));
    const char *uuid = json_string_value(json_object_get(gpu, "uuid"));
    long long device = (long long)json_integer_value(json_object_get(gpu, "device"));
    log_info("local rank %d has GPU %lld: %s, %s", local_rank, device, name ? name : "no name",
             uuid ? uuid : "no uuid");
}

/* GPU, driver, timer and ceilings of this run into the manifest. */
static int describe_gpu(const struct replay *r, const struct replay_opts *o, int local_rank,
                        struct manifest *manifest, struct err *err)
{
    OWN(json_decrefp) json_t *gpu = NULL;
    if (!r->device.accel)
        return 0;
    PASS_ON(rates_of_gpu(&r->device, o->out, o->ceilings, &gpu, err));
    say_gpu(gpu, local_rank);
    manifest_json(manifest, "gpu", json_incref(gpu));
    return 0;
}

static int open_backend(const struct app *app, const struct replay_opts *o, struct replay *r,
                        const struct shard *shard, struct err *err)
{
    struct accel_options how = {.local_rank = shard->local,
                                .samples = (int)o->samples,
                                .copies = o->copies < 0 ? 0 : (int)o->copies,
                                .l2_cold = o->l2 == 1,
                                .events = o->timer == 1,
                                .counters = o->counters};
    const struct {
        bool given;
        const char *option, *why;
    } only_cuda[] = {
        {o->counters, "counters", ""},
        {o->ceilings, "ceilings", ""},
        {o->metrics_backend == 2, "metrics-backend cuda", ""},
        {o->copies >= 0, "copies", ", the CPU is not timed"},
        {o->l2, "l2", ", the CPU is not timed"},
        {o->timer, "timer", ", the CPU is not timed"},
        {o->samples && o->samples != DEFAULT_SAMPLES, "samples", ", the CPU is not timed"},
        {o->select_backend == SELECT_GPU, "select-backend cuda", ""}};
    for (size_t i = 0; o->backend == 0 && i < sizeof only_cuda / sizeof *only_cuda; i++)
        if (only_cuda[i].given)
            return err_set(err, ERR_USAGE, "replay: --%s needs --backend cuda%s",
                           only_cuda[i].option, only_cuda[i].why);
    if (o->backend == 0)
        return 0;
    if (r->decode)
        return err_set(err, ERR_USAGE, "replay: --phase decode runs on the CPU: --backend cpu");
    r->device.select = (enum select_where)o->select_backend;
    r->device.metrics = o->metrics_backend != 1;
    if (!app->accel)
        return err_set(err, ERR_MACHINE,
                       "replay: --backend cuda needs a build with CUDA (make CUDA=1)");
    r->device.accel = app->accel;
    r->device.calls = o->copies < 0;
    r->read_ahead = r->device.calls && o->read_ahead;
    r->device.timed = r->device.calls && (o->samples > 0 || o->counters);
    if (o->c.dry_run)
        return 0;
    PASS_ON(static_masks_new(static_masks_room(), cmd_jobs(&o->c), &r->device.statics, err));
    return r->device.accel->open(&how, &r->device.session, err);
}

static int replay_run(const struct app *app, const struct replay_opts *o, struct replay *r,
                      struct err *err)
{
    int rc = 0;
    struct shard shard;
    struct manifest *manifest = NULL;
    struct call_select sel = {o->layers, o->heads, o->steps, o->branch};
    int64_t before = 0;
    TRY(shard_from_env(o->shard, &shard, err));
    shard_warn_bound("replay");
    TRY(open_backend(app, o, r, &shard, err));
    if (!o->out && !o->c.dry_run)
        FAIL(err, ERR_USAGE, "replay: -o DIR is missing");
    if (o->c.dry_run)
        TRY(peek_records(o, r, &shard, err));
    else
        TRY(begin_outputs(app, o, r, &shard, &manifest, err));
    TRY(replay_plan(r, &sel, err));
    TRY(replay_shard(r, &shard, err));
    TRY(replay_groups(r, err));
    if (o->c.dry_run) {
        TRY(print_plan(r, o, &shard, err));
        goto out;
    }
    /* Not before all that can be refused was: a mistyped option must not cost the results. */
    if (o->c.force)
        TRY(record_file_clear(r->records, err));
    struct totals t = plan_totals(r, cmd_jobs(&o->c));
    before = t.cells - t.todo;
    manifest_num(manifest, "seed", (double)r->seed);
    manifest_num(manifest, "cells", (double)t.cells);
    manifest_num(manifest, "cells_before", (double)before);
    TRY(describe_gpu(r, o, shard.local, manifest, err));
    TRY(manifest_write(manifest, err));
    TRY(replay_execute(r, cmd_jobs(&o->c), err));
    if (r->device.accel)
        manifest_num(manifest, "gpu_bytes_peak",
                     (double)r->device.accel->bytes_peak(r->device.session));
out:
    rc = end_outputs(r, &manifest, rc, err);
    return rc ? rc : o->c.dry_run ? 0 : print_result(r, o, before, err);
}

static int run(const struct app *app, void *opts, struct str_list *paths, struct err *err)
{
    struct replay_opts *o = opts;
    struct replay r = {0};
    int rc = 0;
    TRY(permute_check(o->permute, err));
    r.seed = (uint64_t)o->c.seed;
    r.load.precision = o->precision == 0 ? PREC_F64 : PREC_F32;
    r.load.permute = o->permute;
    r.load.seed = r.seed;
    r.load.allow_nonfinite = o->allow_nonfinite;
    if (o->methods.n == 0)
        FAIL(err, ERR_USAGE, "replay: no method given (-m NAME; see `lacuna list methods`)");
    TRY(method_runs_parse_all(app->methods, o->methods.items, o->methods.n, &r.runs, &r.n_runs,
                              err));
    if (paths->n == 0)
        FAIL(err, ERR_USAGE, "replay: no trace given (lacuna replay T.h5 -m METHOD -o DIR)");
    TRY(traces_open(paths->items, paths->n, &r.traces, &r.n_traces, err));
    r.decode = o->phase == 1;
    TRY((r.decode ? traces_decode : traces_prefill)(r.traces, r.n_traces, err));
    TRY(replay_run(app, o, &r, err));
out:
    if (r.device.accel)
        r.device.accel->close(&r.device.session);
    static_masks_free(&r.device.statics);
    method_runs_free(r.runs, r.n_runs);
    replay_free(&r);
    return rc;
}

const struct command cmd_replay = {
    "replay",
    "replay T.h5... -m METHOD[:key=value]... -o DIR",
    "run sparse-attention methods over captured heads",
    run,
    options,
    sizeof(struct replay_opts),
    "Every (step, branch, layer, head) of the traces is replayed with every method. One JSON line "
    "per\n"
    "cell is appended to DIR/records.jsonl with all metrics against exact dense attention; cells "
    "that\n"
    "are already there are not done again. `lacuna list methods -v` shows methods and parameters,\n"
    "`lacuna list metrics` what is measured.\n\n"
    "METHOD@METRIC=TARGET, @METRIC>=TARGET or @METRIC<=TARGET searches the method's budget\n"
    "parameter until a metric of the record has that value: in every head on its own, or with\n"
    ":per=layer or :per=model one value for all heads. Records hold what was found and how far\n"
    "from the target it stayed (found, budget_miss). `lacuna list methods -v` names budgets.\n\n"
    "Examples:\n"
    "  lacuna replay t.h5 -m dense -m streaming:sink=4:window=512 -o out\n"
    "  lacuna replay t.h5 -m sale:tau=0.001,0.004,0.016 --layers 2-5 -o out\n"
    "  lacuna replay t.h5 -m xattention@density_elem=0.1,0.2,0.3 -m 'sale@cra_p1>=0.95' -o out\n",
};
