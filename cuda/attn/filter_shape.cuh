/*
 * filter_shape.cuh - tile shapes and shared memory of the kernels of attn_filter.cuh.
 */
#ifndef LACUNA_FILTER_SHAPE_CUH
#define LACUNA_FILTER_SHAPE_CUH

#include "cuda/attn/attn_shape.cuh"

/* The votes of the warps on a stage. The warps that vote together are at most one ring of keys
 * apart; there are twice as many slots, so that no slot is written before it has been read. */
template <class T> struct filter_smem : attn_smem<T> {
    static constexpr int SLOTS = 2 * T::STAGES;
    alignas(16) int said[SLOTS][4 * T::WG]; /* bit u: near in unit u; by warp */
    uint64_t said_full[SLOTS][T::WG];
};

/*                             D   BN  WG ST               BLOCK UNIT */
using filter128_wide = shape<128, 128, 2, 2, BLOCKS_FILTER, 128, 128, false>;
using filter128_tall = shape<128, 128, 2, 2, BLOCKS_FILTER, 64, 64, false>;
using filter64_wide = shape<64, 128, 2, 4, BLOCKS_FILTER, 128, 128, false>;
using filter64_tall = shape<64, 128, 2, 4, BLOCKS_FILTER, 64, 64, false>;

/* Launch a kernel (struct attn_kernel); SCOPE: rows that decide together. A file per head dimension
 * has the code. */
template <class T, int SCOPE>
void filter_launch(int grid, cudaStream_t stream, const void *maps, const void *args);

#endif
