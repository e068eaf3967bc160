/*
 * rowselect.h - what row-wise methods choose for one query row: the units of keys with the largest
 * scores, pages by a bound of their scores (Quest), tokens by their scores in few channels (double
 * sparsity), keys at few bits.
 *
 * All sums are in double over exact products, so that a choice does not depend on the processor.
 */
#pragma once

#include "core/method.h"
#include "sim/blocks/prefix.h"

/* A token's n numbers on the grid of 2^bits values from its smallest to its largest one, rounded
 * half to even in float; bits >= 16, or numbers that are all equal: as they are. */
void token_quantise(const float *x, int64_t n, int bits, float *out);

/* ---- units of keys by rank ------------------------------------------------------------------ */

struct ranked {
    double *score; /* [units] of the row at hand, for the method to fill; owned */
    struct prefix_work *work;
    int64_t kept, seen; /* units, over the rows so far */
};
int ranked_init(struct ranked *r, int64_t units, struct err *err);
void ranked_free(struct ranked *r); /* also of a zeroed one */

/* Add to group g of the mask the `best` units of [0, n) with the largest score, of equal ones the
 * lower, and all of [n, end). */
int ranked_add(struct ranked *r, const double *score, int64_t n, int64_t best, int64_t end,
               struct mask *m, int64_t g, struct err *err);

/* ---- pages of keys -------------------------------------------------------------------------- */

struct key_pages {
    const struct attn_in *x;
    int64_t page, whole; /* tokens of a page; pages without a missing token */
    bool half;           /* extremes are rounded to fp16 */
    float *low,
        *high;     /* [whole + 1][d] per channel; the last is that of a row's last page; owned */
    double *bound; /* [whole + 1] of the row at hand, owned */
};
int key_pages_init(struct key_pages *p, const struct attn_in *x, int64_t page, bool half,
                   struct err *err);
void key_pages_free(struct key_pages *p); /* also of a zeroed one */

/* bound_j = sum_d max(q_d low_jd, q_d high_jd) of the pages of the keys [0, limit); how many these
 * are. Keys from limit on do not count. */
int64_t key_pages_bounds(struct key_pages *p, const float *q, int64_t limit);

/* ---- tokens by few channels ----------------------------------------------------------------- */

/* Add sum_i |q_id k_id| over the pairs of one position to sum [d]; the number of pairs. */
int64_t channel_products(const struct attn_in *x, double *sum);

/* The n largest of sum [d], ascending; of equal ones the lower. */
void channels_of(const double *sum, int d, int n, int64_t *channel);

#define CHANNELS_MOST 512
#define LABEL_ROWS 4

struct key_labels {
    const struct attn_in *x;
    int n;                          /* channels of a label */
    int64_t channel[CHANNELS_MOST]; /* [n] */
    float *label;                   /* [n][nk], owned */
    double *score;                  /* [LABEL_ROWS][nk], owned */
    int64_t row0, row1;             /* that they are of */
};

/* Labels of the channels in `list`, "3+17+40", or NULL: of the d / factor ones that matter most in
 * this head. METHOD_SKIP with the reason if the head has no such channels. */
int key_labels_init(struct key_labels *l, struct method_ctx *ctx, const struct head_in *in,
                    const char *list, int64_t factor, int bits, struct err *err);
void key_labels_free(struct key_labels *l);

/* Scores of the keys that row i sees. Those of some rows up to `end` are computed together: rows
 * are asked for in ascending order. */
const double *key_labels_scores(struct key_labels *l, int64_t i, int64_t end);

/* ---- the threshold of a mass ---------------------------------------------------------------- */

#define ROW_LANES 8

/* A threshold above which masses [n] of at least `want` lie, as Twilight finds it: by bisection
 * between 0 and `first`, in float, until masses between the ends are within 1e-5 of each other. The
 * masses are float numbers; ROW_LANES more are written behind them. */
double bisected_threshold(double *mass, int64_t n, double first, double want);

/* ---- layers and rows that are dense --------------------------------------------------------- */

enum row_kinds { ROWS_ALL, ROWS_DECODE };

/* Is the head left dense: in one of the first `layers` layers or `steps` denoising steps, or
 * (ROWS_DECODE) as a whole prompt? Then why, as method.why_full wants it; else "". */
bool head_left_dense(const struct head_in *in, int64_t layers, int64_t steps, int rows,
                     char why[160]);

/* That parameter `name`, so many units of so many keys, takes all keys, as method.why_full wants
 * it; true. */
bool budget_is_all(const char *name, int64_t budget, int64_t unit, int64_t keys, char why[160]);

/* The mask of the rows [row0, row1) in lists per row of units of `unit` keys, which `fn` adds to
 * group i - row0 of the mask; a kernel multiplies what it lists and no more. dense: all pairs. */
typedef int row_fn(void *state, int64_t i, struct mask *m, struct err *err);
int row_lists(const struct attn_in *x, bool dense, int64_t unit, row_fn *fn, void *state,
              int64_t row0, int64_t row1, struct mask *out, struct err *err);

/* density_native of a causal head, each row of which keeps `most` of the units up to its own, or
 * all: units kept over units seen. */
int units_record(const struct attn_in *x, int64_t unit, int64_t most, struct record *r,
                 struct err *err);
