/*
 * fakedenoiser.h - a device for video models (core/denoiser.h) made of the CPU's own building
 * blocks, in float32 whatever its shape says. A layer's rows come in two parts.
 */
#pragma once

#include "core/denoiser.h"

extern const struct denoiser_accel fake_denoiser;

extern int fake_denoisers;      /* that are open */
extern int fake_denoiser_timed; /* answers of `time`: 700 ns, of which products 500; attention 12000
                                 */
extern int fake_denoiser_fails; /* the layer, counted over all of them, that fails; -1 = none */
