/*
 * paper_rules.h - which records measure what a paper printed (paper.def), and what may be said of
 * the two numbers side by side.
 */
#ifndef LACUNA_PAPER_RULES_H
#define LACUNA_PAPER_RULES_H

#include "core/record.h"

#include <stdbool.h>

/* One printed number: a line of datasets/paper/NAME.csv. */
struct printed {
    const char *paper, *table, *title, *row, *column, *value, *unit, *needs, *note;
};

/* What a rule of paper.def asks of records besides its patterns: MAP numbers belong to the trace
 * and not to a method; the LENGTH, the LAYER or the token order (PERMUTE) must be that of the
 * printed row. */
enum paper_flags { MAP = 1, LENGTH = 2, LAYER = 4, PERMUTE = 8 };

/* What is taken over the heads. */
enum spread { SPREAD_MEAN, SPREAD_MIN, SPREAD_MAX };

struct paper_rule {
    const char *paper, *table, *row, *column, *metric, *method, *params;
    enum spread spread;
    unsigned flags;
};

/* Which records a printed number is compared with: the context of paper_wants. */
struct wanted {
    const struct paper_rule *rule;
    const char *model;     /* pattern, NULL = the paper does not say */
    int causal;            /* 1, 0, or -1 = any */
    int layer;             /* -1 = any */
    int64_t n_low, n_high; /* tokens that the paper names; 0, 0 = none */
    const char *order;     /* NULL = any */
};

/* The first rule for a number that traces or kernels can measure again; NULL: there is none. */
const struct paper_rule *paper_rule_find(const struct printed *p);

/* What its row, column and title, in this order, say of model, length, layer and token order. */
struct wanted paper_want(const struct printed *p, const struct paper_rule *rule);

/* Filter of grouping_make: does an ok record measure the quantity of w (struct wanted)? */
bool paper_wants(const void *w, const struct record *r);

/* Conditions on canonical parameters, separated by spaces, which must all hold: NAME=PATTERN, a
 * shell pattern over the value of a parameter that is set; '!' negates, '|' separates alternatives.
 */
bool paper_params_match(const char *conditions, const char *params);

/* The token order of a record: its method's own, or the replay's. A pointer into the record, of
 * *len characters. */
const char *paper_order(const struct record *r, size_t *len);

/* A number is judged ("agrees" within PAPER_RTOL, "differs") only when the records come from the
 * model that the paper names at the length that it names, if it names one, and times only when
 * measured on the machine, which records do not prove. */
const char *paper_verdict(const struct printed *p, const struct wanted *w, const struct record *r,
                          double ours, double printed);

#endif
