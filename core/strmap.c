/*
 * strmap.c - open addressing with linear probing, at most two thirds full; expected O(1).
 */
#include "core/strmap.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

void strmap_free(struct strmap *s)
{
    free(s->keys);
    free(s->values);
    memset(s, 0, sizeof *s);
}

/* Slot of the key, or the free slot where it belongs. cap > 0. */
static int64_t slot_of(const struct strmap *s, struct hash128 h)
{
    int64_t i = (int64_t)(h.lo & (uint64_t)(s->cap - 1));
    while (s->values[i] >= 0 && !hash_equal(s->keys[i], h))
        i = (i + 1) & (s->cap - 1);
    return i;
}

static int grow(struct strmap *s, struct err *err)
{
    int rc = 0;
    struct strmap bigger = {.n = s->n, .cap = s->cap ? 2 * s->cap : 64};
    TRY(mem_alloc(&bigger.keys, bigger.cap, sizeof *bigger.keys, "key set", err));
    TRY(mem_alloc(&bigger.values, bigger.cap, sizeof *bigger.values, "key set", err));
    for (int64_t i = 0; i < bigger.cap; i++)
        bigger.values[i] = -1;
    for (int64_t i = 0; i < s->cap; i++) {
        if (s->values[i] < 0)
            continue;
        int64_t at = slot_of(&bigger, s->keys[i]);
        bigger.keys[at] = s->keys[i];
        bigger.values[at] = s->values[i];
    }
    strmap_free(s);
    *s = bigger;
    return 0;
out:
    strmap_free(&bigger);
    return rc;
}

int64_t strmap_get(const struct strmap *s, const char *text)
{
    return s->cap ? s->values[slot_of(s, hash_bytes(text, strlen(text)))] : -1;
}

int strmap_put(struct strmap *s, const char *text, int64_t value, struct err *err)
{
    if (3 * (s->n + 1) > 2 * s->cap) {
        PASS_ON(grow(s, err));
    }
    struct hash128 h = hash_bytes(text, strlen(text));
    int64_t at = slot_of(s, h);
    s->n += s->values[at] < 0;
    s->keys[at] = h;
    s->values[at] = value;
    return 0;
}
