/*
 * greedy.h - list scheduling (Graham 1966): jobs in a given order, each to the worker that is free
 * first. What a grid of thread blocks does that draws its work from a counter.
 */
#ifndef LACUNA_GREEDY_H
#define LACUNA_GREEDY_H

#include "core/err.h"

#include <stdint.h>

/* Gives the next job, of this cost, to the worker that is free first; when it ends.
 * free_at[workers] is a binary heap, zeros at the start, and belongs to the caller. O(log workers).
 */
int64_t greedy_place(int64_t *free_at, int workers, int64_t cost);

/* An order of jobs in which the last of them ends earlier: jobs change places, or move, between the
 * worker that ends last and another one as long as that helps (0/1-interchange, Finn and Horowitz
 * 1979); of each worker only what it begins among the last `tail` jobs. cost[n] >= 0 of the jobs in
 * the order they stand in; order[n], out: their indices, the first n - tail as they were. Costs of
 * all jobs together must be below 2^47, workers at most 2^16. *end: when the last job ends.
 * ERR_NOMEM. */
int greedy_interchange(const int64_t *cost, int32_t n, int workers, int32_t tail, int32_t *order,
                       int64_t *end, struct err *err);

#endif
