/*
 * inside.h - replays held against runs of the model with the method inside: does a metric of the
 * cheap replay order settings as the expensive run does?
 *
 * A setting is a method with its parameters. Its replay value is the mean over records of scope
 * `head` of the same model, its in-model value the mean over records of scope `model`; what both
 * have is a point. Exact attention is left out: it is right in both by definition.
 */
#pragma once

#include "analyze/load.h"

struct inside_point {
    const struct record *first; /* a record of scope `model` of the setting */
    double replay, inside;
    int64_t n_replay, n_inside; /* records behind them */
};

/* Points of two metrics, in the order of model, method and parameters: *out is malloc'd, without
 * settings that lack one of the metrics. */
int inside_points(const struct recset *set, const char *replay, const char *inside,
                  struct inside_point **out, int64_t *n, struct err *err);

/* Fewest points of a rank correlation. */
#define INSIDE_LEAST 5

/* Spearman's rank correlation with average ranks; NAN below INSIDE_LEAST points, and where all
 * values of one side are equal. */
int inside_spearman(const struct inside_point *p, int64_t n, double *rho, struct err *err);
