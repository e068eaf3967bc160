/*
 * attn_hd256.cu - the kernels of attn_sm90.cuh for head dim 256.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCHES(256)
