/*
 * checkcu_maps.h - tiles that the GPU makes of masks that lie there.
 */
#ifndef LACUNA_CHECKCU_MAPS_H
#define LACUNA_CHECKCU_MAPS_H

#include "cuda/device.h"
#include "tests/gpu/checkcu_choice.h"

/* Random maps of many units and patterns against the host's tiles. True: the GPU is lost. */
bool check_maps(struct gpu *g, const struct cu_choice *choice, int64_t *n_checks,
                int64_t *n_failures);

#endif
