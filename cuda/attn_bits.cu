/*
 * attn_bits.cu - the list kernels of attn_sm90.cuh for masks that are no blocks: a partly kept tile
 * is multiplied in full, and scores of pairs that the mask leaves out become -inf by its bits.
 */
#include "cuda/attn_sm90.cuh"
#include "cuda/attn_table.h"

int attn_bits_smem(int d)
{
    return d == 64 ? (int)sizeof(attn_smem<bits64>) : (int)sizeof(attn_smem<bits128>);
}

template <class T>
static void launch(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    const CUtensorMap *m = (const CUtensorMap *)maps;
    cudaFuncSetAttribute(attn_sm90<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)sizeof(attn_smem<T>));
    attn_sm90<T><<<grid, T::THREADS, sizeof(attn_smem<T>), stream>>>(m[0], m[1], m[2], m[3],
                                                                     *(const attn_args *)args);
}

void attn_bits_launch128(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    launch<bits128>(grid, stream, maps, args);
}

void attn_bits_launch64(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    launch<bits64>(grid, stream, maps, args);
}
