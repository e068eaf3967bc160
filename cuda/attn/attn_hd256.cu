/*
 * attn_hd256.cu - the kernels of attn_sm90.cuh for head dim 256: dense, lists of blocks, and lists
 * for masks that are not made of blocks.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCH(dense256)
ATTN_LAUNCH(list256)
ATTN_LAUNCH(half256)
ATTN_LAUNCH(pair256)
ATTN_LAUNCH(bits256)
ATTN_LAUNCH(gather256)
