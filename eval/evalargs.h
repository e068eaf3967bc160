/*
 * evalargs.h - the options of `lacuna eval`, and what they mean to the run and its tasks.
 */
#pragma once

#include "capture/video_input.h"
#include "core/cmd.h"
#include "eval/evaltask.h"
#include "eval/layerattn.h"

struct eval_opts {
    struct common_opts c;
    struct str_list methods, tasks;
    struct task_opts ask; /* but for its lists, until eval_task_options */
    struct video_ask video;
    char *model, *out, *tokens, *depth, *dense_layers, *dense_heads, *dense_last, *dump_masks;
    char *dump_nll, *shard, *calibrate_inside, *found, *save_frames;
    int64_t dense_below, prefill_chunk, samples, calibrate_tokens;
    int bos, decode, qkv, on_skip, precision, device;
    bool local_errors;
};

extern const struct opt eval_options[];

/* The settings: of the *n runs (method_runs_free) the first *used; the others are exact attention,
 * which always runs. */
int eval_methods(const struct method *const *methods, const struct eval_opts *o,
                 struct method_run **runs, int64_t *n, int64_t *used, struct err *err);

/* ERR_USAGE where an option is given that this kind of model, or none of the tasks, reads. */
int eval_check_kind(const struct eval_opts *o, bool video, struct err *err);
int eval_check_tasks(const struct eval_opts *o, const struct eval_task *tasks, int n,
                     struct err *err);

/* native: the checkpoint's type, for --qkv model. */
int eval_how_options(const struct eval_opts *o, const struct attn_shape *shape, enum dtype native,
                     struct eval_how *how, struct err *err);

/* Fill the lists of o->ask, which are malloc'd, and check its texts. */
int eval_task_options(struct eval_opts *o, struct err *err);

/* "2K,4096": lengths in tokens, K = 1024; *list is malloc'd. `what` names the option. */
int tokens_parse(const char *text, const char *what, int64_t **list, int64_t *n, struct err *err);

/* ERR_USAGE unless a chat text, if given, has {prompt}. */
int chat_check(const char *chat, struct err *err);
