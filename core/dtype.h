/*
 * dtype.h - element types and conversions.
 *
 * Float to narrower float rounds to nearest, ties to even; overflow becomes infinity; NaN stays
 * NaN (quiet, sign kept). Float to int8 saturates, NaN becomes 0.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype {
    DT_NONE = 0,
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_F64,
    DT_I8,
    DT_U8,
    DT_I16,
    DT_U16,
    DT_I32,
    DT_U32,
    DT_I64,
    DT_U64,
    DT_BOOL,
    DT_COUNT
};

size_t dtype_size(enum dtype t);              /* bytes per element, 0 for DT_NONE */
const char *dtype_name(enum dtype t);         /* "float32", "bfloat16", ... */
enum dtype dtype_from_name(const char *name); /* also "fp32", "bf16", "F32"; DT_NONE if unknown */

static inline float bf16_to_f32(uint16_t x)
{
    uint32_t u = (uint32_t)x << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t f32_to_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* Nearest e4m3 value, ties to even, saturating at 448; NaN stays. */
static inline float e4m3_round(float x)
{
    uint32_t u, sign;
    memcpy(&u, &x, sizeof u);
    sign = u & 0x80000000u;
    u ^= sign;
    if (u > 0x7f800000u)
        return x;
    float a;
    memcpy(&a, &u, sizeof a);
    float tiny = (a + 0x1p14f) - 0x1p14f; /* multiples of 2^-9 below 2^-6 */
    uint32_t r = (u + 0x7ffffu + (u >> 20 & 1)) & 0xfff00000u;
    if (r > 0x43e00000u)
        r = 0x43e00000u;
    if (a < 0x1p-6f)
        memcpy(&r, &tiny, sizeof r);
    r |= sign;
    memcpy(&x, &r, sizeof x);
    return x;
}

float f16_to_f32(uint16_t x);
uint16_t f32_to_f16(float f);

/* An integer or boolean as int64; of DT_U64 what is beyond 2^63 becomes negative. */
int64_t dtype_i64(enum dtype t, const void *p);
bool dtype_is_integer(enum dtype t); /* or boolean */

/* The unsigned number of n <= 8 bytes, low ones first. */
static inline uint64_t little_endian(const void *p, int64_t n)
{
    uint64_t x = 0;
    while (n > 0)
        x = x << 8 | ((const uint8_t *)p)[--n];
    return x;
}

/* Round a float to the grid of a narrower type and back (identity for DT_F32). */
float dtype_round(enum dtype t, float f);

/* n elements between `t` and float. Source and destination must not overlap. Supported types:
 * F32, BF16, F16, F64, I8, U8, I16, U16, I32 (exact where representable). Returns 0, or -1 for a
 * type that has no conversion. `src`/`dst` of type t may be unaligned. */
int dtype_to_f32(enum dtype t, const void *src, float *dst, int64_t n);
int dtype_from_f32(enum dtype t, const float *src, void *dst, int64_t n);
