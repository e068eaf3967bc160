/*
 * query.h - questions to a set of records: which ones, and what number each of them has. group.h
 * takes them together.
 *
 * A metric may be an expression: +, -, *, / and parentheses over metrics and numbers, for instance
 * "1-density_elem" or "100*(time_quant_ns+time_select_ns)/time_dense_ns".
 *
 * Conditions (--where of analyze, compare, choose and plot):
 *   KEY=V|V...   key or parameter (keys.h): shell patterns, numbers, or ranges a..b
 *   KEY!=V|V...  none of these
 *   METRIC<X, <=, >, >=, and KEY or parameter likewise, by its number
 * They are separated by commas; all have to hold. A record without the metric, or whose parameter
 * is no number, fails a comparison.
 */
#pragma once

#include "analyze/keys.h"
#include "analyze/load.h"

/* ---- numbers of a record --------------------------------------------------------------------- */

#define EXPR_TERMS 12
#define EXPR_STEPS 32

/* An expression, to be asked of many records: it remembers where those of one list of names have
 * its metrics. */
struct expr {
    char name[EXPR_TERMS][METRIC_NAME]; /* of its metrics, as they stand in the text */
    int n;                              /* 0: the text is no expression */
    struct expr_step {
        char op; /* '+', '-', '*', '/' of the two numbers before; 'n' a number; 'm' a metric */
        double number;
        int metric;
    } step[EXPR_STEPS]; /* in the order in which a stack evaluates them */
    int n_steps;
    const struct metric_names *names; /* of the last record */
    int64_t at[EXPR_TERMS];
    bool has; /* those names are all there */
};

/* A text that is no expression is one that no record has. */
struct expr expr_parse(const char *text);

/* The value of one record; false: it lacks a metric. */
bool expr_value(struct expr *e, const struct record *r, double *out);

/* The value for these numbers [n] in the place of the metrics. */
double expr_of(const struct expr *e, const double *metrics);

/* The same once: NAN when absent. */
double record_value(const struct record *r, const char *metric);
bool record_has(const struct record *r, const char *metric);

/* Does an ok record of r[0..n) have the metric? */
bool any_has(const struct record *r, int64_t n, const char *metric);

/* Lists of names that were met lately: records of one list have the same metrics. */
struct lists_met {
    const struct metric_names *list[16];
    int next;
};

/* Is the record's list new? It is met then. */
bool list_is_new(struct lists_met *met, const struct record *r);

/* ---- names of metrics ------------------------------------------------------------------------ */

/* Does `name` match one of the comma-separated shell patterns? */
bool name_matches(const char *patterns, const char *name);

/* Names of all metrics of ok records that match the comma-separated shell patterns, in the order of
 * the patterns, then of first appearance. */
int recset_metrics(const struct recset *s, const char *patterns, struct str_list *out,
                   struct err *err);

/* Does every one of the comma-separated patterns match a metric of an ok record of a, or of b,
 * which may be NULL? ERR_USAGE names the first that does not; `option` is what the user gave it to.
 * A name with a typing error would otherwise be left out of the result, or make any two sets equal.
 */
int recset_check_metrics(const struct recset *a, const struct recset *b, const char *option,
                         const char *patterns, struct err *err);

/* ---- keys ------------------------------------------------------------------------------------ */

/* Does the key take more than one value over the set? */
bool recset_varies(const struct recset *s, enum group_key k);

/* The keys that are never averaged over (model, length, backend, ...), as far as they tell records
 * of the set apart: those that vary and are not implied by the ones before. */
int recset_scope(const struct recset *set, enum group_key keys[KEYS_MAX], int *n, struct err *err);

/* All keys of that kind. */
extern const enum group_key scope_keys[];
extern const int n_scope_keys;

bool has_key(const enum group_key *keys, int n, enum group_key k);

/* The order of two records by several keys, the first of them the slowest. */
int keys_compare(const struct record *a, const struct record *b, const enum group_key *keys, int n);

/* Do two records agree in all keys? */
bool same_keys(const struct record *a, const struct record *b, const enum group_key *keys, int n);

/* ---- conditions ------------------------------------------------------------------------------ */

/* Help text of the option, the same in every command. */
#define WHERE_HELP                                                                                 \
    "Only records for which all conditions hold: KEY=V|V, KEY!=V, KEY=1..3, tau<=0.01, "           \
    "cra_p1>0.9; keys, parameters, metrics. Repeatable."

enum relation { IS, IS_NOT, BELOW, AT_MOST, ABOVE, AT_LEAST };

struct condition {
    char text[192], name[64];
    enum relation relation;
    size_t values; /* of IS and IS_NOT: where they begin in text */
    double limit;  /* of the others */
    bool is_key;
    enum group_key key;
    struct expr metric;
};

/* The conditions of a text, at most `most`, which the user gave to `option`. ERR_USAGE for a bad
 * one.
 */
int where_parse(const char *option, const char *text, struct condition *out, int most, int *n,
                struct err *err);
bool where_holds(struct condition *c, int n, const struct record *r);

/* Keep the records for which all conditions of all texts hold. ERR_USAGE for a bad condition;
 * ERR_INPUT that names the condition after which nothing was left. */
int recset_where(const struct str_list *texts, struct recset *set, struct err *err);
