/*
 * headrows.h - outputs of a head that stay on the device (struct accel_operands in core/accel.h).
 */
#ifndef LACUNA_HEADROWS_H
#define LACUNA_HEADROWS_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/device.h"

/* bf16 x [n][d] times unit -> floats, row r at to + r * stride. Nobody waits for it. */
int head_rows_put(struct gpu *g, const void *x, int64_t n, int d, float unit, float *to,
                  int64_t stride, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
