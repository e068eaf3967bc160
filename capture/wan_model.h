/*
 * wan_model.h - weights of a Wan 2.1 transformer and its forward pass in float32.
 *
 * One step: latent x [C][T][H][W], timestep, text embeddings -> velocity of the same shape. Tokens
 * are the patches in raster order (t, y, x). Blocks are read from the checkpoint one at a time
 * unless all of them fit into the cache budget, so that a model larger than memory runs.
 *
 * Peebles & Xie, arXiv 2212.09748 (AdaLN); Wan, arXiv 2503.20314; tensor names as in diffusers.
 */
#pragma once

#include "capture/nn.h"
#include "capture/wan_config.h"
#include "core/denoiser.h"
#include "core/safetensors.h"

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
    struct wan_device *device; /* where wan_forward runs; owned, NULL: this processor */
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

/* The weights of block i, or those outside the blocks, as stored, for a device: t[i].data is to be
 * freed, NULL where the model does not have the tensor. A scale_shift_table is a vector. */
int wan_raw_block(const struct wan_model *m, int i, struct decoder_tensor t[WAN_BLOCK_TENSORS],
                  struct err *err);
int wan_raw_outer(const struct wan_model *m, struct decoder_tensor t[WAN_OUTER_TENSORS],
                  struct err *err);

/* What an evaluation hands out. Each may be NULL. A non-zero return ends it. */
struct wan_hooks {
    void *ctx;
    /* Before every layer's self-attention: its q, k (normalised, rotated) and v, each
     * [tokens][dim]; a device leaves them NULL in layers that are not wanted. */
    int (*rows)(void *ctx, int layer, const float *q, const float *k, const float *v,
                struct err *err);
    bool (*wants)(void *ctx, int layer);
    /* After it: pooled maps of exact self-attention of the layers that are wanted, in cells of
     * `pool`, 0 = none; not when the model has its own attention. */
    int64_t pool;
    int (*maps)(void *ctx, int layer, const struct attnmap *map, struct err *err);
};

static inline bool wan_wants(const struct wan_hooks *h, int layer)
{
    return h && (!h->wants || h->wants(h->ctx, layer));
}

static inline bool wan_wants_maps(const struct wan_hooks *h, int layer)
{
    return h && h->maps && h->pool > 0 && wan_wants(h, layer);
}

struct wan_input {
    const float *x; /* [in_channels][t][h][w] */
    int64_t t, h, w;
    double timestep;
    const float *text; /* [n_text][text_dim] */
    int64_t n_text;
};

/* Velocity [out_channels][t][h][w] into v. hooks may be NULL. */
int wan_forward(struct wan_model *m, const struct wan_input *in, int jobs,
                const struct wan_hooks *hooks, float *v, struct err *err);

/* Channel pairs of a head that turn by the position on each axis (frame, row, column), and the
 * angle per position of every pair in that order: inv_freq [head_dim / 2]. */
void wan_rotary(const struct wan_config *c, int64_t pairs[3], double *inv_freq);

/* What the timestep's embedding starts from: [freq_dim]. */
void wan_timestep(const struct wan_config *c, double timestep, float *freq);

/* Bytes of activations that wan_forward allocates for a latent of this size. */
int64_t wan_forward_bytes(const struct wan_config *c, int64_t t, int64_t h, int64_t w);

/* ---- on a device ---------------------------------------------------------------------------- */

struct wan_device;

/* What runs there, and its size. Strings and structs are borrowed. */
struct wan_device_ask {
    const struct denoiser_accel *on;
    int local_rank;
    int64_t size[3]; /* of the latent: frames, height, width */
    int64_t n_text;  /* tokens of the text */
    bool bf16;       /* as in struct denoiser_shape */
};

/* Put the model's weights on the device; from now on wan_forward runs there, with inputs of this
 * size, until wan_close. Errors begin with the option --device. */
int wan_device_open(struct wan_model *m, const struct wan_device_ask *ask, struct err *err);
void wan_device_close(struct wan_device **d);

/* As wan_forward, of a model with a device. */
int wan_device_forward(struct wan_model *m, const struct wan_input *in,
                       const struct wan_hooks *hooks, float *v, struct err *err);

/* Times of the parts of one evaluation, after one (denoiser_accel.time). */
int wan_device_time(struct wan_model *m, int samples, struct denoiser_times *t, struct err *err);

/* Time that the device has worked so far, in seconds. */
double wan_device_seconds(const struct wan_device *d);

/* Bytes of host memory that it takes, with maps in cells of pool (0: none). */
int64_t wan_device_bytes(const struct wan_config *c, int64_t tokens, int64_t pool);
