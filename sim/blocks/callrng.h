/*
 * callrng.h - random streams of one attention call.
 */
#pragma once

#include "core/method.h"
#include "core/rng.h"

#include <stdint.h>

/* Stream numbers of a call and of one of its heads (core/rng.h). */
static inline uint64_t call_stream(uint64_t salt, const struct head_in *in)
{
    return rng_call_stream(salt, in->layer, in->step, in->branch);
}

static inline uint64_t head_stream(uint64_t salt, const struct head_in *in, int head)
{
    return rng_head_stream(call_stream(salt, in), head);
}
