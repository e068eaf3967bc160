/*
 * attn_bits.cu - the list kernels of attn_sm90.cuh for masks that are not made of blocks. The 128
 * keys of a tile are neighbours or gathered. A tile that is kept in part is multiplied in full, and
 * its bits set scores of dropped pairs to -inf.
 */
#include "cuda/attn/attn_sm90.cuh"
#include "cuda/attn/attn_table.h"

#define X(shape)                                                                                   \
    int attn_##shape##_smem()                                                                      \
    {                                                                                              \
        return (int)sizeof(attn_smem<shape>);                                                      \
    }                                                                                              \
    void attn_##shape##_launch(int grid, cudaStream_t stream, const void *maps, const void *args)  \
    {                                                                                              \
        attn_start<shape>(grid, stream, maps, args);                                               \
    }
BITS_LAUNCHES(X)
#undef X
