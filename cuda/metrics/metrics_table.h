/*
 * metrics_table.h - the table from which the host chooses and launches kernels of metrics_pass.cuh.
 */
#ifndef LACUNA_METRICS_TABLE_H
#define LACUNA_METRICS_TABLE_H

#include "cuda/metrics/metrics.h"

#include <cuda.h>

enum metrics_kind {
    METRICS_SIGNS,  /* one threshold */
    METRICS_SUMS,   /* one threshold, sums of p */
    METRICS_MAPS,   /* maps, sums of p */
    METRICS_LEVELS, /* maps, sums of p, several thresholds */
    METRICS_TOPS,   /* several thresholds only */
    METRICS_SLICES, /* one threshold, bits of slices */
};

struct metrics_kernel {
    int d; /* 0 ends a table */
    enum metrics_kind kind;
    enum attn_element element;
    int smem;
    const void *entry;
    void (*launch)(int grid, cudaStream_t stream, const CUtensorMap *maps, const void *args);
};

/* metrics_half.cu: kernels for maps of float16 operands. */
extern const struct metrics_kernel metrics_half_maps[];

#endif
