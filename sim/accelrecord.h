/*
 * accelrecord.h - what records of a GPU run say, of a head through copies of it and of a call.
 */
#ifndef LACUNA_ACCELRECORD_H
#define LACUNA_ACCELRECORD_H

#include "core/accel.h"
#include "sim/accelchoice.h"
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

/* Metric `name` with its quartiles. */
int record_time(struct record *r, const char *name, const struct accel_time *t, struct err *err);

/* Nothing where counters were not asked for. */
int record_counters(const struct accel_counters *c, struct record *r, struct err *err);

/* Where the mask was chosen, the kernels, who measured: notes, density_kernel. */
int record_accel(const struct run *run, const struct choice *c, const char *kernel,
                 const char *dense_kernel, int64_t pairs_exec, struct record *r, struct err *err);

/* A total from q, k, v to the outputs: of `x`, all of `heads` heads. select NULL: nothing to
 * choose; where choosing costs the call nothing it is zeros. quant NULL or without samples: no
 * operands to make. *total may be NULL: the sum of the medians. */
struct accel_total {
    const struct attn_in *x;
    int heads;
    const struct accel_time *select, *quant, *attend, *dense, *total;
};
int record_total(const struct accel_total *t, struct record *r, struct err *err);

#endif
