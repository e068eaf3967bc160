/*
 * flexprefill.h - FlexPrefill (arXiv:2502.20766) below the method table: token counts, block sums,
 * the pattern test, and the two block patterns.
 *
 * n tokens, block size B, nb = ceil(n / B). Distances are indexed from the end of a vector of n
 * tokens in the published code: distance d sits at t = n - 1 - d, and bin b of these positions
 * stands for block diagonal D = nb - 1 - b.
 */
#ifndef LACUNA_FLEXPREFILL_H
#define LACUNA_FLEXPREFILL_H

#include "core/err.h"
#include "sim/blockmap.h"
#include "sim/tokscore.h"

#include <stdbool.h>
#include <stdint.h>

enum flex_profile { FLEX_OFFICIAL, FLEX_PAPER };

struct flex_config {
    enum flex_profile profile;
    int64_t n, block;
    double gamma, tau, scale;
    int64_t min_budget, max_budget; /* tokens; max_budget 0 = none */
    bool bf16;
};

/* Least and most blocks of columns and of diagonals. */
int64_t flex_min_blocks(const struct flex_config *c);
int64_t flex_max_blocks(const struct flex_config *c);

/* Short prompts stay dense. */
bool flex_applies(const struct flex_config *c);

/* What the sampled rows yield, per token and per block. */
struct flex_scores {
    int64_t nb;
    double *ver, *sla;  /* [n] mean mass per column and per distance, owned; so are the following */
    double *col, *diag; /* [nb] sums of ver per block; of sla per bin b */
    double *est;        /* [nb] mass of the columns by pooled keys */
    float *kbar, *qbar; /* [nb][d] block means; qbar is filled when the head is query-aware */
};

/* Sampled rows are the last `rows`; est and kbar are skipped when pooled is false. */
int flex_scores_run(struct flex_scores *s, const struct flex_config *c, const struct head_in *in,
                    int64_t rows, bool pooled, struct err *err);

/* Allocate only; then fill ver and sla and call flex_block_sums. */
int flex_scores_init(struct flex_scores *s, const struct flex_config *c, int d, struct err *err);
void flex_block_sums(struct flex_scores *s, const struct flex_config *c);
void flex_scores_free(struct flex_scores *s);

/* Tokens needed for gamma of a list v[0..n): official (entries whose running sum, descending, is
 * <= gamma) + 1; else the fewest with running sum >= gamma. gamma >= 1: n + 1 and n. */
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

/* in is needed for query-aware heads only. */
int flex_plan_build(struct flex_plan *p, const struct flex_config *c, struct flex_scores *s,
                    const struct head_in *in, struct err *err);
void flex_plan_free(struct flex_plan *p);

/* Entries [nb][nb] of the estimated block map to keep: sorted by weight (ties: lower index), those
 * with running sum <= budget, or (cross) the fewest with running sum >= budget; set in the map. */
int flex_keep_entries(const double *w, int64_t nb, double budget, bool cross, struct block_map *map,
                      struct err *err);

#endif
