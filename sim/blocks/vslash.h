/*
 * vslash.h - vertical-slash masks: key columns and query-key distances, and the lists that the
 * published kernel runs for them (MInference, arXiv:2407.02490, section 4.2).
 *
 * The kernel covers the distances of a 64-row block with 64-key blocks at any offset, and gathers
 * the columns outside of these blocks. A lone distance thus costs a 64 x 64 block per row block,
 * and the realised mask is larger than the requested mask.
 */
#pragma once

#include "core/err.h"
#include "core/mask.h"
#include "core/method.h"

#include <stdbool.h>
#include <stdint.h>

#define VSLASH_BLOCK 64

struct vslash {
    int64_t n; /* tokens */
    bool both; /* bidirectional: a distance stands for the keys before and behind the query, and
                * columns for all queries; set by the caller after vslash_select */
    int64_t n_cols, n_dists;
    int32_t *cols;           /* ascending, owned */
    int32_t *dists;          /* descending, owned */
    int64_t blocks, columns; /* running totals of vslash_mask over row blocks */
};

/* Choose the best n_cols of col[0..n) and n_dists of slash[0..n) (ties: lower index). The first
 * force_cols columns and force_dists distances are always chosen and count in these numbers. Counts
 * are clamped to 0..n. */
int vslash_select(struct vslash *v, int64_t n, const double *col, int64_t n_cols,
                  int64_t force_cols, const double *slash, int64_t n_dists, int64_t force_dists,
                  struct err *err);
void vslash_free(struct vslash *v); /* also of a zeroed one */

/* Lists of the row block [m, m + 64): block offsets (at most n_dists + 1 + n / 64, twice as many
 * with `both`) and columns (at most n_cols), both ascending. No published kernel is bidirectional:
 * there the blocks cover the keys of each distance in ascending order, every block as far to the
 * left as it may begin. */
void vslash_block(const struct vslash *v, int64_t m, int32_t *blocks, int64_t *n_blocks,
                  int32_t *columns, int64_t *n_columns);

/* Mask of the query rows [row0, row1). realised = true: the kernel's lists as 64 x 1 slices, added
 * to v->blocks and v->columns. false: row lists of the requested pairs. */
int vslash_mask(struct vslash *v, bool realised, int64_t row0, int64_t row1, struct mask *out,
                struct err *err);

/* The lists of columns and distances that are bits of `words` 32-bit words each, one after the
 * other. n tokens. */
int vslash_from_bits(struct vslash *v, int64_t n, const uint32_t *bits, int64_t words,
                     struct err *err);

/* Add the lists of all row blocks to v->blocks and v->columns, as the masks of all rows would. */
int vslash_add_all(struct vslash *v, struct err *err);

/* Number of requested pairs: the key is a chosen column, or query - key (with `both` its absolute
 * value) a chosen distance. */
int64_t vslash_requested(const struct vslash *v);

/* Pairs that the kernel multiplies: 64 * 64 per listed block, 64 per listed column. */
int64_t vslash_exec(const struct vslash *v);

/* ---- mass per key and distance -------------------------------------------------------------- */

/* Mass per key token and per query-key distance, summed over the last rows of a prompt.
 * Vertical-slash methods estimate a head from it (MInference, arXiv:2407.02490; FlexPrefill,
 * arXiv:2502.20766). */

/* How the logits of the sampled rows are formed. */
enum tok_logits {
    TOK_EXACT,      /* in the precision of in->exact, probabilities rounded to float */
    TOK_BF16_QUERY, /* bf16(scale q) . k, rounded to bf16 */
    TOK_BF16_DOT,   /* bf16(bf16(q . k) * scale) */
};

/* Over the last `rows` query rows of a head with nq = nk:
 *   col[k]   = sum_q p[q][k]        slash[d] = sum_q p[q][q - d]        both [nk]
 * In a bidirectional head slash[d] has the keys at q - d and at q + d.
 * p_dtype: probabilities are rounded to it before they are summed (DT_F32: not further). */
int token_scores(const struct head_in *in, int64_t rows, enum tok_logits logits, enum dtype p_dtype,
                 double *col, double *slash, struct err *err);

/* Add one causal row p[0..pos] of the query at position pos. */
void token_scores_add(const double *p, int64_t pos, double *col, double *slash);

/* ---- equal rows ----------------------------------------------------------------------------- */

/* Rows of a matrix that are equal, so that what is computed from one of them holds for all.
 *
 * A BLAS product gives equal rows unequal last bits: the edge of its tiles is added in another
 * order, which one depends on the processor. A choice between equal keys would then hang on these
 * bits. Where it matters, the value of the first of equal rows replaces those of the others; ties
 * then go to the lower index by the rule of the method. */

struct twins {
    int64_t n;
    int32_t *first; /* [n] first row with the same bytes, owned; NULL: no two rows are equal */
};

/* Rows of x [n][d]. O(n d + n log n). Release with twins_free. */
int twins_find(struct twins *t, const float *x, int64_t n, int64_t d, struct err *err);
void twins_free(struct twins *t); /* also of a zeroed one */

/* Values of rows 0 .. n-1 in v, n <= t->n: those of equal rows become that of the first. */
void twins_level_f32(const struct twins *t, float *v, int64_t n);
void twins_level_f64(const struct twins *t, double *v, int64_t n);
