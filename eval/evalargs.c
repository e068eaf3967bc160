/*
 * evalargs.c - see evalargs.h.
 */
#include "eval/evalargs.h"

#include "capture/video_input.h"
#include "core/indexlist.h"
#include "core/mem.h"
#include "eval/taskfile.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const bos_values[] = {"auto", "yes", "no", NULL};
static const char *const qkv_values[] = {"f32", "model", NULL};
static const char *const decode_values[] = {"dense", "method", NULL};
static const char *const skip_values[] = {"skip", "dense", NULL};
static const char *const truncate_values[] = {
    [TRUNCATE_MIDDLE] = "middle", [TRUNCATE_ERROR] = "error", NULL};
static const char *const devices[] = {"cpu", "cuda", NULL};
static const char *const precisions[] = {"f32", "f64", NULL};

const struct opt eval_options[] = {
    OPT_STR(struct eval_opts, model, NULL, "DIR",
            "Checkpoint directory: Llama, Mistral, Qwen2, Qwen3 (Hugging Face) or Wan 2.1 "
            "(diffusers); or a GGUF file.",
            .flags = OPT_MAIN),
    OPT_AS("method", OPT_LIST, struct eval_opts, methods, NULL,
           .help = "Method, NAME[:key=value]...; key=a,b,c sweeps. Repeatable. Exact attention "
                   "always runs too, as dense.",
           .flags = OPT_MAIN, .short_name = 'm', .arg = "METHOD"),
    OPT_AS("task", OPT_LIST, struct eval_opts, tasks, NULL,
           .help = "What the model is asked (below): a generated prompt, a task file or a text. "
                   "Repeatable.",
           .flags = OPT_MAIN, .short_name = 't', .arg = "TASK", .only = "language models"),
    OPT_AS("output", OPT_STR, struct eval_opts, out, NULL,
           .help = "Directory of the records; an interrupted run continues there.",
           .flags = OPT_MAIN, .short_name = 'o', .arg = "DIR"),
    OPT_STR(struct eval_opts, tokens, NULL, "LIST",
            "Lengths, as in 2K,16K (K = 1024), of a text's windows (default: all, up to the "
            "context) and of generated prompts with their answers (default: 2K, 4K, ... up to the "
            "context).",
            .flags = OPT_MAIN, .unit = "tokens", .short_name = 'n', .only = "language models"),
    OPT_STR(struct eval_opts, depth, NULL, "LIST",
            "where the asked item stands, 0 = front, 1 = end (default: 0,0.25,0.5,0.75,1).",
            .only = "generated prompts"),
    OPT_AS("trials", OPT_INT, struct eval_opts, ask.trials, "10", .min = 1, .max = 1e6,
           .help = "samples of each length and depth.", .arg = "N", .only = "generated prompts"),
    OPT_AS("haystack", OPT_STR, struct eval_opts, ask.haystack, NULL, .arg = "FILE",
           .help = "hide things between the lines of this text instead of generated ones.",
           .only = "generated prompts"),
    OPT_AS("chat", OPT_STR, struct eval_opts, ask.chat, NULL, .arg = "TEXT",
           .help = "text around each, with {prompt} in it; special tokens count in TEXT and not in "
                   "the prompt.",
           .only = "generated prompts, task files"),
    OPT_AS("stride", OPT_INT, struct eval_opts, ask.stride, "0", .min = 0, .max = 1e9,
           .unit = "tokens", .arg = "S", .only = "texts",
           .help = "a window begins S tokens after the one before and scores its last S; 0: no "
                   "overlap."),
    OPT_AS("windows", OPT_INT, struct eval_opts, ask.windows, "0", .min = 0, .max = 1e9,
           .help = "the first N windows only; 0: all.", .arg = "N", .only = "texts"),
    OPT_AS("score-from", OPT_INT, struct eval_opts, ask.score_from, "1", .min = 1, .max = 1e9,
           .unit = "tokens", .help = "the first position of a window that is scored.", .arg = "P",
           .only = "texts"),
    OPT_ENUM(struct eval_opts, bos, "auto", bos_values,
             "Whether a beginning-of-text token stands first; auto: as the tokenizer says.",
             .only = "language models"),
    OPT_AS("template", OPT_STR, struct eval_opts, ask.template, NULL, .arg = "TEXT",
           .help = "the prompt, with {context}, {input} or any other text of a line in it; "
                   "{OPTION_A}, {OPTION_B}...: its options.",
           .only = "task files"),
    OPT_AS("grade", OPT_ENUM, struct eval_opts, ask.metric, NULL, .values = text_metric_names,
           .help = "how to grade lines that name no metric.", .only = "task files"),
    OPT_AS("max-new", OPT_INT, struct eval_opts, ask.max_new, "32", .min = 1, .max = 1 << 20,
           .unit = "tokens", .help = "room for the answer to lines that do not say it.", .arg = "N",
           .only = "task files"),
    OPT_AS("truncate", OPT_ENUM, struct eval_opts, ask.truncate, "middle",
           .values = truncate_values, .only = "task files",
           .help = "what happens to a prompt that is longer than --tokens or the context: its "
                   "middle is left out (counted as truncated), or it is refused."),
    OPT_AS("dense-layers", OPT_STR, struct eval_opts, dense_layers, NULL,
           .help = "Layers that attend exactly, as in 0,1.", .arg = "LIST"),
    OPT_AS("dense-heads", OPT_STR, struct eval_opts, dense_heads, NULL,
           .help = "Heads that attend exactly, as in 2:0,2:5.", .arg = "L:H,..."),
    OPT_AS("dense-below", OPT_INT, struct eval_opts, dense_below, "0", .min = 0, .max = 1e9,
           .unit = "tokens", .help = "Sequences shorter than N tokens attend exactly.", .arg = "N",
           .only = "language models"),
    OPT_AS(
        "dense-last", OPT_STR, struct eval_opts, dense_last, "0", .unit = "tokens",
        .help =
            "Last rows of the prefill that attend exactly: a number, or 'question': those behind "
            "the haystack.",
        .arg = "R", .only = "language models"),
    OPT_AS(
        "prefill-chunk", OPT_INT, struct eval_opts, prefill_chunk, "0", .min = 0, .max = 1e9,
        .unit = "tokens",
        .help =
            "Call the method with at most C rows of a prefill and the keys up to the last of them; "
            "0: all rows in one call. Methods that need all queries do not apply then.",
        .arg = "C", .only = "language models"),
    OPT_AS(
        "calibrate-inside", OPT_STR, struct eval_opts, calibrate_inside, NULL,
        .help =
            "Search the parameters of methods that can be calibrated and have no calib= on windows "
            "of this text, layer by layer, with the layers before already calibrated; never one "
            "that is evaluated. DIR/calib-METHOD-ID.json keeps them.",
        .arg = "FILE", .only = "language models"),
    OPT_AS("calibrate-tokens", OPT_INT, struct eval_opts, calibrate_tokens, "2048", .min = 16,
           .max = 1e9, .unit = "tokens",
           .help = "Length of these windows, of which at most 5 are searched together.", .arg = "N",
           .only = "language models"),
    OPT_STR(struct eval_opts, found, NULL, "DIR",
            "Methods with a target and :per=model take the parameters that a replay into DIR found "
            "for it."),
    OPT_ENUM(struct eval_opts, decode, "dense", decode_values,
             "Attention of the tokens behind the prefill: exact, or the method's.",
             .only = "language models"),
    OPT_ENUM(struct eval_opts, qkv, "f32", qkv_values,
             "q, k, v as computed, or rounded to the checkpoint's type as a trace holds them "
             "(exact attention's too).",
             .only = "language models"),
    OPT_AS("on-skip", OPT_ENUM, struct eval_opts, on_skip, "skip", .values = skip_values,
           .help =
               "A head where the method does not apply: the cell is skipped, or the head attends "
               "exactly."),
    OPT_ENUM(struct eval_opts, precision, "f32", precisions,
             "Arithmetic of the attention over a mask and of what methods ask of the exact map."),
    OPT_ENUM(struct eval_opts, device, "cpu", devices,
             "Where prefills and video models run; on a GPU, attention rounds operands to "
             "bfloat16.",
             .flags = OPT_MAIN),
    OPT_INT(struct eval_opts, samples, "0", 0, 1000, "",
            "With cuda: timed launches of each attention, exact attention in turns with the "
            "method, for the time of attention and to the first token, or of a whole clip; 0: no "
            "times.",
            .arg = "N"),
    OPT_STR(struct eval_opts, shard, NULL, "I/N",
            "do part I of N (from 0) of the cells; default: from the environment "
            "of mpirun, srun or a job array.",
            .only = "language models"),
    OPT_AS("local-errors", OPT_BOOL, struct eval_opts, local_errors, "0",
           .help = "Measure each layer's error against exact attention over the same q, k, v "
                   "(err_local), which costs dense attention once more."),
    OPT_AS("dump-masks", OPT_STR, struct eval_opts, dump_masks, NULL,
           .help = "Write every mask to this HDF5 file; for one text of one window.", .arg = "FILE",
           .only = "language models"),
    OPT_AS("dump-nll", OPT_STR, struct eval_opts, dump_nll, NULL,
           .help = "Write the scored tokens' -ln p as .npy [1 + settings][tokens], exact attention "
                   "first; for one text.",
           .arg = "FILE", .only = "language models"),
    OPT_AS("size", OPT_STR, struct eval_opts, video.size, NULL, .arg = "TxHxW",
           .help = "frames x height x width of the latent, as in 16x128x192.",
           .only = "video models"),
    VIDEO_INPUT_OPTS(struct eval_opts),
    OPT_AS("save-frames", OPT_STR, struct eval_opts, save_frames, NULL,
           .help = "write each clip as PNG frames, and a strip of it below the exact one (models "
                   "that denoise RGB pixels).",
           .arg = "DIR", .only = "video models"),
    COMMON_OPTS,
    {0},
};

/* A target is searched head by head, on the run's own q, k, v. */
static int check_target(const struct eval_opts *o, const struct method_run *r, struct err *err)
{
    const char *name = r->method->name;
    if (!r->target)
        return 0;
    if (r->target->per == TARGET_PER_MODEL && o->found)
        return 0;
    if (r->target->per != TARGET_PER_HEAD)
        return err_set(err, ERR_USAGE,
                       "eval: method %s: inside a model a target is searched for every head on its "
                       "own (:per=head); `lacuna replay` searches per=model, and --found DIR takes "
                       "what it found",
                       name);
    /* A prefill is one step: only a clip has a state that the search would spoil. */
    if (o->video.size && (r->method->flags & METHOD_NEEDS_STEPS))
        return err_set(err, ERR_USAGE,
                       "eval: method %s keeps state over steps, and a target of a clip is searched "
                       "step by step: give its parameters",
                       name);
    if (o->decode == 1)
        return err_set(err, ERR_USAGE,
                       "eval: method %s: a target is a prefill's, rows behind it have none: "
                       "--decode dense",
                       name);
    return 0;
}

int eval_methods(const struct method *const *methods, const struct eval_opts *o,
                 struct method_run **runs, int64_t *n, int64_t *used, struct err *err)
{
    int64_t kept = 0;
    if (o->methods.n == 0)
        return err_set(err, ERR_USAGE,
                       "eval: no method given (-m NAME; see `lacuna list methods`)");
    for (int64_t i = 0; i < o->methods.n; i++)
        PASS_ON(method_runs_parse(methods, o->methods.items[i], runs, n, err));
    for (int64_t i = 0; i < *n; i++)
        PASS_ON(check_target(o, *runs + i, err));
    for (int64_t i = 0; i < *n; i++) {
        struct method_run *r = *runs + i;
        if (strcmp(r->method->name, "dense") != 0) {
            struct method_run moved = (*runs)[kept];
            (*runs)[kept++] = *r;
            if (kept - 1 != i)
                *r = moved;
        }
    }
    /* What is left behind the kept ones are dense runs. */
    for (int64_t i = kept; i < *n; i++)
        if ((*runs)[i].canonical[0])
            return err_set(err, ERR_USAGE, "eval: method dense takes no parameters here (found %s)",
                           (*runs)[i].canonical);
    *used = kept;
    return 0;
}

int eval_check_kind(const struct eval_opts *o, bool video, struct err *err)
{
    static const char *const of_text[] = {"language models", "texts", "generated prompts",
                                          "task files", NULL};
    static const char *const of_video[] = {"video models", NULL};
    return opt_check_uses(eval_options, o,
                          video ? "eval of a video model" : "eval of a language model",
                          video ? of_video : of_text, err);
}

static int parse_dense_heads(const char *text, const struct attn_shape *c, bool *dense,
                             struct err *err)
{
    for (const char *p = text; p && *p;) {
        char *end;
        long l = strtol(p, &end, 10), h = -1;
        if (end != p && *end == ':') {
            p = end + 1;
            h = strtol(p, &end, 10);
        }
        if (end == p || (*end && *end != ',') || l < 0 || h < 0 || l >= c->layers || h >= c->heads)
            return err_set(err, ERR_USAGE,
                           "--dense-heads: LAYER:HEAD,... was expected with layers 0..%d and "
                           "heads 0..%d, found '%.60s'",
                           c->layers - 1, c->heads - 1, text);
        dense[l * c->heads + h] = true;
        p = *end ? end + 1 : end;
    }
    return 0;
}

static int parse_dense_last(const char *text, int64_t *out, struct err *err)
{
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (strcmp(text, "question") == 0)
        *out = DENSE_LAST_QUESTION;
    else if (end != text && !*end && !errno && n >= 0)
        *out = n;
    else
        return err_set(err, ERR_USAGE,
                       "--dense-last: a number or 'question' was expected, found "
                       "'%.60s'",
                       text);
    return 0;
}

int eval_how_options(const struct eval_opts *o, const struct attn_shape *c, enum dtype native,
                     struct eval_how *how, struct err *err)
{
    OWN(free_at) int64_t *layers = NULL;
    int64_t n = 0;
    how->dense_below = o->dense_below;
    how->prefill_chunk = o->prefill_chunk;
    how->decode_method = o->decode == 1;
    how->skip_is_dense = o->on_skip == 1;
    how->local_errors = o->local_errors;
    how->round = o->qkv == 1 ? native : DT_F32;
    how->precision = o->precision == 1 ? PREC_F64 : PREC_F32;
    how->seed = (uint64_t)o->c.seed;
    PASS_ON(mem_zalloc(&how->dense_head, (int64_t)c->layers * c->heads, sizeof *how->dense_head,
                       "dense heads", err));
    if (o->dense_layers)
        PASS_ON(index_list_parse(o->dense_layers, c->layers, "--dense-layers", &layers, &n, err));
    for (int64_t i = 0; i < n; i++)
        memset(how->dense_head + layers[i] * c->heads, 1, (size_t)c->heads);
    PASS_ON(parse_dense_heads(o->dense_heads, c, how->dense_head, err));
    return parse_dense_last(o->dense_last, &how->dense_last, err);
}

int tokens_parse(const char *text, const char *what, int64_t **list, int64_t *n, struct err *err)
{
    int64_t cap = 0;
    for (const char *p = text; p && *p;) {
        char *end;
        errno = 0;
        long long x = strtoll(p, &end, 10);
        int64_t unit = *end == 'K' ? 1024 : *end == 'M' ? 1024 * 1024 : 1;
        const char *next = end + (unit > 1);
        if (end == p || errno || x < 1 || x > 1000000000 / unit || (*next && *next != ','))
            return err_set(err, ERR_USAGE,
                           "%s: lengths as in 2048,8K (K = 1024) were expected, found '%.60s'",
                           what, text);
        PASS_ON(mem_grow(list, &cap, *n + 1, sizeof **list, what, err));
        (*list)[(*n)++] = x * unit;
        p = *next ? next + 1 : next;
    }
    return 0;
}

/* "0,0.25,1": shares in [0, 1]; *list is malloc'd. */
static int depths_parse(const char *text, double **list, int64_t *n, struct err *err)
{
    int64_t cap = 0;
    for (const char *p = text; p && *p;) {
        const char *end;
        double x;
        if (!num_read(p, &x, &end) || !(x >= 0 && x <= 1) || (*end && *end != ','))
            return err_set(err, ERR_USAGE,
                           "--depth: shares from 0 to 1 as in 0,0.5,1 were expected, found "
                           "'%.60s'",
                           text);
        PASS_ON(mem_grow(list, &cap, *n + 1, sizeof **list, "--depth", err));
        (*list)[(*n)++] = x;
        p = *end ? end + 1 : end;
    }
    return 0;
}

int chat_check(const char *chat, struct err *err)
{
    return !chat || strstr(chat, "{prompt}")
               ? 0
               : err_set(err, ERR_USAGE, "--chat: the text has no {prompt}");
}

/* Without a hole every line of a task file would ask the same. */
static int template_check(const char *text, struct err *err)
{
    const char *open = text ? strchr(text, '{') : NULL;
    return !text || (open && strchr(open, '}'))
               ? 0
               : err_set(err, ERR_USAGE,
                         "--template: the text has no {key} of a line in it, as in {context}");
}

int eval_check_tasks(const struct eval_opts *o, const struct eval_task *tasks, int n,
                     struct err *err)
{
    const char *uses[5] = {"language models"};
    int k = 1;
    for (int i = 0; i < n; i++) { /* there are three kinds */
        const char *name = tasks[i].kind->name;
        bool again = false;
        for (int j = 1; j < k; j++)
            again = again || strcmp(uses[j], name) == 0;
        if (!again && k < 4)
            uses[k++] = name;
    }
    return opt_check_uses(eval_options, o, "eval of these tasks", uses, err);
}

int eval_task_options(struct eval_opts *o, struct err *err)
{
    struct task_opts *t = &o->ask;
    t->seed = (uint64_t)o->c.seed;
    PASS_ON(chat_check(t->chat, err));
    PASS_ON(template_check(t->template, err));
    PASS_ON(depths_parse(o->depth, &t->depths, &t->n_depths, err));
    return tokens_parse(o->tokens, "--tokens", &t->tokens, &t->n_tokens, err);
}
