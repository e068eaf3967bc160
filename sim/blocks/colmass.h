/*
 * colmass.h - attention mass per key, summed over rows of the exact map.
 */
#ifndef LACUNA_COLMASS_H
#define LACUNA_COLMASS_H

#include "core/method.h"

/* Add the probabilities of the rows [row0, row1) to mass [nk]. */
int column_mass(const struct head_in *in, int64_t row0, int64_t row1, double *mass,
                struct err *err);

#endif
