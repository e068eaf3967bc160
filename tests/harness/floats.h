/*
 * floats.h - arrays of floats for devices made of the CPU's own building blocks, and what they give
 * beside the CPU.
 */
#pragma once

#include "core/decoder.h"
#include "core/dtype.h"
#include "tests/harness/suite.h"

#include <math.h>

static inline float *room(int64_t n)
{
    float *x = calloc((size_t)n, sizeof *x);
    ck_assert_ptr_nonnull(x);
    return x;
}

/* A tensor as float, to be freed; NULL for none. */
static inline float *wide(const struct decoder_tensor *t)
{
    float *x = t->data ? room(t->rows * t->cols) : NULL;
    for (int64_t i = 0; x && i < t->rows * t->cols; i++)
        x[i] = t->dtype == DT_F32    ? ((const float *)t->data)[i]
               : t->dtype == DT_BF16 ? bf16_to_f32(((const uint16_t *)t->data)[i])
                                     : f16_to_f32(((const uint16_t *)t->data)[i]);
    return x;
}

static inline void check_same(const char *what, const float *x, const float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabs((double)x[i] - y[i]) <= 2e-5 * (1 + fabs((double)y[i])),
                      "%s[%zu] = %g on the device, %g on the CPU", what, i, x[i], y[i]);
}
