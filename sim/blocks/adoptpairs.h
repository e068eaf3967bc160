/*
 * adoptpairs.h - `adopt` of methods whose mask is the same wherever it is made, pair by pair.
 */
#ifndef LACUNA_ADOPTPAIRS_H
#define LACUNA_ADOPTPAIRS_H

#include "core/accel.h"
#include "core/mask.h"

/* ERR_RUN for units of more than a pair. */
static inline int adopt_pairs(void *state, const struct mask *m, const struct accel_own *own,
                              struct err *err)
{
    (void)state;
    (void)own;
    return m->bq == 1 && m->bk == 1 ? 0 : err_set(err, ERR_RUN, "a choice in units, not in pairs");
}

#endif
