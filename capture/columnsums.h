/*
 * columnsums.h - what every key of a prompt gets of the exact softmax of all rows of the prompt,
 * per head, while a model runs (`col_sum` of doc/trace-format.md).
 */
#pragma once

#include "capture/trace/trace_tools.h"

/* Of one layer at a time. */
struct column_sums {
    const struct head_select *heads; /* borrowed: whose sums are wanted */
    struct trace_shape keys;         /* of the model: heads, tokens of the prompt, dim; the type in
                                      * which a trace stores q and k */
    double scale;
    float *k;    /* [kv heads of the model][prompt][d], owned */
    double *sum; /* [heads->n][prompt], owned */
};
int column_sums_init(struct column_sums *c, const struct head_select *heads,
                     struct trace_shape keys, double scale, struct err *err);
void column_sums_free(struct column_sums *c);

/* The rows [t0, t0 + n) of the layer, which begins with t0 = 0: q [n][heads of the model * d] and k
 * [n][kv heads * d]. They are rounded as stored. `window` keys are seen by a row, 0 = all. */
int column_sums_add(struct column_sums *c, int64_t t0, int64_t n, const float *q, const float *k,
                    int64_t window, int jobs, struct err *err);

/* Into the open call of a trace. */
int column_sums_put(const struct column_sums *c, struct trace_writer *w, struct err *err);
