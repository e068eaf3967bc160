/*
 * keysets.h - sets of keys as ascending disjoint spans of positions, one set per step.
 */
#pragma once

#include "core/err.h"
#include "core/mask.h"

#include <stdint.h>

/* One set: n spans. Views. */
struct keyset {
    const struct span *s;
    int64_t n;
};

/* The sets of the steps 0 .. n - 1. Zeroed: none. */
struct keysets {
    struct span *s; /* owned, as `end` */
    int64_t cap, n, cap_end;
    int64_t *end; /* [n]: one past the last span of each */
};

void keysets_free(struct keysets *k);
static inline void keysets_clear(struct keysets *k)
{
    k->n = 0;
}

static inline struct keyset keysets_at(const struct keysets *k, int64_t i)
{
    int64_t first = i ? k->end[i - 1] : 0;
    return (struct keyset){k->s + first, k->end[i] - first};
}

/* Append a set: spans, or positions. */
int keysets_add(struct keysets *k, const struct span *s, int64_t n, struct err *err);
int keysets_add_positions(struct keysets *k, const int32_t *at, int64_t n, struct err *err);

int64_t keyset_size(struct keyset a);
int64_t keyset_common(struct keyset a, struct keyset b); /* keys of both */

/* Keys of the range [lo, hi) in ascending order: those of the set, or those outside of it. Write
 * their positions to at and return their number. */
int64_t keyset_list(struct keyset a, int64_t lo, int64_t hi, bool outside, int32_t *at);
