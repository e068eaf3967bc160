/*
 * attn8_shape.cuh - tile shapes of the attention kernels with operands of 8 bits (attn8.cu,
 * attn_filter.cuh).
 */
#pragma once

#include "cuda/attn/attn_shape.cuh"

/* Rows of queries and keys are D bytes; values are E4M3, a channel of a unit being UNIT bytes, or
 * of 16 bits. The last words of a stage's positions are the scales of its keys, four for SCALED
 * keys, that are loaded together. */
template <int D_, int BN_, int WG_, int STAGES_, list_kind KIND_ = BLOCKS_ALL, int UNIT_ = BN_,
          bool E4M3_ = true, int SCALED_ = UNIT_>
struct shape8 : shape<D_, BN_, WG_, STAGES_, KIND_, UNIT_, UNIT_> {
    using base = shape<D_, BN_, WG_, STAGES_, KIND_, UNIT_, UNIT_>;
    static constexpr bool BYTES = true, BY_CHANNEL = E4M3_, ASCENDS = true;
    static constexpr int IN_PANELS = 1, SCALED = SCALED_, SCALES = (base::POSITIONS + 3) / 4 * 4,
                         POSITIONS = SCALES + 4 * (BN_ / SCALED_);
    static constexpr int Q_BYTES = base::BM * D_, K_BYTES = BN_ * D_,
                         V_BYTES = base::V_BYTES / (E4M3_ ? 2 : 1);
};

/* The same shape for lists of which every tile is multiplied. Turns do not help four units in a
 * stage (attn8_lists.cuh). */
template <class T> struct unskipped : T {
    static constexpr bool SKIPS = false, TURNS = T::TURNS && T::UNITS < 4;
};

/*                             D   BN  WG ST               UNIT */
using dense8_128 = shape8<128, 128, 3, 4>;
using dense8_64 = shape8<64, 128, 4, 8>;
using dense8f_128 = shape8<128, 128, 3, 2, BLOCKS_ALL, 128, false, 64>;
using dense8f_64 = shape8<64, 128, 3, 6, BLOCKS_ALL, 128, false, 64>;
using filter8_128_wide = teams<shape8<128, 128, 1, 2, BLOCKS_FILTER>, 3>;
using filter8_128_tall = shape8<128, 128, 2, 4, BLOCKS_FILTER, 64>;
using filter8_128_half = teams<shape8<128, 128, 1, 2, BLOCKS_FILTER, 64>, 3>;
using filter8_64_wide = teams<shape8<64, 128, 1, 3, BLOCKS_FILTER>, 4>;
using filter8_64_tall = teams<shape8<64, 64, 2, 8, BLOCKS_FILTER>, 2>;
using filter8f_128_wide = teams<shape8<128, 128, 1, 1, BLOCKS_FILTER, 128, false>, 3>;
using filter8f_128_tall = shape8<128, 128, 2, 3, BLOCKS_FILTER, 64, false>;
using filter8f_128_half = teams<shape8<128, 128, 1, 1, BLOCKS_FILTER, 64, false>, 3>;
using filter8f_64_wide = teams<shape8<64, 128, 1, 2, BLOCKS_FILTER, 128, false>, 3>;
using filter8f_64_tall = teams<shape8<64, 64, 2, 6, BLOCKS_FILTER, 64, false>, 2>;
using list8_128_wide = unskipped<filter8_128_wide>;
using list8_128_half = unskipped<filter8_128_half>;
using list8_64_wide = unskipped<filter8_64_wide>;
using list8_64_tall = unskipped<filter8_64_tall>;
using list8f_128_wide = unskipped<filter8f_128_wide>;
using list8f_128_half = unskipped<filter8f_128_half>;
using list8f_64_wide = unskipped<filter8f_64_wide>;
using list8f_64_tall = unskipped<filter8f_64_tall>;
using list8f_128_slim = unskipped<teams<shape8<128, 128, 1, 1, BLOCKS_FILTER, 32, false>, 3>>;
using list8f_64_slim = unskipped<teams<shape8<64, 128, 1, 2, BLOCKS_FILTER, 32, false>, 3>>;
