/*
 * checkcu_values.h - attention over values near the ends of float32's range, through the back end.
 */
#ifndef LACUNA_CHECKCU_VALUES_H
#define LACUNA_CHECKCU_VALUES_H

#include "core/accel.h"
#include "tests/gpu/checkcu_choice.h"

#include <stdint.h>

/* Outputs, log-sum-exps and metrics of dense attention, block lists and filters against the CPU;
 * the choice is by the name "values". Adds to the counters and prints a line. */
void check_values(const struct accel *a, const struct cu_choice *choice, int64_t *checks,
                  int64_t *failures);

#endif
