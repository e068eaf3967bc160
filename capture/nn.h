/*
 * nn.h - the float32 building blocks of the model runners. Matrices are row-major [token][channel];
 * all functions are in place or write to `y` that the caller owns.
 */
#ifndef LACUNA_NN_H
#define LACUNA_NN_H

#include "core/attention.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* y [n][out] = x [n][in] w^T + b; w [out][in], b [out] or NULL. Uses `jobs` BLAS threads. */
void nn_linear(const float *x, int64_t n, int64_t in, const float *w, const float *b, int64_t out,
               int jobs, float *y);

/* y = (x - mean) / sqrt(var + eps) per row; times w plus b when given. y may be x. */
void nn_layer_norm(const float *x, int64_t n, int64_t d, const float *w, const float *b, double eps,
                   float *y);

/* y = x / sqrt(mean(x^2) + eps) * w per row. y may be x. */
void nn_rms_norm(const float *x, int64_t n, int64_t d, const float *w, double eps, float *y);

void nn_silu(float *x, int64_t n);
void nn_gelu_tanh(float *x, int64_t n);

/* Softmax attention of all heads on `jobs` threads, in float: q [nq][heads * d],
 * k, v [nk][kv_heads * d] -> out [nq][heads * d]. lse [heads][nq] may be NULL. */
int nn_attention(const float *q, const float *k, const float *v, int64_t nq, int64_t nk, int heads,
                 int kv_heads, int d, double scale, bool causal, int jobs, float *out, double *lse,
                 struct err *err);

#endif
