/*
 * maskexport.h - dumped masks as tensors for other programs.
 */
#pragma once

#include "core/maskfile.h"

enum mask_format {
    MASK_AS_DENSE,     /* bool [heads][nq][nk] */
    MASK_AS_BLOCKMASK, /* kv_num_blocks, kv_indices, full_kv_num_blocks, full_kv_indices int32 of
                        * FlexAttention, BLOCK_SIZE */
    MASK_AS_BSR,       /* indptr, indices int32 of FlashInfer per head, blocksize */
};

struct mask_export {
    enum mask_format format;
    int64_t bq, bk;         /* blocks of the last two formats; 0 = the mask's own unit */
    const int64_t *entries; /* [n] of the index, in its order: one trace, one setting */
    int64_t n;
};

/* What was written. */
struct mask_exported {
    int64_t tensors, masks, bytes;
    double added; /* largest share of a mask's allowed pairs that whole blocks add to it */
};

/* Write the chosen entries to a .safetensors file, with names as the method mask reads them
 * (core/trace.h): a call's heads together if they are 0, 1, 2, ..., else each by itself. */
int mask_export(const struct maskfile *f, const struct mask_index *x, const struct mask_export *how,
                const char *path, struct mask_exported *done, struct err *err);
