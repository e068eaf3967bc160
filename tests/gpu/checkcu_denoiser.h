/*
 * checkcu_denoiser.h - a video model's evaluation on the GPU against the same on the CPU.
 */
#ifndef LACUNA_CHECKCU_DENOISER_H
#define LACUNA_CHECKCU_DENOISER_H

#include "core/denoiser.h"
#include "tests/gpu/checkcu_choice.h"

/* Random checkpoints, in a temporary directory; q, k, v of every layer, pooled maps and velocity
 * compared, and a second evaluation has to give the same bits. Adds to the counts and prints a line
 * each. */
void check_denoiser(const struct denoiser_accel *device, struct cu_choice *choice,
                    int64_t *n_checks, int64_t *n_failures);

#endif
