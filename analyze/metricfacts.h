/*
 * metricfacts.h - what tables, figures and comparisons must know of a metric, out of its definition
 * (core/metrics.def).
 *
 * Names are those of records, or expressions of them ("1-density_elem", "time_select_ns/
 * time_dense_ns", see record_value). The facts of an expression are those of its first metric, and
 * "1-" turns its direction round; an expression has no unit. A name without a definition is a plain
 * number that is the better the lower it is.
 */
#pragma once

#include "analyze/stats.h"
#include "core/buf.h"
#include "core/metricdef.h"

#include <stdbool.h>

enum metric_better metric_better(const char *name);
enum metric_axis metric_axis(const char *name);
enum metric_per metric_per(const char *name);
enum metric_noise metric_noise(const char *name);

/* Head of a narrow column (the name where a size or level makes it longer), name of an axis, and
 * whether people read it in percent. */
const char *metric_head(const char *name);
const char *metric_label(const char *name);
bool metric_percent(const char *name);

/* Is it a number of a whole prompt or text, such as an accuracy? Then means are what counts: the
 * median of right and wrong answers says nothing. */
bool metric_of_model(const char *name);

/* Is it 0 or 1 of each prompt, so that a mean is a share with an interval (stats_wilson)? */
bool metric_yes_no(const char *name);

/* Is it a time on a GPU or made of such? Records of calls and of heads both have these, and a set's
 * calls go before its heads. */
bool metric_timed(const char *name);

/* The worst of its values: the largest of an error, the smallest of a recall. */
double metric_worst(const char *name, const struct stats *s);

/* Unit of a metric for people: of a density and a share the denominator. */
const char *metric_unit(const char *name);

/* Factor and unit in which people read it (ns -> ms); returns the factor. */
double metric_scale(const char *name, const char **unit);

/* Its name for people: without "_ns" where that is not the unit they read. */
void metric_title(const char *name, struct buf *b);
