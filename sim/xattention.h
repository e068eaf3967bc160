/*
 * xattention.h - XAttention (arXiv:2503.16428) below the method table: antidiagonal scores, block
 * masses, selection of a row of blocks.
 *
 * B = 128, stride S, b = B / S reduced rows per block. Row blocks are counted in query rows; query
 * row q stands at position q + shift. The published code takes the shift from block counts after
 * padding, so that for a prompt chunk it may differ from nk - nq; the other profiles are exact.
 */
#ifndef LACUNA_XATTENTION_H
#define LACUNA_XATTENTION_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

#define XATTN_BLOCK 128

enum xattn_profile { XATTN_OFFICIAL, XATTN_CLEAN, XATTN_PAPER };

struct xattn_config {
    enum xattn_profile profile;
    int64_t nq, nk;
    int d, stride;
    double tau, norm, scale; /* scale: softmax scale of the head */
    bool causal, bf16;
    int64_t chunk; /* rows of a pass, multiple of 128; official only */
};

/* Chunk that the published code takes for nk keys. */
int64_t xattn_auto_chunk(int64_t nk);

/* One head. q and k are borrowed. */
struct xattn {
    struct xattn_config c;
    int64_t row_blocks, key_blocks; /* with a real token */
    int64_t cols;                   /* column blocks of a row, padded ones included */
    int64_t shift;
    int64_t reduced_keys; /* reduced columns with a real key */
    const float *q;
    float *k; /* [reduced_keys][S d], zero padded, owned; so are the following */
    float *a; /* [b][S d] reduced rows of one block */
    float *s; /* [b][reduced_keys] */
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

/* Where a row block stands: its rows' own keys lie in the blocks own .. row (one block unless the
 * shift is unaligned); `first` is the first block of its chunk (official). */
struct xattn_place {
    int64_t own, row, first;
};
struct xattn_place xattn_place(const struct xattn *x, int64_t i);

/* Select blocks of a row: keep [cols] is written. Causal: nothing beyond block place.row is kept.
 */
int xattn_select(const struct xattn_config *c, const double *mass, int64_t cols,
                 struct xattn_place place, bool *keep, struct err *err);

/* xattn_row and xattn_select of row block i; keep [x->cols]. */
int xattn_keep(struct xattn *x, int64_t i, double *mass, bool *keep, struct err *err);

/* Column blocks of row block i that hold an allowed and real key: [0, limit). */
int64_t xattn_limit(const struct xattn *x, int64_t i);

#endif
