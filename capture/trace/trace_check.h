/*
 * trace_check.h - is the stored output of a trace that of its stored q, k, v?
 */
#ifndef LACUNA_TRACE_CHECK_H
#define LACUNA_TRACE_CHECK_H

#include "core/trace.h"

/* Recompute `rows` query rows of every head that has out or lse (first, last and evenly between,
 * padding text left out), in double, and compare. `bad` is called for every head that differs;
 * *n_bad counts them, *n_rows the rows compared. Bounds: out to half a unit in the last place of
 * the dtype plus 1e-5 of the largest |v| of the head (2^-8 of it when the capture computed in less
 * than float32); lse 1e-3 (2e-2). */
int trace_check_attention(const struct trace *t, int jobs, int64_t rows, trace_bad_fn *bad,
                          void *ctx, int64_t *n_bad, int64_t *n_rows, struct err *err);

#endif
