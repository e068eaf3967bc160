/*
 * benchcu_prefill.h - speed of a language model's run on the GPU, for benchcu.
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

/* Run the checkpoint in `dir` over the first n tokens of a prompt, `samples` times after a run that
 * does not count, and print medians of the device time without and with the loss of all tokens
 * (core/decoder.h: reading weights and handing out are not in it). */
int bench_prefill(const char *dir, const char *prompt, int64_t n, int samples, struct err *err);
