/*
 * decoder_body.h - the inside of a decoder on the GPU, shared by its files: decoder.c (opening,
 * weights, a layer, likelihoods), decoder_states.c (several states), decoder_few.c (rows behind a
 * sequence).
 */
#ifndef LACUNA_DECODER_BODY_H
#define LACUNA_DECODER_BODY_H

#include "core/decoder.h"
#include "cuda/attn/attn.h"
#include "cuda/decoder_ops.h"
#include "cuda/modelrun.h"

/* Matrices that are multiplied as one. */
enum { QKV, OUT, GATE_UP, DOWN, MATRICES };

/* Weights of a layer. */
struct decoder_weights {
    struct matrix m[MATRICES];
    float *vector[LLM_LAYER_TENSORS]; /* norms and biases */
    bool has[LLM_LAYER_TENSORS];
};

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
    struct decoder_weights *layers; /* one, or [shape.kept]; the array is owned */
    struct decoder_weights *w;      /* of the layer at hand */
    float *norm;                    /* [hidden]: the last one */
    float *host;                    /* [rows][qdim + 2 kvdim] by tensor; owned, of one state */

    /* Of several states (core/decoder.h); h is then the hidden state of the one at hand. */
    float **states; /* [shape.states] of [cap][hidden]; the array is owned */
    int64_t cap;    /* tokens that everything has room for; shape.tokens are the sequence's */
    float *o_rows, *o_ref; /* [cap][qdim]: outputs of attention, of the state at hand and of 0 */
    /* In float32, by head: [heads][cap][d], [kv_heads][cap][d]; k and v of kept layers
     * [kept][states] of these. */
    float *q_rows, *k_rows, *v_rows;
    int layer, state; /* at hand */
    double *sums;     /* partial sums of ops_difference */
    void *table;      /* embeddings as stored */
    enum dtype table_type;
    int32_t *ids;     /* [cap] */
    float *pinned;    /* q, k, v for the host; owned, page-locked, NULL before they are wanted */
    struct few_rows { /* of decoder_few.c; for `rows` rows at a time */
        int64_t rows;
        float *h, *o, *parts;
        int32_t *ids;
    } few;
};

/* Weights of a layer, and rows of the output matrix, from the host. */
int decoder_put_weights(struct decoder *d, const struct decoder_tensor *w, struct err *err);
int decoder_put_head(struct decoder *d, const struct decoder_tensor *head, int terms, void *w,
                     struct err *err);

/* Tokens of the chunk that begins at t. */
int64_t decoder_chunk(const struct decoder *d, int64_t t);

/* q, k, v of a chunk in y, and by head as the attention's operands; of several states also in
 * float32. */
int decoder_project(struct decoder *d, int64_t t0, int64_t n, struct err *err);

/* The same of the rows h [n][hidden] to where `to` says: its operands and places, the rest is
 * filled in. */
int decoder_project_to(struct decoder *d, const float *h, int64_t n, struct ops_heads *to,
                       struct err *err);

/* k or v in float32 of the layer and state at hand; all: d->k_rows or d->v_rows. */
static inline float *decoder_kept_rows(const struct decoder *d, float *all)
{
    int64_t size = d->kvdim * d->cap;
    return d->shape.kept ? all + ((int64_t)d->layer * d->shape.states + d->state) * size : all;
}

/* Terms of the output projection's operands (decoder_ops.h). */
static inline int decoder_out_terms(const struct decoder *d)
{
    return d->w->m[OUT].terms;
}

/* What follows attention, of a chunk whose outputs are in d->x. */
int decoder_finish(struct decoder *d, int64_t t0, int64_t n, struct err *err);

int decoder_check_overflow(struct decoder *d, struct err *err);

/* The plan of exact attention over shape.tokens. */
int decoder_make_attention(struct decoder *d, struct err *err);

/* decoder_states.c: memory of the states. */
int decoder_alloc_states(struct decoder *d, struct err *err);

/* decoder_few.c: memory for rows behind a sequence; decoder_states.rows. */
int decoder_alloc_few(struct decoder *d, struct err *err);
int decoder_run_few(struct decoder *d, int state, const int32_t *tokens, int64_t pos, int64_t m,
                    float *h, struct err *err);
extern const struct decoder_states cuda_decoder_states;

#endif
