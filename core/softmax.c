/*
 * softmax.c - see attention.h; the loops are in softmax_kernel.inc.
 */
#include "core/attention.h"

#include "core/simd.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

void softmax_f64(double *z, int64_t n)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++)
        top = fmax(top, z[j]);
    for (int64_t j = 0; j < n; j++)
        sum += z[j] = exp(z[j] - top);
    for (int64_t j = 0; j < n; j++)
        z[j] /= sum;
}

#define LOG2E 1.4426950408889634
#define LN2 0.69314718055994530942

/* ---- float ---------------------------------------------------------------------------------- */
#define REAL float
#define SUF(name) name##_f32
#define EXP_BITS uint32_t
#define EXP_SHIFT 23
#define EXP_ONE 0x3f800000u
#define EXP_MAGIC 0x1.8p23f
#define EXP_MIN (-87.0f)
#define EXP2_MIN (-126.0f)
#define LN2_HI 0.693359375f
#define LN2_LO (-2.12194440e-4f)
/* clang-format off */
#define EXP_POLY(r)                                                                               \
    (1 + (r) * (1 + (r) * (1.0f / 2 + (r) * (1.0f / 6 + (r) * (1.0f / 24 + (r) * (1.0f / 120 +    \
     (r) * (1.0f / 720 + (r) * (1.0f / 5040))))))))
/* clang-format on */
#include "core/softmax_kernel.inc"
#undef REAL
#undef SUF
#undef EXP_BITS
#undef EXP_SHIFT
#undef EXP_ONE
#undef EXP_MAGIC
#undef EXP_MIN
#undef EXP2_MIN
#undef LN2_HI
#undef LN2_LO
#undef EXP_POLY

/* ---- double --------------------------------------------------------------------------------- */
#define REAL double
#define SUF(name) name##_f64
#define EXP_BITS uint64_t
#define EXP_SHIFT 52
#define EXP_ONE 0x3ff0000000000000ull
#define EXP_MAGIC 0x1.8p52
#define EXP_MIN (-708.0)
#define EXP2_MIN (-1022.0)
#define LN2_HI 6.93147180369123816490e-01
#define LN2_LO 1.90821492927058770002e-10
/* clang-format off */
#define EXP_HIGH(r)                                                                               \
    (1.0 / 5040 + (r) * (1.0 / 40320 + (r) * (1.0 / 362880 + (r) * (1.0 / 3628800 + (r) *         \
     (1.0 / 39916800 + (r) * (1.0 / 479001600 + (r) * (1.0 / 6227020800.0)))))))
#define EXP_POLY(r)                                                                               \
    (1 + (r) * (1 + (r) * (1.0 / 2 + (r) * (1.0 / 6 + (r) * (1.0 / 24 + (r) * (1.0 / 120 + (r) *  \
     (1.0 / 720 + (r) * EXP_HIGH(r))))))))
/* clang-format on */
#include "core/softmax_kernel.inc"
