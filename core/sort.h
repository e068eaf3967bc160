/*
 * sort.h - numbers in ascending order.
 */
#ifndef LACUNA_SORT_H
#define LACUNA_SORT_H

#include <stdint.h>

/* Sort x [n] in place; the place of NaN is not defined. */
void sort_f64(double *x, int64_t n);

#endif
