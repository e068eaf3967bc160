/*
 * ceiling.h - the best rates of the machine, measured in the same run as the kernels: a bf16 matrix
 * product of cuBLAS and a device-to-device copy.
 */
#ifndef LACUNA_CEILING_H
#define LACUNA_CEILING_H

#include "cuda/timer.h"

struct ceiling; /* operands of the product and of the copy on the device */

/* Prepare a product of n x n x n (8192) and a copy of `bytes`. The values are random, because a
 * product of zeros runs faster than any real one. Opens cuBLAS at run time; ERR_MACHINE without it.
 * Memory comes from the arena. */
int ceiling_open(struct gpu *g, int64_t n, int64_t bytes, struct ceiling **out, struct err *err);
void ceiling_close(struct ceiling **c);

/* Launch one product or one copy; the caller times it. */
int ceiling_matmul(struct ceiling *c, struct gpu *g, struct err *err);
int ceiling_copy(struct ceiling *c, struct gpu *g, struct err *err);

double ceiling_matmul_flop(const struct ceiling *c);
double ceiling_copy_bytes(const struct ceiling *c); /* read + written */

#endif
