/*
 * nn.h - the float32 building blocks of the model runners. Matrices are row-major [token][channel];
 * all functions are in place or write to `y` that the caller owns.
 */
#pragma once

#include "core/attention.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

struct decoder_operands; /* core/decoder.h */
struct decoder_tensor;
struct st_file; /* core/safetensors.h */
struct st_tensor;

/* Rows that one item of nn_linear computes; probes of the speed use whole items. */
#define NN_LINEAR_ROWS 512

/* y [n][out] = x [n][in] w^T + b on `jobs` threads; w [out][in], b [out] or NULL. y does not depend
 * on jobs. ERR_INTERRUPTED and ERR_NOMEM leave y incomplete. */
int nn_linear(const float *x, int64_t n, int64_t in, const float *w, const float *b, int64_t out,
              int jobs, float *y, struct err *err);

/* y = (x - mean) / sqrt(var + eps) per row; times w plus b when given. y may be x. */
void nn_layer_norm(const float *x, int64_t n, int64_t d, const float *w, const float *b, double eps,
                   float *y);

/* y = x / sqrt(mean(x^2) + eps) * w per row. y may be x. */
void nn_rms_norm(const float *x, int64_t n, int64_t d, const float *w, double eps, float *y);

void nn_silu(float *x, int64_t n);
void nn_gelu_tanh(float *x, int64_t n);

/* Keys and values of a layer, by head. */
struct nn_kv {
    int64_t n; /* tokens that fit */
    int heads, d;
    float *k, *v;       /* [heads][n][d], owned */
    struct reach reach; /* of them that a row sees */
};
int nn_kv_init(struct nn_kv *kv, int64_t n, int heads, int d, struct err *err);
void nn_kv_free(struct nn_kv *kv);

/* Tokens [tok0, tok0 + n) from k, v [n][heads * d]. */
void nn_kv_put(struct nn_kv *kv, int64_t tok0, int64_t n, const float *k, const float *v);

/* x [n][heads * d], head h -> to [n][d]. */
void nn_take_head(const float *x, int64_t n, int heads, int d, int head, float *to);

/* Softmax attention of all heads on `jobs` threads, in float: q [nq][heads * d] against the first
 * nk tokens of kv -> out [nq][heads * d]; causal: the last query sees the last of the nk keys. lse
 * [heads][nq] may be NULL. */
int nn_attention(const float *q, const struct nn_kv *kv, int64_t nq, int64_t nk, int heads,
                 double scale, bool causal, int jobs, float *out, double *lse, struct err *err);

/* Attention of one layer of a model, in the place of exact attention.
 *   q    [nq][heads * d], positions applied; causal: the last nq of nk tokens
 *   kv   keys and values by head, of which the first nk tokens are there
 *   out  [nq][heads * d], to be written
 * A positive answer says that it does not apply: the run of the model ends and answers the same. */
struct layer_attention {
    void *ctx;
    int (*attend)(void *ctx, int layer, const float *q, int64_t nq, const struct nn_kv *kv,
                  int64_t nk, float *out, struct err *err);
    /* For a model on a device. Does a layer of n tokens attend exactly after all? Then the device
     * does it, once for each yes. NULL: never. */
    bool (*exact)(void *ctx, int layer, int64_t n);
    /* What attend is asked about next is on the device as well, and its q is by head,
     * [heads][n][d]; NULL: no more. */
    void (*there)(void *ctx, const struct decoder_operands *there, int64_t n);
    /* After attend: are its outputs in there->out, and not in `out`? */
    bool (*stayed)(void *ctx);
};

/* ---- pooled attention maps ------------------------------------------------------------------ */

/* Per head the sums and the maxima of the exact softmax over cells of P x P (query, key) pairs
 * (core/attention.h), from a second pass over the scores with the known normalisers, for all heads
 * of a layer in parallel. Edge cells cover the pairs that exist. */
struct attnmap {
    int64_t pool, cells_q, cells_k;
    int heads;
    float *sum, *max; /* [heads][cells_q][cells_k], owned */
};

int attnmap_init(struct attnmap *m, int heads, int64_t n_q, int64_t n_k, int64_t pool,
                 struct err *err);
void attnmap_free(struct attnmap *m);

/* Fill the cell rows of the queries [row0, row0 + n): row0 is a multiple of the pool and the range
 * ends at one or at the last query. q [n][heads * d], keys: the first nk tokens of kv (causal: the
 * last of these queries sees the last of them), lse [heads][n] from nn_attention. */
int attnmap_rows(struct attnmap *m, const float *q, const struct nn_kv *kv, int64_t row0, int64_t n,
                 int64_t nk, double scale, bool causal, const double *lse, int jobs,
                 struct err *err);

/* ---- tensors as a device takes them --------------------------------------------------------- */

/* Read a tensor: F32, BF16 and F16 as stored, any other type as float32. Its first dimension are
 * the rows, all others the columns. out->data is owned: raw_tensor_free. */
int raw_tensor_read(const struct st_file *file, const struct st_tensor *t,
                    struct decoder_tensor *out, struct err *err);
void raw_tensor_free(struct decoder_tensor *t);
