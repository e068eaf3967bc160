/*
 * checkcu_traces.h - every method on heads of real traces, on the GPU and by the CPU reference.
 */
#ifndef LACUNA_CHECKCU_TRACES_H
#define LACUNA_CHECKCU_TRACES_H

#include <stdint.h>

/* Run every method on heads of each trace (bf16, so that both sides see the same values) with the
 * back end and without, and compare masks, outputs, LSE and metrics; a line per setting. Adds to
 * the counts. */
void check_traces(int n, char *const *paths, int64_t *n_checks, int64_t *n_failures);

/* Two captures of one run, by CPU and by GPU, both stored in bf16: q, k, v of every head within
 * 2e-3 relative L2 (rounding alone is 1.7e-3). */
void check_same(const char *a, const char *b, int64_t *n_checks, int64_t *n_failures);

#endif
