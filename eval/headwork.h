/*
 * headwork.h - what one head of a layer does around its method, whether it runs by itself
 * (headattn.h) or with the others of its call (callattn.h).
 */
#ifndef LACUNA_HEADWORK_H
#define LACUNA_HEADWORK_H

#include "core/accel.h"
#include "core/record.h"
#include "eval/headattn.h"
#include "sim/blocks/exact.h"
#include "sim/budgetsearch.h"
#include "sim/simulate.h"

/* One head while its method runs. */
struct head_work {
    const struct layer_job *j;
    struct head_sum *sum;
    int head;
    struct head_in in;
    struct accel_operands there;
    struct exact exact;
    float *q;      /* NULL: the layer's are by head; owned */
    int64_t *perm; /* row i of the method is row perm[i] of the model; NULL: the same; owned */
    struct span *spans;
    int64_t cap_spans;
    struct record rec; /* identity for dumps, densities */

    /* What its method has. */
    struct carry fresh[2]; /* text has one step: state begins and ends with the call; owned */
    struct method_ctx ctx;
    struct budget_found found;
    void *params; /* owned */
};

/* head_close may follow in any case. The method's output rows go where the layer wants them. */
int head_open(struct head_work *w, const struct layer_job *j, int head, struct err *err);
void head_close(struct head_work *w);

/* Parameters, state and token order of the method on an open head; then its cell, on a device or on
 * the CPU. */
int method_begin(struct head_work *w, struct err *err);
struct sim_cell method_cell(struct head_work *w, const struct sim_device *device);

/* After the method: rows that attend exactly, and what the layer counts. A head where the method
 * does not apply, and one that is dense in any case, attends exactly as a whole; sum->skip says
 * why. */
int method_end(struct head_work *w, bool is_dense, struct err *err);

#endif
