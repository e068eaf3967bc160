/*
 * callrng.h - random streams of one attention call.
 */
#ifndef LACUNA_CALLRNG_H
#define LACUNA_CALLRNG_H

#include "core/method.h"
#include "core/rng.h"

#include <stdint.h>

/* A stream number (core/rng.h) that is a hash of layer, step and branch: two different calls have
 * different streams in practice. `salt` separates the users of one seed. */
static inline uint64_t call_stream(uint64_t salt, const struct head_in *in)
{
    uint64_t h = rng_mix(salt ^ ((uint64_t)in->layer << 32 | (uint32_t)in->step));
    for (const char *c = in->branch; c && *c; c++)
        h = rng_mix(h + (unsigned char)*c + 0x9E3779B97F4A7C15ull);
    return h;
}

/* A stream number of one head of the call. */
static inline uint64_t head_stream(uint64_t salt, const struct head_in *in, int head)
{
    return rng_mix(call_stream(salt, in) + 0x9E3779B97F4A7C15ull * ((uint64_t)head + 1));
}

#endif
