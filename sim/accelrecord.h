/*
 * accelrecord.h - what records of a GPU run say, of heads and of calls.
 */
#ifndef LACUNA_ACCELRECORD_H
#define LACUNA_ACCELRECORD_H

#include "core/accel.h"
#include "sim/maskchoice.h"
#include "sim/simulate_run.h"

/* Outputs of a head from the GPU: all rows, or NULL where metrics came from there and nobody dumps
 * them. */
struct accel_outputs {
    const double *out, *lse;
    double tiles_pv; /* < 0: no filter */
};

/* Counts of the head's masks, errors and recall unless the GPU measured them (device->metrics), and
 * the sink. run->lse_mask: of a chunk. */
int accel_add_masks(struct run *run, const struct choice *c, const struct accel_outputs *o,
                    struct err *err);

/* Where the mask was chosen, the kernels, who measured: notes, density_kernel. */
int record_accel(const struct run *run, const struct choice *c, const char *kernel,
                 const char *dense_kernel, int64_t pairs_exec, struct record *r, struct err *err);

/* What a call took. */
struct call_record {
    const struct accel_call *call;
    const struct accel_result *res;
    const struct choice **choices; /* [call->n] */
    struct record *record;
    double *choose_ns; /* as in struct sim_call */
};

/* Notes, times and counters of a whole call into its record, whose status becomes ok; or those of
 * one copy into the record of the head that the call's heads are copies of. */
int record_call(const struct call_record *c, struct err *err);
int record_copies(const struct call_record *c, struct err *err);

#endif
