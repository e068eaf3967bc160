/*
 * attn_bits.cu - the list kernels of attn_sm90.cuh for masks that are no blocks: of tiles of 128
 * keys that follow each other or are gathered. A partly kept tile is multiplied in full, and scores
 * of pairs that the mask leaves out become -inf by its bits.
 */
#include "cuda/attn_sm90.cuh"
#include "cuda/attn_table.h"

template <class T>
static void launch(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    cudaFuncSetAttribute(attn_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(attn_smem<T>));
    attn_sm90<T><<<grid, T::THREADS, sizeof(attn_smem<T>), stream>>>(*(const attn_maps *)maps,
                                                                     *(const attn_args *)args);
}

#define X(shape)                                                                                   \
    int attn_##shape##_smem()                                                                      \
    {                                                                                              \
        return (int)sizeof(attn_smem<shape>);                                                      \
    }                                                                                              \
    void attn_##shape##_launch(int grid, cudaStream_t stream, const void *maps, const void *args)  \
    {                                                                                              \
        launch<shape>(grid, stream, maps, args);                                                   \
    }
BITS_LAUNCHES(X)
#undef X
