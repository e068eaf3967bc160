/*
 * params.h - canonical parameter texts ("M=64:tau=0.02@density_elem=0.3") taken apart.
 *
 * A target (core/budget.h) is one word at the end; its name is that of the metric with the '@', so
 * that "@density_elem" has the value "0.3".
 */
#pragma once

#include "core/buf.h"
#include "core/method.h"
#include "core/record.h"

#include <stdbool.h>

/* The next "key=value" or the target of *p, of *len characters, and *p moves behind it; NULL at the
 * end. */
const char *params_next(const char **p, size_t *len);

/* The value of a parameter: a pointer into the text, of params_value_len characters; NULL when the
 * parameter is not set there (its default holds). params may be NULL. */
const char *params_value(const char *params, const char *name);
size_t params_value_len(const char *value);

/* Append the text without one parameter. */
void params_without(const char *params, const char *name, struct buf *b);

/* The target of a parameter text, "" if it has none: "density_elem=0.3", without the '@'. */
const char *params_target(const char *params);

/* Append the value of a parameter that was in effect in a record: what a search found, what was
 * given, "calib" where a calibration may have a value of its own per head, the method's default.
 * false (nothing appended) where the method has no such parameter. */
bool record_param(const struct record *r, const char *name, struct buf *b);

/* The method of this name, of those that core/metricdef.h knows, and its flags; NULL, 0: another.
 */
const struct method *method_named(const char *name);
unsigned method_flags(const char *name);

/* Does the method bound the others (the oracles)? */
bool record_is_bound(const struct record *r);

/* Append the parameters of a record with the name of its calibration, if it has one, and the first
 * digits of its hash in place of the whole hash: "calib=mine#29c5:tau=0.9". */
void params_for_people(const struct record *r, struct buf *b);

/* Has a method that core/metricdef.h knows a parameter of this name, or `lacuna overlap` (a, b)? */
bool params_known(const char *name);
