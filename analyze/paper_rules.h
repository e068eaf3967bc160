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

/* A model that the papers measure, as its public configuration describes it. */
struct paper_model {
    const char *printed;  /* its name in the papers */
    const char *name;     /* shell pattern over the trace's model, any case */
    bool text;            /* causal language model, else bidirectional */
    int layers, heads, d; /* query heads of a layer, head dimension; 0 = not known */
    int64_t n;            /* tokens of its only length; 0 = as printed */
    const char *bounds;   /* options of SpargeAttn's search, NULL = the paper gives none */
};

/* What the paper says of the conditions of a printed number, beside model and length. */
struct paper_stated {
    const char *paper, *table, *row, *column; /* as in struct paper_rule */
    const char *settings;                     /* parameters without calib= and permute= */
    const char *missing;                      /* what it does not say; "" = nothing */
};

/* Which records a printed number is compared with: the context of paper_wants. */
struct wanted {
    const struct paper_rule *rule;
    const struct paper_model *model;   /* NULL = the paper does not say */
    const struct paper_stated *stated; /* never NULL */
    int causal;                        /* 1, 0, or -1 = any */
    int layer;                         /* -1 = any */
    double k_low, k_high;              /* printed length in thousands; 0, 0 = none */
    const char *order;                 /* NULL = any */
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

/* Is the trace named like the model of the paper? A name alone proves nothing. */
bool paper_names(const struct paper_model *m, const struct record *r);

#endif
