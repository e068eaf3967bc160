/*
 * permute.h - token orders of a video: the order in which the tokens of a t x h x w box form the
 * sequence. doc/trace-format.md: the payload is in raster order, lin(t, y, x) = (t h + y) w + x.
 *
 *   none, row      t, y, x          column   t, x, y          time   y, x, t
 *   random         uniform permutation from the seed
 *   hilbert        generalised Hilbert curve of J. Cerveny (public algorithm), any box
 *   voxel:AxBxC    boxes of A x B x C tokens (t, y, x) in raster order, each in raster order, then
 *                  the tails t >= T', y >= H', x >= W' that no box covers
 *   tile:AxBxC     the same boxes, those at the ends of the grid cut off
 *
 * A permutation is perm[new] = old. Text tokens keep their places; only video tokens move.
 */
#pragma once

#include "core/err.h"
#include "core/method.h"

#include <stdint.h>

/* 0 if `name` is an order, otherwise ERR_USAGE with the possible values. */
int permute_check(const char *name, struct err *err);

/* perm [n] (owned by the caller, free) for a sequence of n tokens of geometry g. A sequence without
 * a video grid has only "none"; a geometry that does not add up to n tokens is ERR_INPUT. */
int permute_make(const char *name, const struct geometry *g, int64_t n, uint64_t seed,
                 int64_t **perm, struct err *err);

/* out[r] = x[perm[r]], rows of d floats or doubles. out must not overlap x. */
void permute_rows(const float *x, int64_t n, int64_t d, const int64_t *perm, float *out);
void permute_rows_f64(const double *x, int64_t n, int64_t d, const int64_t *perm, double *out);
