/*
 * curve.c - between the settings of a method.
 */
#include "analyze/curve.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static int by_x(const void *a, const void *b)
{
    double x = ((const struct curve_point *)a)->x, y = ((const struct curve_point *)b)->x;
    return (x > y) - (x < y);
}

/* Between two points: linear in the logarithms, in the numbers themselves where one is not
 * positive. */
static double between(const struct curve_point *a, const struct curve_point *b, double x)
{
    bool log_x = a->x > 0 && b->x > 0, log_y = a->y > 0 && b->y > 0;
    if (a->x == b->x)
        return (a->y + b->y) / 2;
    double t = log_x ? log(x / a->x) / log(b->x / a->x) : (x - a->x) / (b->x - a->x);
    return log_y ? a->y * pow(b->y / a->y, t) : a->y + t * (b->y - a->y);
}

double curve_at(struct curve_point *p, int64_t n, double x)
{
    qsort(p, (size_t)n, sizeof *p, by_x);
    for (int64_t i = 0; i < n; i++)
        if (p[i].x == x)
            return p[i].y;
    for (int64_t i = 1; i < n; i++)
        if (p[i - 1].x < x && x < p[i].x)
            return between(p + i - 1, p + i, x);
    return NAN;
}
