/*
 * prefix.h - the shortest prefix of a row's sorted entries that reaches a mass, and the k largest
 * entries. Order: value descending, equal values by ascending index.
 */
#pragma once

#include "core/mem.h"

#include <stdbool.h>
#include <stdint.h>

/* Entry j belongs to the prefix iff rank_j > cut or (rank_j == cut and j <= last). */
struct prefix {
    double cut;
    int64_t last;
    int64_t count;      /* entries of the prefix */
    double sum, before; /* mass of the prefix; mass without its last entry */
};

static inline bool prefix_has(const struct prefix *p, double rank, int64_t j)
{
    return (rank > p->cut) | ((rank == p->cut) & (j <= p->last)); /* without a branch */
}

struct prefix_work; /* scratch, reusable for rows of any length */

int prefix_work_new(struct prefix_work **out, struct err *err);
void prefix_work_free(struct prefix_work *w); /* accepts NULL */
OWN_AT(prefix_work_free, struct prefix_work *)

/* Entries 0..n-1 with rank >= 0 (a negative rank takes an entry out) and mass >= 0. The masses are
 * summed in double in sorted order, starting from `start`; the prefix is the shortest whose sum is
 * >= target, all entries when none is. Expected O(n): a histogram over the leading bits of the
 * ranks finds the bin in which the sum crosses the target, and only that bin is sorted. Where
 * rounding could decide, the whole row is sorted. */
int prefix_select(struct prefix_work *w, const double *rank, const double *mass, int64_t n,
                  double start, double target, struct prefix *out, struct err *err);

/* The min(k, number of entries) largest of x[0..n), any sign; NAN takes an entry out. */
int prefix_topk(struct prefix_work *w, const double *x, int64_t n, int64_t k, struct prefix *out,
                struct err *err);

/* The p->count values that the prefix_topk just before found: larger ones in the order of x, then
 * those that equal the last. */
void prefix_values(const struct prefix_work *w, const struct prefix *p, double *out);

/* List the entries of rank [n] that the prefix has and those of [lo, hi), ascending; how many. at
 * has room for n. */
int64_t prefix_pick(const struct prefix *p, const double *rank, int64_t n, int64_t lo, int64_t hi,
                    int32_t *at);

/* The *count entries of x [n] that the prefix has, ascending. The list is in the scratch of the
 * prefix_topk that found it. */
const int32_t *prefix_list(struct prefix_work *w, const struct prefix *p, const double *x,
                           int64_t n, int64_t *count);
