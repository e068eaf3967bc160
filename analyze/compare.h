/*
 * compare.h - two sets of records cell by cell.
 */
#pragma once

#include "analyze/load.h"
#include "analyze/table.h"

struct compare_opts {
    double rtol, atol;   /* equal iff |a - b| <= atol + rtol * max(|a|, |b|) */
    const char *ignore;  /* identity keys that may differ ("backend,trace"), NULL = none */
    const char *metrics; /* shell patterns of the metrics compared, NULL = all but those measured
                            (NOISE_MEASURED) */
    int64_t most;        /* rows of the table at most, 0 = all */
};

struct compare_result {
    int64_t cells, metrics;         /* compared */
    int64_t only_a, only_b;         /* cells of one side */
    int64_t status, reason, values; /* cells and metrics that differ */
    double worst_rel, worst_abs;    /* largest differences of metrics that both have */
};

/* Compare; every difference is a row of *out (columns: cell, what, a, b, difference, relative). */
int compare_sets(const struct recset *a, const struct recset *b, const struct compare_opts *o,
                 struct compare_result *res, struct table *out, struct err *err);

/* Number of differences. */
int64_t compare_differences(const struct compare_result *r);
