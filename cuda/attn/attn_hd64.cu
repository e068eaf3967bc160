/*
 * attn_hd64.cu - the kernels of attn_sm90.cuh for head dim 64: dense, lists of blocks, and lists
 * for masks that are not made of blocks.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCH(dense64)
ATTN_LAUNCH(list64)
ATTN_LAUNCH(half64)
ATTN_LAUNCH(pair64)
ATTN_LAUNCH(bits64)
ATTN_LAUNCH(gather64)
