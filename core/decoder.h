/*
 * decoder.h - the interface of a device that runs the layers of a Llama-family decoder: the
 * arithmetic of capture/llm_forward in device memory. capture and cuda both include this header and
 * never each other; main.c puts the device into struct app.
 *
 * The caller reads the checkpoint layer by layer and writes the trace; the device holds the hidden
 * state of all tokens and one layer's weights.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* clang-format off */
/* Tensors of a layer. A bias follows its weight. */
enum llm_tensor {
    LLM_NORM1, LLM_Q, LLM_Q_B, LLM_K, LLM_K_B, LLM_V, LLM_V_B, LLM_O, LLM_O_B, LLM_QN, LLM_KN,
    LLM_NORM2, LLM_GATE, LLM_GATE_B, LLM_UP, LLM_UP_B, LLM_DOWN, LLM_DOWN_B,
    /* No device has these: norms behind attention and feed-forward (GLM-4), experts. */
    LLM_POST1, LLM_POST2, LLM_ROUTER, LLM_E_GATE, LLM_E_UP, LLM_E_DOWN,
    LLM_LAYER_TENSORS
};
/* clang-format on */

struct decoder_shape {
    int64_t tokens, hidden, ffn, vocab;
    int heads, kv_heads, head_dim;
    double eps;             /* epsilon of the RMS norms */
    const double *inv_freq; /* [head_dim / 2], rotary frequencies; only open reads them */
    double rope_factor;     /* factor on cos and sin */
    int states;             /* hidden states over the same tokens; 0 = 1 */
    int kept; /* layers whose weights, keys and values stay, for rows that follow; 0: none do */
};

/* A matrix [rows][cols], or a vector (cols 1), in the type of the checkpoint: F32, BF16 or F16.
 * data NULL: the architecture does not have this tensor. */
struct decoder_tensor {
    const void *data;
    enum dtype dtype;
    int64_t rows, cols;
};

/* Callbacks that receive the results of a layer while the device waits. Each may be NULL. */
struct decoder_sink {
    void *ctx;
    /* Tokens [tok0, tok0 + n): q [n][heads * d], k and v [n][kv_heads * d] in float32, positions
     * applied. */
    int (*rows)(void *ctx, int64_t tok0, int64_t n, const float *q, const float *k, const float *v,
                struct err *err);
    /* Pooled maps of core/attention.h, cells of pool x pool: [heads][cells][cells]; NULL = none. */
    int64_t pool;
    float *map_sum, *map_max;
};

struct decoder;

/* q, k, v of all heads on the device, rounded to bf16 and padded to `padded` channels: q
 * [heads][tokens][padded], k and v [kv_heads][tokens][padded]. */
struct decoder_operands {
    const void *q, *k, *v;
    int padded;
    float *out; /* [tokens][heads * d] there: who attends to them may write the outputs here, in
                 * float32, instead of handing them over. NULL: no */
};

/* q, k, v in float32 on the host, head by head: [heads or kv_heads][tokens][d]. The device's; the
 * caller may change them. */
struct decoder_rows {
    float *q, *k, *v;
};

/* How far a state is from state 0: sums of squares of the difference and of state 0. */
struct decoder_diff {
    double attn, attn_ref;   /* of the attention's output */
    double resid, resid_ref; /* of the residual stream behind the layer */
};

/* What a row says about the token behind it. */
struct decoder_score {
    double nll;     /* -ln q(token) */
    double kl;      /* sum over the vocabulary of p (ln p - ln q), p of state 0; not below 0 */
    int64_t likely; /* the likeliest token, the lowest of equals */
};

/* Several hidden states go through the layers side by side, for runs that put something else in the
 * place of attention. A layer's weights are loaded first; then every state, 0 first, is projected,
 * attends (or does what stands in for it) and is finished. Attention takes operands rounded to
 * bf16, as core/accel.h does. */
struct decoder_states {
    /* The embeddings [vocab][hidden], once, before all else. */
    int (*put_table)(struct decoder *d, const struct decoder_tensor *table, struct err *err);

    /* The sequence that follows, for every state: tokens [n], 0 < n <= shape.tokens. */
    int (*begin)(struct decoder *d, const int32_t *tokens, int64_t n, struct err *err);

    /* Weights of a layer; w NULL: of a kept one that was loaded before. */
    int (*load)(struct decoder *d, int layer, const struct decoder_tensor *w, struct err *err);

    /* q, k, v of the state; *operands, and *rows unless NULL, are valid until the next project. */
    int (*project)(struct decoder *d, int state, struct decoder_rows *rows,
                   struct decoder_operands *operands, struct err *err);

    /* Exact attention of what project left. */
    int (*attend)(struct decoder *d, struct err *err);

    /* Somebody else's output in its place: o [tokens][heads * d]. Not where it is in operands.out.
     */
    int (*put_attended)(struct decoder *d, const float *o, struct err *err);

    /* What follows attention. diff (not for state 0) receives how far the state is off; may be
     * NULL. */
    int (*finish)(struct decoder *d, int state, struct decoder_diff *diff, struct err *err);

    /* After the last layer: scores [n - from] of the tokens [from, n) for each state that `wants`
     * [states]: out [states] of arrays. State 0 is always computed. */
    int (*score)(struct decoder *d, const struct decoder_tensor *norm,
                 const struct decoder_tensor *head, const int32_t *tokens, int64_t from,
                 const bool *wants, struct decoder_score *const *out, struct err *err);

    /* Rows [row, row + n) of a state's hidden state, not normed: h [n][hidden]. */
    int (*get_hidden)(struct decoder *d, int state, int64_t row, int64_t n, float *h,
                      struct err *err);

    /* tokens [m] at positions pos .. of a state, of a decoder that keeps all layers: h [m][hidden]
     * receives the last layer's outputs, not normed. Their keys and values join the state's, from
     * pos on. Attention is exact, in float32, over the keys up to each row's own; pos + m <=
     * shape.tokens, head_dim a multiple of 4. */
    int (*rows)(struct decoder *d, int state, const int32_t *tokens, int64_t pos, int64_t m,
                float *h, struct err *err);

    /* Median device time of the loaded layer's linear parts over all tokens in ns: norms, products,
     * rotary embedding, everything but attention. A copy of state 0 is used up. */
    int (*time_layer)(struct decoder *d, int samples, double *ns, struct err *err);

    /* The same of the last norm and the logits of one row. */
    int (*time_head)(struct decoder *d, const struct decoder_tensor *norm,
                     const struct decoder_tensor *head, int samples, double *ns, struct err *err);
};

struct decoder_accel {
    const char *name;       /* "cuda" */
    const char *arithmetic; /* for the trace's `compute` */

    /* Library and GPU, "cublas 13, NVIDIA H100", for the trace's `computed_by`; the GPU is left out
     * where it cannot be asked: open says why. */
    void (*computed_by)(char *text, size_t size);

    /* Take GPU `local_rank`. No GPU, driver or library: ERR_MACHINE; a shape that the device has
     * no kernel for: ERR_MACHINE with what it has. */
    int (*open)(int local_rank, const struct decoder_shape *s, struct decoder **out,
                struct err *err);
    void (*close)(struct decoder **d); /* accepts NULL inside */

    /* Embeddings of the tokens [tok0, tok0 + n): h [n][hidden]. */
    int (*put_hidden)(struct decoder *d, int64_t tok0, int64_t n, const float *h, struct err *err);

    /* Run one layer over all tokens; w [LLM_LAYER_TENSORS]. */
    int (*layer)(struct decoder *d, const struct decoder_tensor *w, const struct decoder_sink *sink,
                 struct err *err);

    /* nll [tokens - 1]: -ln p(tokens[i + 1] | tokens[0..i]) from the last norm and the head
     * [vocab][hidden]. The hidden state is used up. */
    int (*likelihoods)(struct decoder *d, const struct decoder_tensor *norm,
                       const struct decoder_tensor *head, const int32_t *tokens, float *nll,
                       struct err *err);

    /* Device time so far in seconds, without the time to read weights and to hand out results. */
    double (*seconds)(const struct decoder *d);
    const char *(*device)(const struct decoder *d); /* name of the GPU */

    const struct decoder_states *states; /* of a decoder opened with shape.states > 0 */
};
