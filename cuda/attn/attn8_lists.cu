/* attn8_lists.cu - kernels over lists of which every tile is multiplied: attn_filter.cuh's without
 * a filter, and attn8_lists.cuh's. */
#include "cuda/attn/attn8_lists.cuh"

FILTER_LAUNCH(list8f_128_wide, 64)
FILTER_LAUNCH(list8f_128_half, 64)
FILTER_LAUNCH(list8f_64_wide, 64)
FILTER_LAUNCH(list8f_64_tall, 64)
FILTER_LAUNCH(list8f_128_slim, 64)
FILTER_LAUNCH(list8f_64_slim, 64)
