/*
 * paper_verdict.h - what may be said of a printed number and ours side by side.
 *
 * "agrees" and "differs" are claims about the paper, so they need all of its conditions: model
 * (name, head dimension, all its layers and heads), length, token order, settings, calibration and
 * the unit of the number. Where a condition is another one, the verdict is "not comparable: " and
 * every such condition; where the paper or the records do not state one, "cannot be tested, because
 * ...".
 */
#ifndef LACUNA_PAPER_VERDICT_H
#define LACUNA_PAPER_VERDICT_H

#include "analyze/group.h"
#include "analyze/paper_rules.h"

/* Largest difference that "agrees": of shares and cosines absolute, of relative L1 as a part of the
 * printed number; never less than half a unit of the last printed digit. */
#define PAPER_TOL_SHARE 0.02
#define PAPER_TOL_L1 0.05

/* Append the verdict on `ours`, the statistic of group g, and `printed`, both in the unit of p. */
int paper_verdict(const struct printed *p, const struct wanted *w, const struct grouping *gs,
                  const struct group *g, double ours, double printed, struct buf *out,
                  struct err *err);

#endif
