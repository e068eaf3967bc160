/*
 * sort.c - see sort.h.
 */
#include "core/sort.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void sort_f64(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, ascending);
}
