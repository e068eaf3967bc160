/*
 * blockgrid.h - judge many block masks of one head in one pass over the exact softmax: density,
 * recall and output error of each. For offline searches.
 *
 * Per query row the mass and the partial output of every key block are computed once; a candidate
 * then adds up the blocks that it keeps. Cost: one dense attention plus candidates * N * nb * d_v
 * additions; memory candidates * N.
 */
#ifndef LACUNA_BLOCKGRID_H
#define LACUNA_BLOCKGRID_H

#include "core/err.h"
#include "core/json.h"
#include "core/method.h"

#include <stdint.h>

struct block_grid {
    const struct head_in *in;
    int64_t block; /* keys of a column block */
    int64_t unit;  /* query rows [g unit, (g + 1) unit) share their lists */
    int n;         /* candidates */
    void *ctx;

    /* Column blocks that candidate t keeps for the unit that starts at query row row0, ascending,
     * into cols (room for all); returns their number. */
    int64_t (*list)(void *ctx, int t, int64_t row0, int32_t *cols);
};

struct block_score {
    double density;            /* kept over allowed pairs */
    double keep_p1, keep_mean; /* recall per row: 1st percentile (nearest rank), mean */
    double error;              /* relative L2 error of the output */
};

/* score [n]. Where somebody else judges for the head (judge.h), some
 * candidates at a time, whose `list` is asked by several threads. */
int block_grid_run(const struct block_grid *g, struct block_score *score, struct err *err);

/* A ready-made `on_device` (struct method_search): always. */
bool block_grid_on_device(const void *params, char why[160]);

/* Combine the scores of n samples: start with block_score_none and add each. The density is their
 * mean; recall and error are those of the worst sample. */
extern const struct block_score block_score_none;
void block_score_add(struct block_score *sum, const struct block_score *one, int n);

/* A whole search for a calibration file: "grid": {"columns": [...], "rows": [[...], ...]}. Columns
 * are `names` [n_names], then density and recalls and error of the score; row t begins with the
 * n_names values that put(t, values) writes. */
struct grid_rows {
    const char *const *names;
    int n_names, n;
    void (*put)(int t, double *values);
};
#define GRID_NAMES 4 /* at most */
void block_grid_write(const struct grid_rows *g, const struct block_score *score, struct jw *w);

#endif
