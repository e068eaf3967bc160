/*
 * svgclass.h - which of two masks reproduces a head better, judged on a few of its rows
 * (Sparse VideoGen, arXiv 2502.01776, section 4.1).
 */
#ifndef LACUNA_SVGCLASS_H
#define LACUNA_SVGCLASS_H

#include "core/method.h"
#include "sim/svgband.h"

#include <stdbool.h>
#include <stdint.h>

struct svg_class {
    double mse[2]; /* spatial, temporal: mean squared error over the rows and channels */
    bool temporal; /* the smaller one; a tie is spatial */
};

/* rows [n_rows] are query rows, repetitions counted; NULL: all rows of the head once. trial[0] is
 * the spatial mask, trial[1] the temporal one. A row without kept keys counts as output 0.
 * bf16 rounds scores, probabilities, outputs and errors as 16-bit tensors would be; otherwise the
 * precision is that of in->ops and golden rows are the head's dense output.
 * Cost: rows x (kept keys of both masks) x (d + dv), with bf16 rows x N x d more. */
int svg_classify(const struct head_in *in, const struct svg_band trial[2], const int64_t *rows,
                 int64_t n_rows, bool bf16, struct svg_class *out, struct err *err);

#endif
