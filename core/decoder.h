/*
 * decoder.h - the interface of a device that runs the layers of a Llama-family decoder: the
 * arithmetic of capture/llm_forward in device memory. capture and cuda both include this header and
 * never each other; main.c puts the device into struct app.
 *
 * The caller reads the checkpoint layer by layer and writes the trace; the device holds the hidden
 * state of all tokens and one layer's weights.
 */
#ifndef LACUNA_DECODER_H
#define LACUNA_DECODER_H

#include "core/dtype.h"
#include "core/err.h"

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
    double eps;             /* epsilon epsilon of the RMS norms */
    const double *inv_freq; /* [head_dim / 2], rotary frequencies; only open reads them */
    double rope_factor;     /* factor factor on cos and sin */
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
    /* Pooled maps of core/poolmap.h, cells of pool x pool: [heads][cells][cells]; NULL = none. */
    int64_t pool;
    float *map_sum, *map_max;
};

struct decoder;

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
};

#endif
