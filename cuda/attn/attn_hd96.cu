/*
 * attn_hd96.cu - the kernels of attn_sm90.cuh for head dim 96.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCHES(96)
