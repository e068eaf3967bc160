/*
 * method_device.h - two groups of struct method (core/method.h): a GPU that chooses the masks, and
 * arithmetic other than exact softmax.
 */
#ifndef LACUNA_METHOD_DEVICE_H
#define LACUNA_METHOD_DEVICE_H

#include "core/accel.h"

/* What a device chose for a head. */
struct device_choice {
    const struct mask *lists;         /* over the whole head, in the rule's unit. NULL: the mask
                                       * stays on the device, and `counts` describes it */
    const struct accel_units *counts; /* set if and only if lists is NULL */
    struct mask *exec;           /* with counts: set exec, exec_bq and exec_bk as `select` does */
    const struct accel_own *own; /* what core/rules.h lists for the method beside the mask */
};

/* A GPU that chooses the masks. prepare then leaves the choice to the first `select`. */
struct method_device {
    /* How to choose the mask of this head, into *rule, which is zero; or false with the reason.
     * rule->data stays valid until `release`: the device chooses again, after `take`, to time it.
     * NULL: the method alone chooses. */
    bool (*rule)(const void *state, struct rule *rule, char why[160]);

    /* Take the choice over. Called before the first `select`; if the mask stays on the device,
     * `select` is not called. */
    int (*take)(void *state, const struct device_choice *c, struct err *err);

    /* Are counts all that `take` needs for this head? NULL: it needs the lists. */
    bool (*keep_on_device)(const void *state);

    /* A head that reuses a mask compares it with the one that it would choose now: `rule` and
     * `take` are called for SOURCE_REUSED, too, and mean the mask to compare with. */
    bool compares;
};
bool method_always(const void *state); /* a ready-made keep_on_device, or may_be_empty */

/* Write the reason why a GPU cannot do what the head's method wants; returns false. */
bool method_refuses(char why[160], const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* How a head's output is computed from its mask. */
struct arithmetic {
    enum arith_kind {
        ARITH_SOFTMAX, /* exact softmax over the mask; `attend` is not called */
        ARITH_FILTER,  /* that with `filter` on P V. A head of ARITH_SOFTMAX may set `filter`, too:
                        * one that skips nothing, to run beside heads that have one */
        ARITH_KERNEL,  /* what a GPU has kernels for: `own` */
        ARITH_ADDED,   /* exact softmax, and `added` is added to its output */
        ARITH_CPU,     /* `attend` alone can do it */
    } kind;
    struct accel_filter filter; /* bq 0: none */
    struct own_rule own;
    const float *added; /* [nq][dv] */
};

/* Other arithmetic than exact softmax over the mask. */
struct method_arith {
    enum arith_kind kind; /* beside ARITH_SOFTMAX: what lists of methods say of it */

    /* Fill *a, which is zero, for this head. `why` holds a reason for ARITH_CPU and may get a
     * better one. Called after prepare. NULL: ARITH_CPU. */
    void (*how)(const void *state, struct arithmetic *a, char why[160]);

    /* The reference on the CPU. out [row1-row0][dv], lse [row1-row0] of the rows of *m. *tiles_pv
     * is -1; a filter adds units of the mask whose P V it computed, in fractions by warp. */
    int (*attend)(void *state, const struct mask *m, double *out, double *lse, double *tiles_pv,
                  struct err *err);

    /* A GPU has attended: tiles_pv of ARITH_FILTER (accel_result), lse [nq] of ARITH_KERNEL. NULL:
     * nobody wants to know. */
    int (*done)(void *state, double tiles_pv, const double *lse, struct err *err);
};

#endif
