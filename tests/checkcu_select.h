/*
 * checkcu_select.h - GPU selections against the CPU's.
 */
#ifndef LACUNA_CHECKCU_SELECT_H
#define LACUNA_CHECKCU_SELECT_H

#include "cuda/device.h"

#include <stdbool.h>
#include <stdint.h>

/* Settings whose text contains `only`; adds to the counters. Nonzero when the GPU is lost. */
int check_selections(struct gpu *g, const char *only, bool small, int64_t *checks,
                     int64_t *failures);

#endif
