/*
 * attn_hd96.cu - the kernels of attn_sm90.cuh for head dim 96: dense, lists of blocks, and lists
 * for masks that are not made of blocks.
 */
#include "cuda/attn/attn_sm90.cuh"

ATTN_LAUNCH(dense96)
ATTN_LAUNCH(list96)
ATTN_LAUNCH(half96)
ATTN_LAUNCH(pair96)
ATTN_LAUNCH(bits96)
ATTN_LAUNCH(gather96)
