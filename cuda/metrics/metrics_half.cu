/*
 * metrics_half.cu - the maps of metrics_pass.cuh for float16 operands, as in a capture. As in
 * attn_half.cu, the kernel's source is compiled a second time, in a namespace of its own.
 */
#define ATTN_ELEMENT "f16"

#include "cuda/metrics/metrics_table.h"

#include <limits.h>
#include <stdint.h>

namespace half_operands
{
#include "cuda/metrics/metrics_pass.cuh"
}
using namespace half_operands;

template <class T>
static void launch(int grid, cudaStream_t stream, const CUtensorMap *maps, const void *args)
{
    pass_sm90<T><<<grid, T::THREADS, sizeof(pass_smem<T>), stream>>>(maps[0], maps[1],
                                                                     *(const metrics_args *)args);
}

template <class T> static constexpr metrics_kernel maps_of()
{
    return {T::D,     METRICS_MAPS, ATTN_F16, (int)sizeof(pass_smem<T>), (const void *)pass_sm90<T>,
            launch<T>};
}

const metrics_kernel metrics_half_maps[] = {
    maps_of<pass_shape<128, METRICS_MAPS>>(),
    maps_of<pass_shape<64, METRICS_MAPS>>(),
    {},
};
