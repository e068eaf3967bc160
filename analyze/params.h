/*
 * params.h - canonical parameter texts ("M=64:tau=0.02") taken apart.
 */
#ifndef LACUNA_PARAMS_H
#define LACUNA_PARAMS_H

#include "core/buf.h"

/* The next "key=value" of *p, of *len characters, and *p moves behind it; NULL at the end. */
const char *params_next(const char **p, size_t *len);

/* The value of a parameter: a pointer into the text that ends at ':' or at its end; NULL when the
 * parameter is not set there (its default holds). params may be NULL. */
const char *params_value(const char *params, const char *name);

/* Append the text without one parameter. */
void params_without(const char *params, const char *name, struct buf *b);

#endif
