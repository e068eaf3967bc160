/*
 * xattention.h - the parts of XAttention (arXiv:2503.16428) behind its method table: antidiagonal
 * scores, block masses, selection in a row of blocks.
 *
 * B = 128, stride S, b = B / S reduced rows per block. Row blocks are counted in query rows; query
 * row q stands at position q + shift. The published code derives the shift from block counts after
 * padding, so for a chunk of a prompt it may differ from nk - nq; in the other profiles it is nk -
 * nq.
 */
#pragma once

#include "core/method.h"
#include "core/rules.h"
#include "sim/blocks/vslash.h"

#include <stdbool.h>
#include <stdint.h>

#define XATTN_BLOCK 128

struct xattn_config {
    enum xattn_profile profile;
    int64_t nq, nk;
    int d, stride;
    double tau, norm, scale; /* scale: softmax scale of the head */
    bool causal, bf16;
    int64_t chunk; /* rows of a pass, multiple of 128; official only */
};

/* Chunk size that the published code chooses for nk keys. */
int64_t xattn_auto_chunk(int64_t nk);

/* One head. q and k are borrowed. */
struct xattn {
    struct xattn_config c;
    int64_t row_blocks, key_blocks; /* with at least one real token */
    int64_t cols;                   /* column blocks of a row, padded ones included */
    int64_t shift;
    int64_t reduced_keys; /* reduced columns with a real key */
    const float *q;
    float *k;           /* [reduced_keys][S d], zero padded, owned; so are the following */
    struct twins equal; /* reduced columns with the same keys */
    float *a;           /* [b][S d] reduced rows of one block */
    float *s;           /* [b][reduced_keys] */
    double *w;
};

int xattn_init(struct xattn *x, const struct xattn_config *c, const float *q, const float *k,
               struct err *err);
void xattn_free(struct xattn *x); /* also of a zeroed one */

/* Scores of the reduced rows of row block i into x->s:
 *   s[r][j] = sum_t Q[S (b i + r) + S - 1 - t] . K[S j + t] */
void xattn_scores(struct xattn *x, int64_t i);

/* Masses of row block i over the column blocks: mass [x->cols]. */
void xattn_row(struct xattn *x, int64_t i, double *mass);

/* Position of a row block: the keys at its own rows' positions are in the blocks own .. row (one
 * block unless the shift is unaligned). `first` is the number of its chunk's first block
 * (official). */
struct xattn_place {
    int64_t own, row, first;
};

/* Select blocks of a row; writes keep [cols]. Causal: nothing beyond block place.row is kept. */
int xattn_select(const struct xattn_config *c, const double *mass, int64_t cols,
                 struct xattn_place place, bool *keep, struct err *err);

/* xattn_row and xattn_select of row block i; keep [x->cols]. */
int xattn_keep(struct xattn *x, int64_t i, double *mass, bool *keep, struct err *err);

/* Column blocks of row block i that hold an allowed and real key: [0, limit). */
int64_t xattn_limit(const struct xattn *x, int64_t i);

/* ---- offline thresholds of one head --------------------------------------------------------- */

/* The rule of the official repository. In each row block, take the fewest blocks that hold 0.9 of
 * the exact mass, and the smallest estimate among them; the threshold is the share of the estimated
 * mass in blocks with at least that estimate. The result is the largest threshold over the samples.
 * base gives everything but shapes, scale and tau. */
int xattn_search_repo(const struct xattn_config *base, const struct head_in *samples, int n,
                      double *tau, struct err *err);

/* The configuration of one head: shapes, scale, causality and the automatic chunk filled in. */
struct xattn_config xattn_config_of(const struct xattn_config *base, const struct attn_in *x);
