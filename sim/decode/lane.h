/*
 * lane.h - a setting on one query head through the steps of the decode phase: what it attended to,
 * measured against exact attention.
 */
#pragma once

#include "sim/blocks/prefix.h"
#include "sim/decode/keysets.h"
#include "sim/simulate.h"

/* Keys of a step that count as heavy (hot_lost). */
#define DECODE_HOT 16

/* A head at one step: its exact attention and what a setting attends to. Views. */
struct step {
    int64_t step, first, limit; /* keys [first, limit) are allowed */
    const double *score;        /* [limit]: scaled, -inf below first */
    const double *out, *lse;    /* [dv], [1]: of dense attention */
    const int32_t *hot;         /* [min(DECODE_HOT, limit - first)]: the heaviest keys */
    struct keyset kept, held;   /* attended to; in the cache (.s NULL: all allowed keys) */
};

/* Scratch for LANE_STEPS rows of a head. */
#define LANE_STEPS 64
struct row_work {
    struct prefix_work *prefix; /* owned, as all */
    double *z, *out;            /* [LANE_STEPS][nk], [LANE_STEPS][dv] */
    int32_t *at;                /* [LANE_STEPS][nk] */
    struct row_sum {
        int64_t at, end;  /* its keys in the arrays above */
        double rest, lse; /* mass that is kept, where the others are listed, else 0 */
    } row[LANE_STEPS];
};
int row_work_init(struct row_work *w, const struct attn_in *x, struct err *err);
void row_work_free(struct row_work *w);

/* The min(DECODE_HOT, limit - first) heaviest keys, ascending by position. */
int heavy_keys(const struct step *s, struct row_work *w, int32_t *at, struct err *err);

struct lane {
    const struct sim_cell *cell;
    struct call_outcome *out;
    bool cached;         /* the method evicts: the head reads what its cache holds */
    bool off;            /* skipped or failed: no further step */
    struct keysets kept; /* of the steps of a block, where a method selects */
    struct keysets last; /* the set of the step before */
    struct metrics_acc acc;
    int64_t pairs, allowed;
    double *lost, *sq_delta, *sq_ref; /* [steps]: evicted mass; of errors over a layer */
    double topk, hot, reuse;          /* sums over steps */
};

int lane_init(struct lane *l, const struct sim_cell *cell, struct call_outcome *out, int64_t steps,
              struct err *err);
void lane_free(struct lane *l);

/* Attend and measure n <= LANE_STEPS steps. */
int lane_steps(struct lane *l, const struct step *s, int n, struct row_work *w, struct err *err);

/* What the caller knows of the head's cache. */
struct lane_cache {
    bool evicts;                   /* else all keys are held */
    const double *held;            /* [steps]: keys during the attention of each step */
    double end;                    /* keys after the last step */
    double padded;                 /* largest cache of the layer, mean over steps */
    double kv, meta, dense, bytes; /* bytes per step: read of K and V, read to choose (NAN: not
                                    * known), read by dense attention, held */
    double regret; /* of the cache's heads, below the best fixed set; NAN: not known */
    double err_layer;
};

/* All metrics into the record of the lane. */
int lane_record(struct lane *l, const struct lane_cache *c, struct err *err);
