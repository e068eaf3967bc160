/*
 * exact.h - the exact attention of one head as a service: log-sum-exps and outputs of dense
 * attention, probabilities, scores, attention over any mask.
 *
 * Nothing is computed before it is asked for. Dense rows are computed once, `block` rows
 * together, and kept: all methods on a head and its metrics see the same bits, and the first that
 * asks pays. A method that never asks costs nothing.
 *
 * The CPU computes everything (core/attention.h) except for what is given to somebody else with
 * exact_dense_from and exact_below_from. One thread at a time may use a service.
 */
#ifndef LACUNA_EXACT_H
#define LACUNA_EXACT_H

#include "core/attention.h"
#include "core/err.h"
#include "core/rowsample.h"

#include <stdbool.h>
#include <stdint.h>

struct map_below; /* sim/blocks/exactmap.h */
struct judge;     /* sim/blocks/judge.h */

/* Dense attention of the rows [row0, row1) into lse [nq] and, unless NULL, out [nq][dv]: arrays of
 * the whole head, of which the rows [row0, row1) are written. */
typedef int exact_dense_fn(void *self, int64_t row0, int64_t row1, double *out, double *lse,
                           struct err *err);

/* Attention over m, which has all rows: out [nq][dv], lse [nq]. 0, or METHOD_SKIP where it cannot.
 */
typedef int exact_masked_fn(void *self, const struct mask *m, double *out, double *lse,
                            struct err *err);

/* How sparse the map is: what of *b is said to be given is, the rest is written. */
typedef int exact_below_fn(void *self, struct map_below *b, struct err *err);

struct exact {
    struct attn_in x; /* views are the owner's of the head */
    enum precision prec;
    int64_t block;                 /* dense rows that are computed together */
    const struct row_sample *rows; /* those that have a query; NULL: all */
    bool with_out; /* log-sum-exps bring the outputs of their rows along (exact_expect_out) */
    double ns;     /* wall time that went into operands and dense rows so far */

    /* Private. */
    exact_dense_fn *dense; /* NULL: the CPU */
    void *dense_self;
    exact_below_fn *below; /* NULL: the CPU */
    void *below_self;
    exact_masked_fn *masked; /* NULL: the CPU */
    void *masked_self;
    const struct judge *judge; /* NULL: the CPU */
    struct attn_ops ops;       /* once `prepared` */
    bool prepared;
    double *lse, *out;   /* [nq], [nq][dv]; NULL before the first question */
    unsigned char *done; /* [blocks]: EXACT_LSE, EXACT_OUT */
};

/* A head's service; x is copied, its views stay the caller's. Release with exact_free. */
void exact_init(struct exact *e, const struct attn_in *x, enum precision prec);
void exact_free(struct exact *e); /* also of a zeroed one */

/* Only these rows have a query (x is the whole head), and only they will be asked for. */
void exact_sampled(struct exact *e, const struct row_sample *rows);

/* Outputs of all rows will be asked for: one pass gives a row's log-sum-exp and output. Without it
 * a question for log-sum-exps computes nothing else, and a later one for outputs starts again. */
void exact_expect_out(struct exact *e);

/* Let `fn` compute dense rows, or the sparsity of the map, from now on; NULL: the CPU again. */
void exact_dense_from(struct exact *e, exact_dense_fn *fn, void *self);
void exact_below_from(struct exact *e, exact_below_fn *fn, void *self);
void exact_masked_from(struct exact *e, exact_masked_fn *fn, void *self);

/* Does a device that attends to the head answer for its map? */
static inline bool exact_on_device(const struct exact *e)
{
    return e->masked != NULL;
}

/* Log-sum-exps (natural log, -inf for a row that sees no key) and outputs of dense attention:
 * *lse [row1-row0] and *out [row1-row0][dv] start at row0 and stay valid until exact_free. */
int exact_lse(struct exact *e, int64_t row0, int64_t row1, const double **lse, struct err *err);
int exact_out(struct exact *e, int64_t row0, int64_t row1, const double **out, struct err *err);

/* Probabilities of the rows [row0, row1) against all keys: p [row1-row0][nk], 0 where not allowed.
 * Needs their log-sum-exps. */
int exact_probs(struct exact *e, int64_t row0, int64_t row1, double *p, struct err *err);

/* Scaled scores of rows [row0, row1) against keys [k0, k1): s [row1-row0][k1-k0], not masked. */
int exact_scores(struct exact *e, int64_t row0, int64_t row1, int64_t k0, int64_t k1, double *s,
                 struct err *err);

/* Exact softmax over the pairs of m: out [row1-row0][dv] or NULL, lse [row1-row0] as attn_rows. */
int exact_attend(struct exact *e, const struct mask *m, double *out, double *lse, struct err *err);

/* The same over a mask of all rows, by the device that exact_masked_from named if there is one and
 * it can: its outputs are then rounded to bf16. */
int exact_attend_all(struct exact *e, const struct mask *m, double *out, double *lse,
                     struct err *err);

/* Keys and values in the working precision, for arithmetic of a method's own; the service's. */
int exact_operands(struct exact *e, const struct attn_ops **ops, struct err *err);

#endif
