/*
 * crew.h - the jobs of a plan, side by side, until nothing is left to do.
 */
#ifndef LACUNA_REPRODUCE_CREW_H
#define LACUNA_REPRODUCE_CREW_H

#include "reproduce/output.h"

#define MAX_AT_ONCE 64

struct work {
    struct plan *plan;
    struct output *output;
    double budget; /* seconds, INFINITY: none */
    int threads;   /* of a job that runs alone; others share them */
};

/* Run what is missing in the current folder, which is DIR/jobs, and write each page when its jobs
 * have ended. A job that fails is the pages' matter. After any other error or an interrupt no child
 * is left. */
int work_run(const struct work *w, struct err *err);

#endif
