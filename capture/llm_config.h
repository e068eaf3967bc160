/*
 * llm_config.h - config.json of a Hugging Face causal language model.
 *
 * Supported: Llama (and what has its class: Yi), Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Phi-3,
 * GLM, GLM-4, InternLM2. Whatever would change the arithmetic and is not implemented is refused by
 * name.
 */
#ifndef LACUNA_LLM_CONFIG_H
#define LACUNA_LLM_CONFIG_H

#include "capture/rope.h"
#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define LLM_LAYERS_MAX 4096

/* How checkpoints name the tensors of a layer, and which of them lie together in one. */
enum llm_naming { NAMES_LLAMA, NAMES_MIXTRAL, NAMES_INTERNLM2 };
enum llm_packing {
    PACK_NONE,
    PACK_QKV,    /* rows of q, then of k, then of v */
    PACK_GROUPS, /* per kv head the rows of its query heads, of k, of v */
};

struct llm_config {
    char architecture[64];
    int layers, heads, kv_heads, head_dim;
    int64_t hidden, ffn, vocab, max_positions;
    double eps;
    bool qkv_bias, o_bias, mlp_bias; /* linear layers with a bias */
    bool qk_norm;                    /* per-head RMS norm of q and k (Qwen3) */
    bool tied;                       /* lm_head is embed_tokens */
    int64_t window;                  /* keys that a sliding layer sees, 0 = no such layer */
    int64_t bos;                     /* bos_token_id, -1 if none */
    bool sliding[LLM_LAYERS_MAX];    /* layers that attend within the window */
    enum llm_naming naming;
    enum llm_packing packing;
    bool pack_gate_up;          /* rows of gate, then of up */
    bool post_norms;            /* RMS norms of what attention and feed-forward add (GLM-4) */
    int experts, experts_used;  /* 0: none */
    int64_t expert_ffn;         /* of one expert */
    bool experts_normalised;    /* weights of the chosen ones add up to 1 */
    bool dense[LLM_LAYERS_MAX]; /* layers without experts */
    struct rope_layout rotary;
    struct rope_config rope;
    enum dtype dtype; /* torch_dtype or dtype, DT_NONE if neither is given */
};

/* Keys that a row of the layer sees, its own among them; 0 = all before it. */
int64_t llm_window(const struct llm_config *c, int layer);

/* Does a layer have experts? */
bool llm_has_experts(const struct llm_config *c, int layer);

/* What no device can do: "" or a text. n tokens. */
const char *llm_device_lacks(const struct llm_config *c, int64_t n);

/* Read DIR/config.json. */
int llm_config_read(const char *dir, struct llm_config *c, struct err *err);

#endif
