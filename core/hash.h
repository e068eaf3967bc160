/*
 * hash.h - XXH3-128 of data, as text "xxh3:<32 hex digits>".
 */
#pragma once

#include "core/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash128 {
    uint64_t hi, lo;
};

static inline bool hash_equal(struct hash128 a, struct hash128 b)
{
    return a.hi == b.hi && a.lo == b.lo;
}

#define HASH_TEXT_MAX 40

struct hash_state; /* streaming */

struct hash128 hash_bytes(const void *data, size_t len);
int hash_new(struct hash_state **out, struct err *err);
void hash_update(struct hash_state *s, const void *data, size_t len);
struct hash128 hash_digest(const struct hash_state *s);
void hash_free(struct hash_state *s); /* accepts NULL */
OWN_AT(hash_free, struct hash_state *)
void hash_text(struct hash128 h, char text[HASH_TEXT_MAX]);
