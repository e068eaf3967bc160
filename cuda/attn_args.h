/*
 * attn_args.h - what the attention kernels are told, shared by host and device.
 */
#ifndef LACUNA_ATTN_ARGS_H
#define LACUNA_ATTN_ARGS_H

#include <stdint.h>
#include <vector_types.h>

/* A work item: x = head * q_blocks + query block, [y, z) = its units of keys (plan.h), w = -1, or
 * the slot of a piece of a split row. */

struct attn_args {
    const int4    *items;
    unsigned      *ticket; /* 0 before a launch, 0 again after it */
    const int32_t *cols;   /* NULL: dense */
    float         *lse;    /* [heads][nq], natural log, -inf for an empty row */
    float         *piece_out; /* [slots][rows of a tile][D]: not normalised */
    float2 *piece_ml;         /* [slots][rows of a tile]: reference in log2 units, sum */
    int            n_items;
    int            nq, nk;
    int            q_blocks;      /* query blocks per head */
    int            group;         /* query heads per kv head */
    int            causal, offset; /* row i sees key j iff j <= i + offset, offset = nk - nq */
    int            masked_units; /* units from the end of an item that may need masking, >= 1 */
    float          scale_log2;    /* softmax scale * log2 e */
    float          grow;          /* 8 / scale_log2: how far scores may pass a reference where they
                                   * are looked at; elsewhere sums may reach 2^60 */
    const int32_t  *bits;  /* per entry of cols: block of `words`, -1 = whole; NULL without bits */
    const uint64_t *words; /* [blocks][256], order in core/kernel.h */
    const int32_t  *keys;  /* gathered: [entries][128], -1 = none; NULL where blocks are of keys
                            * that follow each other */
    const void     *q, *k, *v; /* the tensors, of the kernels for Hopper; v where keys are gathered */
};

/* Of the kernels with a filter on P V (attn_filter.cuh). */
struct filter_args {
    struct attn_args base; /* first: jobs hold one of these */
    float            gap;  /* the filter's distance in units of scores before scaling */
    int              always, keep_sum; /* never skip; skipped tiles count in the normaliser */
    unsigned        *computed; /* [rows of tiles][2 warpgroups][4 scopes] P V computed */
};

#endif
