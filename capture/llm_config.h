/*
 * llm_config.h - config.json of a Hugging Face causal language model.
 *
 * Supported: Llama (and what has its class: Yi), Mistral, Mixtral, Qwen2, Qwen3, Qwen3-MoE, Phi-3,
 * GLM, GLM-4, InternLM2. Whatever would change the arithmetic and is not implemented is refused by
 * name.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Rotary position embedding (Su et al., arXiv 2104.09864) in the half-split layout of Llama-family
 * models or the interleaved one of GLM. theta_i = base^(-2i/d), with a scaling of long contexts:
 *
 *   linear   theta / factor (Chen et al., arXiv 2306.15595)
 *   llama3   theta / factor for wavelengths above old/low, unchanged below old/high, in between a
 *            linear blend of both (Llama 3.1)
 *   yarn     blend over channels between theta / factor and theta, cos and sin times the attention
 *            factor (Peng et al., arXiv 2309.00071)
 *   dynamic  a larger base beyond the trained length, for all positions of the prompt
 *   long     theta / factor_i, one factor per channel, another set beyond the trained length
 *            (LongRoPE, arXiv 2402.13753)
 */
enum rope_type { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_DYNAMIC, ROPE_LONG };

#define ROPE_CHANNELS_MAX 512 /* half of the largest head dim */

struct rope_config {
    enum rope_type type;
    double theta, factor;
    double low_freq_factor, high_freq_factor;    /* llama3 */
    double original_max;                         /* positions before scaling: llama3, yarn */
    double beta_fast, beta_slow;                 /* yarn */
    double attention_factor, mscale, mscale_all; /* yarn; NAN = not given */
    bool truncate;                               /* yarn: whole channels at the ramp's ends */
    int64_t tokens;                              /* of the prompt: dynamic, long */
    double short_factor[ROPE_CHANNELS_MAX], long_factor[ROPE_CHANNELS_MAX]; /* long */
};

/* inv_freq [d / 2]; returns the factor on cos and sin (1 except yarn and long). */
double rope_frequencies(const struct rope_config *c, int d, double *inv_freq);

/* Rotate x [n][heads][d] of tokens pos0 .. pos0 + n - 1 in place: channels (i, i + d/2) by angle
 * pos * inv_freq[i]. */
void rope_apply(float *x, int64_t n, int heads, int d, int64_t pos0, const double *inv_freq,
                double factor);

/* The same on the first `rotated` channels of each head; interleaved: channels (2 i, 2 i + 1). */
struct rope_layout {
    int rotated;
    bool interleaved;
};
void rope_apply_part(float *x, int64_t n, int heads, int d, struct rope_layout how, int64_t pos0,
                     const double *inv_freq, double factor);

/* ---- config.json ---------------------------------------------------------------------------- */

#define LLM_LAYERS_MAX 4096

/* How checkpoints name the tensors of a layer, and which of them lie together in one. */
enum llm_naming { NAMES_LLAMA, NAMES_MIXTRAL, NAMES_INTERNLM2, NAMES_GGUF };
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
    bool paired_rows; /* channels i and i + d / 2 of q and k lie in rows 2 i and 2 i + 1 */
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

/* The beginning-of-text token that --bos yes asks for. */
int llm_bos(const char *model, const struct llm_config *c, int32_t *id, struct err *err);

/* Read config.json of a checkpoint (core/checkpoint.h). */
int llm_config_read(const char *model, struct llm_config *c, struct err *err);
