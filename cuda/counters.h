/*
 * counters.h - hardware counters of a kernel through CUPTI's Range Profiler: how busy the tensor
 * pipe was and what moved through device memory. One pass; never in a run that is timed.
 */
#ifndef LACUNA_COUNTERS_H
#define LACUNA_COUNTERS_H

#include "core/kernel.h"
#include "cuda/device.h"

struct counters;

/* Counters of the GPU of g. They need libcupti, permission (root, or the driver option
 * NVreg_RestrictProfilingToAdminUsers=0) and no other profiler: without them NULL, and `why` says
 * which. */
struct counters *counters_open(struct gpu *g, char why[160]);
void             counters_close(struct counters **c);

/* Counters of what `launch` does on g's stream, run once to warm up and once to count. What CUPTI
 * refuses is told in v->why and is no error. */
int counters_measure(struct counters *c, struct gpu *g,
                     int (*launch)(struct gpu *g, const void *job, struct err *err),
                     const void *job, struct accel_counters *v, struct err *err);

#endif
