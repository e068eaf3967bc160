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

/* How far a run goes, and what its record gets. */
enum sim_measure {
    MEASURE_ALL,    /* choose, attend, compare with dense attention: all metrics */
    MEASURE_COUNTS, /* choose and attend: counts of the mask, neither recall nor errors. No dense
                     * row is computed unless the method asks for it */
    MEASURE_MASK,   /* choose: counts of the mask alone, and no numbers of the method */
};

/* A method with its parameters on a head. */
struct sim_cell {
    const struct method *method;
    const void *params;
    struct method_ctx *ctx;
    const struct head_in *in;
    const struct sim_device *device; /* NULL: on the CPU */
    enum sim_measure measure;
    sim_sink_fn *sink; /* may be NULL */
    void *sink_ctx;
    bool sink_rows; /* the sink looks at rows and outputs alone: masks may stay on the device, or be
                     * shared, and it may then get a full one in their place */
};

/* Does anybody go through the entries of the masks? */
static inline bool sim_reads_masks(const struct sim_cell *c)
{
    return c->sink && !c->sink_rows;
}

/* Run it. Fills status, metrics and notes of *r (identity fields are the caller's). A METHOD_SKIP
 * becomes status skip with the reason; returns 0 then. */
int sim_run(const struct sim_cell *cell, struct record *r, struct err *err);

#endif
