/*
 * checkcu_select.h - GPU selections against the CPU's.
 */
#ifndef LACUNA_CHECKCU_SELECT_H
#define LACUNA_CHECKCU_SELECT_H

#include "cuda/device.h"
#include "tests/gpu/checkcu_choice.h"

#include <stdbool.h>
#include <stdint.h>

/* Settings that are chosen; adds to the counters. Nonzero when the GPU is lost. */
int check_selections(struct gpu *g, struct cu_choice *choice, int64_t *checks, int64_t *failures);

#endif
