/*
 * checkcu_blas.h - attention kernels against scores of cuBLAS.
 */
#ifndef LACUNA_CHECKCU_BLAS_H
#define LACUNA_CHECKCU_BLAS_H

#include "tests/gpu/checkcu_case.h"

/* Launch a dense, bidirectional case and compare every row of every head with softmax(scale S) V in
 * double, S = Q K^T by cuBLAS. `same` is not filled in. */
int cu_check_scores(struct gpu *g, const struct cu_case *c, struct cu_errors *e, struct err *err);

#endif
