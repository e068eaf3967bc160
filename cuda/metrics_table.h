/*
 * metrics_table.h - the kernels of metrics_pass.cuh, as the host chooses and launches them.
 */
#ifndef LACUNA_METRICS_TABLE_H
#define LACUNA_METRICS_TABLE_H

#include "cuda/metrics.h"

#include <cuda.h>

enum metrics_kind {
    METRICS_SIGNS,  /* one threshold */
    METRICS_SUMS,   /* and sums of p */
    METRICS_MAPS,   /* maps and sums */
    METRICS_LEVELS, /* and several thresholds */
    METRICS_TOPS,   /* several thresholds alone */
};

struct metrics_kernel {
    int d; /* 0 ends a table */
    enum metrics_kind kind;
    enum attn_element element;
    int smem;
    const void *entry;
    void (*launch)(int grid, cudaStream_t stream, const CUtensorMap *maps, const void *args);
};

/* metrics_half.cu: maps of float16 operands. */
extern const struct metrics_kernel metrics_half_maps[];

#endif
