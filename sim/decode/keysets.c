#include "sim/decode/keysets.h"

#include "core/intmath.h"
#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

void keysets_free(struct keysets *k)
{
    free(k->s);
    free(k->end);
    memset(k, 0, sizeof *k);
}

static int64_t spans_used(const struct keysets *k)
{
    return k->n ? k->end[k->n - 1] : 0;
}

static int close_set(struct keysets *k, int64_t end, struct err *err)
{
    PASS_ON(mem_grow(&k->end, &k->cap_end, k->n + 1, sizeof *k->end, "steps", err));
    k->end[k->n++] = end;
    return 0;
}

int keysets_add(struct keysets *k, const struct span *s, int64_t n, struct err *err)
{
    int64_t used = spans_used(k);
    PASS_ON(mem_grow(&k->s, &k->cap, used + n, sizeof *k->s, "sets of keys", err));
    for (int64_t i = 0; i < n; i++)
        k->s[used + i] = s[i];
    return close_set(k, used + n, err);
}

int keysets_add_positions(struct keysets *k, const int32_t *at, int64_t n, struct err *err)
{
    int64_t used = spans_used(k);
    for (int64_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && at[end] == at[end - 1] + 1; end++)
            ;
        PASS_ON(mem_grow(&k->s, &k->cap, used + 1, sizeof *k->s, "sets of keys", err));
        k->s[used++] = (struct span){at[i], at[end - 1] + 1};
    }
    return close_set(k, used, err);
}

int64_t keyset_size(struct keyset a)
{
    int64_t n = 0;
    for (int64_t i = 0; i < a.n; i++)
        n += a.s[i].hi - a.s[i].lo;
    return n;
}

int64_t keyset_common(struct keyset a, struct keyset b)
{
    int64_t n = 0, i = 0, k = 0;
    while (i < a.n && k < b.n) {
        int32_t lo = MAX(a.s[i].lo, b.s[k].lo), hi = MIN(a.s[i].hi, b.s[k].hi);
        bool next = a.s[i].hi < b.s[k].hi; /* no branch: it would be a coin's toss */
        n += MAX(0, hi - lo);
        i += next;
        k += !next;
    }
    return n;
}

int64_t keyset_list(struct keyset a, int64_t lo, int64_t hi, bool outside, int32_t *at)
{
    int64_t n = 0, j = lo;
    for (int64_t i = 0; i <= a.n; i++) {
        int64_t first = i < a.n ? MAX(lo, a.s[i].lo) : hi, last = i < a.n ? MIN(hi, a.s[i].hi) : hi;
        for (; outside && j < first; j++)
            at[n++] = (int32_t)j;
        for (j = MAX(j, first); j < last; j++)
            if (!outside)
                at[n++] = (int32_t)j;
    }
    return n;
}
