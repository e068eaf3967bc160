/*
 * exactmap.h - the exact attention map of one head, visited in pieces: rows of probabilities,
 * column maxima and sums of row groups, and from them the shares of blocks and slices whose largest
 * probability stays below c/N, for any number of thresholds c in one pass.
 *
 * Nothing here holds N x N values: a few rows of N doubles exist at a time.
 */
#ifndef LACUNA_EXACTMAP_H
#define LACUNA_EXACTMAP_H

#include "core/attention.h"
#include "core/record.h"
#include "sim/blocks/exact.h"

#include <stdbool.h>
#include <stdint.h>

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

#endif
