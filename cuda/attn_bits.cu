/*
 * attn_bits.cu - the list kernels of attn_sm90.cuh for masks that are no blocks: of tiles of 128
 * keys that follow each other or are gathered. A partly kept tile is multiplied in full, and scores
 * of pairs that the mask leaves out become -inf by its bits.
 */
#include "cuda/attn_sm90.cuh"
#include "cuda/attn_table.h"

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
