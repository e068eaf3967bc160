/*
 * blas.h - matrix products by cuBLAS, opened at run time so that a program without it still starts.
 */
#ifndef LACUNA_BLAS_H
#define LACUNA_BLAS_H

#include "cuda/device.h"

struct blas;

/* Products run on g's stream. No libcublas.so.13: ERR_MACHINE. */
int blas_open(struct gpu *g, struct blas **out, struct err *err);
void blas_close(struct blas **b);

/* y [m][n] = x [m][k] w [n][k]^T + beta y; row-major on the device, ldy floats from row to row
 * of y. x and w are bf16, products and sums float32. */
int blas_bf16(struct blas *b, int64_t m, int64_t n, int64_t k, const void *x, const void *w,
              float beta, float *y, int64_t ldy, struct err *err);

/* ---- ceilings ------------------------------------------------------------------------------- */

/* The best rates of the machine, measured in the same run as the kernels: a bf16 matrix product and
 * a device-to-device copy. */
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
