/*
 * evalrun.h - what `lacuna eval` does with a model: settings over the cells of tasks or over a
 * clip, one record of scope `model` per (cell, setting); what has a record is not done again.
 */
#pragma once

#include "capture/video_input.h"
#include "capture/wan_model.h"
#include "core/denoiser.h"
#include "core/method_run.h"
#include "core/record.h"
#include "core/shard.h"
#include "eval/evaltask.h"
#include "eval/layerattn.h"
#include "sim/settingtally.h"

/* Records of a run, or of its shard. */
struct eval_count {
    int64_t all, todo;                 /* that there are, and that are missing */
    int64_t no_local_errors, no_times; /* finished without what was asked for */
    int64_t ok, skip, error;           /* added */
};

/* ---- a language model ----------------------------------------------------------------------- */

struct predictions;

struct eval_run {
    const struct eval_model *m;
    const struct method_run *runs; /* settings; borrowed */
    int n_runs;
    bool wants_times; /* --samples */
    struct eval_how how;
    struct eval_task *tasks; /* owned */
    int n_tasks;
    struct record_file *records; /* NULL in a dry run without a directory */
    struct predictions *predictions;
    const char *dump_nll;         /* .npy, or NULL */
    const struct lockstep_on *on; /* the device of prefills, or NULL; borrowed */
    int jobs;
    struct shard shard; /* which part of the cells is done here */
    int64_t *owner;     /* the shard of each cell, tasks one after the other; owned */
    struct eval_count count;
    struct setting_tally *tally; /* [n_runs], owned; NULL before eval_execute */
};

/* Open a file of masks, and refuse it where it fits no head of a task whose lengths are known
 * before it runs: texts. */
int eval_check_file(const struct eval_run *r, struct method_run *run, struct err *err);

/* Count cells and what is missing. */
int eval_plan(struct eval_run *r, struct err *err);

int eval_execute(struct eval_run *r, struct err *err);
void eval_run_free(struct eval_run *r);

/* Most memory that a task of the run needs, in bytes. */
int64_t eval_memory(const struct eval_run *r);

/* ---- a video model -------------------------------------------------------------------------- */

/* The sampler runs once with exact attention and once per setting, all from the same noise, step by
 * step together; each run goes its own way from step 0. */
struct video_eval {
    struct wan_model model;
    char name[128], weights[64];
    struct video_ask ask;
    struct video_input in;
    struct attn_shape shape;
    const struct method_run *runs; /* settings; borrowed */
    int n_runs;
    struct eval_how how;
    struct record_file *records; /* NULL in a dry run without a directory */
    const char *frames;          /* directory for pictures, NULL: none */
    int jobs;
    const struct denoiser_accel *device; /* where the model runs; NULL: on this processor */
    int samples;                         /* timed runs of every part, 0 = none; needs device */
    struct eval_count count;
    struct setting_tally *tally; /* [n_runs], owned; NULL before video_eval_run */
};

/* ask, runs, n_runs and jobs are set. */
int video_eval_open(struct video_eval *v, struct err *err);
void video_eval_close(struct video_eval *v);

/* Count what is missing; needs `how` and `records`. */
int video_eval_plan(struct video_eval *v, struct err *err);
int video_eval_run(struct video_eval *v, struct err *err);

int64_t video_eval_memory(const struct video_eval *v);

/* ---- records -------------------------------------------------------------------------------- */

/* The model of a record. */
struct eval_subject {
    const char *name, *weights; /* weights: content id */
    struct attn_shape shape;
};

/* Identity of a cell's record: run NULL is exact attention. r is fresh (record_init). */
int eval_identity(const struct eval_subject *m, const struct eval_how *how, const char *task,
                  const struct method_run *run, struct record *r, struct err *err);

/* Add a finished record to the file and to the sums. tally: its setting's, NULL: exact attention.
 */
int eval_append(struct record_file *f, const struct record *r, struct eval_count *n,
                struct setting_tally *tally, struct err *err);

/* Densities of a setting over its calls. */
int eval_record_densities(const struct layer_attn *a, struct record *r, struct err *err);

/* Sums over the heads of a setting's calls so far; NAN where a part was not measured. */
struct attention_ns {
    double method, dense, plan;
};
struct attention_ns eval_attention_ns(const struct layer_attn *a);

/* Times of a clip of `steps` steps, each of `branches` evaluations; a NULL: exact attention. */
struct clip_times {
    struct denoiser_times of; /* one evaluation */
    int64_t steps, branches;
};
int eval_record_clip_times(const struct clip_times *t, const struct layer_attn *a, struct record *r,
                           struct err *err);

/* Densities, and errors against the exact run by layer, of a stream that took part. */
int eval_record_layers(const struct lockstep *l, int stream, struct record *r, struct err *err);

/* ---- predictions ---------------------------------------------------------------------------- */

/* DIR/predictions.jsonl: the texts that models answered with, one JSON line per record that has
 * one, under the record's key.
 *
 * Open it for appending. Lines whose record is not in `records` (a run was stopped between the
 * two), and a torn last line, are dropped. fresh: drop all. */
int predictions_open(const char *path, const struct record_file *records, bool fresh,
                     struct predictions **out, struct err *err);
void predictions_close(struct predictions **p); /* accepts NULL inside */

/* Append the text of a record; added and synced before the record is written. */
int predictions_add(struct predictions *p, const struct record *r, const char *prompt_id,
                    const char *text, struct err *err);
int predictions_sync(struct predictions *p, struct err *err);

/* ---- calibration ---------------------------------------------------------------------------- */

/* --calibrate-inside searches a method's parameters inside the model: layer by layer over windows
 * of a text, each layer on the q, k, v that the calibrated layers before it have left. `lacuna
 * calibrate` searches on traces of exact attention instead, as the authors' tuners do. */

/* Windows of the text that are searched together, as in the papers. */
#define CALIB_INSIDE_WINDOWS 5

struct calib_inside {
    const struct eval_model *m;
    const struct eval_how *how; /* exact layers and heads stay exact, and are not searched */
    const char *text;           /* path */
    int64_t tokens;             /* of a window, the id in front included */
    const char *dir;            /* receives the calibration file */
    int jobs;
};

/* Replace *run, whose method can be calibrated and has no calibration, by one with the calibration
 * that is found; its file, calib-METHOD-ID.json in dir, is used again where it is there. methods:
 * all of them. */
int calib_inside(const struct calib_inside *c, const struct method *const *methods,
                 struct method_run *run, struct err *err);
