/*
 * svgclass.h - find out which of two masks reproduces a head better, on a few of its rows (Sparse
 * VideoGen, arXiv 2502.01776, section 4.1).
 */
#ifndef LACUNA_SVGCLASS_H
#define LACUNA_SVGCLASS_H

#include "core/method.h"
#include "sim/methods/svg1/svgband.h"

#include <stdbool.h>
#include <stdint.h>

struct svg_class {
    double mse[2]; /* spatial, temporal: mean squared error over the rows and channels */
    double pairs;  /* kept by the two masks in the rows, together */
    int64_t rows;
    bool temporal; /* the temporal error is smaller; a tie is spatial */
};

/* rows [n_rows] are query rows; a repeated row counts again; NULL = every row of the head once.
 * trial[0] is the spatial mask, trial[1] the temporal mask. A row without kept keys has output 0.
 * With bf16, scores, probabilities, outputs and errors are rounded as in 16-bit tensors; otherwise
 * the precision is that of in->exact, and the rows are compared with the head's dense output. Cost:
 * rows x (kept keys of both masks) x (d + dv); with bf16 another rows x N x d. */
int svg_classify(const struct head_in *in, const struct svg_band trial[2], const int64_t *rows,
                 int64_t n_rows, bool bf16, struct svg_class *out, struct err *err);

#endif
