/*
 * metrics_errors.cuh - the errors of a row of outputs against a reference.
 */
#ifndef LACUNA_METRICS_ERRORS_CUH
#define LACUNA_METRICS_ERRORS_CUH

#include "core/accel.h"

/* Eight lanes have the channels of a row between them. */
#define ROW_LANES 8

static __device__ __forceinline__ void add_error(accel_row &e, float x, float y)
{
    float delta = x - y;
    e.abs_delta += fabsf(delta);
    e.sq_delta += delta * delta;
    e.abs_ref += fabsf(y);
    e.sq_ref += y * y;
    e.sq_out += x * x;
    e.dot += x * y;
    if (!(fabsf(delta) <= e.max_delta)) /* NaN stays */
        e.max_delta = fabsf(delta);
}

static __device__ __forceinline__ void sum_errors(accel_row &e)
{
#pragma unroll
    for (int bit = 1; bit < ROW_LANES; bit *= 2) {
        e.abs_delta += __shfl_xor_sync(~0u, e.abs_delta, bit);
        e.sq_delta += __shfl_xor_sync(~0u, e.sq_delta, bit);
        e.abs_ref += __shfl_xor_sync(~0u, e.abs_ref, bit);
        e.sq_ref += __shfl_xor_sync(~0u, e.sq_ref, bit);
        e.sq_out += __shfl_xor_sync(~0u, e.sq_out, bit);
        e.dot += __shfl_xor_sync(~0u, e.dot, bit);
        float other = __shfl_xor_sync(~0u, e.max_delta, bit);
        if (isnan(other) || other > e.max_delta)
            e.max_delta = other;
    }
}

#endif
