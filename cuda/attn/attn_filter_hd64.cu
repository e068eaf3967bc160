/* attn_filter_hd64.cu - the kernels of attn_filter.cuh for head dim 64. */
#include "cuda/attn/attn_filter.cuh"

#define LAUNCH(shape, scope)                                                                       \
    template void filter_launch<shape, scope>(int grid, cudaStream_t stream, const void *maps,     \
                                              const void *args);
LAUNCH(filter64_wide, 64)
LAUNCH(filter64_wide, 16)
LAUNCH(filter64_tall, 128)
LAUNCH(filter64_tall, 32)
