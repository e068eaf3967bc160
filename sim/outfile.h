/*
 * outfile.h - dumped outputs (HDF5): per cell the method's output rows (float32) and log-sum-exp
 * (float64). doc/trace-format.md describes the layout.
 */
#ifndef LACUNA_OUTFILE_H
#define LACUNA_OUTFILE_H

#include "core/record.h"

#include <stdint.h>

struct outfile;

/* Create path.part; outfile_commit renames it. */
int outfile_create(const char *path, bool force, struct outfile **out, struct err *err);

/* Store rows [row0, row1) of the cell r, which has r->n_q rows: out [row1-row0][dv], lse
 * [row1-row0]. Thread-safe. */
int outfile_put(struct outfile *f, const struct record *r, int64_t dv, int64_t row0, int64_t row1,
                const double *out, const double *lse, struct err *err);

int outfile_commit(struct outfile **f, struct err *err);
void outfile_abort(struct outfile **f); /* accepts NULL */

#endif
