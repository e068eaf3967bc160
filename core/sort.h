/*
 * sort.h - the order of numbers.
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

/* Sort x [n] in place, ascending; the place of NaN is not defined. */
void sort_f64(double *x, int64_t n);

/* order = indices of v[0..n) by (value descending, index ascending). */
int order_descending(const double *v, int64_t n, int32_t *order, struct err *err);

/* For qsort and bsearch: integers, ascending. */
int compare_i32(const void *a, const void *b);
int compare_i64(const void *a, const void *b);
