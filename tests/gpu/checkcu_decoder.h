/*
 * checkcu_decoder.h - a language model's run on the GPU against the same run on the CPU.
 */
#ifndef LACUNA_CHECKCU_DECODER_H
#define LACUNA_CHECKCU_DECODER_H

#include "core/decoder.h"
#include "tests/gpu/checkcu_choice.h"

/* Random checkpoints of every family and type of weights, in a temporary directory; q, k, v of
 * every layer, pooled maps and likelihoods compared. Adds to the counts and prints a line. */
void check_decoder(const struct decoder_accel *device, struct cu_choice *choice, int64_t *n_checks,
                   int64_t *n_failures);

#endif
