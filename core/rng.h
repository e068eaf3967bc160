/*
 * rng.h - counter-based random numbers: the value is a pure function of (seed, stream, counter), so
 * that results do not depend on threads or order. The mixer is splitmix64's finaliser.
 */
#pragma once

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__ /* kernels draw the same numbers */
#define RNG_FN static inline __host__ __device__
#else
#define RNG_FN static inline
#endif

RNG_FN uint64_t rng_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9ull;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBull;
    x ^= x >> 31;
    return x;
}

/* 64 random bits. */
RNG_FN uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return rng_mix(
        rng_mix(rng_mix(seed + 0x9E3779B97F4A7C15ull) ^ (stream * 0xD1B54A32D192ED03ull)) +
        0x9E3779B97F4A7C15ull * (counter + 1));
}

/* Uniform in [0, 1) with 53 bits. */
RNG_FN double rng_uniform(uint64_t seed, uint64_t stream, uint64_t counter)
{
    return (double)(rng_u64(seed, stream, counter) >> 11) * 0x1p-53;
}

/* Uniform integer in 0..n-1 (n >= 1), bias below 2^-64 * n. */
RNG_FN uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t counter, uint64_t n)
{
    return (uint64_t)(((unsigned __int128)rng_u64(seed, stream, counter) * n) >> 64);
}

/* A stream number that is a hash of layer, step and branch: two different calls have different
 * streams in practice. `salt` separates the users of one seed. branch may be NULL. */
RNG_FN uint64_t rng_call_stream(uint64_t salt, int layer, int step, const char *branch)
{
    uint64_t h = rng_mix(salt ^ ((uint64_t)layer << 32 | (uint32_t)step));
    for (const char *c = branch; c && *c; c++)
        h = rng_mix(h + (unsigned char)*c + 0x9E3779B97F4A7C15ull);
    return h;
}

/* The stream number of one head in a call whose stream number is `call`. */
RNG_FN uint64_t rng_head_stream(uint64_t call, int head)
{
    return rng_mix(call + 0x9E3779B97F4A7C15ull * ((uint64_t)head + 1));
}

/* Standard normal (Box-Muller; uses counters 2c and 2c+1 of the stream). */
RNG_FN double rng_normal(uint64_t seed, uint64_t stream, uint64_t counter)
{
    double u = rng_uniform(seed, stream, 2 * counter),
           v = rng_uniform(seed, stream, 2 * counter + 1);
    return sqrt(-2.0 * log(1.0 - u)) * cos(6.283185307179586476925286766559 * v);
}
