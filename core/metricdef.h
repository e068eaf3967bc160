/*
 * metricdef.h - the definitions of core/metrics.def as data.
 */
#ifndef LACUNA_METRICDEF_H
#define LACUNA_METRICDEF_H

struct metric_def {
    const char *name, *unit, *definition, *section;
};

extern const struct metric_def metric_defs[]; /* the last entry's name is NULL */

/* Definition of a recorded name: "density_tile@128x64" is found as "density_tile", "x_model" as
 * "x". NULL if there is none. */
const struct metric_def *metric_def_find(const char *name);

#endif
