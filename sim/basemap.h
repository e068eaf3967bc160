/*
 * basemap.h - the exact attention map of one head, visited in pieces: rows of probabilities, column
 * maxima and sums of row groups, and from them the shares of blocks and slices whose largest
 * probability stays below c/N, for any number of thresholds c in one pass.
 *
 * Nothing here holds N x N values: a few rows of N doubles exist at a time.
 */
#ifndef LACUNA_BASEMAP_H
#define LACUNA_BASEMAP_H

#include "core/attention.h"
#include "core/kernel.h"
#include "core/method.h"
#include "core/record.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- rows ----------------------------------------------------------------------------------- */

/* Rows are computed MAP_ROWS at a time, in pieces that start at multiples of MAP_ROWS whatever row
 * is asked for: the products then come from calls of the same shape and every reader sees the same
 * bits. */
#define MAP_ROWS 32

struct map_rows {
    const struct attn_ops *ops;
    const double *lse; /* [nq] or NULL: rows of scaled scores, not masked */
    int64_t r0, r1;
    double *buf; /* [MAP_ROWS][nk], owned */
};

int map_rows_init(struct map_rows *m, const struct attn_ops *ops, const double *lse,
                  struct err *err);
void map_rows_free(struct map_rows *m); /* also of a zeroed one */

/* *row = the nk values of row i (probabilities: 0 where not allowed), valid until a row of another
 * piece is asked for. */
int map_rows_get(struct map_rows *m, int64_t i, const double **row, struct err *err);

/* One past the last key that row i may see (0 when it sees none). */
int64_t map_limit(const struct attn_in *in, int64_t i);

/* ---- row groups ----------------------------------------------------------------------------- */

/* Column maxima and sums over the rows [row0, row1) of one group. */
struct map_group {
    int64_t index, row0, row1;
    int64_t limit;           /* keys that some row of the group may see: [0, limit) */
    const double *max, *sum; /* [nk]: max_i p_ij, sum_i p_ij; 0 from `limit` on */
};

/* Called with the groups in order. */
typedef int map_group_fn(void *ctx, const struct map_group *g, struct err *err);

/* Groups of `height` consecutive rows (the last has the rest), Q K computed once. lse [nq] is the
 * normaliser of p. own: it is the head's own; otherwise p = e^(s - lse) may exceed 1. */
int map_groups(const struct attn_ops *ops, const double *lse, bool own, int64_t height,
               map_group_fn *fn, void *ctx, struct err *err);

/* ---- blocks and slices below c/N ------------------------------------------------------------ */

#define BELOW_UNITS 7 /* blocks of 16, 32, 64, 128; slices of 16, 64, 128 rows */
#define BELOW_MOST_C 256

struct map_below {
    int n_c;
    double c[BELOW_MOST_C];                         /* ascending, in units of 1/N_k */
    int64_t units[BELOW_UNITS], pairs[BELOW_UNITS]; /* with an allowed pair; allowed pairs */
    int64_t below[BELOW_UNITS][BELOW_MOST_C];       /* units with largest p < c/N */
    int64_t below_pairs[BELOW_UNITS][BELOW_MOST_C]; /* their allowed pairs */
    double p_max;
};

/* One pass for all thresholds: every unit is put into the interval between two thresholds that its
 * maximum falls into. b->n_c and b->c are given, the rest is filled. */
int map_below_run(const struct attn_ops *ops, const double *lse, struct map_below *b,
                  struct err *err);

/* The same from ctx's back end (core/kernel.h), and how long its pass took. Without `sums` p_max
 * may be NAN. */
int map_below_accel(const struct method_ctx *ctx, const struct attn_in *in, bool sums,
                    struct map_below *b, struct accel_map *m, struct err *err);

/* Public name of unit u: "b16", ..., "s128". */
const char *map_below_name(int u);

/* below_<unit> and below_<unit>_area of every threshold ("@c" appended unless c is 0.5), and p_max
 * where it is known. */
int map_below_report(const struct map_below *b, struct record *r, struct err *err);

/* ---- similarity of neighbouring rows -------------------------------------------------------- */

/* Mean over the full blocks X of `block` rows of s(X) = || (1/n) sum_a x_a/|x_a| ||^2, x [n][d],
 * after subtracting the mean of all rows when `centre`. A partial last block and blocks with a zero
 * row are left out and counted. *mean is NAN when no block remains. */
int map_similarity(const float *x, int64_t n, int d, int64_t block, bool centre, double *mean,
                   int64_t *left_out, struct err *err);

#endif
