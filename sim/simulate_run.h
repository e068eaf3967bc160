/*
 * simulate_run.h - the state of a running method, shared by simulate.c and simulate_accel.c.
 */
#ifndef LACUNA_SIMULATE_RUN_H
#define LACUNA_SIMULATE_RUN_H

#include "core/clock.h"
#include "sim/blocks/exact.h"
#include "sim/devicemap.h"
#include "sim/metrics.h"
#include "sim/simulate.h"

/* One method on one head, while it runs. */
struct run {
    const struct sim_cell *cell;
    const struct method *method; /* of the cell, as `in` */
    const struct head_in *in;
    void *state;
    struct metrics_acc acc;
    struct metrics_acc *part; /* owned, [n_part]: per group of sampled rows */
    int64_t n_part;
    struct device_map map;        /* with a device */
    double *out, *lse, *lse_mask; /* of the rows of a chunk */
    double ns_prepare, ns_select, ns_attend;
    enum mask_source source; /* of the mask, as it is known before the first select */
};

/* A clock that stands still while the exact map is computed: its cost belongs to the head and not
 * to the method that happens to ask first. */
static inline double run_clock(const struct run *run)
{
    return clock_ns() - run->in->exact->ns;
}

/* Query rows of the head: all, or those of its sample. */
static inline int64_t head_rows(const struct head_in *in)
{
    return in->rows ? in->rows->n : in->x.nq;
}

/* Does the method attend by itself, and not by exact softmax over its mask? */
static inline bool run_own_arithmetic(const struct run *run)
{
    const struct method *m = run->method;
    return m->attend && (!m->attends || m->attends(run->state));
}

/* Rows of a chunk: a common multiple of the method's groups and of the 128-row tiles in which masks
 * are counted. About CHUNK_ROWS, fewer if there are very many keys. */
int64_t run_chunk_rows(const struct run *run);

/* Run the method with its attention on the GPU. The CPU selects all rows first, because the GPU
 * takes a head at once. It does so even where the GPU selects too: the method's own numbers come
 * from the CPU, and so does the mask with which the GPU's is compared. */
int run_on_accel(struct run *run, struct record *r, struct err *err);

#endif
