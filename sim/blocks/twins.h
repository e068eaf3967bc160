/*
 * twins.h - rows of a matrix that are equal, so that what is computed from one of them holds for
 * all.
 *
 * A BLAS product gives equal rows unequal last bits: the edge of its tiles is added in another
 * order, which one depends on the processor. A choice between equal keys would then hang on these
 * bits. Where it matters, the value of the first of equal rows replaces those of the others; ties
 * then go to the lower index by the rule of the method.
 */
#ifndef LACUNA_TWINS_H
#define LACUNA_TWINS_H

#include "core/err.h"

#include <stdint.h>

struct twins {
    int64_t n;
    int32_t *first; /* [n] first row with the same bytes, owned; NULL: no two rows are equal */
};

/* Rows of x [n][d]. O(n d + n log n). Release with twins_free. */
int twins_find(struct twins *t, const float *x, int64_t n, int64_t d, struct err *err);
void twins_free(struct twins *t); /* also of a zeroed one */

/* Values of rows 0 .. n-1 in v, n <= t->n: those of equal rows become that of the first. */
void twins_level_f32(const struct twins *t, float *v, int64_t n);
void twins_level_f64(const struct twins *t, double *v, int64_t n);

#endif
