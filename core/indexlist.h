/*
 * indexlist.h - lists of layers, heads, steps or shards as users write them: "0,4-7" or "all".
 */
#pragma once

#include "core/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Sorted unique indices of 0..n-1 into *out (malloc'd) and *count. n < 0: no upper bound is known;
 * "all" then gives *out = NULL, *count = -1. `what` names the option in messages (ERR_USAGE). */
int index_list_parse(const char *text, int64_t n, const char *what, int64_t **out, int64_t *count,
                     struct err *err);

/* Is x in a list of index_list_parse? Always where n < 0, which means all. */
bool index_list_has(const int64_t *list, int64_t n, int64_t x);
