/*
 * capture.h - `lacuna capture`: options and the two runners behind it.
 */
#pragma once

#include "capture/video_input.h"
#include "core/cmd.h"
#include "core/text.h"
#include "core/trace.h"

struct capture_opts {
    struct common_opts c;
    char *model, *out;
    char *layers, *heads; /* "all" or a list */
    int dtype;            /* index into capture_dtypes; 0 = the checkpoint's */
    int device;           /* 0 cpu, 1 cuda */
    int64_t maps;         /* cell size, 0 = none; INT64_MIN = the runner's default */
    /* text */
    struct str_list prompts; /* several: a trace each, in the directory `out` */
    const char *prompt;      /* the one of this run; borrowed, NULL: none */
    char *tokens_file;
    char *rows;               /* NULL = all, else groups of sampled query rows, "64x128" */
    int64_t tokens;           /* INT64_MIN = all */
    int bos;                  /* auto, yes, no */
    bool nll;                 /* run to the end for the likelihoods */
    int64_t generate, window; /* tokens behind the prompt, INT64_MIN = none; rows of the prompt
                               * stored before them, INT64_MIN = 128 */
    char *continuation;       /* file of these tokens; NULL: the model's own */
    bool col_sums;
    /* video */
    struct video_ask video;
    char *capture_steps, *save_frames, *save_sample;
};

/* Values of --dtype of capture and import, as dtype_from_name() reads them, behind a word for the
 * type that is there (index 0). */
#define STORED_TYPES "bf16", "f16", "f32", "bfloat16", "float16", "float32"
extern const char *const capture_dtypes[];

/* The type of a value's index; `native` for 0. */
enum dtype stored_type(int index, enum dtype native);

/* Run a language model over a prompt, and over what it generates. */
int text_capture(const struct app *app, const struct capture_opts *o, struct err *err);

/* Run a video diffusion transformer through its sampler, on `device` unless that is NULL. */
int video_capture(const struct capture_opts *o, const struct denoiser_accel *device,
                  struct err *err);

/* A list option as flags [n]; *count of them are set. `option` names it in messages. */
int capture_choose(const char *list, int64_t n, const char *option, bool **flags, int64_t *count,
                   struct err *err);

/* What computes on this processor: "openblas Haswell". */
void capture_computed_by(char *text, size_t size);

/* The plan of a dry run, or the summary after a run: numbers as text or (with --json) as JSON. */
struct capture_summary {
    const char *path;
    int64_t tokens, calls, file_bytes, memory_bytes;
    double seconds;        /* estimated, or taken */
    double nll;            /* mean per token, NAN if none */
    double device_seconds; /* time on the GPU, NAN if none */
};
int capture_print(const struct capture_opts *o, const struct capture_summary *s, struct err *err);

/* Flop per second of single-precision matrix products on `jobs` threads, measured for some
 * milliseconds. */
double capture_rate(int jobs);
