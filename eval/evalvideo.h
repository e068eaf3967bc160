/*
 * evalvideo.h - a video diffusion transformer with methods inside it: the sampler runs once with
 * exact attention and once per setting, all from the same noise, step by step together; each run
 * goes its own way from step 0.
 */
#ifndef LACUNA_EVALVIDEO_H
#define LACUNA_EVALVIDEO_H

#include "capture/video_input.h"
#include "capture/wan_model.h"
#include "core/record.h"
#include "eval/layerattn.h"
#include "sim/settingtally.h"

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
    int64_t todo;                        /* records that are missing, of n_runs + 1 */
    int64_t lacking;                     /* finished ones without the times that were asked for */
    int64_t done_ok, done_skip, done_error;
    struct setting_tally *tally; /* [n_runs], owned; NULL before video_eval_run */
};

/* ask, runs, n_runs and jobs are set. */
int video_eval_open(struct video_eval *v, struct err *err);
void video_eval_close(struct video_eval *v);

/* Count what is missing; needs `how` and `records`. */
int video_eval_plan(struct video_eval *v, struct err *err);
int video_eval_run(struct video_eval *v, struct err *err);

int64_t video_eval_memory(const struct video_eval *v);

#endif
