/*
 * attn_hd192.cu - the kernels of attn_sm90.cuh for head dim 192 with values of 128: dense, lists of
 * blocks, and lists for masks that are not made of blocks.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCH(dense192)
ATTN_LAUNCH(list192)
ATTN_LAUNCH(half192)
ATTN_LAUNCH(pair192)
ATTN_LAUNCH(bits192)
ATTN_LAUNCH(gather192)
