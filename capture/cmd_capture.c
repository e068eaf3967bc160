/*
 * cmd_capture.c - `lacuna capture`: its options and which runner they choose.
 */
#include "capture/capture.h"
#include "capture/wan_config.h"
#include "core/mem.h"

#include <stddef.h>


static const char *const devices[] = {"cpu", "cuda", NULL};
static const char *const bos_values[] = {"auto", "yes", "no", NULL};

#define AT(field) offsetof(struct capture_opts, field)
static const struct opt options[] = {
    {"model", OPT_STR, AT(model), NULL, 0, 0, OPT_UNSET, "",
     "Checkpoint directory: Llama, Mistral, Qwen2, Qwen3 (Hugging Face) or Wan 2.1 (diffusers).",
     NULL, 'm', "DIR"},
    {"output", OPT_STR, AT(out), NULL, 0, 0, OPT_UNSET, "", "Trace to write.", NULL, 'o', "FILE"},
    {"layers", OPT_STR, AT(layers), "all", 0, 0, 0, "", "Layers to store, as in 0,4-7.", NULL, 0,
     "LIST"},
    {"heads", OPT_STR, AT(heads), "all", 0, 0, 0, "",
     "Query heads to store, with the kv heads that they read; every command keeps the model's "
     "numbers for them.",
     NULL, 0, "LIST"},
    {"dtype", OPT_ENUM, AT(dtype), "model", 0, 0, 0, "",
     "Type in which q, k, v are stored; the run itself computes in float32.", capture_dtypes, 0,
     NULL},
    {"maps", OPT_INT, AT(maps), NULL, 0, 65536, OPT_UNSET, "tokens",
     "Cell size of the pooled attention maps, 0 = none (default: text 64, video 0).", NULL, 0, "P"},
    {"device", OPT_ENUM, AT(device), "cpu", 0, 0, 0, "", "Where the model runs.", devices, 0, NULL},
    {"prompt", OPT_STR, AT(prompt), NULL, 0, 0, OPT_UNSET, "",
     "Text: prompt file, - for standard input.", NULL, 'p', "FILE"},
    {"tokens-file", OPT_STR, AT(tokens_file), NULL, 0, 0, OPT_UNSET, "",
     "Text: token ids, separated by white space, instead of a prompt.", NULL, 0, "FILE"},
    {"tokens", OPT_INT, AT(tokens), NULL, 1, 1e9, OPT_UNSET, "tokens",
     "Text: use the first N tokens; an error when there are fewer.", NULL, 'n', "N"},
    {"bos", OPT_ENUM, AT(bos), "auto", 0, 0, 0, "",
     "Text: whether a beginning-of-text token stands first; auto: as the tokenizer says.",
     bos_values, 0, NULL},
    {"nll", OPT_BOOL, AT(nll), "1", 0, 1, 0, "",
     "Text: run all layers for the likelihood of every token; --no-nll ends after the last stored "
     "layer.", NULL, 0, NULL},
    {"size", OPT_STR, AT(size), NULL, 0, 0, OPT_UNSET, "",
     "Video: frames x height x width of the latent, as in 16x256x384.", NULL, 0, "TxHxW"},
    {"steps", OPT_INT, AT(steps), "50", 1, 10000, 0, "steps", "Video: denoising steps.", NULL, 0,
     "N"},
    {"capture-steps", OPT_STR, AT(capture_steps), "all", 0, 0, 0, "",
     "Video: steps to store, from 0; the run ends after the last one unless a sample is saved.",
     NULL, 0, "LIST"},
    {"shift", OPT_NUM, AT(shift), "5", 0, 1000, OPT_MIN_OPEN, "",
     "Video: timestep shift of the schedule.", NULL, 0, "X"},
    {"text", OPT_STR, AT(text), NULL, 0, 0, OPT_UNSET, "",
     "Video: text embeddings, .safetensors (tensor text) or .npy; default DIR/prompts.safetensors.",
     NULL, 0, "FILE"},
    {"prompt-index", OPT_INT, AT(prompt_index), "0", 0, 1e6, 0, "",
     "Video: which of the stacked text embeddings.", NULL, 0, "N"},
    {"negative", OPT_STR, AT(negative), NULL, 0, 0, OPT_UNSET, "",
     "Video: text embeddings of the unconditional branch; default zeros. With --guidance.", NULL, 0,
     "FILE"},
    {"guidance", OPT_NUM, AT(guidance), "1", 0, 100, 0, "",
     "Video: classifier-free guidance; above 1 every step runs the branches cond and uncond.", NULL,
     0, "X"},
    {"noise", OPT_STR, AT(noise), NULL, 0, 0, OPT_UNSET, "",
     "Video: starting noise, .safetensors (tensor noise) or .npy, instead of --seed.", NULL, 0,
     "FILE"},
    {"save-frames", OPT_STR, AT(save_frames), NULL, 0, 0, OPT_UNSET, "",
     "Video: write the final clip as PNG frames (models that denoise RGB pixels).", NULL, 0, "DIR"},
    {"save-sample", OPT_STR, AT(save_sample), NULL, 0, 0, OPT_UNSET, "",
     "Video: write the final latent as .npy.", NULL, 0, "FILE"},
    COMMON_OPTS,
    {0},
};

/* An option of the other kind of model would not be read. */
static int check_kind(const struct capture_opts *o, bool video, struct err *err)
{
    static const char *const of_text[] = {"prompt", "tokens-file", "tokens", "bos", "nll", NULL};
    static const char *const of_video[] = {"size",  "steps",        "capture-steps", "shift",
                                           "text",  "prompt-index", "negative",      "guidance",
                                           "noise", "save-frames",  "save-sample",   NULL};
    const char *const *names = video ? of_text : of_video;
    bool is_default;
    int rc = 0;
    for (; *names; names++) {
        TRY(opt_is_default(opt_find(options, *names), o, &is_default, err));
        if (!is_default)
            FAIL(err, ERR_USAGE, "capture: --%s belongs to %s models; %s is a %s model (%s)",
                 *names, video ? "language" : "video", o->model, video ? "video" : "language",
                 video ? "--size, --text" : "--prompt");
    }
out:
    return rc;
}

static int check_files(const struct capture_opts *o, struct err *err)
{
    const char *const inputs[] = {o->prompt, o->tokens_file, o->text, o->negative, o->noise};
    int rc = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        TRY(refuse_input(o->out, inputs[i], err));
        TRY(refuse_input(o->save_sample, inputs[i], err));
    }
out:
    return rc;
}

static int check_options(const struct app *app, const struct capture_opts *o, bool video,
                         struct err *err)
{
    if (!o->out)
        return err_set(err, ERR_USAGE, "capture: -o FILE is missing");
    if (o->device != 0 && video)
        return err_set(err, ERR_USAGE, "capture: --device cuda runs language models; %s is a video "
                       "model: use --device cpu", o->model);
    if (o->device != 0 && !app->decoder)
        return err_set(err, ERR_MACHINE, "capture: --device cuda needs a build with CUDA");
    return check_kind(o, video, err);
}

static int run(const struct app *app, int argc, char **argv, struct err *err);

const struct command cmd_capture = {
    "capture",
    "lacuna capture --model DIR --prompt FILE [--tokens N] -o T.h5\n"
    "lacuna capture --model DIR --size TxHxW --steps 50 --capture-steps 0,15,30 -o T.h5",
    "run a model and store q, k, v and pooled attention maps of its layers",
    run,
    options,
    "The model runs in float32 on the CPU, weights one layer at a time. q and k are stored after\n"
    "normalisation and position encoding. The file appears under its name when it is complete.\n"
    "--device cuda runs language models on a GPU: linear layers to float32 accuracy, attention\n"
    "with operands rounded to float16.\n\n"
    "Examples:\n"
    "  lacuna capture --model datasets/models/code-lm --prompt core/mask.c -o mask.h5\n"
    "  lacuna capture --model datasets/models/video-dit --size 16x128x192 --steps 50 \\\n"
    "      --capture-steps 0,15,30 -o clip.h5\n",
};

static int run(const struct app *app, int argc, char **argv, struct err *err)
{
    struct capture_opts o;
    struct str_list     rest = {0};
    bool                done = false;
    int                 rc = 0;

    TRY(cmd_begin(&cmd_capture, &o, argc, argv, &rest, &done, err));
    if (done)
        goto out;
    if (rest.n)
        FAIL(err, ERR_USAGE, "capture: unexpected argument '%s'", rest.items[0]);
    if (!o.model)
        FAIL(err, ERR_USAGE, "capture: --model DIR is missing");
    bool video = wan_config_is(o.model);
    TRY(check_options(app, &o, video, err));
    TRY(check_files(&o, err));
    mem_return_large_blocks();
    TRY(video ? video_capture(&o, err) : text_capture(&o, o.device ? app->decoder : NULL, err));
out:
    opt_free(options, &o);
    str_list_free(&rest);
    return rc;
}
