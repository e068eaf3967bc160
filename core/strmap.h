/*
 * strmap.h - a map from texts to numbers, keyed by the XXH3-128 of the text. Texts with equal
 * hashes count as equal; with 10^9 keys the chance of a collision is 1e-21.
 */
#pragma once

#include "core/err.h"
#include "core/hash.h"

#include <stdint.h>

struct strmap {
    struct hash128 *keys; /* owned, [cap] */
    int64_t *values;      /* owned, [cap], -1 = free slot */
    int64_t n, cap;       /* cap is 0 or a power of two */
};

void strmap_free(struct strmap *s);

/* The number of a text, -1 if it is not in the map. */
int64_t strmap_get(const struct strmap *s, const char *text);

/* Store value (>= 0) for the text, replacing an older one. */
int strmap_put(struct strmap *s, const char *text, int64_t value, struct err *err);
