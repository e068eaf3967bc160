/*
 * evidence.h - the records behind a page, chosen by conditions, and their statistics.
 *
 * The unit of every statistic is a (layer, query head) of a model, for numbers of the keys alone a
 * (layer, kv head), for times of whole calls a layer, for a method inside the model a prompt. Its
 * calls (denoising steps, branches, samples) are averaged first, because they are not independent
 * of each other. n is the number of units.
 */
#pragma once

#include "core/record.h"
#include "reproduce/jobplan.h"

struct proof {
    const struct record *r; /* owned by evidence.sets */
    int step;               /* index in plan.s */
};

struct evidence {
    const struct plan *plan;
    int recipe;
    struct proof *v; /* owned */
    int64_t n, cap;
    struct record_set {
        struct record *r;
        int64_t n;
    } * sets; /* owned: of each step */
    int n_sets;
};

/* Read the records of all finished replays of a recipe. Free `e` also after a failure. */
int evidence_load(const struct plan *p, int recipe, struct evidence *e, struct err *err);
void evidence_free(struct evidence *e);

/* Metrics that papers count and records have under other names: "score", the grade of a prompt,
 * whatever its task calls it; "time_quant_ns" = 0 of a timed call without that phase. */
int record_as_counted(struct record *r, struct err *err);

/* Does the record fulfil the conditions of a JSON object: keys of records (method, params, permute,
 * layer, head, step, branch, task, ...), variables of its step, and `case`, a name of the recipe's
 * cases? Values are shell patterns over texts; numbers are compared as numbers, lengths within 2 %;
 * "16K..48K" of lengths is a range, and "A|B" one of several. */
bool evidence_fits(const struct evidence *e, const struct proof *p, const json_t *where);

/* Append the text of a key of a record or of a variable of its step; false: there is no such key.
 */
bool evidence_key(const struct evidence *e, const struct proof *p, const char *key, struct buf *b);

/* Do two texts of a condition and of a value agree, of the variable or key of this name? */
bool value_fits(const char *key, const char *have, const char *want);

/* ---- statistics of values -------------------------------------------------------------------- */

#define CLAIM_MEMBERS 32

/* Values of the members of a claim: x[g] has n[g] units; paired: all members have the same units.
 */
struct claim_sample {
    double *x[CLAIM_MEMBERS], *w[CLAIM_MEMBERS]; /* w: weights of the units; NULL: all 1 */
    int64_t n[CLAIM_MEMBERS];
    int members;
    bool paired;
};

/* A number made of the means of the members. */
enum claim_stat {
    STAT_MEAN,       /* of the first member */
    STAT_DIFFERENCE, /* A - B, of four members A - B - (C - D) */
    STAT_RATIO,      /* A / B; of more members the geometric mean of each by the next */
    STAT_SPREAD,     /* largest - smallest */
    STAT_RANK,       /* Spearman's rho of the means with their order; at least 5 members */
    STAT_AT_EQUAL,   /* of y_B, x_B, y_1, x_1, y_2, x_2, ...: the curve of the points (x_i, y_i) at
                      * x_B, less y_B; NAN beyond its ends */
};

struct claim_estimate {
    double value, lo, hi; /* with a bootstrap interval of 95 % over units */
    double wide_hi;       /* the upper end at the level 1 - 0.05 / tests */
    int64_t n;            /* units */
};

/* The mean of a member over its units; NAN without one. */
double claim_mean(const struct claim_sample *s, int g);

/* `tests`: how many comparisons the claim makes. n = 0 where a member has no unit. Resamples
 * without a number, such as those beyond a curve, are taken to lie beyond both ends of the
 * interval, which is NAN where they are too many. */
int claim_estimate(const struct claim_sample *s, enum claim_stat stat, int tests,
                   struct claim_estimate *out, struct err *err);

/* ---- numbers of records ---------------------------------------------------------------------- */

/* Which records count. */
struct choice {
    int model;           /* plan.models */
    int job;             /* of the recipe, -1: any */
    const json_t *where; /* or NULL */
    const json_t *pairs; /* keep calls by the difference of two cases, or NULL */
};

/* The next record behind p that counts, NULL: the first; NULL behind the last. */
const struct proof *next_proof(const struct evidence *e, const struct choice *c,
                               const struct proof *p);

struct sample_stats {
    double value, sd, lo, hi; /* lo, hi: 95 % bootstrap interval over units */
    int64_t units, calls;
    const char *of; /* as in unit_values, or OF_CALIBRATION; NULL: no value */
};

/* What the units of a found setting are; its calls are the searches. */
#define OF_CALIBRATION "prompts of a calibration"

struct unit_values {
    const char *of; /* "heads", "layers", "prompts": what the units are */
    struct unit {
        int layer, head; /* head -1: the layer; layer -1: head is a prompt's number */
        double sum;
        int64_t calls;
        uint64_t task; /* of a prompt: its dataset or kind */
    } * u;             /* owned, by layer and head */
    int64_t n, calls;
};

/* Means per unit of an expression over metrics. */
int evidence_units(const struct evidence *e, const struct choice *c, const char *metric,
                   struct unit_values *out, struct err *err);

/* The unit at a place; NULL: none. */
struct unit *unit_at(const struct unit_values *v, int layer, int head);
double unit_mean(const struct unit *u); /* NAN for NULL */
/* Are the units the same, and with `values` their numbers? */
bool units_equal(const struct unit_values *a, const struct unit_values *b, bool values);
void unit_values_free(struct unit_values *v);

/* stat: "mean", "calls" (mean over calls, as "cases" are counted), "sum-over-layers" (the
 * expression over sums of unit means), "mean-over-tasks", "sum-over-tasks" (of the means of each
 * task), "largest" (of the units). units = 0: no value. */
int evidence_stat(const struct evidence *e, const struct choice *c, const char *metric,
                  const char *stat, struct sample_stats *out, struct err *err);

/* Does the metric belong to keys alone? */
bool metric_of_keys(const char *metric);
