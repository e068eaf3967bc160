/*
 * filter_shape.cuh - tile shapes of the kernels of attn_filter.cuh.
 */
#pragma once

#include "cuda/attn/attn_shape.cuh"

/*                             D   BN  WG ST               BLOCK UNIT */
using filter128_wide = shape<128, 128, 2, 2, BLOCKS_FILTER, 128, 128, false>;
using filter128_tall = shape<128, 128, 2, 2, BLOCKS_FILTER, 64, 64, false>;
using filter64_wide = shape<64, 128, 2, 4, BLOCKS_FILTER, 128, 128, false>;
using filter64_tall = teams<shape<64, 64, 2, 4, BLOCKS_FILTER, 64, 64, false>, 2>;

/* Launch a kernel (struct attn_kernel); SCOPE: rows that decide together. A file per head dimension
 * has the code. */
template <class T, int SCOPE>
void filter_launch(int grid, cudaStream_t stream, const void *maps, const void *args);
