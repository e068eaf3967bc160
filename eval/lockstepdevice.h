/*
 * lockstepdevice.h - the layers of a lockstep run on a device (core/decoder.h): hidden states,
 * linear layers, exact attention, likelihoods and the rows behind a prefill stay there. Methods run
 * as ever (eval/layerattn.h), on q, k, v that lie on the device already.
 */
#ifndef LACUNA_LOCKSTEPDEVICE_H
#define LACUNA_LOCKSTEPDEVICE_H

#include "capture/llm_weights.h"
#include "core/decoder.h"

struct lockstep;
struct layer_attn;

/* Where and how; NULL in its place: on this processor. */
struct lockstep_on {
    const struct decoder_accel *decoder;
    int local_rank;
    int samples; /* timed runs of the linear layers, 0 = none */
};

struct lockstep_device {
    const struct lockstep_on *on; /* borrowed */
    struct decoder *d;            /* owned */
    struct llm_raw_layer layer;   /* weights as stored; owned */
    bool *loaded; /* [layers]: weights that are there; NULL: one layer's are. Owned */
    struct decoder_tensor norm, head;
    /* Wall time of the prefill at hand: q, k, v with the host's copies, methods, the rest. */
    double project_ns, methods_ns, finish_ns;
    double linear_ns; /* device time of everything but attention, summed over prefills */
    double prefills;
};

/* Rows that follow (l->keep) run there unless a method or --qkv asks for more than exact attention
 * in float32, or the device has no room for keys, values and weights of all layers; then l->keep
 * becomes false. */
int lockstep_device_open(struct lockstep *l, const struct layer_attn *attn,
                         const struct lockstep_on *on, struct err *err);
void lockstep_device_close(struct lockstep *l);

/* As lockstep_prefill, whose arguments are checked. Every stream's last row is normed. */
int lockstep_device_prefill(struct lockstep *l, const int32_t *tokens, int64_t n, struct err *err);

/* Scores [n - from] of the tokens [from, n) for each stream that wants them. */
int lockstep_device_score(struct lockstep *l, const int32_t *tokens, int64_t from,
                          const bool *wants, struct decoder_score *const *out, struct err *err);

/* As lockstep_rows, not normed, and rows of the last prefill, not normed. */
int lockstep_device_rows(struct lockstep *l, int stream, const int32_t *tokens, int64_t pos,
                         int64_t m, float *rows, struct err *err);
int lockstep_device_hidden(struct lockstep *l, int stream, int64_t row, int64_t n, float *h,
                           struct err *err);

#endif
