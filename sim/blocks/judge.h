/*
 * judge.h - how far attention over a mask is from dense attention, as sums over a head: what
 * searches of parameters bound.
 *
 * Masks come in chunks that cover all rows of the head in order. The CPU attends to each as it
 * comes, in the precision of the exact map. A GPU, where one has taken over with judge_from,
 * attends to all of them at the end; what it cannot attend to, the CPU does.
 */
#pragma once

#include "core/err.h"
#include "core/json.h"
#include "core/mask.h"
#include "core/method.h"
#include "sim/blocks/exact.h"

#include <stdint.h>

struct accel_filter; /* core/accel.h */
union method_rule;   /* core/rules.h */

/* Sums over the rows and channels of a head, of outputs over the mask and of dense ones. */
struct judged {
    double abs_delta, sq_delta, sq_ref;
    double tiles_pv; /* with a filter: tiles whose P V was computed */
};

/* One of several masks that are judged together. */
struct judge_many {
    struct mask mask;  /* of the whole head */
    double *mass;      /* [nq] */
    struct judged sum; /* the answer */
};

/* Somebody else who judges. Functions that return METHOD_SKIP, or false, say why they cannot. */
#define JUDGE_MANY 12
struct judge {
    void *self;
    int jobs; /* threads that may work for one question */
    /* Can P V be filtered so? */
    bool (*filters)(void *self, const struct accel_filter *f, char why[160]);
    /* Judge masks[0..n); f and mass [nq] may be NULL. */
    int (*masks)(void *self, const struct mask *masks, int64_t n, const struct accel_filter *f,
                 double *mass, struct judged *j, char why[160], struct err *err);
    /* Judge JUDGE_MANY masks of one unit at once, without a filter. */
    int (*many)(void *self, struct judge_many *masks, char why[160], struct err *err);
    /* Choose by a method's rule, into lists over the whole head; release them with mask_free. */
    int (*choose)(void *self, const char *method, const union method_rule *rule, struct mask *whole,
                  char why[160], struct err *err);
};

/* Let *j, which stays the caller's, judge for this head from now on; NULL: the CPU again. */
void judge_from(struct exact *e, const struct judge *j);
static inline const struct judge *judge_of(const struct exact *e)
{
    return e->judge;
}

/* A mask while it is judged. */
struct judging {
    struct exact *exact;
    double *mass;       /* [nq] of the caller, or NULL: dense probability that each row keeps */
    struct judged sum;  /* complete after judge_end */
    struct mask *masks; /* those that wait for somebody else; owned */
    int64_t n, cap;
    double *out, *lse; /* rows of a chunk; owned */
    int64_t rows;      /* for so many */
};

void judge_begin(struct judging *j, struct exact *e, double *mass);
int judge_add(struct judging *j, struct mask *m, struct err *err); /* takes *m over, also failing */
/* filter: only where judge_of says that somebody can; else NULL. */
int judge_end(struct judging *j, const struct accel_filter *filter, struct err *err);
void judge_free(struct judging *j);

/* ---- settings of a grid --------------------------------------------------------------------- */

/* Judge many block masks of one head in one pass over the exact softmax: density, recall and output
 * error of each. For offline searches.
 *
 * Per query row the mass and the partial output of every key block are computed once; a candidate
 * then adds up the blocks that it keeps. Cost: one dense attention plus candidates * N * nb * d_v
 * additions; memory candidates * N. */

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
