/*
 * makejobs.h - running the jobs of a plan with `make`.
 *
 * A job works in ID.part, which make renames to ID when its last command has ended well: a folder
 * is whole or absent, and an interrupted job continues. Jobs run side by side first, then those
 * whose result is a time, one at a time, and drawings last.
 */
#ifndef LACUNA_REPRODUCE_MAKEJOBS_H
#define LACUNA_REPRODUCE_MAKEJOBS_H

#include "reproduce/jobplan.h"

struct make_opts {
    int jobs;    /* side by side */
    int threads; /* of a job that runs alone; others share them */
};

/* Write ./Makefile and run what is missing in the current folder, which is DIR/jobs. Another
 * command on it is waited for. A job that fails is a step's `failed` with its reason. After any
 * other error or an interrupt no process is left. */
int jobs_run(struct plan *p, const struct make_opts *o, struct err *err);

#endif
