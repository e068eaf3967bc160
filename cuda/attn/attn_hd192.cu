/*
 * attn_hd192.cu - the kernels of attn_sm90.cuh for head dim 192 with values of 128.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCHES(192)
