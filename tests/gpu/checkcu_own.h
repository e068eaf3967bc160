/*
 * checkcu_own.h - attention in the methods' own arithmetic (cuda/own/) against their CPU side.
 */
#ifndef LACUNA_CHECKCU_OWN_H
#define LACUNA_CHECKCU_OWN_H

#include "core/accel.h"
#include "tests/gpu/checkcu_choice.h"

#include <stdint.h>

/* Outputs and log-sum-exps of every row; the choice is by the method's name. Adds to the counters
 * and prints a line per setting. */
void check_own(const struct accel *a, struct cu_choice *choice, int64_t *checks, int64_t *failures);

#endif
