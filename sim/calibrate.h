/*
 * calibrate.h - per-head search of a method's parameters over captured inputs.
 *
 * A job is one (layer, head) with all its samples: the calls of that layer in the first trace, in
 * call order, then those of the next trace. Jobs are independent and run in parallel; each holds
 * all its samples in memory.
 */
#ifndef LACUNA_CALIBRATE_H
#define LACUNA_CALIBRATE_H

#include "core/method.h"
#include "core/trace.h"
#include "sim/headload.h"

#include <stdint.h>

struct calibrate_job {
    int layer, head;
    int64_t *trace, *call; /* [n], owned: where the samples are */
    int64_t n, cap_trace, cap_call;
    char *text; /* result, owned: a JSON object with layer, head and parameters */
    char *skip; /* the reason if there is no result, owned */
};

struct calibrate {
    const struct method_run *run; /* borrowed */
    struct trace **traces;
    int64_t n_traces;
    struct head_load load;
    struct calibrate_job *jobs; /* owned, by layer, then head */
    int64_t n_jobs, cap_jobs;
};

/* Which calls and heads to use: index lists, where NULL or "all" = all; branch "" = all. */
struct calibrate_select {
    const char *layers, *heads, *steps, *branch;
};

/* Fill c->jobs. Traces of different models are ERR_INPUT, an empty selection ERR_USAGE. */
int calibrate_plan(struct calibrate *c, const struct calibrate_select *sel, struct err *err);

/* Run all jobs on `jobs` threads. */
int calibrate_execute(struct calibrate *c, int jobs, struct err *err);

/* The calibration file: method, parameters, traces, heads. */
void calibrate_write(const struct calibrate *c, struct jw *w);

int64_t calibrate_skipped(const struct calibrate *c);

/* Largest number of samples in a job; bytes to read, summed over jobs; resident bytes of the
 * largest job. */
struct calibrate_cost {
    int64_t samples, bytes, memory;
};
struct calibrate_cost calibrate_costs(const struct calibrate *c);

void calibrate_free(struct calibrate *c); /* traces and run stay the caller's */

#endif
