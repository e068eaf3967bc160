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

/* The same with y in bf16 and n x n x n: the ceiling of a machine. */
int blas_square(struct blas *b, int64_t n, const void *x, const void *w, void *y, struct err *err);

#endif
