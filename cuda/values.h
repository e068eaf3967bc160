/*
 * values.h - a power of two that keeps sums over values of a head within float32 on the device.
 *
 * The kernels divide by the normaliser last: before that an output is a sum of p v whose p may pass
 * the row's reference by 2^60 (attn_consumer.cuh), and the metrics add up squares of outputs. Both
 * leave float32's range for values whose mean, the exact output, is finite. bfloat16 has the same
 * range, so values that are divided by a power of two keep all of their bits.
 */
#ifndef LACUNA_VALUES_H
#define LACUNA_VALUES_H

#ifdef __cplusplus
extern "C" {
#endif

#include <stdint.h>

/* Values of 2^-40 to 2^40 need no scaling: 2^40 2^60 leaves room for 2^27 probabilities at the
 * limit, and 2^80 for the square of an output. */
#define VALUES_EXPONENT 40

/* 0 if the largest finite |v| of v[n] is 0 or within these bounds; otherwise e with 2^(e - 1) <=
 * |v| < 2^e: values times 2^-e are below 1, and outputs are to be multiplied by 2^e. */
int values_exponent(const float *v, int64_t n);

/* out[i] = v[i] 2^-e; parts that are 2^126 times smaller than the largest value may round. */
void values_scale(const float *v, int64_t n, int e, float *out);

#ifdef __cplusplus
}
#endif

#endif
