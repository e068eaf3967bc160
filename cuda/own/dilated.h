/*
 * dilated.h - the kernels around the dense attention of dilated segments (dilated.c).
 */
#ifndef LACUNA_DILATED_H
#define LACUNA_DILATED_H

#include "cuda/linkage.h"

BEGIN_C

#include "core/ownrule.h"
#include "cuda/device.h"

#include <vector_types.h>

/* Rows of x [..][tokens][d] of bf16: row t of part i is token from[i].y + t step of head
 * from[i].x. out [parts][n][d]. */
struct dilated_gather {
    const void *x;
    void *out;
    const int2 *from;
    int64_t tokens, parts, n, step;
    int d;
};
int dilated_gather_launch(struct gpu *g, const struct dilated_gather *a, struct err *err);

/* One branch as the merge sees it. Place t of a segment of a head has the row base[head * segments
 * + segment] + t of out and lse. */
struct dilated_branch {
    int64_t w, r, segments;
    const int *phase;    /* [heads] */
    const int64_t *base; /* [heads][segments] */
    const float *zeros;  /* [heads][segments]: ln of the number of zero keys, -inf: none; NULL */
    const void *out;     /* bf16 [rows][d] */
    const float *lse;    /* [rows] */
};
struct dilated_merge {
    struct dilated_branch b[OWN_BRANCHES];
    int n, heads, d;
    int64_t nq, shift; /* row i is at position i + shift */
    void *out;         /* bf16 [heads][nq][d] */
    float *lse;        /* [heads][nq] */
};
int dilated_merge_launch(struct gpu *g, const struct dilated_merge *a, struct err *err);

END_C

#endif
