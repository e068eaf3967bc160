/* attn8_filter_f16.cu - the kernels of attn_filter.cuh with INT8 scores and float16 values. */
#include "cuda/attn/attn_filter.cuh"

FILTER_LAUNCH(filter8f_128_wide, 64)
FILTER_LAUNCH(filter8f_128_wide, 16)
FILTER_LAUNCH(filter8f_128_tall, 128)
FILTER_LAUNCH(filter8f_128_half, 32)
FILTER_LAUNCH(filter8f_128_half, 16)
FILTER_LAUNCH(filter8f_64_wide, 64)
FILTER_LAUNCH(filter8f_64_wide, 16)
FILTER_LAUNCH(filter8f_64_tall, 128)
FILTER_LAUNCH(filter8f_64_tall, 32)
