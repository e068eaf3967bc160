/*
 * attn_hd128.cu - the kernels of attn_sm90.cuh for head dim 128: dense, lists of blocks, and lists
 * for masks that are not made of blocks.
 */
#include "cuda/attn/attn_sm90.cuh"

#define LAUNCH(shape)                                                                              \
    template void attn_launch<shape>(int grid, cudaStream_t stream, const void *maps,              \
                                     const void *args);
LAUNCH(dense128)
LAUNCH(list128)
LAUNCH(half128)
LAUNCH(pair128)
LAUNCH(bits128)
LAUNCH(gather128)
