/*
 * greedy.h - list scheduling (Graham 1966): jobs in a given order, each to the worker that is free
 * first. A grid of thread blocks that draw their work from a counter does the same.
 */
#ifndef LACUNA_GREEDY_H
#define LACUNA_GREEDY_H

#include "core/err.h"

#include <stdint.h>

/* Give the next job, of this cost, to the worker that is free first. Returns the time at which the
 * job ends. free_at[workers] is the caller's: a binary heap, all zeros at the start. O(log
 * workers). */
int64_t greedy_place(int64_t *free_at, int workers, int64_t cost);

/* Find an order of jobs in which the last job ends earlier. As long as it helps, jobs move or
 * change places between the worker that ends last and another worker (0/1-interchange, Finn and
 * Horowitz 1979); only the last `tail` jobs take part. cost[n] >= 0 are the costs in the present
 * order; order[n] receives indices, the first n - tail unchanged; *end receives the time at which
 * the last job ends. The sum of the costs must be below 2^47, workers at most 2^16. ERR_NOMEM. */
int greedy_interchange(const int64_t *cost, int32_t n, int workers, int32_t tail, int32_t *order,
                       int64_t *end, struct err *err);

#endif
