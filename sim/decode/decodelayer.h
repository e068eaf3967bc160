/*
 * decodelayer.h - methods over the decode phase of a layer: the rows of generated tokens one by
 * one, all settings beside each other, so that exact attention is computed once.
 *
 * The rows are those of the dense run (teacher forcing): what a setting does to one step does not
 * reach the next one's query. In a step the new key joins every cache, the row attends to what the
 * cache holds, the method sees the scores, and evicts.
 */
#pragma once

#include "core/trace.h"
#include "sim/simulate.h"

struct decode_call {
    const struct sim_head *heads; /* [n]: all stored heads of a layer */
    int n, group;                 /* as in struct sim_call */
    struct trace_decode phase;
    const float *const *col_sum; /* as in struct decode_layer */
    const struct sim_call *runs; /* [n_runs]: cells and outcomes of a setting; the rest is unused */
    int64_t n_runs;
    int jobs;
};

/* Run them. The outcome of a cell is its record, or its error; an outcome with an error before the
 * call is left out. Returns what went wrong with the layer as a whole. */
int decode_run(const struct decode_call *c, struct err *err);

/* Resident bytes of a layer of the trace while it runs, but for what settings keep. */
int64_t decode_memory(const struct trace_meta *m, enum precision prec);
