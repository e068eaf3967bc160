/*
 * freshmask.h - the masks that a call would make now where it reuses older ones, chosen by a device
 * for methods that compare the two (`fresh_rule` of core/method.h). No choice of the call: it is
 * not timed and nothing attends to these masks.
 */
#ifndef LACUNA_FRESHMASK_H
#define LACUNA_FRESHMASK_H

#include "core/accel.h"
#include "sim/simulate_run.h"

/* For runs[0..call->n), heads of the call in its order, on up to `jobs` threads. Heads that want
 * none and those that the device does not choose for are left alone: their method makes its mask
 * itself. Negative code on errors. */
int fresh_masks(const struct accel_call *call, struct run *const *runs, int jobs, struct err *err);

#endif
