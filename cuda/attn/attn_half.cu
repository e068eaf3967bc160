/*
 * attn_half.cu - the dense Hopper kernels of attn_sm90.cuh with float16 operands: the same products
 * at the same speed with three more bits of mantissa, for callers whose values fit its range.
 *
 * The element type is part of the names of instructions, so the kernel's source is compiled a
 * second time, in a namespace of its own.
 */
#define ATTN_ELEMENT "f16"
#define ATTN_SUM_LIMIT 0x1p13f /* no probability may reach 65504 */

#include "cuda/attn/attn_args.h"

#include <cuda.h>
#include <cuda_bf16.h>
#include <stdint.h>

namespace half_operands
{
#include "cuda/attn/attn_sm90.cuh"
}
using namespace half_operands;

int attn_half_smem(int d)
{
    return d == 64 ? (int)sizeof(attn_smem<dense64>) : (int)sizeof(attn_smem<dense128>);
}

void attn_half_launch128(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    attn_start<dense128>(grid, stream, maps, args);
}

void attn_half_launch64(int grid, cudaStream_t stream, const void *maps, const void *args)
{
    attn_start<dense64>(grid, stream, maps, args);
}
