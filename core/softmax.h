/*
 * softmax.h - the inner loops of a softmax row, in float and in double: the largest score, and
 * exponentials with their sum. What every engine of exact attention on the CPU is made of.
 */
#ifndef LACUNA_SOFTMAX_H
#define LACUNA_SOFTMAX_H

#include <stdint.h>

/* Largest of n values; -inf when n is 0. */
float row_max_f32(const float *s, int64_t n);
double row_max_f64(const double *s, int64_t n);

/* s_j <- e^(s_j - m); returns the sum, in double and in a fixed order. Needs m >= all s_j. Values
 * below e^-87 (float) and e^-708 (double), and -inf, become 0. */
double exp_sum_f32(float *s, int64_t n, float m);
double exp_sum_f64(double *s, int64_t n, double m);

/* The same with 2^(s_j - m); values at or below 2^-126 and 2^-1022 become 0. */
double exp2_sum_f32(float *s, int64_t n, float m);
double exp2_sum_f64(double *s, int64_t n, double m);

/* z_j <- e^(z_j - max) / sum, with the exponential of the C library: where published code is
 * imitated and its rounding is what matters. n >= 1. */
void softmax_f64(double *z, int64_t n);

#endif
