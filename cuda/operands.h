/*
 * operands.h - what the heads of a call become on the device: how many copies of one a timed launch
 * holds, and the power of two by which values are divided.
 */
#pragma once

#include "core/accel.h"

/* Copies of one head as the heads of one launch, for timing: a launch of a real call holds all
 * heads of the call. A head of a few thousand rows launched alone leaves multiprocessors idle at
 * its end and bears the start of every kernel alone, so its time would not be its share of the
 * call's.
 *
 * Number of copies of head x:
 * - `wanted` if it is not 0. Their groups (query heads that share keys and values) are as large as
 *   the call's, or the largest smaller size that divides the number.
 * - else as many as the call has heads, but no more than are needed for COPIES_ROWS rows of tiles
 *   per multiprocessor (beyond that more copies change nothing), and no more than fit into 1 /
 *   COPIES_SHARE of `memory` bytes. Above the size of one group, whole groups only. */
#define COPIES_ROWS 16
#define COPIES_SHARE 8
struct accel_heads copies_of(int wanted, struct accel_heads call, const struct attn_in *x, int sms,
                             int64_t memory);

/* A power of two that keeps sums over values of a head within float32: the kernels divide by the
 * normaliser last. Before that an output is a sum of p v whose p may pass the row's reference by
 * 2^60 (attn_consumer.cuh), and the metrics add up squares of outputs. Both leave float32's range
 * for values whose mean, the exact output, is finite. bfloat16 has the same range, so values that
 * are divided by a power of two keep all of their bits.
 *
 * Values of 2^-40 to 2^40 need no scaling: 2^40 2^60 leaves room for 2^27 probabilities at the
 * limit, and 2^80 for the square of an output. */
#define VALUES_EXPONENT 40

/* 0 if the largest finite |v| of v[n] is 0 or within these bounds; otherwise e with 2^(e - 1) <=
 * |v| < 2^e: values times 2^-e are below 1, and outputs are to be multiplied by 2^e. */
int values_exponent(const float *v, int64_t n);

/* out[i] = v[i] 2^-e; parts that are 2^126 times smaller than the largest value may round. */
void values_scale(const float *v, int64_t n, int e, float *out);
