/*
 * llm_model.h - weights of a Llama-family checkpoint and its float32 forward pass over a prompt.
 *
 * Weights are read one layer at a time and tokens are processed in chunks: memory holds the hidden
 * state of all tokens, one layer's weights, keys and values, and a chunk's activations.
 */
#pragma once

#include "capture/llm_config.h"
#include "capture/nn.h"
#include "core/decoder.h"
#include "core/safetensors.h"

struct llm_model {
    struct llm_config c;
    struct st_file *file;                 /* owned */
    const struct st_tensor *embed, *head; /* [vocab][hidden]; the same tensor when tied */
    const struct st_tensor *norm;         /* [hidden], the last one */
};

/* Open a checkpoint (core/checkpoint.h); every tensor must be there with its shape. A GGUF file
 * must not have others: they would change what is computed. */
int llm_open(const char *model, struct llm_model *m, struct err *err);
void llm_close(struct llm_model *m);

/* Can the model be run over these tokens? ERR_USAGE for none, ERR_INPUT for ids it does not know.
 */
int llm_check_tokens(const struct llm_config *c, const int32_t *tokens, int64_t n, struct err *err);

/* What a run hands out. Each may be NULL. A non-zero return ends the run. */
struct llm_hooks {
    void *ctx;
    int (*begin_layer)(void *ctx, int layer, struct err *err);
    /* Tokens [tok0, tok0 + n): q [n][heads * d], k and v [n][kv_heads * d], positions applied; a
     * device leaves them NULL where wants_rows says no. */
    int (*rows)(void *ctx, int layer, int64_t tok0, int64_t n, const float *q, const float *k,
                const float *v, struct err *err);
    /* The layer is done; map is NULL without pool. */
    int (*end_layer)(void *ctx, int layer, const struct attnmap *map, struct err *err);
    bool (*wants_map)(void *ctx, int layer);
    bool (*wants_rows)(void *ctx, int layer);
};

struct llm_run {
    const int32_t *tokens; /* [n] */
    int64_t n;
    int64_t chunk; /* tokens of a chunk, 0 = default */
    int64_t pool;  /* cell size of the maps, 0 = none */
    int jobs;
    int layers;         /* layers to run, 0 = all; fewer leave nll and last_logits meaningless */
    float *nll;         /* [n - 1]: -ln p(token i+1 | tokens 0..i), nat; NULL = not wanted */
    float *last_logits; /* [vocab], NULL = not wanted; not on a device */
    const struct decoder_accel *device; /* NULL = this processor; then chunk and jobs are its own */
    int local_rank;                     /* picks the GPU */
    double *device_seconds;             /* time on the device, NULL = not wanted */
};

int llm_forward(struct llm_model *m, const struct llm_run *run, const struct llm_hooks *hooks,
                struct err *err);

/* Bytes that llm_forward allocates for n tokens. */
int64_t llm_forward_bytes(const struct llm_config *c, int64_t n, int64_t chunk, int64_t pool);

/* ---- weights -------------------------------------------------------------------------------- */

struct llm_layer {
    int number;
    float *t[LLM_LAYER_TENSORS]; /* owned; NULL where the architecture has none */
};

/* A tensor by name; ERR_INPUT unless it is there with this shape and holds floating-point numbers.
 */
int llm_tensor_require(const struct llm_model *m, const char *name, int ndim, const int64_t *shape,
                       const struct st_tensor **t, struct err *err);

/* Check that all tensors of a layer are there, and mark them in used [st_count]. */
int llm_layer_check(const struct llm_model *m, int layer, bool *used, struct err *err);

/* Read a layer into *l (freed and reused). */
int llm_layer_load(const struct llm_model *m, int layer, struct llm_layer *l, struct err *err);
void llm_layer_free(struct llm_layer *l);

/* The same layer as stored (float64 becomes float32), for a device: t[i].data is owned. */
struct llm_raw_layer {
    struct decoder_tensor t[LLM_LAYER_TENSORS];
};
int llm_raw_load(const struct llm_model *m, int layer, struct llm_raw_layer *l, struct err *err);
void llm_raw_free(struct llm_raw_layer *l);

/* Memory of the largest layer in float32. */
int64_t llm_layer_bytes(const struct llm_config *c);

/* Weights by which a token is multiplied, per layer, on average: of its experts the chosen ones. */
double llm_active_weights(const struct llm_config *c);

/* ---- on a device ---------------------------------------------------------------------------- */

/* As llm_forward for run->device. last_logits must be NULL. */
int llm_forward_device(struct llm_model *m, const struct llm_run *run,
                       const struct llm_hooks *hooks, struct err *err);

/* Open the device for sequences of up to n tokens of the model; states and kept as in
 * decoder_shape. Nothing is said against a model that it lacks something for (llm_device_lacks). */
int llm_device_open(const struct llm_model *m, const struct decoder_accel *on, int local_rank,
                    int64_t n, int states, int kept, struct decoder **out, struct err *err);

/* Bytes of host memory that it allocates for n tokens. */
int64_t llm_device_bytes(const struct llm_model *m, int64_t n, int64_t pool);

/* ---- the parts of a layer ------------------------------------------------------------------- */

/* For runs over one hidden state and for runs that put something else in the place of attention.
 *
 *   project   q, k, v = rope(norm(W x))      x = RMSNorm(h); k and v join the layer's cache
 *   attend    o of q against the cache       the caller's: nn_attention or a layer_attention
 *   finish    h += O o; h += Down(silu(Gate x) * Up x)
 *
 * GLM-4 norms what is added. A layer with experts adds sum_e w_e Down_e(silu(Gate_e x) * Up_e x)
 * over the few experts with the largest softmax(Router x)_e. The cache says which keys a row of the
 * layer sees: project sets its reach. The workspace has no state between calls: several hidden
 * states can go through one layer in turn, so that its weights are read once. */

/* Work space for `rows` tokens. */
struct llm_experts {
    float *logits;      /* [rows][experts]; then the weights, 0 for experts not chosen */
    float *sum;         /* [rows][hidden] */
    float *in, *out;    /* [rows][hidden]: tokens of one expert */
    float *gate, *up;   /* [rows][expert_ffn] */
    int64_t *of_expert; /* [rows]: their numbers */
};

struct llm_work {
    const struct llm_config *c;
    int jobs;
    int64_t chunk; /* tokens that project and finish take at most */
    int64_t qdim, kvdim;
    enum dtype round; /* q, k, v are rounded to this type (nearest, ties to even); DT_F32: not */
    float *x, *k, *v, *gate, *up; /* of a chunk, owned */
    double *inv_freq, rope_factor;
    struct llm_experts experts; /* empty without experts */
};

int llm_work_init(struct llm_work *s, const struct llm_config *c, int64_t chunk, int jobs,
                  struct err *err);
void llm_work_free(struct llm_work *s);

/* Bytes of a workspace. */
int64_t llm_work_bytes(const struct llm_config *c, int64_t chunk);

/* h [n][hidden] of the tokens at pos0 ..: their q [n][heads * d]; k and v join the cache there and
 * stay in s->k, s->v [n][kv_heads * d] until the next call. */
int llm_project(struct llm_work *s, const struct llm_layer *w, const float *h, int64_t pos0,
                int64_t n, struct nn_kv *kv, float *q, struct err *err);

/* What follows attention: o [n][heads * d] into the residual stream h [n][hidden]. */
int llm_finish(struct llm_work *s, const struct llm_layer *w, const float *o, int64_t n, float *h,
               struct err *err);

/* A whole layer over the n tokens at pos0 .., whose predecessors are in the cache. q and o are
 * scratch [n][heads * d]; o holds the attention output afterwards. attention NULL: exact. */
int llm_layer_run(struct llm_work *s, int layer, const struct llm_layer *w, int64_t pos0, int64_t n,
                  struct nn_kv *kv, const struct layer_attention *attention, float *q, float *o,
                  float *h, struct err *err);

/* Embeddings of n tokens: h [n][hidden]. */
int llm_embed(const struct llm_model *m, const int32_t *tokens, int64_t n, float *h,
              struct err *err);

/* The last norm, in place: h [n][hidden]. */
int llm_final_norm(const struct llm_model *m, int64_t n, float *h, struct err *err);
