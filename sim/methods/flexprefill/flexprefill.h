/*
 * flexprefill.h - the parts of FlexPrefill (arXiv:2502.20766) behind its method table: token
 * counts, block sums, the pattern test, and the two block patterns.
 *
 * n tokens, block size B, nb = ceil(n / B). The published code indexes distances from the end of a
 * vector of n tokens: distance d is at t = n - 1 - d, and bin b of these positions is block
 * diagonal D = nb - 1 - b.
 */
#pragma once

#include "core/err.h"
#include "sim/blocks/blockmap.h"
#include "sim/blocks/vslash.h"

#include <stdbool.h>
#include <stdint.h>

enum flex_profile { FLEX_OFFICIAL, FLEX_PAPER };

struct flex_config {
    enum flex_profile profile;
    int64_t n, block;
    double gamma, tau, scale;
    int64_t min_budget, max_budget; /* tokens; max_budget 0 = none */
    bool bf16;
    bool both; /* bidirectional: distances to both sides, all blocks */
};

/* Scores from the sampled rows, per token and per block. */
struct flex_scores {
    int64_t nb;
    double *ver, *sla;  /* [n] mean mass per column, per distance; owned like all arrays here */
    double *col, *diag; /* [nb] sums of ver per block; of sla per bin b */
    double *est;        /* [nb] mass of block columns estimated from pooled keys */
    float *kbar, *qbar; /* [nb][d] block means; qbar is filled when the head is query-aware */
};

/* Compute the scores from the last `rows` rows. pooled = false leaves est and kbar out. */
int flex_scores_run(struct flex_scores *s, const struct flex_config *c, const struct head_in *in,
                    int64_t rows, bool pooled, struct err *err);

/* Writes the pooled query of row block i to out [d]. With c->bf16 it is scaled and rounded as in
 * the published code, otherwise it is not scaled; flex_pooled_score returns scale qbar . kbar for
 * both. */
void flex_pool_query(const struct flex_config *c, const struct head_in *in, int64_t i, float *out);
double flex_pooled_score(const struct flex_config *c, const float *qbar, const float *kbar, int d);

/* The same in two steps: flex_scores_init allocates, the caller fills ver and sla, flex_block_sums
 * sums them. */
int flex_scores_init(struct flex_scores *s, const struct flex_config *c, int d, struct err *err);
void flex_block_sums(struct flex_scores *s, const struct flex_config *c);
void flex_scores_free(struct flex_scores *s);

/* Number of entries of v[0..n), in descending order, that hold the share gamma. official: (number
 * of entries whose running sum is <= gamma) + 1. Otherwise the fewest entries with a sum >= gamma.
 * With gamma >= 1: n + 1 and n. */
int flex_count(const double *v, int64_t n, double gamma, bool official, int64_t *count,
               struct err *err);

/* Jensen-Shannon distance sqrt(sum a ln(a/m) / 2 + sum b ln(b/m) / 2), m = (a + b)/2, of two lists
 * rounded to float. A zero entry makes it NaN when zero_is_nan, else adds nothing. */
double flex_js(const double *a, const double *b, int64_t n, bool zero_is_nan);

/* The selection. */
struct flex_plan {
    bool query_aware;
    double js;
    int64_t t_v, t_s;     /* token counts for gamma */
    int64_t k_v, k_s;     /* official: block columns and diagonals; paper: tokens */
    struct block_map map; /* owned */
};

/* Build the plan. Only query-aware heads use `in`. */
int flex_plan_build(struct flex_plan *p, const struct flex_config *c, struct flex_scores *s,
                    const struct head_in *in, struct err *err);
void flex_plan_free(struct flex_plan *p);

/* Set in the map those entries of the estimated block map w [nb][nb] that are kept. In order of
 * weight (ties: lower index) these are the entries with running sum <= budget or, with cross, the
 * fewest entries with running sum >= budget. */
int flex_keep_entries(const double *w, int64_t nb, double budget, bool cross, struct block_map *map,
                      struct err *err);
