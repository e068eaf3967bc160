/*
 * budgetrun.h - the searches of a replay: which heads share a parameter, what a setting is worth on
 * them, and what was found.
 *
 * A search covers a group of cells:
 *   per=head    one cell; for a method that carries state over steps, all calls of the head
 *   per=layer   all heads and calls of a layer of the trace
 *   per=model   all heads and calls of the trace
 * Groups are those of the trace and not of --layers, --heads or --steps, because the records of a
 * cell must not depend on what else was replayed.
 */
#ifndef LACUNA_BUDGETRUN_H
#define LACUNA_BUDGETRUN_H

#include "sim/budgetsearch.h"
#include "sim/replay.h"

struct budget_book; /* what was found for groups of several cells */

/* Find the parameters of all groups with per=layer and per=model that have cells to do, on `jobs`
 * threads, and take over what r->records has from an earlier run. */
int budget_book_open(struct replay *r, int jobs, struct budget_book **out, struct err *err);
void budget_book_free(struct budget_book **book);

/* What a search found. */
struct budget_found {
    struct budget_answer answer;
    char *params;  /* owned text, "window=137"; NULL: the method skips these cells */
    char why[160]; /* it skips them, the first one's reason; "" where it has parameters */
};
void budget_found_free(struct budget_found *f);

/* Set *params, those of this head, to what was found for the group of a cell of run number k, and
 * describe the search in *found. `in` is the cell's head. */
int budget_resolve(struct replay *r, const struct series *s, int64_t k, const struct head_in *in,
                   void *params, struct budget_found *found, struct err *err);

/* Set *params to what a search on this head alone finds; a run whose target is per=head and whose
 * method keeps no state. Masks are chosen on the device, unless it is NULL. */
int budget_resolve_head(const struct method_run *run, const struct head_in *in,
                        const struct sim_device *device, uint64_t seed, void *params,
                        struct budget_found *found, struct err *err);

/* The search's numbers and notes. */
int budget_record(const struct budget_target *t, const struct budget_found *f, struct record *rec,
                  struct err *err);

#endif
