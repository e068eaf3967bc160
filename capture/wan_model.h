/*
 * wan_model.h - weights of a Wan 2.1 transformer and its forward pass in float32.
 *
 * One step: latent x [C][T][H][W], timestep, text embeddings -> velocity of the same shape. Tokens
 * are the patches in raster order (t, y, x). Blocks are read from the checkpoint one at a time
 * unless all of them fit into the cache budget, so that a model larger than memory runs.
 *
 * Peebles & Xie, arXiv 2212.09748 (AdaLN); Wan, arXiv 2503.20314; tensor names as in diffusers.
 */
#ifndef LACUNA_WAN_MODEL_H
#define LACUNA_WAN_MODEL_H

#include "capture/nn.h"
#include "capture/wan_config.h"
#include "core/safetensors.h"

/* clang-format off */
/* Weights of one block; the order is that of the table in wan_weights.c. */
enum wan_tensor {
    WAN_MOD,                                           /* scale_shift_table [6][dim] */
    WAN_Q1, WAN_Q1_B, WAN_K1, WAN_K1_B, WAN_V1, WAN_V1_B, WAN_O1, WAN_O1_B, WAN_NQ1, WAN_NK1,
    WAN_Q2, WAN_Q2_B, WAN_K2, WAN_K2_B, WAN_V2, WAN_V2_B, WAN_O2, WAN_O2_B, WAN_NQ2, WAN_NK2,
    WAN_F0, WAN_F0_B, WAN_F2, WAN_F2_B,
    WAN_NORM2, WAN_NORM2_B,                            /* absent without cross_attn_norm */
    WAN_BLOCK_TENSORS
};
/* clang-format on */

/* clang-format off */
/* Weights outside the blocks. */
enum wan_outer {
    WAN_PATCH, WAN_PATCH_B, WAN_TIME1, WAN_TIME1_B, WAN_TIME2, WAN_TIME2_B, WAN_TIME_PROJ,
    WAN_TIME_PROJ_B, WAN_TEXT1, WAN_TEXT1_B, WAN_TEXT2, WAN_TEXT2_B, WAN_OUT, WAN_OUT_B,
    WAN_OUT_MOD, WAN_OUTER_TENSORS
};
/* clang-format on */

struct wan_block {
    float *t[WAN_BLOCK_TENSORS]; /* owned; NULL = not loaded */
};

struct wan_model {
    struct wan_config c;
    struct st_file *file; /* owned */
    float *outer[WAN_OUTER_TENSORS];
    struct wan_block *blocks; /* [layers], cached ones loaded */
    bool cached;
    const struct layer_attention *attention; /* of self-attention; NULL: exact. Set by the caller */
};

/* Open a checkpoint directory: every tensor must be there with its shape, checked at once. Blocks
 * stay in memory when their float32 copies take at most cache_bytes. */
int wan_open(const char *dir, int64_t cache_bytes, struct wan_model *m, struct err *err);
void wan_close(struct wan_model *m);

/* Bytes of one block in float32. */
int64_t wan_block_bytes(const struct wan_config *c);

/* The weights of block i: cached, or read into *scratch (released with wan_block_free). */
int wan_block_get(struct wan_model *m, int i, struct wan_block *scratch,
                  const struct wan_block **out, struct err *err);
void wan_block_free(struct wan_block *b);

/* Token grid of a latent of size t x h x w (latent pixels): ERR_USAGE unless divisible by the patch
 * and within the rotary table. */
int wan_grid(const struct wan_config *c, int64_t t, int64_t h, int64_t w, int64_t grid[3],
             struct err *err);

/* Called for each layer with q, k (normalised, rotated) and v of the self-attention, each
 * [tokens][dim], before the attention is done. */
typedef int wan_hook(void *ctx, int layer, const float *q, const float *k, const float *v,
                     struct err *err);

struct wan_input {
    const float *x; /* [in_channels][t][h][w] */
    int64_t t, h, w;
    double timestep;
    const float *text; /* [n_text][text_dim] */
    int64_t n_text;
};

/* Velocity [out_channels][t][h][w] into v. hook may be NULL. */
int wan_forward(struct wan_model *m, const struct wan_input *in, int jobs, wan_hook *hook,
                void *hook_ctx, float *v, struct err *err);

/* Bytes of activations that wan_forward allocates for a latent of this size. */
int64_t wan_forward_bytes(const struct wan_config *c, int64_t t, int64_t h, int64_t w);

#endif
