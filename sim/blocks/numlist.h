/*
 * numlist.h - lists of numbers inside one method parameter. Commas separate the values of a sweep,
 * so a list that is one value has plus signs: "0.1+0.25+0.5".
 */
#pragma once

#include "core/err.h"

#include <stdint.h>

/* Parse at most `most` numbers, all > `above`; *n is their count. Otherwise ERR_USAGE that names
 * `what`. */
int num_list_parse(const char *text, const char *what, double above, double *out, int most, int *n,
                   struct err *err);

/* The same for whole numbers. */
int int_list_parse(const char *text, const char *what, int64_t above, int64_t *out, int most,
                   int *n, struct err *err);
