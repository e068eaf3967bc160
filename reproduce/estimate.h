/*
 * estimate.h - what the jobs that are missing will cost, for --dry-run.
 */
#ifndef LACUNA_REPRODUCE_ESTIMATE_H
#define LACUNA_REPRODUCE_ESTIMATE_H

#include "reproduce/jobplan.h"

/* What would be done, as a table for people. Times are right within a factor of about two on a
 * processor, and of four with a GPU. */
void plan_text(const struct plan *p, int threads, struct buf *b);

#endif
