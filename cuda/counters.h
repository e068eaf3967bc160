/*
 * counters.h - hardware counters of a kernel through CUPTI's Range Profiler: how busy the tensor
 * pipe was, and the bytes moved through device memory. Needs one pass, and never runs together with
 * timing.
 */
#ifndef LACUNA_COUNTERS_H
#define LACUNA_COUNTERS_H

#include "core/accel.h"
#include "cuda/device.h"

struct counters;

/* Open the counters of g's GPU. They need libcupti, permission (root, or the driver option
 * NVreg_RestrictProfilingToAdminUsers=0) and that no other profiler runs. Otherwise returns NULL,
 * and `why` names what is missing. */
struct counters *counters_open(struct gpu *g, char why[160]);
void counters_close(struct counters **c);

/* Count what `launch` does on g's stream; runs it once to warm up and once to count. If CUPTI
 * refuses, v->why has the reason and the call succeeds. */
int counters_measure(struct counters *c, struct gpu *g,
                     int (*launch)(struct gpu *g, const void *job, struct err *err),
                     const void *job, struct accel_counters *v, struct err *err);

#endif
