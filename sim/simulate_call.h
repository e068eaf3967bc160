/*
 * simulate_call.h - run a method on all heads of one attention call on a GPU: every head's mask
 * is chosen, one launch attends to all of them, every head is measured, and the call is timed. A
 * head alone is a call of one.
 */
#ifndef LACUNA_SIMULATE_CALL_H
#define LACUNA_SIMULATE_CALL_H

#include "sim/simulate.h"

/* Result of one head. */
struct call_outcome {
    struct record *record; /* identity fields are the caller's, as for sim_run */
    struct err err; /* code != 0: the head failed; if set before the call, the head is left out */
};

struct sim_call {
    const struct sim_cell *cells; /* [n], of one method, with the same device. Neighbouring cells
                                   * with equal params share the pointer (sim_share_params) */
    struct call_outcome *heads;   /* [n] */
    int n, group;                 /* as in struct accel_call */
    int copies;    /* not 0 (needs n = 1): number of copies of the head, in GQA groups, that are run
                    * and timed; its times are then per copy. 0: times are the call's */
    uint64_t data; /* number of the heads' q, k, v, as in struct accel_call */
    int jobs;      /* threads for per-head work on the host */
    struct record *record; /* of the call; NULL: not wanted */
    double *choose_ns;     /* in and out: ns that choosing the masks took, kept for later calls that
                            * reuse them; NULL: no reuse */
};

/* Give neighbouring cells with equal parameters the same `params` pointer: the device then chooses
 * their masks together. Skips heads whose outcome holds an error. */
int sim_share_params(struct sim_cell *cells, const struct call_outcome *heads, int64_t n,
                     struct err *err);

/* Run the call. An error of one head goes to its outcome; an error of the whole call is returned.
 * c->record gets status, notes and times. If any head was skipped or failed, the status is skip or
 * error with the reason, because times of the remaining heads mislead. */
int sim_run_call(const struct sim_call *c, struct err *err);

/* A cell with a device, as sim_run: a call of one head, timed through copies of it. */
int sim_run_head(const struct sim_cell *cell, struct record *r, struct err *err);

#endif
