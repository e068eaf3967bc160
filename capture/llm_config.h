/*
 * llm_config.h - config.json of a Hugging Face causal language model.
 *
 * Supported: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM. Whatever
 * would change the arithmetic and is not implemented is refused by name.
 */
#ifndef LACUNA_LLM_CONFIG_H
#define LACUNA_LLM_CONFIG_H

#include "capture/rope.h"
#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

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
    struct rope_config rope;
    enum dtype dtype; /* torch_dtype or dtype, DT_NONE if neither is given */
};

/* Read DIR/config.json. */
int llm_config_read(const char *dir, struct llm_config *c, struct err *err);

#endif
