/*
 * attn_filter.h - attention over block lists that skips P V of a tile if no row of it comes near
 * its running maximum: filter 2 of SpargeAttn (arXiv 2502.18137, section 3.4) in exact arithmetic.
 * The reference is tile_attn_rows (sim/blocks/tileattn.h).
 */
#ifndef LACUNA_ATTN_FILTER_H
#define LACUNA_ATTN_FILTER_H

#include "cuda/linkage.h"

BEGIN_C

#include "core/accel.h"
#include "cuda/attn/attn.h"

/* A kernel for lists of 64 x 128 or 128 x 64 blocks in which `scope` rows decide together. */
struct filter_kernel {
    struct attn_kernel kernel;
    int scope;
};
extern const struct filter_kernel filter_kernels[]; /* NULL-terminated by name */

/* The kernel for this filter; NULL with the reason if compute capability `sm` has none. */
const struct filter_kernel *filter_kernel_find(int d, int sm, const struct accel_filter *f,
                                               char why[160]);

/* Like attn_job_init, with a plan of attn_plan_filtered. Launch and free the job like any other.
 * Head h has the filter f[h % n]; they differ in `pv` alone. */
int filter_job_init(struct gpu *g, const struct attn_problem *p, const struct filter_kernel *kernel,
                    const struct attn_plan *plan, const struct accel_filter *f, int n,
                    const struct attn_tensors *x, struct attn_job *job, struct err *err);

/* After a launch: per head the number of tiles whose P V was computed; a tile counts with the share
 * of its scopes that computed it. tiles [heads]. */
int filter_tiles(struct gpu *g, const struct attn_job *job, const struct filter_kernel *kernel,
                 double *tiles, struct err *err);

END_C

#endif
