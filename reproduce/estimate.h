/*
 * estimate.h - what the steps that are still to be run will cost.
 */
#ifndef LACUNA_REPRODUCE_ESTIMATE_H
#define LACUNA_REPRODUCE_ESTIMATE_H

#include "reproduce/jobplan.h"

/* Set seconds and bytes of every step that is not finished, on so many threads; of a step that
 * another one shares its work with, only the first counts. Right within a factor of about two. */
void plan_estimate(struct plan *p, int threads);

/* Leave out jobs marked `drop`, the costliest first, while the estimate is above 80 % of `budget`
 * seconds. */
void plan_fit(struct plan *p, double budget, int threads);
double plan_seconds(const struct plan *p); /* from start to end, side by side if they run so */

/* What would be done, as a table for people. */
void plan_text(const struct plan *p, struct buf *b);

/* ---- inside of the estimate ------------------------------------------------------------------
 */

/* Seconds of a step with --backend cuda on n tokens (gpurates.c). */
double gpu_seconds(const struct plan *p, const struct step *s, double n);

/* Denoising steps of a capture, else 1; of all that a step reads. */
int64_t estimate_steps(const struct plan *p, const struct step *s);
double estimate_calls(const struct plan *p, const struct step *s);

/* Words of a step with variables in place, inputs left out. */
void estimate_args(const struct plan *p, const struct step *s, struct buf *b);

#endif
