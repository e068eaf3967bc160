/*
 * attn_table.h - kernels of other files that the table in attn.cu lists: Hopper kernels with
 * float16 operands, and the portable kernels. Launch functions are as in struct
 * attn_kernel.
 */
#ifndef LACUNA_ATTN_TABLE_H
#define LACUNA_ATTN_TABLE_H

#include "cuda/attn/attn.h"

/* attn_half.cu: shapes of the default dense kernels of attn_sm90.cuh. */
int attn_half_smem(int d);
void attn_half_launch128(int grid, cudaStream_t stream, const void *maps, const void *args);
void attn_half_launch64(int grid, cudaStream_t stream, const void *maps, const void *args);

/* attn_portable.cu: query rows of a thread block and head dim in the name, then the keys of a
 * list's block (0: float16 operands, dense; 1, 2: blocks of 128 with bits, 2: of gathered keys).
 * `maps` is a struct attn_tensors. */
int attn_portable_smem(int d, int rows);
/* clang-format off */
#define PORTABLE_LAUNCHES(X)                                                                       \
    X(128, 64, 64) X(128, 64, 128) X(64, 64, 64) X(128, 64, 0) X(128, 64, 1) X(128, 64, 2)                      \
    X(128, 128, 64) X(128, 128, 128) X(64, 128, 64) X(128, 128, 0) X(128, 128, 1) X(128, 128, 2)
/* clang-format on */
#define X(rows, d, keys)                                                                           \
    void attn_portable_##rows##_##d##_##keys(int grid, cudaStream_t stream, const void *maps,      \
                                             const void *args);
PORTABLE_LAUNCHES(X)
#undef X

#endif
