/*
 * tensormap.h - descriptors for TMA copies of tensors of 16-bit floats. They say bf16, which serves
 * float16 as well: a copy does not look at the values.
 */
#ifndef LACUNA_TENSORMAP_H
#define LACUNA_TENSORMAP_H

#include "cuda/linkage.h"

BEGIN_C

#include "core/err.h"

#include <cuda.h>
#include <stdint.h>

/* Boxes of 64 channels x `rows` tokens of x [heads][n][d], 128-byte swizzle; what lies outside the
 * tensor reads as zero. *map is 128-byte aligned. */
int tensor_map(CUtensorMap *map, const void *x, int d, int64_t n, int heads, int rows,
               struct err *err);

/* The same with boxes of `rows` tokens of `box_heads` heads, one head after the other. */
int tensor_map_heads(CUtensorMap *map, const void *x, int d, int64_t n, int heads, int rows,
                     int box_heads, struct err *err);

END_C

#endif
