/*
 * metricdef.h - what is known of every metric: the one place for its unit, direction and axis.
 */
#pragma once

/* Every pair kept with a larger relative error than this is not dense attention: weights, skipped
 * products or operands of fewer bits make the difference. Exact attention of bf16 operands is below
 * it. */
#define DENSE_ERROR 5e-3

#include <stdbool.h>

/* Which direction is the better one; BETTER_NEITHER for counts and settings. */
enum metric_better { BETTER_NEITHER, BETTER_HIGHER, BETTER_LOWER };

/* Axis of a figure: plain, for a share that ends at 1, or logarithmic. */
enum metric_axis { AXIS_PLAIN, AXIS_SHARE, AXIS_LOG };

/* What has one value: a query head, or a kv head, whose query heads all repeat that value. */
enum metric_per { PER_HEAD, PER_KV_HEAD };

/* Why two runs of the same cell may differ:
 *   NOISE_NONE      they do not: a count, or a quotient of counts
 *   NOISE_ROUNDING  sums of floats in another order
 *   NOISE_MEASURED  a time, a counter, or how often it was measured: a matter of the machine */
enum metric_noise { NOISE_NONE, NOISE_ROUNDING, NOISE_MEASURED };

struct metric_def {
    const char *name;
    const char *section;        /* of lists: "density", "recall", ...; a method's own have none */
    const char *head;           /* of a narrow column, at most 12 characters; NULL: the name */
    const char *label;          /* of an axis, for people; NULL: the name */
    bool yes_no;                /* 0 or 1 of each prompt: a mean is a share, with an interval */
    bool percent;               /* a share that people read in percent */
    const char *unit;           /* as recorded; "1" = a pure number */
    const char *denominator;    /* what a share is a share of, shown in place of "1"; or NULL */
    const char *denominator_at; /* the same where the name has a size after '@'; NULL: no other */
    enum metric_better better;
    enum metric_axis axis;
    enum metric_per per;
    enum metric_noise noise;
    double level;       /* what a name without '@' stands for (below_b64 is below_b64@0.5), or 0 */
    const char *method; /* in core/metrics.def: the only method that records it; NULL: any */
    const char *definition;
};

/* What a method records beside the table, in a unit or as a pure number; more members may follow
 * the definition: OWN_METRIC("dead_rows", "rows without a key", .better = BETTER_LOWER). */
#define OWN_METRIC_IN(of, id, ...)                                                                 \
    {                                                                                              \
        .name = id, .unit = of, .definition = __VA_ARGS__                                          \
    }
#define OWN_METRIC(...) OWN_METRIC_IN("1", __VA_ARGS__)

extern const struct metric_def metric_defs[]; /* the last entry's name is NULL */

/* The methods whose own metrics metric_def_find knows beside the table; app_run sets them before a
 * command starts. NULL: none. */
struct method;
void metric_def_methods(const struct method *const *methods);

/* Those methods, NULL-terminated; NULL: none. */
const struct method *const *metric_def_known_methods(void);

/* Definition of a recorded name: "density_tile@128x64" is found as "density_tile", and so are
 * "cra_min~" and "cra_mean~se" of a sample of rows. Methods
 * that have an own metric of the same name agree in all but its text. NULL if there is none. */
const struct metric_def *metric_def_find(const char *name);

/* Level of a recorded name: the number after '@', else that of its definition, else NAN. */
double metric_level(const char *name);
