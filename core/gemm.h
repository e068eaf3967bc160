/*
 * gemm.h - products of row-major matrices by BLAS, within the memory that the process may have.
 *
 * OpenBLAS takes a buffer of GEMM_BUFFER bytes for every product that runs at the same time, keeps
 * it for later products, and tries for ever where the system has no memory for it. So a product
 * here first asks whether a buffer is free or whether there is room for one more, and otherwise
 * waits until another product ends.
 */
#ifndef LACUNA_GEMM_H
#define LACUNA_GEMM_H

#include "core/err.h"

#include <stdint.h>

#define GEMM_BUFFER ((int64_t)192 << 20) /* address space; 128 MiB and more by processor */

/* ERR_MACHINE, with what is needed, unless there is room for the first buffer. To be called before
 * the first product of a command, while the process has one thread. */
int gemm_ready(struct err *err);

/* c = alpha a b^T + beta c with a [rows][depth], b [cols][depth], c [rows][cols]; lda, ldb, ldc are
 * elements from row to row. Thread-safe. */
void gemm_nt_f32(int64_t rows, int64_t cols, int64_t depth, float alpha, const float *a,
                 int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void gemm_nt_f64(int64_t rows, int64_t cols, int64_t depth, double alpha, const double *a,
                 int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);

/* c = alpha a b + beta c with b [depth][cols]. */
void gemm_nn_f32(int64_t rows, int64_t cols, int64_t depth, float alpha, const float *a,
                 int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
void gemm_nn_f64(int64_t rows, int64_t cols, int64_t depth, double alpha, const double *a,
                 int64_t lda, const double *b, int64_t ldb, double beta, double *c, int64_t ldc);

/* y = alpha a x with a [rows][cols]. */
void gemv_f32(int64_t rows, int64_t cols, float alpha, const float *a, int64_t lda, const float *x,
              float *y);

#endif
