/*
 * denoiser.h - the interface of a device that runs a Wan 2.1 video diffusion transformer: the
 * arithmetic of capture/wan_forward in device memory. capture and cuda both include this header and
 * never each other; main.c puts the device into struct app.
 *
 * The device holds the weights of all blocks. The caller reads them from the checkpoint, goes
 * through the blocks of every evaluation and writes the trace; the sampler is the caller's.
 */
#pragma once

#include "core/decoder.h"

/* clang-format off */
/* Weights of one block. A bias follows its weight, and a linear map the one before it. */
enum wan_tensor {
    WAN_MOD,                                           /* scale_shift_table [6][dim] */
    WAN_Q1, WAN_Q1_B, WAN_K1, WAN_K1_B, WAN_V1, WAN_V1_B, WAN_O1, WAN_O1_B, WAN_NQ1, WAN_NK1,
    WAN_Q2, WAN_Q2_B, WAN_K2, WAN_K2_B, WAN_V2, WAN_V2_B, WAN_O2, WAN_O2_B, WAN_NQ2, WAN_NK2,
    WAN_F0, WAN_F0_B, WAN_F2, WAN_F2_B,
    WAN_NORM2, WAN_NORM2_B,                            /* absent without cross_attn_norm */
    WAN_BLOCK_TENSORS
};

/* Weights outside the blocks. */
enum wan_outer {
    WAN_PATCH, WAN_PATCH_B, WAN_TIME1, WAN_TIME1_B, WAN_TIME2, WAN_TIME2_B, WAN_TIME_PROJ,
    WAN_TIME_PROJ_B, WAN_TEXT1, WAN_TEXT1_B, WAN_TEXT2, WAN_TEXT2_B, WAN_OUT, WAN_OUT_B,
    WAN_OUT_MOD, WAN_OUTER_TENSORS
};
/* clang-format on */

/* Tokens are the patches of the latent in raster order (t, y, x). Axes are frame, row, column. */
struct denoiser_shape {
    int64_t size[3], patch[3]; /* of the latent and of a patch; size is a multiple of patch */
    int64_t in_channels, out_channels;
    int64_t ffn, freq, text_dim; /* width of the feed-forward; inputs of the two embeddings */
    int64_t n_text;              /* tokens of the text */
    int layers, heads, head_dim; /* model width = heads * head_dim */
    double eps;                  /* of the norms */
    /* Neighbouring channels (2 i, 2 i + 1) of a head turn by position * inv_freq[i]: the first
     * pairs[0] pairs by the frame, pairs[1] by the row, pairs[2] by the column. Only open reads
     * inv_freq [head_dim / 2]. */
    int64_t pairs[3];
    const double *inv_freq;
    bool bf16; /* attention takes operands rounded to bf16, as core/accel.h does; else float16 */
};

/* What a layer hands out while the device waits. Each callback may be NULL. */
struct denoiser_sink {
    void *ctx;
    /* Tokens [tok0, tok0 + n) of the self-attention: q, k (normalised, rotated) and v, each
     * [n][heads * d] in float32. */
    int (*rows)(void *ctx, int64_t tok0, int64_t n, const float *q, const float *k, const float *v,
                struct err *err);
    /* Somebody else's self-attention: q, k, v are on the device, and in float32 here; out
     * [tokens][heads * d] is to be written, or there->out, and *stayed says so. Any answer but 0
     * ends the layer and is its answer. */
    int (*attend)(void *ctx, const struct decoder_operands *there, const struct decoder_rows *rows,
                  float *out, bool *stayed, struct err *err);
    /* Pooled maps of exact self-attention as in struct decoder_sink; 0 = none. */
    int64_t pool;
    float *map_sum, *map_max;
};

/* Device times of one evaluation in ns. */
struct denoiser_times {
    double linear;    /* everything but self-attention: embeddings, norms, products, rotary
                       * embedding, cross-attention, feed-forward, the velocity */
    double product;   /* of it, the products with weights */
    double attention; /* the model's own self-attention, all layers */
};

struct denoiser;

struct denoiser_accel {
    const char *name;                             /* "cuda" */
    const char *arithmetic;                       /* for the trace's `compute` */
    void (*computed_by)(char *text, size_t size); /* as in struct decoder_accel */

    /* Take GPU `local_rank`. Errors as in struct decoder_accel; ERR_NOMEM when the weights do not
     * fit. */
    int (*open)(int local_rank, const struct denoiser_shape *s, struct denoiser **out,
                struct err *err);
    void (*close)(struct denoiser **d); /* accepts NULL inside */

    /* The weights, once: w [WAN_OUTER_TENSORS], and of each block w [WAN_BLOCK_TENSORS], whose
     * WAN_NORM2 has data NULL where the architecture does not have it. */
    int (*put_outer)(struct denoiser *d, const struct decoder_tensor *w, struct err *err);
    int (*put_block)(struct denoiser *d, int block, const struct decoder_tensor *w,
                     struct err *err);

    /* One evaluation is begin, all layers in order, end. x [in_channels][t][h][w], frequencies
     * [freq] of the timestep, text [n_text][text_dim]. */
    int (*begin)(struct denoiser *d, const float *x, const float *frequencies, const float *text,
                 struct err *err);
    int (*layer)(struct denoiser *d, int layer, const struct denoiser_sink *sink, struct err *err);
    /* The velocity [out_channels][t][h][w]. */
    int (*end)(struct denoiser *d, float *v, struct err *err);

    /* Medians of `samples` runs of the parts on their own, after an evaluation, whose state is used
     * up. */
    int (*time)(struct denoiser *d, int samples, struct denoiser_times *t, struct err *err);

    /* Device time so far in seconds, without the time to read weights and to hand out results. */
    double (*seconds)(const struct denoiser *d);
    const char *(*device)(const struct denoiser *d); /* name of the GPU */
};
