/*
 * metrics.h - recall and error metrics of one head, accumulated over row chunks (doc/records.md has
 * every definition).
 */
#pragma once

#include "core/accel.h"
#include "core/mask.h"
#include "core/record.h"
#include "sim/work.h"

#include <stdint.h>

/* What is counted of masks, summed over chunks. */
struct mask_tally {
    struct mask_counts counts;
    int64_t kept64, allowed64, kept128, allowed128; /* tiles of 64 x 64, 128 x 128 */
    struct mask_work work;                          /* not of sampled rows */
};
int mask_tally_add(struct mask_tally *t, const struct mask *m, struct err *err);
void mask_tally_join(struct mask_tally *t, const struct mask_tally *more);

/* Sums over rows; over channels, too, but for the last five. */
enum metrics_sum {
    SUM_ABS_DELTA,
    SUM_ABS_REF,
    SUM_SQ_DELTA,
    SUM_SQ_REF,
    SUM_SQ_OUT,
    SUM_DOT,
    SUM_LSE,
    SUM_RECALL, /* once metrics_merge or metrics_finish has added it up */
    SUM_ROWS_LSE,
    SUM_ROWS_EMPTY,
    SUM_TILES_PV,
    N_SUMS
};

struct metrics_acc {
    int64_t n, dv;  /* rows, channels */
    int64_t row0;   /* the first of them in the head */
    double *recall; /* [n], owned: mass of dense attention that row i keeps */
    double sum[N_SUMS];
    double max_delta, min_row_cos, max_lse;
    struct mask_tally tally;
};

int metrics_init(struct metrics_acc *a, int64_t nq, int64_t dv, struct err *err);
void metrics_free(struct metrics_acc *a);

/* Add rows [row0, row0+n). out, ref [n][dv]: output of the method and of dense attention. [n] each:
 * lse_mask = exact log-sum-exp over the kept pairs (for recall), lse_out = the method's own (for
 * the LSE error), lse_ref = dense. -inf marks an empty row. */
void metrics_add_rows(struct metrics_acc *a, int64_t row0, int64_t n, const double *out,
                      const double *ref, const double *lse_mask, const double *lse_out,
                      const double *lse_ref);

/* Add a head's sums as a back end measured them, with the kept mass of every row. */
void metrics_add_sums(struct metrics_acc *a, const struct accel_sums *s, const double *mass);

/* Add the counts of a head's mask. */
void metrics_add_tally(struct metrics_acc *a, const struct mask_tally *t);

/* Add the counts of a chunk's mask. tiles_pv: tiles whose P V was computed; < 0: the same tiles as
 * in Q K. */
int metrics_add_mask(struct metrics_acc *a, const struct mask *m, double tiles_pv, struct err *err);

/* The same for a mask that stays on a device: lists has its unit and exec, and entries where u has
 * no rows of tiles. */
int metrics_add_units(struct metrics_acc *a, const struct mask *lists, const struct accel_units *u,
                      double tiles_pv, struct err *err);

/* Add the n accumulators of groups of sampled rows to *a, which was made for all their rows. */
void metrics_merge(struct metrics_acc *a, struct metrics_acc *part, int64_t n);

/* Record NAME~se, the standard error of metric NAME over the groups part[0..n), which *a holds, for
 * all that are means and quotients of sums, from the differences of neighbouring groups
 * (doc/records.md); of an odd number the last one has no neighbour. `errors`: also those of recall
 * and output. */
int metrics_errors(const struct metrics_acc *a, const struct metrics_acc *part, int64_t n,
                   bool errors, struct record *r, struct err *err);

/* Write those that the masks alone decide into the record: densities, sparsities, pairs. */
int metrics_counts(const struct metrics_acc *a, int64_t nq, int64_t nk, struct record *r,
                   struct err *err);

/* Write all metrics into the record. With a sample of rows the extremes are those of the sample:
 * their names end with '~'. */
int metrics_finish(struct metrics_acc *a, int64_t nq, int64_t nk, bool sample, struct record *r,
                   struct err *err);

/* Those of recall and output alone. Sorts a->recall. */
int metrics_output(struct metrics_acc *a, bool sample, struct record *r, struct err *err);

/* Nearest-rank percentile of n ascending values: x[max(1, ceil(p n / 100))], counted from 1. */
double percentile_sorted(const double *x, int64_t n, double p);

/* |num| / den with 0/0 = 0 and x/0 = inf. */
double ratio_or_inf(double num, double den);

/* ---- tiles of single pairs ------------------------------------------------------------------ */

/* Densities of a mask whose lists have single elements but whose kernel works on tiles.
 *
 * The replay counts tiles at the unit of a mask's lists. A method whose rule is about single pairs,
 * or about pairs in a token order of its own, counts its tiles here and replaces those numbers in
 * its record. */

struct tile_count {
    int64_t bq, bk;
    int64_t kept, allowed; /* bq x bk tiles with a kept pair; with an allowed pair */
    int64_t rect;          /* all tiles of the rectangle */
};

/* Add the rows of m, which start at a multiple of bq. */
int tile_count_add(struct tile_count *t, const struct mask *m, struct err *err);

/* Replace density_tile, the sparsities, pairs_exec and density_exec of a record that already has
 * pairs_allowed: whole tiles are executed, in Q.K and in P.V alike. */
int tile_count_report(const struct tile_count *t, struct record *r, struct err *err);
