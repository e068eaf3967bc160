/*
 * cmd_capture.c - `lacuna capture`: its options and which runner they choose.
 */
#include "capture/capture.h"
#include "capture/video_input.h"
#include "capture/wan_config.h"
#include "core/fileio.h"
#include "core/mem.h"
#include "core/strmap.h"

#include <stdio.h>
#include <string.h>

static const char *const devices[] = {"cpu", "cuda", NULL};
static const char *const bos_values[] = {"auto", "yes", "no", NULL};

static const struct opt options[] = {
    OPT_STR(struct capture_opts, model, NULL, "DIR",
            "Checkpoint directory: Llama, Yi, Mistral, Mixtral, Qwen2, Qwen3, Phi-3, GLM-4, "
            "InternLM2 (Hugging Face) or Wan 2.1 (diffusers); or a GGUF file.",
            .flags = OPT_MAIN, .short_name = 'm'),
    OPT_AS("output", OPT_STR, struct capture_opts, out, NULL, .help = "Trace to write.",
           .flags = OPT_MAIN, .short_name = 'o', .arg = "FILE"),
    OPT_STR(struct capture_opts, layers, "all", "LIST", "Layers to store, as in 0,4-7.",
            .flags = OPT_MAIN),
    OPT_STR(struct capture_opts, heads, "all", "LIST",
            "Query heads to store, with the kv heads that they read; every command keeps the "
            "model's numbers for them."),
    OPT_ENUM(struct capture_opts, dtype, "model", capture_dtypes,
             "Type in which q, k, v are stored; the run itself computes in float32."),
    OPT_INT(struct capture_opts, maps, NULL, 0, 65536, "tokens",
            "Cell size of the pooled attention maps, 0 = none (default: text 64, video 0).",
            .arg = "P"),
    OPT_ENUM(struct capture_opts, device, "cpu", devices, "Where the model runs."),
    OPT_AS("prompt", OPT_LIST, struct capture_opts, prompts, NULL, .only = "language models",
           .help = "prompt file, - for standard input. Repeated: one trace each, in the directory "
                   "-o.",
           .flags = OPT_MAIN, .short_name = 'p', .arg = "FILE"),
    OPT_AS("tokens-file", OPT_STR, struct capture_opts, tokens_file, NULL,
           .only = "language models",
           .help = "token ids, separated by white space, instead of a prompt.", .arg = "FILE"),
    OPT_INT(struct capture_opts, tokens, NULL, 1, 1e9, "tokens",
            "use the first N tokens, as in 8K (K = 1024); an error when there are fewer.",
            .only = "language models", .flags = OPT_MAIN, .short_name = 'n', .arg = "N"),
    OPT_STR(
        struct capture_opts, rows, NULL, "N[xR]",
        "store a sample of query rows, N groups of R (128) by --seed, against all keys: replays "
        "of it have standard errors. For sequences too long for a disk or a replay.",
        .only = "language models"),
    OPT_ENUM(struct capture_opts, bos, "auto", bos_values,
             "whether a beginning-of-text token stands first; auto: as the tokenizer says.",
             .only = "language models"),
    OPT_BOOL(
        struct capture_opts, nll, "1",
        "run all layers for the likelihood of every token; --no-nll ends after the last stored "
        "layer.",
        .only = "language models"),
    OPT_INT(
        struct capture_opts, generate, NULL, 1, 1e9, "tokens",
        "go on for T tokens, greedily, up to one that ends the text, and store their queries: a "
        "trace for replays of the decode phase.",
        .only = "language models", .arg = "T"),
    OPT_AS("continuation", OPT_STR, struct capture_opts, continuation, NULL,
           .only = "language models",
           .help = "the T tokens of --generate from a file, text or, with --tokens-file, ids.",
           .arg = "FILE"),
    OPT_INT(struct capture_opts, window, NULL, 0, 1e9, "tokens",
            "with --generate: queries of the last W tokens of the prompt are stored as well (128).",
            .only = "language models", .arg = "W"),
    OPT_AS("col-sums", OPT_BOOL, struct capture_opts, col_sums, "0", .only = "language models",
           .help = "with --generate: store what every key of the prompt gets of the softmax of all "
                   "rows of the prompt."),
    OPT_AS("size", OPT_STR, struct capture_opts, video.size, NULL, .arg = "TxHxW",
           .help = "frames x height x width of the latent, as in 16x256x384.",
           .only = "video models", .flags = OPT_MAIN),
    OPT_AS("capture-steps", OPT_STR, struct capture_opts, capture_steps, "all",
           .only = "video models",
           .help = "steps to store, from 0; the run ends after the last one unless a sample is "
                   "saved.",
           .arg = "LIST"),
    VIDEO_INPUT_OPTS(struct capture_opts),
    OPT_AS("save-frames", OPT_STR, struct capture_opts, save_frames, NULL, .only = "video models",
           .help = "write the final clip as PNG frames (models that denoise RGB pixels).",
           .arg = "DIR"),
    OPT_AS("save-sample", OPT_STR, struct capture_opts, save_sample, NULL, .only = "video models",
           .help = "write the final latent as .npy.", .arg = "FILE"),
    COMMON_OPTS,
    {0},
};

static int check_files(const struct capture_opts *o, struct err *err)
{
    const char *const inputs[] = {o->prompt,     o->tokens_file,    o->continuation,
                                  o->video.text, o->video.negative, o->video.noise};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        PASS_ON(refuse_input(o->out, inputs[i], err));
        PASS_ON(refuse_input(o->save_sample, inputs[i], err));
    }
    return 0;
}

static int check_options(const struct app *app, const struct capture_opts *o, bool video,
                         struct err *err)
{
    bool built = video ? app->denoiser != NULL : app->decoder != NULL;
    if (!o->out)
        return err_set(err, ERR_USAGE, "capture: -o FILE is missing");
    if (o->device != 0 && !built)
        return err_set(err, ERR_MACHINE, "capture: --device cuda needs a build with CUDA");
    const char *kind = video ? "video models" : "language models";
    return opt_check_uses(options, o,
                          video ? "capture of a video model" : "capture of a language model",
                          (const char *const[]){kind, NULL}, err);
}

/* The trace of a prompt among several: of its file's name, in the directory. */
static int prompt_output(const char *dir, const char *prompt, struct buf *path, struct err *err)
{
    const char *slash = strrchr(prompt, '/'), *name = slash ? slash + 1 : prompt;
    if (strcmp(prompt, "-") == 0)
        name = "stdin";
    const char *dot = strrchr(name, '.');
    buf_reset(path);
    buf_printf(path, "%s/%.*s.h5", dir, (int)(dot && dot > name ? dot - name : (long)strlen(name)),
               name);
    return buf_check(path, "names of traces", err);
}

static int check_prompts(const struct capture_opts *o, struct err *err)
{
    size_t n = strlen(o->out);
    OWN(strmap_free) struct strmap names = {0};
    OWN(buf_free) struct buf path = {0};
    if (n > 3 && strcmp(o->out + n - 3, ".h5") == 0)
        return err_set(
            err, ERR_USAGE,
            "capture: %lld prompts are %lld traces, in a directory: -o %s needs a name without .h5",
            (long long)o->prompts.n, (long long)o->prompts.n, o->out);
    for (int64_t i = 0; i < o->prompts.n; i++) {
        PASS_ON(prompt_output(o->out, o->prompts.items[i], &path, err));
        if (strmap_get(&names, buf_str(&path)) >= 0)
            return err_set(err, ERR_USAGE,
                           "capture: two prompts would make %s; give their files other names",
                           buf_str(&path));
        PASS_ON(strmap_put(&names, buf_str(&path), i, err));
    }
    if (!o->c.dry_run)
        return make_dirs(o->out, err);
    return 0;
}

static int capture_one(const struct app *app, const struct capture_opts *o, bool video,
                       struct err *err)
{
    PASS_ON(check_files(o, err));
    return video ? video_capture(o, o->device ? app->denoiser : NULL, err)
                 : text_capture(app, o, err);
}

/* A trace per prompt; as JSON an array. */
static int capture_each(const struct app *app, const struct capture_opts *o, struct err *err)
{
    struct capture_opts one = *o;
    OWN(buf_free) struct buf path = {0};
    PASS_ON(check_prompts(o, err));
    if (o->c.json)
        puts("[");
    for (int64_t i = 0; i < o->prompts.n; i++) {
        PASS_ON(prompt_output(o->out, o->prompts.items[i], &path, err));
        one.out = (char *)(uintptr_t)buf_str(&path);
        one.prompt = o->prompts.items[i];
        if (i && o->c.json)
            puts(",");
        PASS_ON(capture_one(app, &one, false, err));
    }
    if (o->c.json)
        puts("]");
    return 0;
}

static int run(const struct app *app, void *opts, struct str_list *rest, struct err *err)
{
    struct capture_opts *o = opts;
    if (rest->n)
        return err_set(err, ERR_USAGE, "capture: unexpected argument '%s'", rest->items[0]);
    if (!o->model)
        return err_set(err, ERR_USAGE, "capture: --model DIR is missing");
    PASS_ON(foreign_refuse(o->model, err));
    bool video = wan_config_is(o->model);
    PASS_ON(check_options(app, o, video, err));
    mem_return_large_blocks();
    o->video.who = "capture";
    o->video.model = o->model;
    o->video.seed = (uint64_t)o->c.seed;
    o->prompt = o->prompts.n == 1 ? o->prompts.items[0] : NULL;
    return o->prompts.n > 1 ? capture_each(app, o, err) : capture_one(app, o, video, err);
}

const struct command cmd_capture = {
    "capture",
    "capture --model DIR --prompt FILE [--tokens N] -o T.h5\n"
    "capture --model DIR --prompt A.txt --prompt B.txt -o TRACES\n"
    "capture --model DIR --size TxHxW --steps 50 --capture-steps 0,15,30 -o T.h5",
    "run a model and store q, k, v and pooled attention maps of its layers",
    run,
    options,
    sizeof(struct capture_opts),
    "The model runs in float32 on the CPU, weights one layer at a time. q and k are stored after\n"
    "normalisation and position encoding. The file appears under its name when it is complete.\n"
    "--device cuda runs the model on a GPU: linear layers to float32 accuracy, attention with\n"
    "operands rounded to float16. Calls of any other model come in through lacuna import.\n\n"
    "Examples:\n"
    "  lacuna capture --model datasets/models/code-lm --prompt core/mask.c -o mask.h5\n"
    "  lacuna capture --model datasets/models/video-dit --size 16x128x192 --steps 50 \\\n"
    "      --capture-steps 0,15,30 -o clip.h5\n",
};
