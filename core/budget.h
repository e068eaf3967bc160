/*
 * budget.h - equal budgets: "METHOD:key=value@density_elem=0.3" asks for the value of the method's
 * budget parameter with which a metric reaches a target.
 *
 * A method names its budget parameters in its own file (struct budget_param). This header has the
 * target, its text, and the way from a number to a parameter; the search is sim/budgetsearch.h.
 */
#pragma once

#include "core/buf.h"
#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

struct method;

/* In which steps a budget parameter is searched. */
enum budget_scale {
    BUDGET_COUNT,      /* whole numbers */
    BUDGET_LIN,        /* even steps */
    BUDGET_LOG,        /* even ratios */
    BUDGET_COMPLEMENT, /* even ratios of 1 - x, for shares of mass: those that matter are near 1 */
};

/* A parameter whose value decides how much a method keeps. */
struct budget_param {
    const char *params; /* its name; several, separated by spaces, take the same value */
    const char *only;   /* "select=cdf": it is the budget where all these OPT_ENUM parameters,
                         * separated by spaces, have one of these values ("a|b"); NULL: always */
    enum budget_scale scale;
    bool falls;    /* smaller values keep more */
    double lo, hi; /* range of the search; both 0: that of the option, counts up to N_k */
    int64_t step;  /* between two counts; 0 stands for 1 */
};

/* In place of `hi`: the number of keys. */
#define BUDGET_TOKENS (-1.0)

enum target_kind { TARGET_HIT, TARGET_AT_LEAST, TARGET_AT_MOST };

/* What shares one value of the parameter. */
enum target_per { TARGET_PER_HEAD, TARGET_PER_LAYER, TARGET_PER_MODEL };

struct budget_target {
    char metric[48];
    enum target_kind kind;
    double value;
    enum target_per per;
    const struct budget_param *of; /* once bound; of the method */
    char params[64];               /* once bound: those of of->params that the user did not give */
};

/* The '@' that begins the target of a method text, NULL without one. A path may hold '@' too: only
 * '@name=', '@name>=' and '@name<=' begin a target. */
const char *budget_find(const char *text);

/* Parse what follows the '@': METRIC=V[,V...][:per=head|layer|model], also with >= and <=. *list
 * [*n], owned by the caller, has one target per value. ERR_USAGE that begins with `who` for an
 * unknown metric (with the nearest), one that is no property of mask or output, or bad values. */
int budget_parse(const char *text, const char *who, struct budget_target **list, int64_t *n,
                 struct err *err);

/* Append "@density_elem=0.3" or "@cra_p1>=0.95:per=layer". */
void budget_text(const struct budget_target *t, struct buf *b);

/* Find what is searched: given[i] says that the user set parameter i of m->params.table, which then
 * stays as it is. A parameter that has no value yet gets one from the middle of its range, because
 * a method's check may demand one. ERR_USAGE if the method has no budget parameter here, or the
 * user set it. */
int budget_bind(struct budget_target *t, const struct method *m, void *params, const bool *given,
                struct err *err);

/* The values that are searched, for a head with nk keys: number `at` of `count`, from the one that
 * keeps least (0) to the one that keeps most (count - 1). */
struct budget_range {
    const struct budget_param *of;
    double lo, hi; /* values, lo <= hi */
    int64_t count, step;
};
int budget_range(const struct budget_target *t, const struct method *m, int64_t nk,
                 struct budget_range *r, struct err *err);

/* The number of the value that `params` has, or of the middle where it has none. */
int64_t budget_start(const struct budget_range *r, const struct budget_target *t,
                     const struct method *m, const void *params, int64_t nk);

/* Set the parameters to value number `at`, and append "window=137" to *found unless it is NULL. */
int budget_set(const struct budget_range *r, const struct budget_target *t, const struct method *m,
               int64_t at, void *params, struct buf *found, struct err *err);

/* Set parameters from a text that budget_set wrote. ERR_USAGE where they are not those of t. */
int budget_apply(const struct budget_target *t, const struct method *m, const char *found,
                 void *params, struct err *err);

/* +1 if a metric grows with what a mask keeps, -1 if it falls, 0 if that is not known. */
int budget_direction(const char *metric);

/* Do the counts of a mask alone decide this metric, whatever the attention over it? */
bool budget_needs_counts_only(const char *metric);
