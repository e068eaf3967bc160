/*
 * budgetrun_impl.h - the two halves of the searches of a replay: what a setting is worth on a group
 * of cells (budgetgroup.c), and which groups there are and what was found for them (budgetrun.c).
 */
#ifndef LACUNA_BUDGETRUN_IMPL_H
#define LACUNA_BUDGETRUN_IMPL_H

#include "sim/budgetrun.h"

/* The calls of one head in call order, which may pass a state on; of the name of a group layer and
 * head are -1 where it has all. */
struct budget_item {
    int layer, head;
    char branch[16]; /* "" = all */
};

/* The replay's device as searches use it, head by head; accel NULL: masks are chosen on the CPU. */
void budget_device(const struct replay *r, struct sim_device *out);

/* Search the parameters of run number k for the group `name` of a trace, on `jobs` threads. */
int budget_seek_group(struct replay *r, int64_t k, int trace, const struct budget_item *name,
                      int jobs, struct budget_found *f, struct err *err);

#endif
