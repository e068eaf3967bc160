/*
 * openblas.h - OpenBLAS, loaded when it is first needed.
 *
 * A linked OpenBLAS takes 128 MB of address space per processor before main starts, and waits for
 * ever where there is none. Loaded here, with one thread of its own, it takes nothing until the
 * first product; commands that multiply nothing never see it.
 */
#ifndef LACUNA_OPENBLAS_H
#define LACUNA_OPENBLAS_H

#include "core/err.h"

#include <cblas.h>
#include <stdbool.h>

struct openblas {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dgemm) *dgemm;
    __typeof__(cblas_sgemv) *sgemv;
    __typeof__(openblas_get_corename) *corename; /* kernels in use: "SkylakeX" */
    __typeof__(openblas_get_config) *config;
    __typeof__(openblas_get_parallel) *parallel;
    bool threadsafe; /* false: one product at a time */
};

/* The library, the same for all threads; NULL with ERR_MACHINE where it is not installed. */
const struct openblas *openblas_get(struct err *err);

/* Name of its kernels, "none" where it is not installed. */
const char *openblas_kernels(void);

/* Its version and build, "none" where it is not installed. */
const char *openblas_text(void);

#endif
