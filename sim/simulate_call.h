/*
 * simulate_call.h - a method on all heads of an attention call at once, on a GPU: every head's mask
 * is chosen, one launch attends to all of them, every head is measured, and the call is timed. A
 * head alone is a call of one.
 */
#ifndef LACUNA_SIMULATE_CALL_H
#define LACUNA_SIMULATE_CALL_H

#include "sim/simulate.h"

/* What became of a head. */
struct call_outcome {
    struct record *record; /* identity fields are the caller's, as for sim_run */
    struct err err; /* code != 0: the head failed, also before the call: then it is left out */
};

struct sim_call {
    const struct sim_cell *cells; /* [n], of one method, with the same device. Cells whose params
                                   * are equal have the same pointer */
    struct call_outcome *heads;   /* [n] */
    int n, group;                 /* as in struct accel_call */
    int copies;    /* not 0, with n = 1: as many copies of the head, in groups, are attended to and
                    * timed; their times per copy are the head's. Else times are the call's */
    uint64_t data; /* number of the heads' q, k, v, as in struct accel_call */
    int jobs;      /* threads for what is done head by head */
    struct record *record; /* of the call; NULL: not wanted */
    double *choose_ns; /* time that chose the call's masks, for later calls which use them; NULL: no
                        * state over calls */
};

/* Give cells with equal parameters the same pointer, by which they are chosen for together; those
 * of heads that failed already are left alone. */
int sim_share_params(struct sim_cell *cells, const struct call_outcome *heads, int64_t n,
                     struct err *err);

/* Run it. What fails for a head alone is told in its outcome. Otherwise returns an error of the
 * whole call. c->record gets status, notes and times; it is a skip where a head was skipped, with
 * the reason, and an error where a head failed: the rest of a call is not the call. */
int sim_run_call(const struct sim_call *c, struct err *err);

/* A cell with a device, as sim_run: a call of one head, timed through copies of it. */
int sim_run_head(const struct sim_cell *cell, struct record *r, struct err *err);

#endif
