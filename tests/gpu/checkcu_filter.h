/*
 * checkcu_filter.h - part of checkcu: attention with a filter on P V against its CPU model.
 */
#ifndef LACUNA_CHECKCU_FILTER_H
#define LACUNA_CHECKCU_FILTER_H

#include "cuda/device.h"
#include "tests/gpu/checkcu_choice.h"

#include <stdbool.h>
#include <stdint.h>

/* Kernels that are chosen. Nonzero when the GPU can no longer be used. */
int check_filters(struct gpu *g, struct cu_choice *choice, int64_t *checks, int64_t *failures);

#endif
