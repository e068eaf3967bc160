/*
 * budgetsearch.h - the value of a budget parameter with which a metric meets a target: the search,
 * and the searches of a replay.
 *
 * The search knows numbers only: a value is asked for by its number, from the one that keeps least
 * to the one that keeps most. Bisection and straight lines take turns, at most BUDGET_EVALS
 * evaluations. Where two of them contradict the direction in which the metric should move, it
 * evaluates BUDGET_EVALS values spread over the range instead.
 *
 * A search of a replay covers a group of cells:
 *   per=head    one cell; for a method that carries state over steps, all calls of the head
 *   per=layer   all heads and calls of a layer of the trace
 *   per=model   all heads and calls of the trace
 * Groups are those of the trace and not of --layers, --heads or --steps, because the records of a
 * cell must not depend on what else was replayed.
 */
#pragma once

#include "core/budget.h"
#include "core/method_run.h"
#include "core/record.h"

#include <stdbool.h>
#include <stdint.h>

#define BUDGET_EVALS 24

/* A target is met within this share of it. */
#define BUDGET_TOLERANCE 0.02

/* Value `at` of `count`: the metric, and what the setting costs (density_exec, else density_elem).
 */
typedef int budget_eval_fn(void *ctx, int64_t at, double *value, double *cost, struct err *err);

struct budget_question {
    int64_t count, start; /* values; where to begin */
    bool whole;           /* counts: look for the nearest one, and not just for a near one */
    enum target_kind kind;
    double target;
    int direction; /* budget_direction of the metric */
    budget_eval_fn *eval;
    void *ctx;
};

enum budget_end {
    BUDGET_MET,
    BUDGET_COARSE, /* the values on both sides of the target miss it */
    BUDGET_RANGE,  /* the whole range lies on one side of the target */
    BUDGET_ENDS,
};

/* Note in a record how many of its heads' searches ended how. */
void budget_note_heads(struct record *r, const int64_t heads[BUDGET_ENDS]);

/* Does the record's note say that a target was missed? */
bool budget_missed(const struct record *r);

struct budget_answer {
    int64_t at;
    double value; /* of the metric there */
    int evals;
    enum budget_end end;
    double next;  /* of the metric on the other side of the target; NAN: nothing is there */
    bool scanned; /* the metric contradicted its direction */
};

/* TARGET_HIT: the nearest value. With a bound: of the values that satisfy it the cheapest where
 * more has to be kept for it, the dearest where less; of equal cost the one that is next to the
 * bound. What keeps the target out of reach leaves the value next to the start. */
int budget_search(const struct budget_question *q, struct budget_answer *a, struct err *err);

/* ---- in a replay ------------------------------------------------------------------------------
 */

struct replay;
struct series;
struct sim_device;
struct budget_book; /* what was found for groups of several cells */

/* Find the parameters of all groups with per=layer and per=model that have cells to do, on `jobs`
 * threads. */
int budget_book_open(struct replay *r, int jobs, struct budget_book **out, struct err *err);
void budget_book_free(struct budget_book **book);

/* What a search found. */
struct budget_found {
    struct budget_answer answer;
    char params[160]; /* "window=137"; "": the method skips these cells */
    char why[160];    /* it skips them, the first one's reason; "" where it has parameters */
};

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
