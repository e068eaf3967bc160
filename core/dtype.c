/*
 * dtype.c - conversions between float and the stored element types.
 *
 * All scalar conversions are branch-free on the common path, so that the array loops vectorise.
 * They assume the default IEEE environment (round to nearest even, subnormals kept).
 */
#include "core/dtype.h"
#include "core/simd.h"

#include <strings.h>

static const struct {
    size_t size;
    const char *name, *brief, *st; /* numpy style, short form, safetensors */
} types[DT_COUNT] = {
    [DT_NONE] = {0, "none", "none", "none"},     [DT_F32] = {4, "float32", "fp32", "F32"},
    [DT_BF16] = {2, "bfloat16", "bf16", "BF16"}, [DT_F16] = {2, "float16", "fp16", "F16"},
    [DT_F64] = {8, "float64", "fp64", "F64"},    [DT_I8] = {1, "int8", "i8", "I8"},
    [DT_U8] = {1, "uint8", "u8", "U8"},          [DT_I16] = {2, "int16", "i16", "I16"},
    [DT_U16] = {2, "uint16", "u16", "U16"},      [DT_I32] = {4, "int32", "i32", "I32"},
    [DT_U32] = {4, "uint32", "u32", "U32"},      [DT_I64] = {8, "int64", "i64", "I64"},
    [DT_U64] = {8, "uint64", "u64", "U64"},      [DT_BOOL] = {1, "bool", "bool", "BOOL"},
};

size_t dtype_size(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? types[t].size : 0;
}

const char *dtype_name(enum dtype t)
{
    return (unsigned)t < DT_COUNT ? types[t].name : "unknown";
}

enum dtype dtype_from_name(const char *name)
{
    for (int t = DT_NONE + 1; t < DT_COUNT; t++)
        if (!strcasecmp(name, types[t].name) || !strcasecmp(name, types[t].brief) ||
            !strcasecmp(name, types[t].st))
            return (enum dtype)t;
    return DT_NONE;
}

bool dtype_is_integer(enum dtype t)
{
    return t >= DT_I8 && t < DT_COUNT;
}

int64_t dtype_i64(enum dtype t, const void *p)
{
    int size = (int)dtype_size(t), unused = size > 0 ? 64 - 8 * size : 0;
    bool is_signed = t == DT_I8 || t == DT_I16 || t == DT_I32 || t == DT_I64;
    uint64_t x = little_endian(p, size) << unused;
    return is_signed ? (int64_t)x >> unused : (int64_t)(x >> unused);
}

/* ---- scalars -------------------------------------------------------------------------------- */

static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float half_to_float(uint16_t x)
{
    uint32_t mag = (uint32_t)(x & 0x7fff) << 13;
    /* Exponents 1..30 are re-biased by 127 - 15. A subnormal is placed in the mantissa of 2^-14,
     * and the subtraction of 2^-14 normalises it exactly. */
    uint32_t normal = mag + (112u << 23);
    uint32_t small = float_bits(bits_float(mag | 113u << 23) - bits_float(113u << 23));
    uint32_t special = mag | 0x7f800000u;
    uint32_t r = mag < 1u << 23 ? small : mag >= 31u << 23 ? special : normal;
    return bits_float(r | (uint32_t)(x & 0x8000) << 16);
}

static inline uint16_t float_to_half(float f)
{
    uint32_t u = float_bits(f), a = u & 0x7fffffffu;
    /* Normal results: re-bias, round at bit 13; the carry runs into the exponent and gives infinity
     * from 65520 upwards. */
    uint32_t normal = (a - (112u << 23) + 0xfffu + (a >> 13 & 1)) >> 13;
    /* Below 2^-14 the addition of 1/2, whose last bit is worth 2^-24, rounds to the subnormal grid.
     */
    uint32_t small = float_bits(bits_float(a) + 0.5f) - 0x3f000000u;
    uint32_t special = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u;
    uint32_t r = a < 0x38800000u ? small : a >= 0x47800000u ? special : normal;
    return (uint16_t)(r | (u >> 16 & 0x8000u));
}

/* Nearest even integer as a double, saturated to [lo, hi], NaN as 0. */
static inline double to_int_range(float f, double lo, double hi)
{
    double x = f == f ? (double)f : 0.0;
    x = x < lo ? lo : x > hi ? hi : x;
    /* Adding 1.5 * 2^52 leaves no fraction bits: the sum is rounded to an integer. */
    return (x + 0x1.8p52) - 0x1.8p52;
}

static inline int8_t float_to_i8(float f)
{
    float x = f == f ? f : 0.0f;
    x = x < -128.0f ? -128.0f : x > 127.0f ? 127.0f : x;
    return (int8_t)(int)((x + 0x1.8p23f) - 0x1.8p23f);
}

float f16_to_f32(uint16_t x)
{
    return half_to_float(x);
}

uint16_t f32_to_f16(float f)
{
    return float_to_half(f);
}

float dtype_round(enum dtype t, float f)
{
    float r = f;
    union {
        uint64_t align;
        unsigned char bytes[8];
    } tmp;
    if (t != DT_F32 && dtype_from_f32(t, &f, tmp.bytes, 1) == 0)
        dtype_to_f32(t, tmp.bytes, &r, 1);
    return r;
}

/* ---- arrays --------------------------------------------------------------------------------- */

/* The inner loops have a constant length: gcc vectorises these at -O2, where a loop of unknown
 * length would stay scalar. Elements go through memcpy because the narrow side may be unaligned. */
enum { BLOCK = 32 };

#define WIDEN(fn, type, expr)                                                                      \
    SIMD_CLONES static void fn(const unsigned char *restrict src, float *restrict dst, int64_t n)  \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + BLOCK <= n; i += BLOCK)                                                         \
            for (int j = 0; j < BLOCK; j++) {                                                      \
                type x;                                                                            \
                memcpy(&x, src + (size_t)(i + j) * sizeof x, sizeof x);                            \
                dst[i + j] = (expr);                                                               \
            }                                                                                      \
        for (; i < n; i++) {                                                                       \
            type x;                                                                                \
            memcpy(&x, src + (size_t)i * sizeof x, sizeof x);                                      \
            dst[i] = (expr);                                                                       \
        }                                                                                          \
    }

#define NARROW(fn, type, expr)                                                                     \
    SIMD_CLONES static void fn(const float *restrict src, unsigned char *restrict dst, int64_t n)  \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        for (; i + BLOCK <= n; i += BLOCK)                                                         \
            for (int j = 0; j < BLOCK; j++) {                                                      \
                float f = src[i + j];                                                              \
                type x = (type)(expr);                                                             \
                memcpy(dst + (size_t)(i + j) * sizeof x, &x, sizeof x);                            \
            }                                                                                      \
        for (; i < n; i++) {                                                                       \
            float f = src[i];                                                                      \
            type x = (type)(expr);                                                                 \
            memcpy(dst + (size_t)i * sizeof x, &x, sizeof x);                                      \
        }                                                                                          \
    }

WIDEN(widen_bf16, uint16_t, bf16_to_f32(x))
WIDEN(widen_f16, uint16_t, half_to_float(x))
WIDEN(widen_f64, double, (float)x)
WIDEN(widen_i8, int8_t, (float)x)
WIDEN(widen_u8, uint8_t, (float)x)
WIDEN(widen_i16, int16_t, (float)x)
WIDEN(widen_u16, uint16_t, (float)x)
WIDEN(widen_i32, int32_t, (float)x)

NARROW(narrow_bf16, uint16_t, f32_to_bf16(f))
NARROW(narrow_f16, uint16_t, float_to_half(f))
NARROW(narrow_f64, double, f)
NARROW(narrow_i8, int8_t, float_to_i8(f))
NARROW(narrow_u8, uint8_t, to_int_range(f, 0.0, 255.0))
NARROW(narrow_i16, int16_t, to_int_range(f, -32768.0, 32767.0))
NARROW(narrow_u16, uint16_t, to_int_range(f, 0.0, 65535.0))
NARROW(narrow_i32, int32_t, to_int_range(f, -2147483648.0, 2147483647.0))

int dtype_to_f32(enum dtype t, const void *src, float *dst, int64_t n)
{
    static void (*const widen[DT_COUNT])(const unsigned char *restrict, float *restrict,
                                         int64_t) = {
        [DT_BF16] = widen_bf16, [DT_F16] = widen_f16, [DT_F64] = widen_f64, [DT_I8] = widen_i8,
        [DT_U8] = widen_u8,     [DT_I16] = widen_i16, [DT_U16] = widen_u16, [DT_I32] = widen_i32,
    };
    if (t == DT_F32) {
        if (n > 0)
            memcpy(dst, src, (size_t)n * sizeof *dst);
        return 0;
    }
    if ((unsigned)t >= DT_COUNT || !widen[t])
        return -1;
    widen[t](src, dst, n);
    return 0;
}

int dtype_from_f32(enum dtype t, const float *src, void *dst, int64_t n)
{
    static void (*const narrow[DT_COUNT])(const float *restrict, unsigned char *restrict,
                                          int64_t) = {
        [DT_BF16] = narrow_bf16, [DT_F16] = narrow_f16, [DT_F64] = narrow_f64,
        [DT_I8] = narrow_i8,     [DT_U8] = narrow_u8,   [DT_I16] = narrow_i16,
        [DT_U16] = narrow_u16,   [DT_I32] = narrow_i32,
    };
    if (t == DT_F32) {
        if (n > 0)
            memcpy(dst, src, (size_t)n * sizeof *src);
        return 0;
    }
    if ((unsigned)t >= DT_COUNT || !narrow[t])
        return -1;
    narrow[t](src, dst, n);
    return 0;
}
