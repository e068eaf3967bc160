/*
 * gguf_types.c - element types of GGUF files and what a block of each holds (ggml's block layouts).
 * Every value is a few operations in float32, in the order of ggml's own dequantisation.
 */
#include "core/gguf.h"

#define NUMBERS 32 /* of a block of the simple types */
#define SUPER 256  /* of the K types */

static float half(const uint8_t *p)
{
    return f16_to_f32((uint16_t)little_endian(p, 2));
}

/* Low nibbles of 16 bytes, then their high nibbles; bit i of `high` is bit 4 of number i. */
static int nibble(const uint8_t *q, uint32_t high, int i)
{
    return (i < 16 ? q[i] & 15 : q[i - 16] >> 4) | (int)(high >> i & 1) << 4;
}

static void q4_0(const uint8_t *b, float *out)
{
    float d = half(b);
    for (int i = 0; i < NUMBERS; i++)
        out[i] = d * (float)(nibble(b + 2, 0, i) - 8);
}

static void q4_1(const uint8_t *b, float *out)
{
    float d = half(b), m = half(b + 2);
    for (int i = 0; i < NUMBERS; i++)
        out[i] = d * (float)nibble(b + 4, 0, i) + m;
}

static void q5_0(const uint8_t *b, float *out)
{
    float d = half(b);
    uint32_t high = (uint32_t)little_endian(b + 2, 4);
    for (int i = 0; i < NUMBERS; i++)
        out[i] = d * (float)(nibble(b + 6, high, i) - 16);
}

static void q5_1(const uint8_t *b, float *out)
{
    float d = half(b), m = half(b + 2);
    uint32_t high = (uint32_t)little_endian(b + 4, 4);
    for (int i = 0; i < NUMBERS; i++)
        out[i] = d * (float)nibble(b + 8, high, i) + m;
}

static void q8_0(const uint8_t *b, float *out)
{
    float d = half(b);
    for (int i = 0; i < NUMBERS; i++)
        out[i] = d * (float)(int8_t)b[2 + i];
}

/* Scale and minimum of the 8 groups of 32, 6 bits each: s[0..3] and s[4..7] hold the first four of
 * both, and in their upper two bits those of the last four, whose lower bits are in s[8..11]. */
static void scale_min(const uint8_t *s, int group, int *scale, int *min)
{
    const uint8_t *low = s + 8 + group % 4, *high = s + group % 4;
    *scale = group < 4 ? high[0] & 63 : (low[0] & 15) | high[0] >> 6 << 4;
    *min = group < 4 ? high[4] & 63 : low[0] >> 4 | high[4] >> 6 << 4;
}

/* 64 numbers in 32 bytes: low nibbles, then high ones. `fifth` [32], or NULL: bit g of byte i is
 * bit 4 of number i of group g. */
static void k_groups(const uint8_t *b, const uint8_t *q, const uint8_t *fifth, float *out)
{
    for (int g = 0; g < SUPER / 32; g++, out += 32) {
        int scale, min;
        scale_min(b + 4, g, &scale, &min);
        float d = half(b) * (float)scale, m = half(b + 2) * (float)min;
        for (int i = 0; i < 32; i++) {
            int x = q[g / 2 * 32 + i] >> g % 2 * 4 & 15;
            out[i] = d * (float)(x | (fifth ? fifth[i] >> g & 1 : 0) << 4) - m;
        }
    }
}

static void q4_k(const uint8_t *b, float *out)
{
    k_groups(b, b + 16, NULL, out);
}

static void q5_k(const uint8_t *b, float *out)
{
    k_groups(b, b + 48, b + 16, out);
}

/* 128 lower nibbles, 64 bytes with 4 upper pairs of bits, 16 scales of 16 numbers, the scale of
 * all: of each half of the block, four runs of 32 numbers. */
static void q6_k(const uint8_t *b, float *out)
{
    for (int i = 0; i < SUPER; i++) {
        int side = i / 128, run = i % 128 / 32, at = i % 32;
        int low = b[side * 64 + run % 2 * 32 + at] >> run / 2 * 4 & 15;
        int high = b[128 + side * 32 + at] >> 2 * run & 3;
        float d = half(b + 208) * (float)(int8_t)b[192 + i / 16];
        out[i] = d * (float)((low | high << 4) - 32);
    }
}

/* Numbers of ggml_type; those without bytes are known by name only. */
static const struct gguf_type types[] = {
    {0, "F32", DT_F32, {1, 4, NULL}},
    {1, "F16", DT_F16, {1, 2, NULL}},
    {30, "BF16", DT_BF16, {1, 2, NULL}},
    {2, "Q4_0", DT_F32, {NUMBERS, 18, q4_0}},
    {3, "Q4_1", DT_F32, {NUMBERS, 20, q4_1}},
    {6, "Q5_0", DT_F32, {NUMBERS, 22, q5_0}},
    {7, "Q5_1", DT_F32, {NUMBERS, 24, q5_1}},
    {8, "Q8_0", DT_F32, {NUMBERS, 34, q8_0}},
    {12, "Q4_K", DT_F32, {SUPER, 144, q4_k}},
    {13, "Q5_K", DT_F32, {SUPER, 176, q5_k}},
    {14, "Q6_K", DT_F32, {SUPER, 210, q6_k}},
    {10, "Q2_K", DT_NONE, {0}},
    {11, "Q3_K", DT_NONE, {0}},
    {16, "IQ2_XXS", DT_NONE, {0}},
    {17, "IQ2_XS", DT_NONE, {0}},
    {18, "IQ3_XXS", DT_NONE, {0}},
    {19, "IQ1_S", DT_NONE, {0}},
    {20, "IQ4_NL", DT_NONE, {0}},
    {21, "IQ3_S", DT_NONE, {0}},
    {22, "IQ2_S", DT_NONE, {0}},
    {23, "IQ4_XS", DT_NONE, {0}},
    {29, "IQ1_M", DT_NONE, {0}},
    {34, "TQ1_0", DT_NONE, {0}},
    {35, "TQ2_0", DT_NONE, {0}},
    {39, "MXFP4", DT_NONE, {0}},
};

const struct gguf_type *gguf_type(uint32_t number)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].number == number)
            return &types[i];
    return NULL;
}
