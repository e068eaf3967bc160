/*
 * rates.h - how fast this machine attends, for estimates of time; the best rates of a GPU, measured
 * once and kept beside the run, in DIR/ceilings-UUID.json, for as long as driver and runtime stay
 * the same.
 */
#ifndef LACUNA_RATES_H
#define LACUNA_RATES_H

#include "core/attention.h"
#include "sim/devicemap.h"

#include <jansson.h>

/* *gpu: the object that the back end's `describe` gives, with the ceilings: those that `dir` keeps,
 * or, where it keeps none of this GPU, driver and runtime, or with `again`, those that are measured
 * now. *gpu is the caller's, also after a failure. ERR_RUN, ERR_MACHINE: of the measurement;
 * ERR_IO: the file cannot be written. */
int rates_of_gpu(const struct sim_device *d, const char *dir, bool again, json_t **gpu,
                 struct err *err);

/* Flop per second of the attention tiles on one thread, measured in a few milliseconds. */
int attn_rate(enum precision prec, double *flop_per_s, struct err *err);

#endif
