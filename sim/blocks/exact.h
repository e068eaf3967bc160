/*
 * exact.h - the exact attention of one head as a service: log-sum-exps and outputs of dense
 * attention, probabilities, scores, attention over any mask.
 *
 * Nothing is computed before it is asked for. Dense rows are computed once, `block` rows
 * together, and kept: all methods on a head and its metrics see the same bits, and the first that
 * asks pays. A method that never asks costs nothing.
 *
 * The CPU computes everything (core/attention.h) except for what is given to somebody else with
 * exact_dense_from and exact_below_from. One thread at a time may use a service.
 */
#pragma once

#include "core/attention.h"
#include "core/err.h"
#include "core/method.h"
#include "core/record.h"
#include "core/rowsample.h"

#include <stdbool.h>
#include <stdint.h>

struct map_below;
struct judge; /* sim/blocks/judge.h */

/* Dense attention of the rows [row0, row1) into lse [nq] and, unless NULL, out [nq][dv]: arrays of
 * the whole head, of which the rows [row0, row1) are written. */
typedef int exact_dense_fn(void *self, int64_t row0, int64_t row1, double *out, double *lse,
                           struct err *err);

/* Attention over m, which has all rows: out [nq][dv], lse [nq]. 0, or METHOD_SKIP where it cannot.
 */
typedef int exact_masked_fn(void *self, const struct mask *m, double *out, double *lse,
                            struct err *err);

/* How sparse the map is: what of *b is said to be given is, the rest is written. */
typedef int exact_below_fn(void *self, struct map_below *b, struct err *err);

struct exact {
    struct attn_in x; /* views are the owner's of the head */
    enum precision prec;
    int64_t block;                 /* dense rows that are computed together */
    const struct row_sample *rows; /* those that have a query; NULL: all */
    bool with_out; /* log-sum-exps bring the outputs of their rows along (exact_expect_out) */
    double ns;     /* wall time that went into operands and dense rows so far */

    /* Private. */
    exact_dense_fn *dense; /* NULL: the CPU */
    void *dense_self;
    exact_below_fn *below; /* NULL: the CPU */
    void *below_self;
    exact_masked_fn *masked; /* NULL: the CPU */
    void *masked_self;
    const struct judge *judge; /* NULL: the CPU */
    struct attn_ops ops;       /* once `prepared` */
    bool prepared, borrowed;   /* borrowed: another service's operands */
    bool row;                  /* of another service, with the arrays below */
    double *lse, *out;         /* [nq], [nq][dv]; NULL before the first question */
    unsigned char *done;       /* [blocks]: EXACT_LSE, EXACT_OUT */
    struct held_scores {       /* of exact_hold */
        int64_t row0, row1, ld;
        const double *s;
    } held;
};

/* A head's service; x is copied, its views stay the caller's. Release with exact_free. */
void exact_init(struct exact *e, const struct attn_in *x, enum precision prec);
void exact_free(struct exact *e); /* also of a zeroed one */

/* Only these rows have a query (x is the whole head), and only they will be asked for. */
void exact_sampled(struct exact *e, const struct row_sample *rows);

/* Rows will be scored in pieces of any length (exact_score). */
void exact_by_rows(struct exact *e);

/* Outputs of all rows will be asked for: one pass gives a row's log-sum-exp and output. Without it
 * a question for log-sum-exps computes nothing else, and a later one for outputs starts again. */
void exact_expect_out(struct exact *e);

/* Does it have the log-sum-exps of all rows, so that asking for them costs nothing? */
bool exact_known(const struct exact *e);

/* Let `fn` compute dense rows, or the sparsity of the map, from now on; NULL: the CPU again. */
void exact_dense_from(struct exact *e, exact_dense_fn *fn, void *self);
void exact_below_from(struct exact *e, exact_below_fn *fn, void *self);
void exact_masked_from(struct exact *e, exact_masked_fn *fn, void *self);

/* Does a device that attends to the head answer for its map? */
static inline bool exact_on_device(const struct exact *e)
{
    return e->masked != NULL;
}

/* Log-sum-exps (natural log, -inf for a row that sees no key) and outputs of dense attention:
 * *lse [row1-row0] and *out [row1-row0][dv] start at row0 and stay valid until exact_free. */
int exact_lse(struct exact *e, int64_t row0, int64_t row1, const double **lse, struct err *err);
int exact_out(struct exact *e, int64_t row0, int64_t row1, const double **out, struct err *err);

/* Probabilities of the rows [row0, row1) against all keys: p [row1-row0][nk], 0 where not allowed.
 * Needs their log-sum-exps. */
int exact_probs(struct exact *e, int64_t row0, int64_t row1, double *p, struct err *err);

/* Scaled scores of rows [row0, row1) against keys [k0, k1): s [row1-row0][k1-k0], not masked. */
int exact_scores(struct exact *e, int64_t row0, int64_t row1, int64_t k0, int64_t k1, double *s,
                 struct err *err);

/* Compute the rows [row0, row1) of n heads with the same keys at once: their log-sum-exps and
 * outputs are kept, and their scores held, in s[g] [row1-row0][ld]: -inf where not allowed, ld at
 * least the keys of the last row. After exact_by_rows. */
int exact_score(struct exact *const *e, int n, int64_t row0, int64_t row1, double *const *s,
                int64_t ld, struct err *err);

/* e has one query, which is row i of `of`: its numbers, its operands and what is held. */
int exact_view_row(struct exact *e, struct exact *of, int64_t i, struct err *err);

/* Whoever asks for scores or probabilities of a row that is held, alone, gets a copy of s, which
 * outlives its use. Later calls take the place of earlier ones. */
void exact_hold(struct exact *e, int64_t row0, int64_t row1, const double *s, int64_t ld);
const double *exact_held(const struct exact *e, int64_t row); /* [ld]; NULL: not held */

/* Exact softmax over the pairs of m: out [row1-row0][dv] or NULL, lse [row1-row0] as attn_rows. */
int exact_attend(struct exact *e, const struct mask *m, double *out, double *lse, struct err *err);

/* The same over a mask of all rows, by the device that exact_masked_from named if there is one and
 * it can: its outputs are then rounded to bf16. */
int exact_attend_all(struct exact *e, const struct mask *m, double *out, double *lse,
                     struct err *err);

/* Keys and values in the working precision, for arithmetic of a method's own; the service's. */
int exact_operands(struct exact *e, const struct attn_ops **ops, struct err *err);

/* Use the operands of `from`, which outlives e and whose keys and values e has, or the first of
 * them: one copy in double for the heads of a group. */
int exact_borrow(struct exact *e, struct exact *from, struct err *err);

/* ---- the map in pieces ---------------------------------------------------------------------- */

/* The exact attention map of one head, visited in pieces: rows of probabilities, column maxima and
 * sums of row groups, and from them the shares of blocks and slices whose largest probability stays
 * below c/N, for any number of thresholds c in one pass.
 *
 * Nothing here holds N x N values: a few rows of N doubles exist at a time. */

/* ---- rows ----------------------------------------------------------------------------------- */

/* Rows are computed MAP_ROWS at a time, in pieces that start at multiples of MAP_ROWS whatever row
 * is asked for. The matrix products then always have the same shapes, so every reader sees the same
 * bits. */
#define MAP_ROWS 32

enum map_what { MAP_SCORES, MAP_PROBS };

struct map_rows {
    struct exact *exact;
    enum map_what what; /* scaled scores, not masked, or probabilities */
    int64_t r0, r1;
    double *buf; /* [MAP_ROWS][nk], owned */
};

int map_rows_init(struct map_rows *m, struct exact *e, enum map_what what, struct err *err);
void map_rows_free(struct map_rows *m); /* also of a zeroed one */

/* *row = the nk values of row i (probabilities: 0 where not allowed). Valid until the next call for
 * a row of another piece. */
int map_rows_get(struct map_rows *m, int64_t i, const double **row, struct err *err);

/* ---- row groups ----------------------------------------------------------------------------- */

/* Column maxima and sums over the rows [row0, row1) of one group. Beside an attention sink p is
 * what a key gets of the whole softmax: the p of a row then add up to less than 1. */
struct map_group {
    int64_t index, row0, row1;
    int64_t limit;           /* keys that some row of the group may see: [0, limit) */
    const double *max, *sum; /* [nk]: max_i p_ij, sum_i p_ij; 0 from `limit` on */
};

/* Called with the groups in order. */
typedef int map_group_fn(void *ctx, const struct map_group *g, struct err *err);

/* Call fn for groups of `height` consecutive rows (the last may have fewer), with one Q K for all.
 * With sampled rows: for the groups among them, where height divides ROW_GROUP.
 * lse [nq] is a normaliser of p that is not this head's, so that p = e^(s - lse) may exceed 1; NULL
 * = this head's. */
int map_groups(struct exact *e, const double *lse, int64_t height, map_group_fn *fn, void *ctx,
               struct err *err);

/* ---- blocks and slices below c/N ------------------------------------------------------------ */

#define BELOW_UNITS 7 /* blocks of 16, 32, 64, 128; slices of 16, 64, 128 rows */
#define BELOW_MOST_C 256

struct map_below {
    /* Given. */
    int n_c;
    double c[BELOW_MOST_C]; /* ascending, in units of 1/N_k */
    bool sums;              /* a device adds up p in every row, and finds p_max for one c */

    int64_t units[BELOW_UNITS],
        pairs[BELOW_UNITS]; /* number of units with an allowed pair; of their allowed pairs */
    int64_t below[BELOW_UNITS][BELOW_MOST_C];       /* units with largest p < c/N */
    int64_t below_pairs[BELOW_UNITS][BELOW_MOST_C]; /* their allowed pairs */
    double p_max;                                   /* NAN where a device was not asked for it */

    /* Results of a device's pass. */
    bool summed;    /* rows were added up */
    double sum_err; /* largest |sum_j p_ij - 1| */
    bool timed;
    double ns, ns_q1, ns_q3; /* median and quartiles of its time */
};

/* Count for all thresholds in one pass: each unit goes into the interval between two thresholds
 * that holds its maximum. The caller sets b->n_c, b->c and b->sums; the rest is filled, by the
 * device of the service if it has one for this. */
int map_below_run(struct exact *e, struct map_below *b, struct err *err);

/* units and pairs of *b, which follow from the shape of the head. */
void map_below_totals(const struct attn_in *in, struct map_below *b);

/* Public name of unit u: "b16", ..., "s128". */
const char *map_below_name(int u);

/* Record below_<unit> and below_<unit>_area of every threshold ("@c" appended unless c is 0.5), and
 * p_max if it is known: of a sample of rows as "p_max~". */
int map_below_report(const struct map_below *b, bool sample, struct record *r, struct err *err);

/* ---- similarity of neighbouring rows -------------------------------------------------------- */

/* Mean over the full blocks X of `block` rows of s(X) = || (1/n) sum_a x_a/|x_a| ||^2, x [n][d],
 * after subtracting the mean of all rows when `centre`. A partial last block and blocks with a zero
 * row are left out and counted. *mean is NAN when no block remains. */
int map_similarity(const float *x, int64_t n, int d, int64_t block, bool centre, double *mean,
                   int64_t *left_out, struct err *err);

/* ---- mass per key --------------------------------------------------------------------------- */

/* Add the probabilities of the rows [row0, row1) to mass [nk]. */
int column_mass(const struct head_in *in, int64_t row0, int64_t row1, double *mass,
                struct err *err);

/* ---- keys of unit length -------------------------------------------------------------------- */

/* Attention of a head with keys of unit length, as models with normalised keys have it. */

struct unit_keys {
    float *k;            /* [nk][d] k / |k|, 0 for a zero key; owned; NULL before unit_keys_make */
    struct attn_ops ops; /* of the head with these keys */
};

int unit_keys_make(struct unit_keys *u, const struct head_in *in, struct err *err);
void unit_keys_free(struct unit_keys *u); /* also of a zeroed one */
