/* attn_filter_hd128.cu - the kernels of attn_filter.cuh for head dim 128. */
#include "cuda/attn/attn_filter.cuh"

#define LAUNCH(shape, scope)                                                                       \
    template void filter_launch<shape, scope>(int grid, cudaStream_t stream, const void *maps,     \
                                              const void *args);
LAUNCH(filter128_wide, 64)
LAUNCH(filter128_wide, 16)
LAUNCH(filter128_tall, 128)
LAUNCH(filter128_tall, 32)
LAUNCH(filter128_tall, 16)
