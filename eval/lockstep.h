/*
 * lockstep.h - one sequence through a language model with several kinds of attention at once:
 * stream 0 is exact attention, every other stream a method. All streams advance layer by layer
 * together, so that weights are read once and errors against the exact run are there after every
 * layer.
 *
 * A stream whose method does not apply, or fails, drops out; the others go on.
 */
#pragma once

#include "capture/llm_model.h"
#include "core/decoder.h"
#include "core/record.h"
#include "eval/layerattn.h"

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

struct stream {
    struct layer_attn *attn;       /* NULL: exact attention; borrowed */
    float *h;                      /* [n][hidden], after the last layer normed; owned. On a
                                    * device: NULL */
    float *last;                   /* [hidden]: the last row of it; owned */
    struct nn_kv *kv;              /* [layers], or one that all layers use in turn; owned. NULL
                                    * where the device has them */
    bool idle;                     /* not wanted for this sequence */
    enum record_status status;     /* RECORD_OK, or why the stream is out */
    char reason[512];              /* of a stream that is out */
    double *attn_err, *attn_ref;   /* [layers]: sums of squares of the attention output's error */
    double *resid_err, *resid_ref; /* the same of the residual stream after the layer; owned */
};

/* Does the stream take part? */
static inline bool stream_runs(const struct stream *s)
{
    return !s->idle && s->status == RECORD_OK;
}

struct lockstep {
    struct llm_model *model; /* borrowed */
    int jobs;
    struct llm_work work;
    struct stream *s; /* [n_streams], owned */
    int n_streams;
    int64_t n, cap;   /* tokens of the sequence; that h and a cache hold */
    int64_t question; /* last rows of the sequence that are its question, for DENSE_LAST_QUESTION */
    bool keep;        /* keys and values of all layers are kept here, for rows that follow */
    struct llm_layer *weights;      /* [layers] with `keep`, read once; else one; owned */
    bool *loaded;                   /* [layers] */
    float *head;                    /* [vocab][hidden] where rows may follow; owned */
    float *q, *o, *dense_o;         /* [cap][heads * d]; owned */
    struct lockstep_device *device; /* where prefills run; NULL: on this processor; owned */
};

/* Room for `cap` tokens a sequence. attn [n_streams - 1] are the methods. keep: rows may follow.
 * on: the device that prefills run on, and rows that follow, where it can; or NULL. */
int lockstep_open(struct lockstep *l, struct llm_model *m, struct layer_attn *attn, int n_methods,
                  int64_t cap, bool keep, enum dtype round, int jobs, const struct lockstep_on *on,
                  struct err *err);
void lockstep_close(struct lockstep *l);

/* Bytes of it, without weights. */
int64_t lockstep_bytes(const struct llm_config *c, int n_streams, int64_t cap, bool keep);

/* Start a cell: errors of layers and numbers of methods at 0, every stream takes part. */
void lockstep_reset(struct lockstep *l);

/* A stream whose attention answered rc in a layer, METHOD_SKIP or an error `why`: one that concerns
 * the method alone takes the stream out, and the answer is 0; others are the answer. */
int lockstep_drop_out(struct stream *s, int layer, int rc, struct err *why, struct err *err);

/* The whole sequence, tokens [n]: h of every stream is the normed output of the last layer. Errors
 * add up over calls. */
int lockstep_prefill(struct lockstep *l, const int32_t *tokens, int64_t n, struct err *err);

/* The tokens [m] at positions pos .. of one stream, behind what its cache holds, by exact attention
 * or (layer_attn.how->decode_method) row by row with the method. rows [m][hidden] receives the
 * normed outputs. METHOD_SKIP: the stream is out. */
int lockstep_rows(struct lockstep *l, int stream, const int32_t *tokens, int64_t pos, int64_t m,
                  float *rows, struct err *err);

/* The normed outputs h [n][hidden] of the rows [row, row + n) of the last prefill. */
int lockstep_hidden(struct lockstep *l, int stream, int64_t row, int64_t n, float *h,
                    struct err *err);

/* Logits [m][vocab] of normed outputs [m][hidden], where rows may follow. */
int lockstep_logits(struct lockstep *l, const float *rows, int64_t m, float *logits,
                    struct err *err);

/* ---- on a device (lockstepdevice.c) --------------------------------------------------------- */

/* Layers run on a device (core/decoder.h): hidden states, linear layers, exact attention,
 * likelihoods and the rows behind a prefill stay there. Methods run as ever (eval/layerattn.h), on
 * q, k, v that lie on the device already. */

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
