/* attn8_lists.cu - the kernels of attn8_lists.cuh. */
#include "cuda/attn/attn8_lists.cuh"

FILTER_LAUNCH(list8f_128, 64)
FILTER_LAUNCH(list8f_64, 64)
