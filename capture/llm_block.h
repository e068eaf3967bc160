/*
 * llm_block.h - the parts of a Llama-family decoder layer, for runs over one hidden state
 * (llm_model.h) and for runs that put something else in the place of attention.
 *
 *   project   q, k, v = rope(norm(W x))      x = RMSNorm(h); k and v join the layer's cache
 *   attend    o of q against the cache       the caller's: nn_attention or a layer_attention
 *   finish    h += O o; h += Down(silu(Gate x) * Up x)
 *
 * GLM-4 norms what is added. A layer with experts adds sum_e w_e Down_e(silu(Gate_e x) * Up_e x)
 * over the few experts with the largest softmax(Router x)_e. The cache says
 * which keys a row of the layer sees: project sets its reach.
 *
 * The workspace has no state between calls: several hidden states can go through one layer in
 * turn, so that its weights are read once.
 */
#ifndef LACUNA_LLM_BLOCK_H
#define LACUNA_LLM_BLOCK_H

#include "capture/llm_model.h"
#include "capture/nn.h"

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

#endif
