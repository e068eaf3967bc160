/*
 * evaloptions.c - the option table of `lacuna eval` (evalargs.h).
 */
#include "eval/evalargs.h"
#include "eval/textmetric.h"

static const char *const bos_values[] = {"auto", "yes", "no", NULL};
static const char *const qkv_values[] = {"f32", "model", NULL};
static const char *const decode_values[] = {"dense", "method", NULL};
static const char *const skip_values[] = {"skip", "dense", NULL};
static const char *const truncate_values[] = {"middle", "error", NULL};
static const char *const devices[] = {"cpu", "cuda", NULL};
static const char *const precisions[] = {"f32", "f64", NULL};

/* clang-format off */
const struct opt eval_options[] = {
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
     .help = "Task files: the prompt, with {context}, {input} or any other text of a line in it; "
             "{OPTION_A}, {OPTION_B}...: its options."},
    {.name = "metric", .type = OPT_ENUM, .offset = offsetof(struct eval_opts, metric),
     .flags = OPT_UNSET, .values = text_metric_names,
     .help = "Task files: grade of lines that name no metric."},
    {.name = "max-new", .type = OPT_INT, .offset = offsetof(struct eval_opts, max_new), .arg = "N",
     .def = "32", .min = 1, .max = 1 << 20, .unit = "tokens",
     .help = "Task files: room for the answer to lines that do not say it."},
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
    {.name = "prefill-chunk", .type = OPT_INT, .offset = offsetof(struct eval_opts, prefill_chunk),
     .arg = "C", .def = "0", .min = 0, .max = 1e9, .unit = "tokens",
     .help = "Call the method with at most C rows of a prefill and the keys up to the last of them; "
             "0: all rows in one call. Methods that need all queries do not apply then."},
    {.name = "calibrate-inside", .type = OPT_STR,
     .offset = offsetof(struct eval_opts, calibrate_inside), .arg = "FILE", .flags = OPT_UNSET,
     .help = "Search the parameters of methods that can be calibrated and have no calib= on windows "
             "of this text, layer by layer, with the layers before already calibrated; never one "
             "that is evaluated. DIR/calib-METHOD-ID.json keeps them."},
    {.name = "calibrate-tokens", .type = OPT_INT,
     .offset = offsetof(struct eval_opts, calibrate_tokens), .arg = "N", .def = "2048", .min = 16,
     .max = 1e9, .unit = "tokens",
     .help = "Length of these windows, of which at most 5 are searched together."},
    {.name = "found", .type = OPT_STR, .offset = offsetof(struct eval_opts, found), .arg = "DIR",
     .flags = OPT_UNSET,
     .help = "Methods with a target and :per=model take the parameters that a replay into DIR found "
             "for it."},
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
     .help = "Where prefills of language models and evaluations of video models run, exact ones "
             "too; cuda: on a GPU, attention with operands rounded to bfloat16, masks chosen there "
             "where the method has a GPU side. Ids behind a prefill run on the CPU."},
    {.name = "samples", .type = OPT_INT, .offset = offsetof(struct eval_opts, samples), .arg = "N",
     .def = "0", .min = 0, .max = 1000,
     .help = "With cuda: timed launches of each attention, exact attention in turns with the "
             "method, for the time of attention and to the first token, or of a whole clip; 0: no "
             "times."},
    {.name = "shard", .type = OPT_STR, .offset = offsetof(struct eval_opts, shard), .arg = "I/N",
     .flags = OPT_UNSET,
     .help = "Language models: do part I of N (from 0) of the cells; default: from the environment "
             "of mpirun, srun or a job array."},
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
