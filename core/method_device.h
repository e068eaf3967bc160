/*
 * method_device.h - two groups of struct method (core/method.h): a GPU that chooses the masks, and
 * arithmetic other than exact softmax.
 */
#ifndef LACUNA_METHOD_DEVICE_H
#define LACUNA_METHOD_DEVICE_H

#include "core/accel.h"

/* What a device chose for a head. */
struct device_choice {
    const struct mask *lists; /* over the whole head, in blocks of the rule's size. NULL: the mask
                               * stays on the device, and `counts` describes it */
    const struct accel_units *counts; /* set if and only if lists is NULL */
    struct mask *exec; /* with counts: `take` sets exec, exec_bq, exec_bk of it as `select`
                        * would */
    const struct accel_own *own; /* extra results of this method's rule, listed in core/rules.h */
};

/* A GPU that chooses the masks. `prepare` must then not choose; the first `select` does, unless
 * `take` was called. */
struct method_device {
    /* How to choose the mask of this head, into *rule, which is zero; or false with the reason.
     * rule->data stays valid until `release`: the device chooses again, after `take`, to time it.
     * NULL: the method alone chooses. */
    bool (*rule)(const void *state, struct rule *rule, char why[160]);

    /* Accept the device's choice. Called before the first `select`; if the mask stays on the
     * device, `select` is not called. */
    int (*take)(void *state, const struct device_choice *c, struct err *err);

    /* Does `take` need only counts for this head? NULL: no, it needs the lists. */
    bool (*keep_on_device)(const void *state);

    /* The method reports how a reused mask differs from a fresh choice. For SOURCE_REUSED the
     * replay then calls `rule` and `take` as well; they handle the fresh mask, not the reused one.
     */
    bool compares;
};
bool method_always(const void *state); /* a ready-made keep_on_device, or may_be_empty */

/* Write the reason why a GPU cannot do what the head's method wants; returns false. */
bool method_refuses(char why[160], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* How a head's output is computed from its mask. */
struct arithmetic {
    enum arith_kind {
        ARITH_SOFTMAX, /* exact softmax over the mask; `attend` is not called */
        ARITH_FILTER,  /* softmax in which `filter` skips P V of some tiles. An ARITH_SOFTMAX head
                        * in the same call sets a filter that skips nothing */
        ARITH_KERNEL,  /* what a GPU has kernels for: `own` */
        ARITH_ADDED,   /* exact softmax, and `added` is added to its output */
        ARITH_CPU,     /* only `attend` implements it */
    } kind;
    struct accel_filter filter; /* bq 0: none */
    struct own_rule own;
    const float *added; /* [nq][dv] */
};

/* Other arithmetic than exact softmax over the mask. */
struct method_arith {
    enum arith_kind kind; /* the kind besides ARITH_SOFTMAX, shown where methods are listed */

    /* Fill *a, which is zero, for this head. `why` comes with a default reason for ARITH_CPU; the
     * callback may replace it. Called after prepare. NULL: ARITH_CPU. */
    void (*how)(const void *state, struct arithmetic *a, char why[160]);

    /* The reference on the CPU. out [row1-row0][dv], lse [row1-row0] of the rows of *m. *tiles_pv
     * is -1; a filter adds units of the mask whose P V it computed, in fractions by warp. */
    int (*attend)(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err);

    /* Called after a GPU computed the outputs: tiles_pv of ARITH_FILTER (accel_result), lse [nq] of
     * ARITH_KERNEL. NULL: not needed. */
    int (*done)(void *state, double tiles_pv, const double *lse, struct err *err);
};

#endif
