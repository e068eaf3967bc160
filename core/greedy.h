/*
 * greedy.h - list scheduling (Graham 1966): jobs in a given order, each to the worker that is free
 * first. What a grid of thread blocks does that draws its work from a counter.
 */
#ifndef LACUNA_GREEDY_H
#define LACUNA_GREEDY_H

#include <stdint.h>

/* Gives the next job, of this cost, to the worker that is free first; when it ends.
 * free_at[workers] is a binary heap, zeros at the start, and belongs to the caller. O(log workers).
 */
int64_t greedy_place(int64_t *free_at, int workers, int64_t cost);

#endif
