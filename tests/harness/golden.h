/*
 * golden.h - heads of the golden files in tests/data as method inputs.
 */
#pragma once

#include "sim/headload.h"

/* Take copies of q [nq][d], k [nk][d], v [nk][dv]. in->x gives the shapes, scale and causality; all
 * other fields of `in` but `exact` are taken over (branch is borrowed). */
int head_init(struct sim_head *h, const struct head_in *in, enum precision prec, struct err *err);

/* Dense log-sum-exps [nq] and outputs [nq][dv] of a whole head; the process ends where there is no
 * memory for them. */
const double *head_lse(const struct head_in *in);
const double *head_out(const struct head_in *in);

/* Query i over keys of the weights w [nk] and `zeros` keys and values of zeros, by the definition:
 * out [dv], zeros where there is no key, and the log-sum-exp, then -INFINITY. */
double weighted_row(const struct attn_in *x, int64_t i, const double *w, double zeros, double *out);

/* q [nq][d], k and v [nk][d], which stay the caller's, as the one head of a text: scale 1/sqrt(d).
 */
struct head_in one_head(const float *q, const float *k, const float *v, int64_t nq, int64_t nk,
                        int d, bool causal);

/* code-lm-a: layer 0 or 5, head 0 or 7 (the stored ones), causal, N = 770, scale 1/8.
 * Layer 0 has no stored v: it is zeros there. */
int golden_code_lm(int layer, int head, enum precision prec, struct sim_head *h, struct err *err);

/* video-dit-a: step 0 or 3, layer 0 or 5, head 0 or 1, bidirectional, N = 384, scale 1/sqrt(128),
 * geometry 4 x 8 x 12. */
int golden_video(int step, int layer, int head, enum precision prec, struct sim_head *h,
                 struct err *err);

/* The golden trace G of the SampleAttention page: N tokens, d 64, causal, scale 1/8. */
int golden_sample(int64_t n, enum precision prec, struct sim_head *h, struct err *err);

/* A tensor of a .safetensors file with so many values, owned by the caller. */
float *golden_tensor(const char *path, const char *name, int64_t count);

/* ||x - want|| / ||want||. */
double rel_l2(const float *x, const float *want, int64_t n);

/* Standard normal q, k, v (times `sigma`) of any shape. */
int random_head(uint64_t seed, int64_t nq, int64_t nk, int d, bool causal, double sigma,
                enum precision prec, struct sim_head *h, struct err *err);

/* The same with 16 dimensions and sigma 1.5 for a video of this grid, with text in front (place 1)
 * or behind (2): layer 7 of 40, step 0 of 50. */
int random_video(uint64_t seed, int64_t t, int64_t h, int64_t w, int64_t text, int place,
                 struct sim_head *out, struct err *err);

/* An operand as head_in.operand gives it: halves from a normal distribution, the same for a
 * position in every sequence. 3 index heads; 8 heads of `gates` rows of queries and 2 of blocks, of
 * 5 numbers. */
int drawn_operand(const struct head_in *in, enum trace_aux which, int64_t gates,
                  struct aux_shape *shape, float **x, struct err *err);

/* HEAD(h, random_head, 1, 64, 64, 16, true, 1, PREC_F64): a head `h` of the block, in a test
 * (tests/harness/suite.h). Any of the functions above that make one, or sim_head_reorder. */
#define HEAD(h, make, ...)                                                                         \
    OWN(sim_head_free) struct sim_head h;                                                          \
    MUST(make(__VA_ARGS__, &h, ERR))
