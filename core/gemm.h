/*
 * gemm.h - products of row-major matrices by BLAS, within the memory that the process may have.
 *
 * OpenBLAS takes a buffer of GEMM_BUFFER bytes for every product that runs at the same time, keeps
 * it for later products, and tries for ever where the system has no memory for it. So a product
 * here first asks whether a buffer is free or whether there is room for one more, and otherwise
 * waits until another product ends.
 */
#pragma once

#include "core/err.h"

#include <cblas.h>
#include <stdbool.h>
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

/* ---- OpenBLAS, loaded when it is first needed ---------------------------------------------------
 *
 * A linked OpenBLAS takes 128 MB of address space per processor before main starts, and waits for
 * ever where there is none. Loaded here, with one thread of its own, it takes nothing until the
 * first product; commands that multiply nothing never see it. */

struct openblas {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dgemm) *dgemm;
    __typeof__(cblas_sgemv) *sgemv;
    __typeof__(openblas_get_corename) *corename; /* kernels in use: "SkylakeX" */
    __typeof__(openblas_get_config) *config;
    __typeof__(openblas_get_parallel) *parallel;
    bool threadsafe; /* false: one product at a time */
};

/* A library that is older than the processor takes kernels without AVX ("Prescott"), many times
 * slower: another family, of the processor's instructions, unless OPENBLAS_CORETYPE is set. quit
 * and init are gotoblas_dynamic_*, NULL where a library does not have them. Before the first
 * product. */
void openblas_choose(const char *kernels, void (*quit)(void), void (*init)(void));

/* The library, the same for all threads; NULL with ERR_MACHINE where it is not installed. */
const struct openblas *openblas_get(struct err *err);

/* Name of its kernels, "none" where it is not installed. */
const char *openblas_kernels(void);

/* Its version and build, "none" where it is not installed. */
const char *openblas_text(void);
