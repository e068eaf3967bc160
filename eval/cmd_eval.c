/*
 * cmd_eval.c - `lacuna eval`: options, and the directory that receives the records.
 */
#include "capture/foreign.h"
#include "capture/wan_config.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/gemm.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/mem.h"
#include "eval/evalargs.h"
#include "eval/evalrun.h"
#include "eval/evalvideo.h"
#include "eval/predictions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const bos_values[] = {"auto", "yes", "no", NULL};
static const char *const qkv_values[] = {"f32", "model", NULL};
static const char *const decode_values[] = {"dense", "method", NULL};
static const char *const skip_values[] = {"skip", "dense", NULL};
static const char *const truncate_values[] = {"middle", "error", NULL};
static const char *const devices[] = {"cpu", "cuda", NULL};
static const char *const precisions[] = {"f32", "f64", NULL};

/* clang-format off */
static const struct opt options[] = {
    {.name = "model", .type = OPT_STR, .offset = offsetof(struct eval_opts, model), .arg = "DIR",
     .flags = OPT_UNSET,
     .help = "Checkpoint directory: Llama, Mistral, Qwen2, Qwen3 (Hugging Face) or Wan 2.1 "
             "(diffusers)."},
    {.name = "method", .type = OPT_LIST, .offset = offsetof(struct eval_opts, methods),
     .short_name = 'm', .arg = "METHOD", .flags = OPT_UNSET,
     .help = "Method with parameters, NAME[:key=value]...; key=a,b,c sweeps. Repeatable. Exact "
             "attention always runs beside them and is recorded as dense."},
    {.name = "task", .type = OPT_LIST, .offset = offsetof(struct eval_opts, tasks),
     .short_name = 't', .arg = "TASK", .flags = OPT_UNSET,
     .help = "What the model is asked: needle, multi, kv, chain, copy or track with parameters "
             "(NAME[:key=value]...), a task file (*.jsonl), or any other text file, whose "
             "likelihoods are measured. Repeatable."},
    {.name = "output", .type = OPT_STR, .offset = offsetof(struct eval_opts, out),
     .short_name = 'o', .arg = "DIR", .flags = OPT_UNSET,
     .help = "Directory for records.jsonl, predictions.jsonl and manifest.json; an interrupted run "
             "continues there."},
    {.name = "tokens", .type = OPT_STR, .offset = offsetof(struct eval_opts, tokens),
     .short_name = 'n', .arg = "LIST", .flags = OPT_UNSET, .unit = "tokens",
     .help = "Lengths, as in 2K,16K (K = 1024): of a text's windows (default: the whole text or "
             "the model's context), of generated prompts with their answers (default: 2K, 4K, "
             "... up to the context)."},
    {.name = "depth", .type = OPT_STR, .offset = offsetof(struct eval_opts, depth), .arg = "LIST",
     .flags = OPT_UNSET,
     .help = "Generated prompts: where the asked item stands, 0 = front, 1 = end (default: "
             "0,0.25,0.5,0.75,1)."},
    {.name = "trials", .type = OPT_INT, .offset = offsetof(struct eval_opts, trials), .arg = "N",
     .def = "10", .min = 1, .max = 1e6, .help = "Generated prompts: samples of each length and "
                                                "depth."},
    {.name = "haystack", .type = OPT_STR, .offset = offsetof(struct eval_opts, haystack),
     .arg = "FILE", .flags = OPT_UNSET,
     .help = "Generated prompts: hide things between the lines of this text instead of generated "
             "ones."},
    {.name = "chat", .type = OPT_STR, .offset = offsetof(struct eval_opts, chat), .arg = "TEXT",
     .flags = OPT_UNSET,
     .help = "Prompts: text around each, with {prompt} in it; special tokens count in TEXT and not "
             "in the prompt."},
    {.name = "stride", .type = OPT_INT, .offset = offsetof(struct eval_opts, stride), .arg = "S",
     .def = "0", .min = 0, .max = 1e9, .unit = "tokens",
     .help = "Text: a window begins S tokens after the one before and scores its last S; 0: no "
             "overlap."},
    {.name = "windows", .type = OPT_INT, .offset = offsetof(struct eval_opts, windows), .arg = "N",
     .def = "0", .min = 0, .max = 1e9, .help = "Text: the first N windows only; 0: all."},
    {.name = "score-from", .type = OPT_INT, .offset = offsetof(struct eval_opts, score_from),
     .arg = "P", .def = "1", .min = 1, .max = 1e9, .unit = "tokens",
     .help = "Text: the first position of a window that is scored."},
    {.name = "bos", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, bos), .def = "auto",
     .values = bos_values,
     .help = "Whether a beginning-of-text token stands first; auto: as the tokenizer says."},
    {.name = "template", .type = OPT_STR, .offset = offsetof(struct eval_opts, template),
     .arg = "TEXT", .flags = OPT_UNSET,
     .help = "Task files: the prompt, with {context}, {input} or any other text of a line in it."},
    {.name = "truncate", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, truncate),
     .def = "middle", .values = truncate_values,
     .help = "Task files: what happens to a prompt that is longer than --tokens or the context: "
             "its middle is left out (counted as truncated), or it is refused."},
    {.name = "dense-layers", .type = OPT_STR, .offset = offsetof(struct eval_opts, dense_layers),
     .arg = "LIST", .flags = OPT_UNSET, .help = "Layers that attend exactly, as in 0,1."},
    {.name = "dense-heads", .type = OPT_STR, .offset = offsetof(struct eval_opts, dense_heads),
     .arg = "L:H,...", .flags = OPT_UNSET, .help = "Heads that attend exactly, as in 2:0,2:5."},
    {.name = "dense-below", .type = OPT_INT, .offset = offsetof(struct eval_opts, dense_below),
     .arg = "N", .def = "0", .min = 0, .max = 1e9, .unit = "tokens",
     .help = "Sequences shorter than N tokens attend exactly."},
    {.name = "dense-last", .type = OPT_STR, .offset = offsetof(struct eval_opts, dense_last),
     .arg = "R", .def = "0", .unit = "tokens",
     .help = "Last rows of the prefill that attend exactly: a number, or 'question': those behind "
             "the haystack."},
    {.name = "decode", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, decode),
     .def = "dense", .values = decode_values,
     .help = "Attention of the tokens behind the prefill: exact, or the method's."},
    {.name = "qkv", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, qkv), .def = "f32",
     .values = qkv_values,
     .help = "q, k, v as computed, or rounded to the checkpoint's type as a trace holds them "
             "(exact attention's too)."},
    {.name = "on-skip", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, on_skip),
     .def = "skip", .values = skip_values,
     .help = "A head where the method does not apply: the cell is skipped, or the head attends "
             "exactly."},
    {.name = "precision", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, precision),
     .def = "f32", .values = precisions,
     .help = "Arithmetic of the attention over a mask and of what methods ask of the exact map."},
    {.name = "device", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, device),
     .def = "cpu", .values = devices,
     .help = "Where the methods attend in a prefill or a step; cuda: on a GPU with operands "
             "rounded to bfloat16, masks chosen there where the method has a GPU side. The rest "
             "of the model and exact attention run on the CPU."},
    {.name = "local-errors", .type = OPT_BOOL, .offset = offsetof(struct eval_opts, local_errors),
     .def = "0", .min = 0, .max = 1,
     .help = "Measure each layer's error against exact attention over the same q, k, v "
             "(err_local), which costs dense attention once more."},
    {.name = "dump-masks", .type = OPT_STR, .offset = offsetof(struct eval_opts, dump_masks),
     .arg = "FILE", .flags = OPT_UNSET,
     .help = "Write every mask to this HDF5 file; for one text of one window."},
    {.name = "dump-nll", .type = OPT_STR, .offset = offsetof(struct eval_opts, dump_nll),
     .arg = "FILE", .flags = OPT_UNSET,
     .help = "Write the scored tokens' -ln p as .npy [1 + settings][tokens], exact attention "
             "first; for one text."},
    {.name = "size", .type = OPT_STR, .offset = offsetof(struct eval_opts, size), .arg = "TxHxW",
     .flags = OPT_UNSET, .help = "Video: frames x height x width of the latent, as in 16x128x192."},
    {.name = "steps", .type = OPT_INT, .offset = offsetof(struct eval_opts, steps), .arg = "N",
     .def = "50", .min = 1, .max = 10000, .unit = "steps", .help = "Video: denoising steps."},
    {.name = "shift", .type = OPT_NUM, .offset = offsetof(struct eval_opts, shift), .arg = "X",
     .def = "5", .min = 0, .max = 1000, .flags = OPT_MIN_OPEN,
     .help = "Video: timestep shift of the schedule."},
    {.name = "text", .type = OPT_STR, .offset = offsetof(struct eval_opts, text), .arg = "FILE",
     .flags = OPT_UNSET,
     .help = "Video: text embeddings, .safetensors (tensor text) or .npy; default "
             "DIR/prompts.safetensors."},
    {.name = "prompt-index", .type = OPT_INT, .offset = offsetof(struct eval_opts, prompt_index),
     .arg = "N", .def = "0", .min = 0, .max = 1e6,
     .help = "Video: which of the stacked text embeddings."},
    {.name = "negative", .type = OPT_STR, .offset = offsetof(struct eval_opts, negative),
     .arg = "FILE", .flags = OPT_UNSET,
     .help = "Video: text embeddings of the unconditional branch; default zeros. With --guidance."},
    {.name = "guidance", .type = OPT_NUM, .offset = offsetof(struct eval_opts, guidance),
     .arg = "X", .def = "1", .min = 0, .max = 100,
     .help = "Video: classifier-free guidance; above 1 every step runs the branches cond and "
             "uncond."},
    {.name = "noise", .type = OPT_STR, .offset = offsetof(struct eval_opts, noise), .arg = "FILE",
     .flags = OPT_UNSET,
     .help = "Video: starting noise, .safetensors (tensor noise) or .npy, instead of --seed."},
    {.name = "save-frames", .type = OPT_STR, .offset = offsetof(struct eval_opts, save_frames),
     .arg = "DIR", .flags = OPT_UNSET,
     .help = "Video: write each clip as PNG frames, and a strip of it below the exact one (models "
             "that denoise RGB pixels)."},
    COMMON_OPTS,
    {0},
};
/* clang-format on */

static int run(const struct app *app, int argc, char **argv, struct err *err);

const struct command cmd_eval = {
    "eval",
    "lacuna eval --model DIR -m METHOD[:key=value]... --task TASK... -o DIR\n"
    "lacuna eval --model DIR -m METHOD[:key=value]... --size TxHxW --steps 50 -o DIR",
    "run a model with a method as its attention and measure what that costs in quality",
    run,
    options,
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

/* What a run does and did: numbers of records. */
struct tally {
    int64_t all, todo, ok, skip, error, memory;
};

static int print_plan(const struct eval_opts *o, const struct tally *t, struct err *err)
{
    struct buf b = {0};
    struct jw w;
    if (!o->c.json) {
        printf("%lld records (%lld already done, %lld to do), about %.1f MB of memory\n",
               (long long)t->all, (long long)(t->all - t->todo), (long long)t->todo,
               (double)t->memory / 1e6);
        return 0;
    }
    jw_init(&w, &b, 2);
    jw_obj(&w);
    jw_kint(&w, "records", t->all);
    jw_kint(&w, "records_done", t->all - t->todo);
    jw_kint(&w, "records_to_do", t->todo);
    jw_kint(&w, "memory_bytes", t->memory);
    jw_obj_end(&w);
    printf("%s\n", buf_str(&b));
    int rc = buf_check(&b, "plan", err);
    buf_free(&b);
    return rc;
}

static int print_result(const struct eval_opts *o, const struct tally *t, struct err *err)
{
    struct buf b = {0};
    struct jw w;
    long long before = (long long)(t->all - t->todo);
    if (!o->c.json) {
        log_info("%s: %lld ok, %lld skipped, %lld failed, %lld already done", o->out,
                 (long long)t->ok, (long long)t->skip, (long long)t->error, before);
    } else {
        jw_init(&w, &b, 2);
        jw_obj(&w);
        jw_kstr(&w, "directory", o->out);
        jw_kint(&w, "ok", t->ok);
        jw_kint(&w, "skip", t->skip);
        jw_kint(&w, "error", t->error);
        jw_kint(&w, "already_done", before);
        jw_obj_end(&w);
        printf("%s\n", buf_str(&b));
        buf_free(&b);
    }
    return t->error ? err_set(err, ERR_RUN, "%lld cells failed; their records in %s say why",
                              (long long)t->error, o->out)
                    : 0;
}

/* An option of the other kind of model would not be read. */
static int check_kind(const struct eval_opts *o, bool video, struct err *err)
{
    static const char *const of_text[] = {
        "task",    "tokens",     "depth",      "trials",   "haystack", "chat",        "stride",
        "windows", "score-from", "bos",        "template", "truncate", "dense-below", "dense-last",
        "decode",  "qkv",        "dump-masks", "dump-nll", NULL};
    static const char *const of_video[] = {"size",         "steps",    "shift",    "text",
                                           "prompt-index", "negative", "guidance", "noise",
                                           "save-frames",  NULL};
    const char *const *names = video ? of_text : of_video;
    bool is_default;
    int rc = 0;
    for (; *names; names++) {
        TRY(opt_is_default(opt_find(options, *names), o, &is_default, err));
        if (!is_default)
            FAIL(err, ERR_USAGE, "eval: --%s belongs to %s models; %s is a %s model", *names,
                 video ? "language" : "video", o->model, video ? "video" : "language");
    }
out:
    return rc;
}

/* The records of a run, and its manifest. */
static int open_records(const struct app *app, const struct eval_opts *o, const char *weights,
                        struct record_file **records, struct manifest **manifest, struct err *err)
{
    char path[4096];
    int rc = 0;

    TRY(make_dirs(o->out, err));
    snprintf(path, sizeof path, "%s/records.jsonl", o->out);
    TRY((o->c.force ? record_file_reopen : record_file_open)(path, records, err));
    TRY(manifest_start(o->out, app->argc, app->argv, manifest, err));
    if (o->c.force)
        manifest_accept_changes(*manifest);
    TRY(manifest_input(*manifest, o->model, weights, err));
    manifest_num(*manifest, "seed", (double)o->c.seed);
    if (o->c.force)
        TRY(record_file_clear(*records, err));
out:
    return rc;
}

static int peek_records(const struct eval_opts *o, struct record_file **records, struct err *err)
{
    char path[4096];
    if (!o->out || o->c.force)
        return 0;
    snprintf(path, sizeof path, "%s/records.jsonl", o->out);
    return record_file_peek(path, records, err);
}

static int end_manifest(struct manifest **manifest, int rc, struct err *err)
{
    struct err own = {0};
    if (!*manifest)
        return rc;
    const char *status = rc == 0 ? "ok" : rc == ERR_INTERRUPTED ? "interrupted" : "failed";
    int wrote = manifest_finish(manifest, status, &own);
    return rc || !wrote ? rc : err_set(err, wrote, "%s", own.msg);
}

/* The GPU for the methods' attention; *d has to outlive how. */
static int open_device(const struct app *app, const struct eval_opts *o, struct sim_device *d,
                       struct eval_how *how, struct err *err)
{
    struct accel_options want = {.samples = 0, .copies = 1};
    if (o->device == 0)
        return 0;
    if (!app->accel)
        return err_set(err, ERR_MACHINE,
                       "eval: --device cuda needs a build with CUDA (make CUDA=1)");
    *d = (struct sim_device){.accel = app->accel, .select = SELECT_AUTO};
    how->device = d;
    return o->c.dry_run ? 0 : app->accel->open(&want, &d->session, err);
}

static void close_device(struct sim_device *d)
{
    if (d->accel)
        d->accel->close(&d->session);
}

/* ---- video ---------------------------------------------------------------------------------- */

static int eval_video(const struct app *app, const struct eval_opts *o,
                      const struct method_run *runs, int64_t n_runs, struct err *err)
{
    struct video_eval v = {
        .ask = {.who = "eval",
                .model = o->model,
                .size = o->size,
                .text = o->text,
                .negative = o->negative,
                .noise = o->noise,
                .prompt_index = o->prompt_index,
                .steps = o->steps,
                .shift = o->shift,
                .guidance = o->guidance,
                .seed = (uint64_t)o->c.seed},
        .runs = runs,
        .n_runs = (int)n_runs,
        .frames = o->save_frames,
        .jobs = cmd_jobs(&o->c),
    };
    struct sim_device device = {0};
    struct manifest *manifest = NULL;
    struct tally t = {.all = n_runs + 1};
    int rc = 0;

    TRY(check_kind(o, true, err));
    TRY(video_eval_open(&v, err));
    TRY(eval_how_options(o, &v.shape, DT_F32, &v.how, err));
    TRY(open_device(app, o, &device, &v.how, err));
    for (int64_t i = 0; i < n_runs; i++)
        TRY(method_calib_fits(runs + i, v.name, "none", err));
    TRY(gemm_ready(err));
    if (o->c.dry_run)
        TRY(peek_records(o, &v.records, err));
    else
        TRY(open_records(app, o, v.weights, &v.records, &manifest, err));
    TRY(video_eval_plan(&v, err));
    t.todo = v.todo;
    t.memory = video_eval_memory(&v);
    if (!o->c.dry_run)
        TRY(video_eval_run(&v, err));
out:
    record_file_close(&v.records);
    rc = end_manifest(&manifest, rc, err);
    t.ok = v.done_ok;
    t.skip = v.done_skip;
    t.error = v.done_error;
    close_device(&device);
    video_eval_close(&v);
    return rc ? rc : o->c.dry_run ? print_plan(o, &t, err) : print_result(o, &t, err);
}

/* ---- text ----------------------------------------------------------------------------------- */

static int open_tasks(const struct eval_opts *o, const struct task_opts *t, struct eval_run *r,
                      struct err *err)
{
    int rc = 0;
    if (o->tasks.n == 0)
        FAIL(err, ERR_USAGE, "eval: no task given (--task NAME or FILE)");
    TRY(mem_zalloc(&r->tasks, o->tasks.n, sizeof *r->tasks, "tasks", err));
    for (int64_t i = 0; i < o->tasks.n; i++) {
        TRY(eval_task_open(o->tasks.items[i], r->m, t, r->tasks + i, err));
        r->n_tasks++;
    }
    bool one = r->n_tasks == 1 && r->tasks[0].cells == 1 && !r->tasks[0].decodes;
    if ((o->dump_nll || o->dump_masks) && !one)
        FAIL(err, ERR_USAGE, "eval: --dump-nll and --dump-masks take one --task, a text");
out:
    return rc;
}

static int open_dumps(const struct eval_opts *o, struct eval_run *r, struct err *err)
{
    int rc = 0;
    for (int64_t i = 0; i < o->tasks.n; i++) {
        TRY(refuse_input(o->dump_masks, o->tasks.items[i], err));
        TRY(refuse_input(o->dump_nll, o->tasks.items[i], err));
    }
    if (o->dump_masks)
        TRY(maskfile_create(o->dump_masks, o->c.force, &r->how.masks, err));
out:
    return rc;
}

static int run_language(const struct app *app, const struct eval_opts *o, struct eval_run *r,
                        struct err *err)
{
    struct manifest *manifest = NULL;
    int rc = 0;

    TRY(gemm_ready(err));
    if (o->c.dry_run) {
        TRY(peek_records(o, &r->records, err));
    } else {
        TRY(open_dumps(o, r, err));
        TRY(open_records(app, o, r->m->weights, &r->records, &manifest, err));
        TRY(predictions_open(o->out, r->records, o->c.force, &r->predictions, err));
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
    return end_manifest(&manifest, rc, err);
}

static int eval_language(const struct app *app, const struct eval_opts *o,
                         const struct method_run *runs, int64_t n_runs, struct err *err)
{
    struct eval_run r = {.runs = runs, .n_runs = (int)n_runs, .dump_nll = o->dump_nll};
    struct sim_device device = {0};
    struct eval_model m = {0};
    struct task_opts t = {0};
    int rc = 0;

    TRY(check_kind(o, false, err));
    TRY(eval_model_open(&m, o->model, o->bos, err));
    TRY(eval_task_options(o, &t, err));
    struct attn_shape shape = eval_model_shape(&m);
    TRY(eval_how_options(o, &shape, m.llm.c.dtype, &r.how, err));
    TRY(open_device(app, o, &device, &r.how, err));
    r.m = &m;
    r.jobs = cmd_jobs(&o->c);
    for (int i = 0; i < r.n_runs; i++)
        TRY(method_calib_fits(runs + i, m.name, "none", err));
    TRY(open_tasks(o, &t, &r, err));
    TRY(run_language(app, o, &r, err));
    struct tally sum = {r.cells, r.todo, r.done_ok, r.done_skip, r.done_error, eval_memory(&r)};
    TRY((o->c.dry_run ? print_plan : print_result)(o, &sum, err));
out:
    close_device(&device);
    eval_run_free(&r);
    eval_task_options_free(&t);
    eval_model_close(&m);
    return rc;
}

static int run(const struct app *app, int argc, char **argv, struct err *err)
{
    struct eval_opts o;
    struct method_run *runs = NULL;
    struct str_list rest = {0};
    int64_t n_all = 0, n_runs = 0;
    bool done = false;
    int rc = 0;

    TRY(cmd_begin(&cmd_eval, &o, argc, argv, &rest, &done, err));
    if (done)
        goto out;
    if (rest.n)
        FAIL(err, ERR_USAGE, "eval: unexpected argument '%s'", rest.items[0]);
    if (!o.model)
        FAIL(err, ERR_USAGE, "eval: --model DIR is missing");
    if (!o.out && !o.c.dry_run)
        FAIL(err, ERR_USAGE, "eval: -o DIR is missing");
    TRY(foreign_refuse(o.model, err));
    mem_return_large_blocks();
    TRY(eval_methods(app->methods, &o, &runs, &n_all, &n_runs, err));
    for (int64_t i = 0; i < n_runs && !o.c.dry_run; i++)
        TRY(method_run_open(runs + i, err));
    if (wan_config_is(o.model))
        TRY(eval_video(app, &o, runs, n_runs, err));
    else
        TRY(eval_language(app, &o, runs, n_runs, err));
out:
    method_runs_free(runs, n_all);
    opt_free(options, &o);
    str_list_free(&rest);
    return rc;
}
