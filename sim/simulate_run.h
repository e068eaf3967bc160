/*
 * simulate_run.h - the state of a running method, shared by simulate.c and simulate_call.c.
 */
#ifndef LACUNA_SIMULATE_RUN_H
#define LACUNA_SIMULATE_RUN_H

#include "core/clock.h"
#include "sim/blocks/exact.h"
#include "sim/devicemap.h"
#include "sim/metrics.h"
#include "sim/headload.h"
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
    int64_t unit_rows;       /* as prepare set them */
    struct arithmetic arith; /* of this head */
    char why_cpu[160];       /* with ARITH_CPU: why a device cannot do it */
};

/* A clock that stands still while the exact map is computed: its cost belongs to the head and not
 * to the method that happens to ask first. */
static inline double run_clock(const struct run *run)
{
    return clock_ns() - run->in->exact->ns;
}

/* Does the method want to know what a device counted in its arithmetic? */
static inline bool run_hears(const struct run *run)
{
    bool counts = run->arith.kind == ARITH_FILTER || run->arith.kind == ARITH_KERNEL;
    return counts && run->method->arith.done;
}

/* Rows of a chunk: a common multiple of the method's groups and of the 128-row tiles in which masks
 * are counted. About CHUNK_ROWS, fewer if there are very many keys. */
int64_t run_chunk_rows(const struct run *run);

/* The steps of sim_run, for those who do several heads at once. run_start: prepare, and room for
 * the metrics; 0, METHOD_SKIP with ctx->skip, or an error. run_record: everything that is not a
 * device's goes into the record. run_skipped: the record of a skip. run_end releases in any case.
 */
int run_start(struct run *run, struct err *err);
int run_record(struct run *run, struct record *r, struct err *err);
void run_skipped(const struct run *run, struct record *r);
void run_end(struct run *run);

/* The head of the cell in the token order that its method wants: *h with *moved, if that is another
 * one than the head is in. METHOD_SKIP: the record says why it cannot be. */
int run_reorder(const struct sim_cell *cell, struct sim_head *h, bool *moved, struct record *r,
                struct err *err);

#endif
