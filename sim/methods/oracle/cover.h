/*
 * cover.h - a small set of blocks that gives every row of a group its share of the mass, with
 * bounds: a covering integer program in which rows are constraints and blocks have cost 1.
 */
#ifndef LACUNA_COVER_H
#define LACUNA_COVER_H

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

struct cover {
    int64_t lower;  /* blocks that the most demanding row alone needs; no cover has fewer */
    int64_t greedy; /* blocks that the greedy rule takes */
    int64_t upper;  /* after reverse delete */
};

/* m [cols][rows]: mass of row i in block c. need [rows]: mass that row i has to reach; a row whose
 * blocks hold less gets all of them. taken [cols]: on entry the blocks that are kept anyway, on
 * return the cover, which contains them.
 *
 * Greedy: the block with the largest sum_i min(m_ic, what row i still needs), ties to the lower
 * block, until every row needs at most 1e-12. Gains only fall, so a heap of old gains that
 * recomputes its top is exact. Then blocks are dropped, in reverse order of selection, if every row
 * still reaches need - 1e-12 without them. O(cols rows) per selected block at worst, usually far
 * less. */
int cover_greedy(const double *m, int64_t rows, int64_t cols, const double *need, bool *taken,
                 struct cover *out, struct err *err);

#endif
