/*
 * shots.h - small pictures of one head's attention map or mask, for the explorer of a report.
 */
#ifndef LACUNA_SHOTS_H
#define LACUNA_SHOTS_H

#include "core/trace.h"
#include "plots/cells.h"

/* Append the picture as base64 of a PNG, one pixel per cell; cells without an allowed pair are
 * transparent. Maps: colours of the largest weight on a logarithmic scale from SHOT_LEAST to 1.
 * Masks: from pale (nothing kept) to dark blue (all allowed pairs kept). */
#define SHOT_LEAST 1e-6
int shot_of_map(const struct cells *c, struct buf *b, struct err *err);
int shot_of_mask(const struct cells *c, struct buf *b, struct err *err);

/* Are so many maps of the trace's heads computed from q and k within seconds? */
bool shots_are_cheap(const struct trace *t, int64_t maps);

/* The map of one stored head of a call, of at most `side` cells along its longer axis: computed
 * from q and k (`exact`; O(n_q n_k d)), or pooled from the map of the trace. ERR_INPUT where the
 * trace has none. */
int shot_cells(const struct trace *t, int64_t call, int stored, int64_t side, bool exact,
               struct cells *out, struct err *err);

#endif
