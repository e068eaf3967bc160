/*
 * simulate.h - one head through one method: prepare, select in row chunks, attend, metrics.
 */
#ifndef LACUNA_SIMULATE_H
#define LACUNA_SIMULATE_H

#include "core/method.h"

/* A head with its own storage and its dense reference. */
struct sim_head {
    struct head_in in; /* views into the members below */
    struct attn_ops ops;
    float *q, *k, *v;  /* owned */
    double *out, *lse; /* owned: dense reference [nq][dv], [nq] */
};

/* Take copies of q [nq][d], k [nk][d], v [nk][dv] and compute the dense reference. in->x gives the
 * shapes, scale and causality; all other fields of `in` are taken over (branch is borrowed). */
int sim_head_init(struct sim_head *h, const struct head_in *in, enum precision prec,
                  struct err *err);

/* The same for a head whose q, k, v (owned by *h) and h->in are already in place. */
int sim_head_reference(struct sim_head *h, enum precision prec, struct err *err);
/* Without the reference: out and lse stay NULL. */
int sim_head_operands(struct sim_head *h, enum precision prec, struct err *err);
void sim_head_free(struct sim_head *h);

/* Called with each row chunk's mask (covering [m->row0, m->row1)) and the method's output rows. */
typedef int sim_sink_fn(void *ctx, const struct mask *m, const double *out, const double *lse,
                        struct err *err);

/* Run a method on a head. Fills status, metrics and notes of *r (identity fields are the caller's).
 * A METHOD_SKIP becomes status skip with the reason; returns 0 then. sink may be NULL. */
int sim_run(const struct method *method, const void *params, struct method_ctx *ctx,
            const struct head_in *in, sim_sink_fn *sink, void *sink_ctx, struct record *r,
            struct err *err);

#endif
