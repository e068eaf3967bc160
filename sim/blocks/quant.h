/*
 * quant.h - the integer and 8-bit float operands of SageAttention (arXiv 2410.02367, 2411.10958),
 * which SpargeAttn and SALE share.
 *
 * Q and K become integers with one scale per group of tokens. Three rounding rules are in use, and
 * five group geometries; V becomes e4m3 with one scale per channel, or fp16.
 */
#pragma once

#include "core/dtype.h"
#include "core/err.h"
#include "core/ownrule.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The rules of rounding (enum own_round), L = levels (127 or 7), x and amax in float:
 *   OWN_RHA_EPS  delta = amax/L + 1e-7      trunc(x/delta + 0.5 sgn x)    per thread; SpargeAttn
 *   OWN_RHA      delta = amax/L             the same                      SageAttention 1
 *   OWN_RNE      delta = max(amax, 1e-7)/L  rint(x (L/amax)), saturating  per warp; SALE
 * A group of zeros has integers 0 under every rule. */

/* Which tokens share a scale. `warp` = query rows of a warp tile, a divisor of `block`.
 * Keys have no warps: OWN_BY_WARP is OWN_BY_BLOCK there.
 *   OWN_BY_THREAD, queries: rows that are equal mod 8 inside a warp tile
 *   OWN_BY_THREAD, keys:    keys with equal floor((t mod 8)/2) inside a block
 */
struct quant_groups {
    enum own_gran gran;
    bool keys;
    int64_t block, warp;
};

/* Number of scales of n tokens, including those of tokens past n in the last block. */
int64_t quant_group_count(const struct quant_groups *g, int64_t n);
int64_t quant_group_of(const struct quant_groups *g, int64_t token);

/* The rules for one group and one value. */
float quant_delta(enum own_round r, int levels, float amax);
int32_t quant_value(enum own_round r, int levels, float amax, float x);

/* An integer matrix. Release with quant_free. */
struct quant {
    int64_t n;
    int d, levels;
    struct quant_groups groups;
    int64_t n_groups;
    int8_t *q;    /* [n][d], owned */
    float *amax;  /* [n_groups], 0 for groups without a token; owned */
    float *scale; /* [n_groups] delta, owned */
};

/* Quantise x [n][d] (finite values). */
int quant_int(struct quant *out, const float *x, int64_t n, int d, const struct quant_groups *g,
              int levels, enum own_round r, struct err *err);
void quant_free(struct quant *q); /* also of a zeroed one */

static inline float quant_scale_of(const struct quant *q, int64_t token)
{
    return q->scale[quant_group_of(&q->groups, token)];
}

/* V in e4m3: out [n][dv] holds the e4m3 values of v * (v_max / amax) as floats, scale [dv] holds
 * amax / v_max per channel; a channel of zeros has values and scale 0. */
void quant_channels_e4m3(const float *v, int64_t n, int dv, float v_max, float *out, float *scale);

/* Nearest fp16 value, ties to even, overflow to infinity; what dtype_round(DT_F16, x) gives, in a
 * form that vectorises. */
static inline float f16_round(float x)
{
    uint32_t u, sign;
    memcpy(&u, &x, sizeof u);
    sign = u & 0x80000000u;
    u ^= sign;
    if (u > 0x7f800000u)
        return x;
    float a;
    memcpy(&a, &u, sizeof a);
    float tiny = (a + 0.5f) - 0.5f; /* multiples of 2^-24 below 2^-14 */
    uint32_t r = (u + 0xfffu + (u >> 13 & 1)) & 0xffffe000u;
    if (r >= 0x47800000u)
        r = 0x7f800000u;
    if (a < 0x1p-14f)
        memcpy(&r, &tiny, sizeof r);
    r |= sign;
    memcpy(&x, &r, sizeof x);
    return x;
}

/* The same, but overflow gives +-65504, so that no product of two results is a NaN. */
static inline float f16_finite(float x)
{
    float r = f16_round(x);
    r = r > 65504.0f ? 65504.0f : r;
    return r < -65504.0f ? -65504.0f : r;
}

/* float without its low 10 mantissa bits: the 1+8+13-bit accumulator of Ada's and Hopper's 8-bit
 * float MMA (arXiv 2411.10958, section 3.4). */
static inline float fp22_cut(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    u &= ~0x3ffu;
    memcpy(&x, &u, sizeof x);
    return x;
}
