/*
 * reorder.h - a head with its tokens in another order.
 */
#ifndef LACUNA_REORDER_H
#define LACUNA_REORDER_H

#include "sim/simhead.h"

#include <stdint.h>

/* Copy of a head with q, k, v in the token order `order` (permute.h). Dense rows of *h are moved
 * from in->exact, which has to outlive it, and not computed again. Needs a bidirectional head of a
 * video with nq = nk; otherwise ERR_USAGE. Release with sim_head_free. */
int sim_head_reorder(const struct head_in *in, const char *order, uint64_t seed, struct sim_head *h,
                     struct err *err);

#endif
