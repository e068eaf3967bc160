/*
 * attn_hd64.cu - the kernels of attn_sm90.cuh for head dim 64: dense, lists of blocks, and lists
 * for masks that are not made of blocks.
 */
#include "cuda/attn/attn_sm90.cuh"

#define LAUNCH(shape)                                                                              \
    template void attn_launch<shape>(int grid, cudaStream_t stream, const void *maps,              \
                                     const void *args);
LAUNCH(dense64)
LAUNCH(list64)
LAUNCH(half64)
LAUNCH(pair64)
LAUNCH(bits64)
LAUNCH(gather64)
