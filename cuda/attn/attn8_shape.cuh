/*
 * attn8_shape.cuh - tile shapes of the attention kernels with operands of 8 bits (attn8.cu,
 * attn8_filter.cuh).
 */
#ifndef LACUNA_ATTN8_SHAPE_CUH
#define LACUNA_ATTN8_SHAPE_CUH

#include "cuda/attn/attn_shape.cuh"

/* Rows of queries and keys are D bytes, a channel of a stage's values BN bytes. The last four words
 * of a stage's positions are the scales of its keys. */
template <int D_, int BN_, int WG_, int STAGES_, list_kind KIND_ = BLOCKS_ALL>
struct shape8 : shape<D_, BN_, WG_, STAGES_, KIND_> {
    using base = shape<D_, BN_, WG_, STAGES_, KIND_>;
    static constexpr bool BYTES = true, ASCENDS = true;
    static constexpr int IN_PANELS = 1, SCALES = base::POSITIONS, POSITIONS = SCALES + 4;
    static constexpr int Q_BYTES = base::BM * D_, KV_BYTES = BN_ * D_;
};

/*                             D   BN  WG ST */
using dense8_128 = shape8<128, 128, 3, 4>;
using dense8_64 = shape8<64, 128, 3, 8>;
using filter8_128_wide = shape8<128, 128, 2, 4, BLOCKS_FILTER>;
using filter8_128_tall = shape8<128, 64, 2, 8, BLOCKS_FILTER>;
using filter8_64_wide = shape8<64, 128, 2, 8, BLOCKS_FILTER>;
using filter8_64_tall = shape8<64, 64, 2, 8, BLOCKS_FILTER>;

#endif
