/*
 * decoder_body.h - the inside of a decoder on the GPU, shared by its files: decoder.c (opening,
 * weights, a layer, likelihoods), decoder_states.c (several states).
 */
#ifndef LACUNA_DECODER_BODY_H
#define LACUNA_DECODER_BODY_H

#include "core/decoder.h"
#include "cuda/attn/attn.h"
#include "cuda/decoder_ops.h"
#include "cuda/modelrun.h"

/* Matrices that are multiplied as one. */
enum { QKV, OUT, GATE_UP, DOWN, MATRICES };

struct decoder {
    struct model_run on;
    struct decoder_shape shape;
    struct attn_job attend;
    struct gpu_mark base; /* top of the arena below what belongs to one sequence */
    int64_t rows;         /* tokens of a chunk */
    int64_t qdim, kvdim, padded;
    int64_t wide_in, wide_out; /* widest input and output of a matrix */
    float *h;                  /* [tokens][hidden] */
    float *y;                  /* [rows][wide_out] */
    void *x;                   /* bf16 [rows][3 wide_in] */
    void *q, *k, *v, *o;       /* float16, of several states bf16: [heads][tokens][padded] */
    float *lse, *rope;
    int *overflow;
    struct matrix m[MATRICES];
    float *vector[LLM_LAYER_TENSORS]; /* norms and biases; NULL = none of them */
    bool has[LLM_LAYER_TENSORS];
    float *host; /* [rows][qdim + 2 kvdim] by tensor */

    /* Of several states (core/decoder.h); h is then the hidden state of the one at hand. */
    float **states; /* [shape.states] of [cap][hidden]; the array is owned */
    int64_t cap;    /* tokens that everything has room for; shape.tokens are the sequence's */
    float *o_rows, *o_ref;  /* [cap][qdim]: outputs of attention, of the state at hand and of 0 */
    float *k_rows, *v_rows; /* [kv_heads][tokens][d] in float32 */
    double *sums;           /* partial sums of ops_difference */
};

/* Weights of a layer, and rows of the output matrix, from the host. */
int decoder_put_weights(struct decoder *d, const struct decoder_tensor *w, struct err *err);
int decoder_put_head(struct decoder *d, const struct decoder_tensor *head, int terms, void *w,
                     struct err *err);

/* Tokens of the chunk that begins at t. */
int64_t decoder_chunk(const struct decoder *d, int64_t t);

/* q, k, v of a chunk in y, and by head as the attention's operands. k32, v32 as in struct
 * ops_heads. */
int decoder_project(struct decoder *d, int64_t t0, int64_t n, struct err *err);

/* Terms of the output projection's operands (decoder_ops.h). */
static inline int decoder_out_terms(const struct decoder *d)
{
    return d->m[OUT].terms;
}

/* What follows attention, of a chunk whose outputs are in d->x. */
int decoder_finish(struct decoder *d, int64_t t0, int64_t n, struct err *err);

int decoder_check_overflow(struct decoder *d, struct err *err);

/* The plan of exact attention over shape.tokens. */
int decoder_make_attention(struct decoder *d, struct err *err);

/* decoder_states.c: memory of the states. */
int decoder_alloc_states(struct decoder *d, struct err *err);
extern const struct decoder_states cuda_decoder_states;

#endif
