/*
 * twins.c - see twins.h. Rows are sorted by their hashes; of rows with the same hash the bytes
 * decide.
 */
#include "sim/blocks/twins.h"

#include "core/hash.h"
#include "core/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct hashed {
    uint64_t hash;
    int32_t row;
};

static int by_hash(const void *a, const void *b)
{
    const struct hashed *x = a, *y = b;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* h is sorted; rows of a hash stand together, the lowest in front. Returns whether any two rows
 * are equal. */
static bool pair_up(const struct hashed *h, const float *x, int64_t n, int64_t d, int32_t *first)
{
    bool any = false;
    int64_t lead = 0;
    for (int64_t i = 0; i < n; i++) {
        lead = h[i].hash == h[lead].hash ? lead : i;
        const float *a = x + h[lead].row * d, *b = x + h[i].row * d;
        bool same = i != lead && memcmp(a, b, (size_t)d * sizeof *x) == 0;
        first[h[i].row] = same ? h[lead].row : h[i].row;
        any = any || same;
    }
    return any;
}

int twins_find(struct twins *t, const float *x, int64_t n, int64_t d, struct err *err)
{
    int rc = 0;
    struct hashed *h = NULL;
    *t = (struct twins){.n = n};
    TRY(mem_alloc(&h, n, sizeof *h, "hashed rows", err));
    TRY(mem_alloc(&t->first, n, sizeof *t->first, "equal rows", err));
    for (int64_t i = 0; i < n; i++)
        h[i] = (struct hashed){hash_bytes(x + i * d, (size_t)d * sizeof *x).lo, (int32_t)i};
    qsort(h, (size_t)n, sizeof *h, by_hash);
    if (!pair_up(h, x, n, d, t->first)) {
        free(t->first);
        t->first = NULL;
    }
out:
    free(h);
    if (rc)
        twins_free(t);
    return rc;
}

void twins_free(struct twins *t)
{
    free(t->first);
    memset(t, 0, sizeof *t);
}

void twins_level_f32(const struct twins *t, float *v, int64_t n)
{
    for (int64_t i = 0; t->first && i < n; i++)
        v[i] = v[t->first[i]];
}

void twins_level_f64(const struct twins *t, double *v, int64_t n)
{
    for (int64_t i = 0; t->first && i < n; i++)
        v[i] = v[t->first[i]];
}
