/* attn8_filter_hd128.cu - the kernels of attn_filter.cuh for head dim 128, INT8 and e4m3. */
#include "cuda/attn/attn_filter.cuh"

FILTER_LAUNCH(filter8_128_wide, 64)
FILTER_LAUNCH(filter8_128_wide, 16)
FILTER_LAUNCH(filter8_128_tall, 128)
FILTER_LAUNCH(filter8_128_half, 32)
FILTER_LAUNCH(filter8_128_half, 16)
FILTER_LAUNCH(list8_128_wide, 64)
FILTER_LAUNCH(list8_128_half, 64)
