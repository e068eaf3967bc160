/*
 * evaloptions.c - the option table of `lacuna eval` (evalargs.h).
 */
#include "capture/video_input.h"
#include "eval/evalargs.h"
#include "eval/textmetric.h"

static const char *const bos_values[] = {"auto", "yes", "no", NULL};
static const char *const qkv_values[] = {"f32", "model", NULL};
static const char *const decode_values[] = {"dense", "method", NULL};
static const char *const skip_values[] = {"skip", "dense", NULL};
static const char *const truncate_values[] = {"middle", "error", NULL};
static const char *const devices[] = {"cpu", "cuda", NULL};
static const char *const precisions[] = {"f32", "f64", NULL};

const struct opt eval_options[] = {
    OPT_STR(struct eval_opts, model, NULL, "DIR",
            "Checkpoint directory: Llama, Mistral, Qwen2, Qwen3 (Hugging Face) or Wan 2.1 "
            "(diffusers).",
            .flags = OPT_MAIN),
    OPT_AS("method", OPT_LIST, struct eval_opts, methods, NULL,
           .help = "Method, NAME[:key=value]...; key=a,b,c sweeps. Repeatable. Exact attention "
                   "always runs too, as dense.",
           .flags = OPT_MAIN, .short_name = 'm', .arg = "METHOD"),
    OPT_AS("task", OPT_LIST, struct eval_opts, tasks, NULL,
           .help = "What the model is asked (below): a generated prompt, a task file or a text. "
                   "Repeatable.",
           .flags = OPT_MAIN, .short_name = 't', .arg = "TASK"),
    OPT_AS("output", OPT_STR, struct eval_opts, out, NULL,
           .help = "Directory of the records; an interrupted run continues there.",
           .flags = OPT_MAIN, .short_name = 'o', .arg = "DIR"),
    OPT_STR(struct eval_opts, tokens, NULL, "LIST",
            "Lengths, as in 2K,16K (K = 1024), of a text's windows (default: all, up to the "
            "context) and of "
            "generated prompts with their answers (default: 2K, 4K, ... up to the context).",
            .flags = OPT_MAIN, .unit = "tokens", .short_name = 'n'),
    OPT_STR(struct eval_opts, depth, NULL, "LIST",
            "Generated prompts: where the asked item stands, 0 = front, 1 = end (default: "
            "0,0.25,0.5,0.75,1)."),
    OPT_INT(struct eval_opts, trials, "10", 1, 1e6, "",
            "Generated prompts: samples of each length and "
            "depth.",
            .arg = "N"),
    OPT_STR(struct eval_opts, haystack, NULL, "FILE",
            "Generated prompts: hide things between the lines of this text instead of generated "
            "ones."),
    OPT_STR(struct eval_opts, chat, NULL, "TEXT",
            "Prompts: text around each, with {prompt} in it; special tokens count in TEXT and not "
            "in the prompt."),
    OPT_INT(struct eval_opts, stride, "0", 0, 1e9, "tokens",
            "Text: a window begins S tokens after the one before and scores its last S; 0: no "
            "overlap.",
            .arg = "S"),
    OPT_INT(struct eval_opts, windows, "0", 0, 1e9, "", "Text: the first N windows only; 0: all.",
            .arg = "N"),
    OPT_AS("score-from", OPT_INT, struct eval_opts, score_from, "1", .min = 1, .max = 1e9,
           .unit = "tokens", .help = "Text: the first position of a window that is scored.",
           .arg = "P"),
    OPT_ENUM(struct eval_opts, bos, "auto", bos_values,
             "Whether a beginning-of-text token stands first; auto: as the tokenizer says."),
    OPT_STR(struct eval_opts, template, NULL, "TEXT",
            "Task files: the prompt, with {context}, {input} or any other text of a line in it; "
            "{OPTION_A}, {OPTION_B}...: its options."),
    OPT_ENUM(struct eval_opts, metric, NULL, text_metric_names,
             "Task files: grade of lines that name no metric."),
    OPT_AS("max-new", OPT_INT, struct eval_opts, max_new, "32", .min = 1, .max = 1 << 20,
           .unit = "tokens", .help = "Task files: room for the answer to lines that do not say it.",
           .arg = "N"),
    OPT_ENUM(struct eval_opts, truncate, "middle", truncate_values,
             "Task files: what happens to a prompt that is longer than --tokens or the context: "
             "its middle is left out (counted as truncated), or it is refused."),
    OPT_AS("dense-layers", OPT_STR, struct eval_opts, dense_layers, NULL,
           .help = "Layers that attend exactly, as in 0,1.", .arg = "LIST"),
    OPT_AS("dense-heads", OPT_STR, struct eval_opts, dense_heads, NULL,
           .help = "Heads that attend exactly, as in 2:0,2:5.", .arg = "L:H,..."),
    OPT_AS("dense-below", OPT_INT, struct eval_opts, dense_below, "0", .min = 0, .max = 1e9,
           .unit = "tokens", .help = "Sequences shorter than N tokens attend exactly.", .arg = "N"),
    OPT_AS(
        "dense-last", OPT_STR, struct eval_opts, dense_last, "0", .unit = "tokens",
        .help =
            "Last rows of the prefill that attend exactly: a number, or 'question': those behind "
            "the haystack.",
        .arg = "R"),
    OPT_AS(
        "prefill-chunk", OPT_INT, struct eval_opts, prefill_chunk, "0", .min = 0, .max = 1e9,
        .unit = "tokens",
        .help =
            "Call the method with at most C rows of a prefill and the keys up to the last of them; "
            "0: all rows in one call. Methods that need all queries do not apply then.",
        .arg = "C"),
    OPT_AS(
        "calibrate-inside", OPT_STR, struct eval_opts, calibrate_inside, NULL,
        .help =
            "Search the parameters of methods that can be calibrated and have no calib= on windows "
            "of this text, layer by layer, with the layers before already calibrated; never one "
            "that is evaluated. DIR/calib-METHOD-ID.json keeps them.",
        .arg = "FILE"),
    OPT_AS("calibrate-tokens", OPT_INT, struct eval_opts, calibrate_tokens, "2048", .min = 16,
           .max = 1e9, .unit = "tokens",
           .help = "Length of these windows, of which at most 5 are searched together.",
           .arg = "N"),
    OPT_STR(struct eval_opts, found, NULL, "DIR",
            "Methods with a target and :per=model take the parameters that a replay into DIR found "
            "for it."),
    OPT_ENUM(struct eval_opts, decode, "dense", decode_values,
             "Attention of the tokens behind the prefill: exact, or the method's."),
    OPT_ENUM(struct eval_opts, qkv, "f32", qkv_values,
             "q, k, v as computed, or rounded to the checkpoint's type as a trace holds them "
             "(exact attention's too)."),
    OPT_AS("on-skip", OPT_ENUM, struct eval_opts, on_skip, "skip", .values = skip_values,
           .help =
               "A head where the method does not apply: the cell is skipped, or the head attends "
               "exactly."),
    OPT_ENUM(struct eval_opts, precision, "f32", precisions,
             "Arithmetic of the attention over a mask and of what methods ask of the exact map."),
    OPT_ENUM(struct eval_opts, device, "cpu", devices,
             "Where prefills and video models run; on a GPU, attention rounds operands to "
             "bfloat16. Ids behind a prefill run on the CPU.",
             .flags = OPT_MAIN),
    OPT_INT(struct eval_opts, samples, "0", 0, 1000, "",
            "With cuda: timed launches of each attention, exact attention in turns with the "
            "method, for the time of attention and to the first token, or of a whole clip; 0: no "
            "times.",
            .arg = "N"),
    OPT_STR(struct eval_opts, shard, NULL, "I/N",
            "Language models: do part I of N (from 0) of the cells; default: from the environment "
            "of mpirun, srun or a job array."),
    OPT_AS("local-errors", OPT_BOOL, struct eval_opts, local_errors, "0",
           .help = "Measure each layer's error against exact attention over the same q, k, v "
                   "(err_local), which costs dense attention once more."),
    OPT_AS("dump-masks", OPT_STR, struct eval_opts, dump_masks, NULL,
           .help = "Write every mask to this HDF5 file; for one text of one window.",
           .arg = "FILE"),
    OPT_AS("dump-nll", OPT_STR, struct eval_opts, dump_nll, NULL,
           .help = "Write the scored tokens' -ln p as .npy [1 + settings][tokens], exact attention "
                   "first; for one text.",
           .arg = "FILE"),
    OPT_STR(struct eval_opts, size, NULL, "TxHxW",
            "Video: frames x height x width of the latent, as in 16x128x192."),
    OPT_INT(struct eval_opts, steps, "50", 1, 10000, "steps", "Video: denoising steps.",
            .arg = "N"),
    VIDEO_INPUT_OPTS(struct eval_opts),
    OPT_AS(
        "save-frames", OPT_STR, struct eval_opts, save_frames, NULL,
        .help =
            "Video: write each clip as PNG frames, and a strip of it below the exact one (models "
            "that denoise RGB pixels).",
        .arg = "DIR"),
    COMMON_OPTS,
    {0},
};
