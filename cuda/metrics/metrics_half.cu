/*
 * metrics_half.cu - the maps of metrics_pass.cuh for float16 operands, as in a capture. As in
 * attn_half.cu, the kernel's source is compiled a second time, in a namespace of its own.
 */
#define ATTN_ELEMENT "f16"

#include "cuda/metrics/metrics.h"

#include <limits.h>
#include <stdint.h>

namespace half_operands
{
#include "cuda/metrics/metrics_pass.cuh"
}
using namespace half_operands;

const metrics_kernel metrics_half_maps[] = {
    pass_entry<pass_shape<128, METRICS_MAPS>>(ATTN_F16),
    pass_entry<pass_shape<64, METRICS_MAPS>>(ATTN_F16),
    {},
};
