/*
 * simulate_run.h - what simulate.c and simulate_accel.c share of a running method.
 */
#ifndef LACUNA_SIMULATE_RUN_H
#define LACUNA_SIMULATE_RUN_H

#include "sim/metrics.h"
#include "sim/simulate.h"

/* One method on one head, while it runs. */
struct run {
    const struct method *method;
    const struct head_in *in;
    void *state;
    struct metrics_acc acc;
    double *out, *lse, *lse_mask; /* of a chunk */
    double *accel_lse;            /* of all rows; ctx->accel_lse */
    double ns_prepare, ns_select, ns_attend;
    sim_sink_fn *sink;
    void *sink_ctx;
};

/* Does the method attend by itself, and not by exact softmax over its mask? */
static inline bool run_own_arithmetic(const struct run *run)
{
    const struct method *m = run->method;
    return m->attend && (!m->attends || m->attends(run->state));
}

/* A common multiple of the method's groups and of the 128-row tiles that every mask is counted in,
 * about CHUNK_ROWS unless keys are very many. */
int64_t run_chunk_rows(const struct run *run);

/* All rows are selected first, because the GPU takes a head at once. The reference selects in any
 * case: a method's own numbers come from there, and so does the count of differences. */
int run_on_accel(struct run *run, const void *params, struct method_ctx *ctx, struct record *r,
                 struct err *err);

#endif
