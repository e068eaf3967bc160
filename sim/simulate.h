/*
 * simulate.h - one head through one method: prepare, select in row chunks, attend, metrics.
 */
#ifndef LACUNA_SIMULATE_H
#define LACUNA_SIMULATE_H

#include "core/method.h"
#include "sim/devicemap.h"

/* Called with each row chunk's mask (covering [m->row0, m->row1)) and the method's output rows. */
typedef int sim_sink_fn(void *ctx, const struct mask *m, const double *out, const double *lse,
                        struct err *err);

/* A method with its parameters on a head. */
struct sim_cell {
    const struct method *method;
    const void *params;
    struct method_ctx *ctx;
    const struct head_in *in;
    const struct sim_device *device; /* NULL: on the CPU */
    bool counts_only;  /* the record gets the counts of the mask alone, neither recall nor errors:
                        * no dense row is computed unless the method asks for it */
    sim_sink_fn *sink; /* may be NULL */
    void *sink_ctx;
};

/* Run it. Fills status, metrics and notes of *r (identity fields are the caller's). A METHOD_SKIP
 * becomes status skip with the reason; returns 0 then. */
int sim_run(const struct sim_cell *cell, struct record *r, struct err *err);

#endif
