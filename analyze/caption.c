#include "analyze/caption.h"

#include "analyze/query.h"
#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- values that occur ---------------------------------------------------------------------- */

/* Different values of a key, as texts; few, so that a list will do. */
static void values_of(const struct recset *set, enum group_key key, struct str_list *out)
{
    struct buf b = {0};
    int64_t n = set->n && !recset_varies(set, key) ? 1 : set->n;
    for (int64_t i = 0; i < n; i++) {
        if (i && key_compare(&set->r[i - 1], &set->r[i], key) == 0)
            continue;
        buf_reset(&b);
        key_text(&set->r[i], key, &b);
        int64_t k = 0;
        while (k < out->n && strcmp(out->items[k], buf_str(&b)) != 0)
            k++;
        if (k == out->n)
            str_list_add(out, buf_str(&b));
    }
    buf_free(&b);
}

static int64_t count_of(const struct recset *set, enum group_key key)
{
    struct str_list values = {0};
    values_of(set, key, &values);
    int64_t n = values.n;
    str_list_free(&values);
    return n;
}

/* ---- caption -------------------------------------------------------------------------------- */

static void put_values(const struct recset *set, enum group_key key, const char *one,
                       const char *many, struct buf *b)
{
    struct str_list values = {0};
    values_of(set, key, &values);
    if (values.n == 1 && strcmp(values.items[0], "none") != 0)
        buf_printf(b, "%s%s%s", b->len ? ", " : "", values.items[0], one);
    else if (values.n > 1)
        buf_printf(b, "%s%lld %s", b->len ? ", " : "", (long long)values.n, many);
    str_list_free(&values);
}

/* Only what is plural: one step or one branch says nothing. */
static void put_plural(const struct recset *set, enum group_key key, const char *many,
                       struct buf *b)
{
    int64_t n = count_of(set, key);
    if (n > 1)
        buf_printf(b, ", %lld %s", (long long)n, many);
}

static int by_number(const void *x, const void *y)
{
    int64_t a = *(const int64_t *)x, b = *(const int64_t *)y;
    return (a > b) - (a < b);
}

/* How many different values id[0..n) holds; it is sorted. */
static int64_t different(int64_t *id, int64_t n)
{
    int64_t count = 0;
    qsort(id, (size_t)n, sizeof *id, by_number);
    for (int64_t i = 0; i < n; i++)
        count += i == 0 || id[i] != id[i - 1];
    return count;
}

static void put_heads(const struct recset *set, struct buf *b)
{
    int64_t *id = calloc((size_t)set->n + 1, sizeof *id), cells = 0, found[3] = {0};
    b->failed |= !id;
    if (!id)
        mem_note_short(); /* captions are built on the way to something else */
    for (int pass = 0; id && pass < 3; pass++) {
        cells = 0;
        for (int64_t i = 0; i < set->n; i++)
            if (set->r[i].scope == RECORD_OF_HEAD) {
                id[cells] = (pass == 2 ? 0 : (int64_t)set->r[i].layer << 32) +
                            (pass == 1 ? 0 : set->r[i].head);
                cells += cells == 0 || id[cells] != id[cells - 1];
            }
        found[pass] = different(id, cells);
    }
    free(id);
    int64_t n = found[0], layers = found[1], heads = found[2];
    buf_printf(b, ", %lld head%s", (long long)n, n == 1 ? "" : "s");
    if (layers > 1 && layers * heads == n)
        buf_printf(b, " (%lld layers x %lld)", (long long)layers, (long long)heads);
    else if (layers > 1)
        buf_printf(b, " of %lld layers", (long long)layers);
}

static bool all_sampled(const struct recset *set)
{
    size_t len;
    for (int64_t i = 0; i < set->n; i++)
        if (set->r[i].n_q == set->r[i].n_k ||
            (set->r[i].status == RECORD_OK && !record_note_value(&set->r[i], "rows", &len)))
            return false;
    return true;
}

/* Records of calls: a head is none of them. */
static bool of_calls(const struct recset *set)
{
    return set->r[0].scope == RECORD_OF_CALL;
}

/* Calls, whatever the number of settings that ran on each, and their heads. */
static void put_calls(const struct recset *set, struct buf *b)
{
    static const enum group_key keys[] = {KEY_TRACE, KEY_RUN, KEY_STEP, KEY_BRANCH, KEY_LAYER};
    struct str_list calls = {0};
    struct buf id = {0};
    double heads = record_get(&set->r[0], "call_heads");
    for (int64_t i = 0; i < set->n; i++) {
        buf_reset(&id);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            key_text(&set->r[i], keys[k], &id);
            buf_puts(&id, " ");
        }
        if (!str_list_has(&calls, buf_str(&id)))
            str_list_add(&calls, buf_str(&id));
        if (record_get(&set->r[i], "call_heads") != heads)
            heads = NAN;
    }
    buf_printf(b, ", %lld call%s", (long long)calls.n, calls.n == 1 ? "" : "s");
    if (heads == heads)
        buf_printf(b, " of %.0f head%s", heads, heads == 1 ? "" : "s");
    str_list_free(&calls);
    buf_free(&id);
}

void recset_caption(const struct recset *set, struct buf *b)
{
    struct str_list precision = {0};
    if (set->n == 0)
        return;
    put_values(set, KEY_MODEL, "", "models", b);
    if (all_sampled(set))
        put_values(set, KEY_N_Q, " sampled query rows", "samples of query rows", b);
    else
        put_values(set, KEY_N_Q, " tokens", "lengths", b);
    if (of_calls(set))
        put_calls(set, b);
    else if (key_number(&set->r[0], KEY_LAYER) >= 0)
        put_heads(set, b); /* else a record is of a whole model */
    put_plural(set, KEY_TRACE, "traces", b);
    put_plural(set, KEY_STEP, "steps", b);
    put_plural(set, KEY_BRANCH, "guidance branches", b);
    if (count_of(set, KEY_CAUSAL) == 1)
        buf_puts(b, set->r[0].causal ? ", causal" : ", bidirectional");
    values_of(set, KEY_PRECISION, &precision);
    if (precision.n == 1 && precision.items[0][0] == 'f' && key_number(&set->r[0], KEY_LAYER) >= 0)
        buf_printf(b, "; against dense attention in float%s", precision.items[0] + 1);
    str_list_free(&precision);
}

/* ---- methods -------------------------------------------------------------------------------- */

static bool is_bound(const struct method *const *methods, const char *name)
{
    for (int i = 0; methods && methods[i]; i++)
        if (strcmp(methods[i]->name, name) == 0)
            return methods[i]->flags & METHOD_BOUND;
    return false;
}

void recset_methods(const struct recset *set, const struct method *const *methods,
                    struct str_list *out, int64_t *n_bounds)
{
    struct str_list all = {0};
    values_of(set, KEY_METHOD, &all);
    *n_bounds = 0;
    for (int place = 0; place < 3; place++)
        for (int64_t i = 0; i < all.n; i++) {
            bool bound = is_bound(methods, all.items[i]);
            if ((strcmp(all.items[i], "dense") == 0 ? 0 : bound ? 2 : 1) != place)
                continue;
            str_list_add(out, all.items[i]);
            *n_bounds += bound;
        }
    str_list_free(&all);
}
