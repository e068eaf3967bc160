/*
 * keyset.h - a map from texts to numbers, keyed by the XXH3-128 of the text. Two texts are taken as
 * equal when their hashes are: with 10^9 keys the chance of a collision is 1e-21.
 */
#ifndef LACUNA_KEYSET_H
#define LACUNA_KEYSET_H

#include "core/err.h"
#include "core/hash.h"

#include <stdint.h>

struct keyset {
    struct hash128 *keys; /* owned, [cap] */
    int64_t *values;      /* owned, [cap], -1 = free slot */
    int64_t n, cap;       /* cap is 0 or a power of two */
};

void keyset_free(struct keyset *s);

/* The number of a text, -1 if it is not in the set. */
int64_t keyset_get(const struct keyset *s, const char *text);

/* Store value (>= 0) for the text, replacing an older one. */
int keyset_put(struct keyset *s, const char *text, int64_t value, struct err *err);

#endif
