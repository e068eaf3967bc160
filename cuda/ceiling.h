/*
 * ceiling.h - the best rates of the machine, measured in the same run as the kernels: a bf16 matrix
 * product of cuBLAS and a device-to-device copy.
 */
#ifndef LACUNA_CEILING_H
#define LACUNA_CEILING_H

#include "cuda/blas.h"

#define CEILING_N 8192
#define CEILING_FLOP (2.0 * CEILING_N * CEILING_N * CEILING_N)
#define CEILING_BYTES (8LL << 30) /* read + written by the copy */

/* Operands of the product and of the copy, in the arena. The values are random, because a product
 * of zeros runs faster than any real one. */
struct ceiling {
    struct blas *blas;
    void *a, *b, *c, *from, *to;
};

/* Opens cuBLAS at run time; ERR_MACHINE without it. blas_close(&c->blas) afterwards, in any case.
 */
int ceiling_open(struct gpu *g, struct ceiling *c, struct err *err);

/* Launch one product or one copy of a struct ceiling; the caller times it. */
int ceiling_matmul(struct gpu *g, const void *ceiling, struct err *err);
int ceiling_copy(struct gpu *g, const void *ceiling, struct err *err);

#endif
