/*
 * added.h - numbers that a method adds to the outputs of attention, such as the difference that
 * Chipmunk stores (arXiv 2506.03275; the reference is `attend` of sim/methods/chipmunk/chipmunk.c).
 */
#ifndef LACUNA_ADDED_H
#define LACUNA_ADDED_H

#include "cuda/linkage.h"

BEGIN_C

#include "cuda/device.h"

/* Ready to be launched after each attention. Device memory comes from the arena and lives until its
 * release. */
struct added_job {
    void *out;        /* bf16 [heads][n] */
    float *added;     /* [parts][n], as the outputs are divided */
    int64_t n;        /* numbers of a head, a multiple of 8 */
    int heads, parts; /* head h gets part h % parts */
};

/* Upload added [parts][n], of which part i is divided by 2^exp[i]; rounded once, when it has been
 * added in float. */
int added_init(struct gpu *g, const float *const *added, const int *exp, int parts, int64_t n,
               struct added_job *job, struct err *err);
int added_launch(struct gpu *g, const struct added_job *job, struct err *err);

END_C

#endif
