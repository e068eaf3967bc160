/*
 * attn_hd128.cu - the kernels of attn_sm90.cuh for head dim 128.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCHES(128)
ATTN_LAUNCH(slim128)
