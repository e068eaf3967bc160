/*
 * simulate.h - one head through one method: prepare, select in row chunks, attend, metrics.
 */
#pragma once

#include "core/clock.h"
#include "core/method.h"
#include "sim/blocks/exact.h"
#include "sim/devicemap.h"
#include "sim/headload.h"
#include "sim/metrics.h"

/* Called with each row chunk's mask (covering [m->row0, m->row1)) and the method's output rows. */
typedef int sim_sink_fn(void *ctx, const struct mask *m, const double *out, const double *lse,
                        struct err *err);

/* How far a run goes, and what its record gets. */
enum sim_measure {
    MEASURE_ALL,    /* choose, attend, compare with dense attention: all metrics */
    MEASURE_COUNTS, /* choose and attend: counts of the mask, neither recall nor errors. No dense
                     * row is computed unless the method asks for it */
    MEASURE_MASK,   /* choose: counts of the mask alone, and no numbers of the method */
};

/* A method with its parameters on a head. */
struct sim_cell {
    const struct method *method;
    const void *params;
    struct method_ctx *ctx;
    const struct head_in *in;
    const struct sim_device *device; /* NULL: on the CPU */
    enum sim_measure measure;
    sim_sink_fn *sink; /* may be NULL */
    void *sink_ctx;
    bool sink_rows; /* the sink looks at rows and outputs alone: masks may stay on the device, or be
                     * shared, and it may then get a full one in their place */
};

/* Does anybody go through the entries of the masks? */
static inline bool sim_reads_masks(const struct sim_cell *c)
{
    return c->sink && !c->sink_rows;
}

/* Run it. Fills status, metrics and notes of *r (identity fields are the caller's). A METHOD_SKIP
 * becomes status skip with the reason; returns 0 then. */
int sim_run(const struct sim_cell *cell, struct record *r, struct err *err);

/* Does the method take a head with these values, causality and terms? 0, or METHOD_SKIP. */
int sim_admits(const struct sim_cell *cell);

/* ---- all heads of a call -------------------------------------------------------------------- */

/* A method on all heads of one attention call on a GPU: every head's mask is chosen, one launch
 * attends to all of them, every head is measured, and the call is timed. A head alone is a call of
 * one. */

/* Result of one head. */
struct call_outcome {
    struct record *record; /* identity fields are the caller's, as for sim_run */
    struct err err; /* code != 0: the head failed; if set before the call, the head is left out */
};

struct sim_call {
    const struct sim_cell *cells; /* [n], of one method, with the same device. Neighbouring cells
                                   * with equal params share the pointer (sim_share_params) */
    struct call_outcome *heads;   /* [n] */
    int n, group;                 /* as in struct accel_call */
    int copies;    /* not 0 (needs n = 1): number of copies of the head, in GQA groups, that are run
                    * and timed; its times are then per copy. 0: times are the call's */
    uint64_t data; /* number of the heads' q, k, v, as in struct accel_call */
    int jobs;      /* threads for per-head work on the host */
    struct record *record; /* of the call; NULL: not wanted */
    double *choose_ns;     /* in and out: ns that choosing the masks took, kept for later calls that
                            * reuse them; NULL: no reuse */
};

/* Give neighbouring cells with equal parameters the same `params` pointer: the device then chooses
 * their masks together. Skips heads whose outcome holds an error. */
int sim_share_params(struct sim_cell *cells, const struct call_outcome *heads, int64_t n,
                     struct err *err);

/* Run the call. An error of one head goes to its outcome; an error of the whole call is returned.
 * c->record gets status, notes and times. If any head was skipped or failed, the status is skip or
 * error with the reason, because times of the remaining heads mislead. */
int sim_run_call(const struct sim_call *c, struct err *err);

/* A cell with a device, as sim_run: a call of one head, timed through copies of it. */
int sim_run_head(const struct sim_cell *cell, struct record *r, struct err *err);

/* ---- a running method, for simulate_call.c -------------------------------------------------- */

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
