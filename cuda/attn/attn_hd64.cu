/*
 * attn_hd64.cu - the kernels of attn_sm90.cuh for head dim 64.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCHES(64)
ATTN_LAUNCH(slim64)
