/*
 * ops.h - the small kernels of the layers of decoders and video denoisers. All arrays are on the
 * device and everything runs on g's stream; matrices are row-major.
 *
 * Linear layers multiply bf16 with float32 sums, but to float32 accuracy: a float x is the sum of
 * the bf16 numbers hi = bf16(x) and lo = bf16(x - hi) up to 2^-17 |x|, and a product over rows
 *
 *   x' = [hi | lo]        w' = [w | w]               weights that are bf16 as they stand (terms 2)
 *   x' = [hi | lo | hi]   w' = [w_hi | w_hi | w_lo]  all others (terms 3)
 *
 * is one product with a longer sum.
 */
#pragma once

#include "cuda/linkage.h"

BEGIN_C

#include "core/decoder.h"
#include "core/denoiser.h"
#include "cuda/device.h"

#include <stdbool.h>

/* n standard normal bf16 values, a pure function of (seed, index). */
int ops_fill_normal(struct gpu *g, void *x, int64_t n, uint32_t seed, struct err *err);

/* w [rows][cols] as stored (F32, BF16, F16) -> out bf16 [rows][terms * cols]. */
int ops_split_weights(struct gpu *g, const void *w, enum dtype type, int64_t rows, int64_t cols,
                      int terms, void *out, struct err *err);
/* Convert n values to float. */
int ops_widen(struct gpu *g, const void *x, enum dtype type, int64_t n, float *out,
              struct err *err);

/* y = x / sqrt(mean(x^2) + eps) * w of n rows of d -> out bf16 [n][terms * d]. */
int ops_rms_norm(struct gpu *g, const float *x, int64_t n, int64_t d, const float *w, double eps,
                 int terms, void *out, struct err *err);

/* y [n][ld], columns [0, d) += b. */
int ops_add_bias(struct gpu *g, float *y, int64_t n, int64_t d, int64_t ld, const float *b,
                 struct err *err);

/* silu(y[0, d)) * y[d, 2 d) of y [n][2 d] -> out bf16 [n][terms * d]. */
int ops_silu_gate(struct gpu *g, const float *y, int64_t n, int64_t d, int terms, void *out,
                  struct err *err);

/* cos and sin of pos * inv_freq times factor for n positions: table [n][half][2]. */
int ops_rope_table(struct gpu *g, const double *inv_freq, int half, int64_t n, double factor,
                   float *table, struct err *err);

/* Heads of q, k and v of a chunk of tokens. */
struct ops_heads {
    int heads, kv_heads, d;
    int padded;      /* channels of the attention's operands: d or more, the rest is 0 */
    int64_t n, tok0; /* number of tokens in y; index of the first */
    int64_t tokens;  /* of the operands q, k, v */
    const float *q_norm, *k_norm; /* [d], NULL = no norm */
    double eps;
    const float *rope; /* ops_rope_table of all tokens */
    bool bf16;         /* of the operands; else float16 */
    void *q, *k, *v;   /* [heads or kv_heads][tokens][padded]; NULL = not wanted */
    /* [heads or kv_heads][tokens32][d]: once more as they are; NULL = not wanted */
    float *q32, *k32, *v32;
    int64_t tokens32;
    int *overflow; /* becomes 1 when an operand's value is beyond float16, or 2^39 with bf16 */
};

/* Norm and rotate q and k in place in y [n][(heads + 2 kv_heads) d], and copy q, k, v as operands
 * by head. */
int ops_split_heads(struct gpu *g, const struct ops_heads *h, float *y, struct err *err);

/* Attention outputs x [heads][tokens][padded], float16 or bf16, of the tokens [tok0, tok0 + n) ->
 * bf16 [n][terms * heads * d]. */
struct ops_outputs {
    const void *x;
    int heads, d, padded;
    int64_t tokens;
    bool bf16;
};
int ops_join_heads(struct gpu *g, const struct ops_outputs *o, int64_t tok0, int64_t n, int terms,
                   void *out, struct err *err);

/* Pooled maps (core/attention.h) of attention from its operands, float16 [heads or
 * kv_heads][tokens][padded], and log-sum-exps lse [heads][tokens]: sum and max
 * [heads][cells][cells], 0 where no pair is allowed. */
struct ops_maps {
    const void *q, *k;
    const float *lse;
    int heads, kv_heads, padded;
    int64_t tokens, pool;
    double scale;
    bool causal;
    float *sum, *max;
};
int ops_pool_map(struct gpu *g, const struct ops_maps *m, struct err *err);

/* nll[i] = ln sum_j e^{x_ij} - x_i,target[i] of x [n][vocab]. */
int ops_nll(struct gpu *g, const float *x, int64_t n, int64_t vocab, const int32_t *target,
            float *nll, struct err *err);

/* Attention outputs x, bf16 [heads][tokens][padded], times unit -> floats, token t at out + t *
 * stride, heads side by side. */
int ops_head_rows(struct gpu *g, const void *x, int heads, int64_t tokens, int d, int padded,
                  float unit, float *out, int64_t stride, struct err *err);

/* x [n][d] -> bf16 [n][terms * d]. */
int ops_split_rows(struct gpu *g, const float *x, int64_t n, int64_t d, int terms, void *out,
                   struct err *err);

/* Rows of a table as stored: out [n][d] = table[ids [n]]. */
int ops_take_rows(struct gpu *g, const void *table, enum dtype type, int64_t d, const int32_t *ids,
                  int64_t n, float *out, struct err *err);

/* Attention of a few rows in float32: row i of q [m][ld], heads side by side, sees the keys [0, pos
 * + i]. k and v [kv_heads][stride][d], d a multiple of 4 and at most 128. out [m][heads * d]. */
struct ops_few {
    const float *q, *k, *v;
    int64_t ld, stride, pos, m;
    int heads, kv_heads, d;
    double scale;
    float *parts; /* scratch: ops_few_parts floats for every row */
    float *out;
};
int64_t ops_few_parts(int heads, int d, int64_t keys);
int ops_attend_few(struct gpu *g, const struct ops_few *f, struct err *err);

/* Partial sums of (x - ref)^2 and ref^2 over n values: sums [OPS_SUMS][2], to be added in order. */
#define OPS_SUMS 1024
int ops_difference(struct gpu *g, const float *x, const float *ref, int64_t n, double *sums,
                   struct err *err);

/* What the logits q [n][vocab] say about target [n], and how far they are from p (struct
 * decoder_score). */
int ops_score_rows(struct gpu *g, const float *p, const float *q, int64_t n, int64_t vocab,
                   const int32_t *target, struct decoder_score *out, struct err *err);

/* ---- of video denoisers (the rows of capture/wan_forward.c) --------------------------------- */

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

/* ---- matrix products ------------------------------------------------------------------------ */

/* cuBLAS, opened at run time so that a program without it still starts. */
struct blas;

/* Products run on g's stream. No libcublas.so.13: ERR_MACHINE. */
int blas_open(struct gpu *g, struct blas **out, struct err *err);
void blas_close(struct blas **b);

/* y [m][n] = x [m][k] w [n][k]^T + beta y; row-major on the device, ldy floats from row to row
 * of y. x and w are bf16, products and sums float32. */
int blas_bf16(struct blas *b, int64_t m, int64_t n, int64_t k, const void *x, const void *w,
              float beta, float *y, int64_t ldy, struct err *err);

/* ---- ceilings ------------------------------------------------------------------------------- */

/* The best rates of the machine, measured in the same run as the kernels: a bf16 matrix product and
 * a device-to-device copy. */
#define CEILING_N 8192
#define CEILING_FLOP (2.0 * CEILING_N * CEILING_N * CEILING_N)
#define CEILING_BYTES (8LL << 30) /* read + written by the copy */

/* Operands of the product and of the copy, in the arena. The values are random, because a product
 * of zeros runs faster than any real one. */
struct ceiling {
    struct blas *blas;
    void *a, *b, *c, *from, *to;
};

/* Opens cuBLAS at run time; ERR_MACHINE without it. blas_close(&c->blas) afterwards, in any case.
 */
int ceiling_open(struct gpu *g, struct ceiling *c, struct err *err);

/* Launch one product or one copy of a struct ceiling; the caller times it. */
int ceiling_matmul(struct gpu *g, const void *ceiling, struct err *err);
int ceiling_copy(struct gpu *g, const void *ceiling, struct err *err);

END_C
