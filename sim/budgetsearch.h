/*
 * budgetsearch.h - the value of a budget parameter with which a metric meets a target.
 *
 * The search knows numbers only: a value is asked for by its number, from the one that keeps least
 * to the one that keeps most. Bisection and straight lines take turns, at most BUDGET_EVALS
 * evaluations. Where two of them contradict the direction in which the metric should move, it
 * evaluates BUDGET_EVALS values spread over the range instead.
 */
#ifndef LACUNA_BUDGETSEARCH_H
#define LACUNA_BUDGETSEARCH_H

#include "core/budget.h"
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

/* The record's note of how its search ended, or how many of its heads' searches ended how. */
void budget_note_end(struct record *r, enum budget_end end);
void budget_note_heads(struct record *r, const int64_t heads[BUDGET_ENDS]);

/* How the record's search ended; false where no note of one search says so. */
bool budget_end_of(const struct record *r, enum budget_end *end);

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

#endif
