/*
 * sale_quant.h - low-bit operands of SALE (arXiv:2505.24179, section 3.4).
 *
 * Everything starts from operands rounded to fp16 (the method's input type). The token means of Q
 * and K are subtracted; the rest is scaled to integers per group:
 *   Q: rows r and r + 8 of each 16-row tile, all channels;
 *   K: in each 32-key block the 8 keys with floor((t mod 8) / 2) = c, c = 0..3.
 * Tokens past n count as zero. The mean of Q comes back as one correction per key:
 *   (q' + qbar) . k' = q . k', and q . kbar is constant along a row.
 */
#ifndef LACUNA_SALE_QUANT_H
#define LACUNA_SALE_QUANT_H

#include "core/err.h"
#include "sim/blocks/quant.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define SALE_BQ 64
#define SALE_BK 32

struct sale_quant {
    int64_t n, npad;    /* tokens; rounded up to 64 */
    int d, levels;      /* largest integer: 7 (4 bit), 127 (8 bit), 0: no integers */
    float *qbar, *kbar; /* [d], values of fp16; owned like all arrays here */
    float *q;           /* [n][d] q rounded to fp16 */
    float *k;           /* [n][d] k' = fp16(k - kbar) */
    int8_t *qi;         /* [npad][d] */
    int8_t *ki;         /* [npad / 32][d][32], key t of a block at sale_lane(t) */
    float *sq;          /* [npad / 2], group sale_q_group(row), values of fp16 */
    float *sk;          /* [npad / 8], group sale_k_group(key), values of fp16 */
    float *corr;        /* [npad] in lane order: qbar . k' in units of 1/sk, fp16 with 4 bits */
};

/* q, k [n][d]. bits 4, 8, or 16 (no integers: q and k only). Release with sale_quant_free. */
int sale_quant_init(struct sale_quant *s, const float *q, const float *k, int64_t n, int d,
                    int bits, struct err *err);
void sale_quant_free(struct sale_quant *s);

/* Nearest fp16 value; overflow gives +-65504 instead of infinity, so that no product of two results
 * is a NaN. */
static inline float sale_fl16(float x)
{
    float r = f16_round(x);
    r = r > 65504.0f ? 65504.0f : r;
    return r < -65504.0f ? -65504.0f : r;
}

/* Round to nearest even integer, |x| < 2^22. */
static inline float sale_rne(float x)
{
    return (x + 12582912.0f) - 12582912.0f;
}

/* For a group with largest magnitude amax: the multiplier L / amax and the two stored scales. All
 * are 0 if amax = 0. */
struct sale_scale {
    float mul, sq, sk;
};

static inline int64_t sale_q_group(int64_t row)
{
    return row / 16 * 8 + row % 8;
}

static inline int64_t sale_k_group(int64_t key)
{
    return key / SALE_BK * 4 + key % 8 / 2;
}

/* Lane of key t of a 32-key block: i * 4 + group, i = 0..7. This order lets a vector loop take the
 * maxima of the four groups at once. */
static inline int sale_lane(int t)
{
    return (t / 8 * 2 + t % 2) * 4 + t % 8 / 2;
}

#endif
