/*
 * calibrate.h - search of a method's parameters over captured inputs, per head, layer or model, and
 * per length of the prompt.
 *
 * A job is what shares parameters: one (layer, head), one layer with all its heads, or the model;
 * of each the traces of one segment of lengths. Its samples are the calls of the first trace, in
 * call order and by head, then those of the next trace. Jobs are independent and run in parallel;
 * each holds all its samples in memory.
 */
#pragma once

#include "core/method_run.h"
#include "core/trace.h"
#include "sim/devicemap.h"
#include "sim/headload.h"

#include <stdint.h>

enum calibrate_per { CALIBRATE_HEAD, CALIBRATE_LAYER, CALIBRATE_MODEL };

/* Where a sample is. The head is as stored in the trace. */
struct calibrate_sample {
    int64_t trace, call;
    int layer, head;
};

struct calibrate_job {
    int layer, head;                  /* -1: all */
    int64_t from, below;              /* keys of its traces; below INT64_MAX: no end */
    struct calibrate_sample *samples; /* [n], owned */
    int64_t n, cap;
    char *text; /* result, owned: a JSON object of parameters */
    char *skip; /* the reason if there is no result, owned */
};

struct calibrate {
    const struct method_run *run; /* borrowed */
    const char *name;             /* of the result, for tables; borrowed */
    enum calibrate_per per;
    struct trace **traces;
    int64_t n_traces;
    struct head_load load;
    struct sim_device device;      /* judges settings; accel NULL: the CPU */
    int64_t *segments, n_segments; /* owned: lengths at which a segment begins, ascending */
    struct calibrate_job *jobs;    /* owned, by layer, then head, then length */
    int64_t n_jobs, cap_jobs;
};

/* Fill c->jobs. segments: "16384,49152", or NULL for one of all lengths. Traces of different models
 * are ERR_INPUT, an empty selection ERR_USAGE. */
int calibrate_plan(struct calibrate *c, const struct call_select *sel, const char *segments,
                   struct err *err);

/* Can c->device judge what this calibration judges, for the lengths of all its traces? If not, why:
 * then c->device.accel is to be NULL. */
bool calibrate_on_device(const struct calibrate *c, char why[160]);

/* Run all jobs on `jobs` threads. With a device one search at a time runs, while other threads load
 * the heads of the next ones. Finished ones are kept in `journal` (NULL: nowhere), from which
 * the same calibration goes on after it was stopped. ERR_USAGE if the journal is of another one. */
int calibrate_execute(struct calibrate *c, const char *journal, int jobs, struct err *err);

/* The calibration file: method, parameters, traces, heads. */
void calibrate_write(const struct calibrate *c, struct jw *w);

int64_t calibrate_skipped(const struct calibrate *c);

/* Largest number of samples in a job; bytes to read, summed over jobs; resident bytes of the
 * largest job; multiply-adds of one dense pass over all samples. */
struct calibrate_cost {
    int64_t samples, bytes, memory;
    double flop;
};
struct calibrate_cost calibrate_costs(const struct calibrate *c);

void calibrate_free(struct calibrate *c); /* traces and run stay the caller's */

/* ---- journal: a line per finished search, so that a stopped calibration goes on where it was ---
 */

struct journal;

/* Called with every finished job of a journal: a JSON object, or the reason of a skip. */
typedef int journal_sink(void *ctx, int64_t job, const char *text, const char *skip,
                         struct err *err);

/* Open the journal at `path`, or begin one. `identity` is one line that says what is calibrated and
 * how; a journal with another one is ERR_USAGE. A torn last line is dropped. Another process that
 * has it open: ERR_RUN. */
int journal_open(const char *path, const char *identity, journal_sink *sink, void *ctx,
                 struct journal **out, struct err *err);

/* Add a finished job; one of text and skip is NULL. Thread-safe. */
int journal_add(struct journal *j, int64_t job, const char *text, const char *skip,
                struct err *err);

void journal_close(struct journal **j); /* the file stays */
