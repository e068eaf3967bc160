/* attn8_filter_hd64.cu - the kernels of attn_filter.cuh for head dim 64, INT8 and e4m3. */
#include "cuda/attn/attn_filter.cuh"

FILTER_LAUNCH(filter8_64_wide, 64)
FILTER_LAUNCH(filter8_64_wide, 16)
FILTER_LAUNCH(filter8_64_tall, 128)
FILTER_LAUNCH(filter8_64_tall, 32)
FILTER_LAUNCH(list8_64_wide, 64)
FILTER_LAUNCH(list8_64_tall, 64)
