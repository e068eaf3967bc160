/*
 * attn_hd128.cu - the kernels of attn_sm90.cuh for head dim 128: dense, lists of blocks, and lists
 * for masks that are not made of blocks.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCH(dense128)
ATTN_LAUNCH(list128)
ATTN_LAUNCH(half128)
ATTN_LAUNCH(pair128)
ATTN_LAUNCH(bits128)
ATTN_LAUNCH(gather128)
