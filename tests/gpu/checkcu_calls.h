/*
 * checkcu_calls.h - whole attention calls on the GPU against their heads one by one.
 */
#ifndef LACUNA_CHECKCU_CALLS_H
#define LACUNA_CHECKCU_CALLS_H

#include <stdint.h>

/* Every method on calls of 1, 3, 8 and 32 heads of each trace. Counts checks and failures. */
void check_calls(int n, char *const *paths, int64_t *n_checks, int64_t *n_failures);

#endif
