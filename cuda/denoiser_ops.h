/*
 * denoiser_ops.h - the small kernels of a video diffusion transformer's layer, beside those of
 * decoder_ops.h, whose rules hold: arrays on the device, g's stream, row-major, outputs for the
 * next product as bf16 terms. They are the rows of capture/wan_forward.c.
 */
#ifndef LACUNA_DENOISER_OPS_H
#define LACUNA_DENOISER_OPS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "core/denoiser.h"
#include "cuda/device.h"

/* A latent and its patches: size, patch and grid by axis (frame, row, column). */
struct ops_grid {
    int64_t size[3], patch[3], grid[3];
    int64_t channels;
};

/* Patches [tok0, tok0 + n) of x [channels][t][h][w], each by channel, frame, row, column -> out
 * bf16 [n][terms * values of a patch]. */
int ops_patches(struct gpu *g, const float *x, const struct ops_grid *l, int64_t tok0, int64_t n,
                int terms, void *out, struct err *err);

/* The way back: rows [n][values of a patch], each by frame, row, column, channel, plus bias
 * [values of a patch] -> x. */
int ops_pixels(struct gpu *g, const float *rows, const float *bias, const struct ops_grid *l,
               int64_t tok0, int64_t n, float *x, struct err *err);

/* y = (x - mean) / sqrt(var + eps) * w + b of n rows of d -> out bf16 [n][terms * d]. */
int ops_layer_norm(struct gpu *g, const float *x, int64_t n, int64_t d, const float *w,
                   const float *b, double eps, int terms, void *out, struct err *err);

/* f(y + bias) of n rows of d, bias NULL = 0 -> out bf16 [n][terms * d]. */
enum ops_function { OPS_SILU, OPS_GELU_TANH };
int ops_activate(struct gpu *g, const float *y, int64_t n, int64_t d, const float *bias,
                 enum ops_function f, int terms, void *out, struct err *err);

/* h += gate * (y + bias), rows of d; gate NULL = 1. */
int ops_add_gated(struct gpu *g, float *h, const float *y, int64_t n, int64_t d, const float *bias,
                  const float *gate, struct err *err);

/* Rows of a modulation: out [rows][d] = table [rows][d] + e, plus 1 in the rows whose bit is set in
 * `scales` (a scale multiplies as 1 + scale). e is [rows][d], or [d] for all rows. */
int ops_modulation(struct gpu *g, const float *table, const float *e, bool e_is_row, int rows,
                   int64_t d, unsigned scales, float *out, struct err *err);

/* One of q, k, v for a chunk of tokens by head, as an operand of attention. */
struct ops_wide {
    int heads, d;
    int padded;        /* channels of the operand; those from d on are not written */
    int64_t n, tok0;   /* tokens in y; index of the first */
    int64_t ld;        /* floats from row to row of y */
    int64_t tokens;    /* of the operand */
    const float *norm; /* [heads * d]: RMS norm over all heads first; NULL = none */
    double eps;
    /* Then neighbouring channels turn: axis a takes the next pairs[a] pairs of a head, table[a]
     * [grid[a]][pairs[a]][2] are cos and sin (ops_rope_table). */
    bool rotate;
    int64_t grid[3], pairs[3];
    const float *table[3];
    bool bf16;     /* of the operand; else float16 */
    void *to;      /* [heads][tokens][padded] */
    float *wide;   /* [heads][tokens][d]: once more as they are; NULL = not wanted */
    int *overflow; /* as in struct ops_heads */
};

/* Columns [0, heads * d) of y [n][ld], in place and to w->to. */
int ops_split_wide(struct gpu *g, const struct ops_wide *w, float *y, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
