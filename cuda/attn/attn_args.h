/*
 * attn_args.h - arguments of the attention kernels, shared by host and device.
 */
#pragma once

#include "cuda/attn/attn.h"

#include <stdint.h>
#include <vector_types.h>

/* A work item: x = head * q_blocks + query block, [y, z) = its units of keys (plan.h), w = the slot
 * if it is a piece of a split row, else -1. */

struct attn_args {
    const int4 *items;
    unsigned *ticket;    /* 0 before a launch, 0 again after it */
    const int32_t *cols; /* NULL: dense */
    float *lse;          /* [heads][nq], natural log, -inf for an empty row */
    float *piece_out;    /* [slots][rows of a tile][dv]: not normalised */
    float2 *piece_ml;    /* [slots][rows of a tile]: reference in log2 units, sum */
    int n_items;
    int nq, nk;
    int q_blocks;       /* query blocks per head */
    int group;          /* query heads per kv head */
    int causal, offset; /* row i sees key j iff j <= i + offset, offset = nk - nq */
    int masked_units;   /* number of units at the end of an item that may need masking, >= 1 */
    float scale_log2;   /* softmax scale * log2 e */
    float grow; /* 8 / scale_log2: how far scores may exceed a reference in stages that look at
                 * them; in other stages sums may reach 2^60 */
    const int32_t *bits;   /* per entry of cols: block of `words`, -1 = all pairs; NULL: no bits */
    const uint64_t *words; /* [blocks][256], order in core/accel.h */
    const int32_t *keys;   /* gathered keys: [entries][128]; NULL if the keys of a block are
                            * neighbours */
    const void *q, *k, *v; /* tensors, for the Hopper kernels; v only where keys are gathered */
    struct attn8_scales scales; /* of operands of 8 bits */
};

/* Arguments of the kernels with a filter on P V (attn_filter.cuh). */
struct filter_args {
    struct attn_args base; /* first: jobs hold one of these */
    const float *gap; /* [heads] the filter's distance in units of scores before scaling, INFINITY:
                       * no tile is skipped */
    int keep_sum;     /* skipped tiles count in the normaliser */
    unsigned *computed; /* [rows of tiles][warpgroups][4 scopes] P V computed */
};

/* The instance of a function template for a head dimension of attn_sm90.cuh's kernels. */
#define BY_HEAD_DIM(d, f) ((d) == 64 ? f<64> : (d) == 96 ? f<96> : (d) == 128 ? f<128> : f<256>)

/* ---- launches ------------------------------------------------------------------------------- */

/* Kernels of other files that the table in attn.cu lists. Launch functions are as in struct
 * attn_kernel. */

/* attn_half.cu: shapes of the default dense kernels of attn_sm90.cuh. */
int attn_half_smem(int d);
void attn_half_launch128(int grid, cudaStream_t stream, const void *maps, const void *args);
void attn_half_launch64(int grid, cudaStream_t stream, const void *maps, const void *args);

/* attn_portable.cu: query rows of a thread block and head dim in the name, then the keys of a
 * list's block (0: float16 operands, dense; 1, 2: blocks of 128 with bits, 2: of gathered keys).
 * `maps` is a struct attn_tensors. */
int attn_portable_smem(int d, int rows);
/* clang-format off */
#define PORTABLE_LAUNCHES(X)                                                                       \
    X(128, 64, 64) X(128, 64, 128) X(64, 64, 64) X(128, 64, 0) X(128, 64, 1) X(128, 64, 2)                      \
    X(128, 128, 64) X(128, 128, 128) X(64, 128, 64) X(128, 128, 0) X(128, 128, 1) X(128, 128, 2)
/* clang-format on */
#define X(rows, d, keys)                                                                           \
    void attn_portable_##rows##_##d##_##keys(int grid, cudaStream_t stream, const void *maps,      \
                                             const void *args);
PORTABLE_LAUNCHES(X)
#undef X
