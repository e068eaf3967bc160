/*
 * fill.h - random data generated on the GPU, for the large tensors of benchmarks and of the
 * measurement of ceilings (the highest speed that the GPU reaches).
 */
#ifndef LACUNA_FILL_H
#define LACUNA_FILL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "cuda/device.h"

/* n standard normal bf16 values, a pure function of (seed, index). */
int gpu_fill_normal(struct gpu *g, void *x, int64_t n, uint32_t seed, struct err *err);

#ifdef __cplusplus
}
#endif

#endif
