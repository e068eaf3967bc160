/*
 * evalrecord.h - records of scope `model`: identity, and the numbers that every cell has.
 */
#ifndef LACUNA_EVALRECORD_H
#define LACUNA_EVALRECORD_H

#include "core/denoiser.h"
#include "eval/evaltask.h"
#include "eval/layerattn.h"

/* The model of a record. */
struct eval_subject {
    const char *name, *weights; /* weights: content id */
    struct attn_shape shape;
};

/* Identity of a cell's record: run NULL is exact attention. r is fresh (record_init). */
int eval_identity(const struct eval_subject *m, const struct eval_how *how, const char *task,
                  const struct method_run *run, struct record *r, struct err *err);

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

#endif
