/*
 * curve.h - a curve through a method's settings, such as the error against the density, where its
 * value between two of them is wanted.
 */
#ifndef LACUNA_CURVE_H
#define LACUNA_CURVE_H

#include <stdint.h>

struct curve_point {
    double x, y;
};

/* y at x, interpolated between the neighbours: on logarithmic scales as far as both are above 0.
 * NAN beyond the ends. Sorts the n points by x. */
double curve_at(struct curve_point *p, int64_t n, double x);

#endif
