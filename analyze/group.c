/*
 * group.c - grouping by a hash of the keys; the groups are sorted, not the records.
 */
#include "analyze/group.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool grouping_varies(const struct grouping *gs, enum group_key k)
{
    if (has_key(gs->keys, gs->n_keys, k) || !recset_varies(gs->set, k))
        return false;
    for (int64_t i = 0; i < gs->n; i++)
        for (int64_t m = 1; m < gs->g[i].n; m++)
            if (key_compare(gs->g[i].first, &gs->set->r[gs->g[i].at[m]], k) != 0)
                return true;
    return false;
}

/* ---- dense calls --------------------------------------------------------------------------- */

/* Did the method run this call dense by its own schedule? It says so itself: a mask that happens to
 * keep everything is not meant. */
static bool is_dense_call(struct expr *dense_call, const struct record *r)
{
    double x;
    return r->status == RECORD_OK && expr_value(dense_call, r, &x) && x == 1;
}

/* ---- groups -------------------------------------------------------------------------------- */

/* What makes a head of a trace, the head last: the inner order of GROUP_PER_HEAD. */
static const enum group_key head_keys[] = {KEY_TRACE,     KEY_RUN,     KEY_STEP, KEY_BRANCH,
                                           KEY_LAYER,     KEY_PERMUTE, KEY_SEED, KEY_BACKEND,
                                           KEY_PRECISION, KEY_HEAD};

#define N_HEAD_KEYS (int)(sizeof head_keys / sizeof *head_keys)

static bool same_head(const struct record *a, const struct record *b)
{
    return same_keys(a, b, head_keys, N_HEAD_KEYS);
}

/* Do two records repeat one value of a metric that is one per head or per kv head? */
static bool same_owner(const struct record *a, const struct record *b, enum metric_per per)
{
    return same_keys(a, b, head_keys, N_HEAD_KEYS - 1) &&
           key_compare(a, b, per == PER_HEAD ? KEY_HEAD : KEY_KV_HEAD) == 0;
}

static void count(const struct grouping *gs, struct group *g)
{
    const struct record *last = NULL;
    struct expr dense = expr_parse("dense_call");
    for (int64_t i = 0; gs->set->r && i < g->n; i++) {
        const struct record *r = &gs->set->r[g->at[i]];
        if ((gs->flags & GROUP_PER_HEAD) && last && same_head(last, r))
            continue;
        last = r;
        if (g->steps == STEPS_SPARSE && is_dense_call(&dense, r))
            continue;
        g->n_ok += r->status == RECORD_OK;
        g->n_skip += r->status == RECORD_SKIP;
        g->n_error += r->status == RECORD_ERROR;
    }
}

static int add_group(struct grouping *gs, int64_t from, int64_t to, enum group_steps steps,
                     struct err *err)
{
    PASS_ON(mem_grow(&gs->g, &gs->cap, gs->n + 1, sizeof *gs->g, "groups", err));
    struct group *g = &gs->g[gs->n++];
    *g = (struct group){
        &gs->set->r[gs->order[from]], gs->order + from, to - from, 0, 0, 0, steps, -1};
    count(gs, g);
    return 0;
}

/* Both dense and other calls among order[from..to)? */
static bool mixes_calls(const struct grouping *gs, int64_t from, int64_t to)
{
    struct expr e = expr_parse("dense_call");
    bool dense = false, sparse = false;
    for (int64_t i = from; i < to && !(dense && sparse); i++) {
        const struct record *r = &gs->set->r[gs->order[i]];
        dense |= is_dense_call(&e, r);
        sparse |= r->status == RECORD_OK && !is_dense_call(&e, r);
    }
    return dense && sparse;
}

/* The records of a grouping by their keys. */
struct finder {
    const struct record *r;
    const enum group_key *keys;
    int n_keys;
    int64_t *slots, cap; /* owned: a hash table of groups, -1 = free */
    int64_t *first, n;   /* owned: the first record of each group */
    int64_t *of;         /* owned: the group of each record, -1 = none */
    int64_t *size;       /* owned: the number of members of each group */
};

static void finder_free(struct finder *f)
{
    free(f->slots);
    free(f->first);
    free(f->of);
    free(f->size);
}

static int finder_make(const struct record *r, int64_t n, const enum group_key *keys, int n_keys,
                       struct finder *f, struct err *err)
{
    *f = (struct finder){.r = r, .keys = keys, .n_keys = n_keys, .cap = 64};
    while (f->cap < 2 * n)
        f->cap *= 2;
    PASS_ON(mem_alloc(&f->slots, f->cap, sizeof *f->slots, "groups", err));
    PASS_ON(mem_alloc(&f->first, n, sizeof *f->first, "groups", err));
    PASS_ON(mem_alloc(&f->of, n, sizeof *f->of, "groups", err));
    PASS_ON(mem_zalloc(&f->size, n, sizeof *f->size, "groups", err));
    memset(f->slots, -1, (size_t)f->cap * sizeof *f->slots);
    return 0;
}

static void find_group(struct finder *f, int64_t i)
{
    uint64_t hash = 0;
    for (int k = 0; k < f->n_keys; k++) {
        hash = (hash ^ key_hash(&f->r[i], f->keys[k])) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 32;
    }
    int64_t at = (int64_t)hash & (f->cap - 1);
    while (f->slots[at] >= 0 &&
           !same_keys(&f->r[f->first[f->slots[at]]], &f->r[i], f->keys, f->n_keys))
        at = (at + 1) & (f->cap - 1);
    if (f->slots[at] < 0) {
        f->first[f->n] = i;
        f->slots[at] = f->n++;
    }
    f->of[i] = f->slots[at];
    f->size[f->of[i]]++;
}

static int by_keys(const void *a, const void *b, void *finder)
{
    const struct finder *f = finder;
    const struct record *x = &f->r[f->first[*(const int64_t *)a]];
    const struct record *y = &f->r[f->first[*(const int64_t *)b]];
    return keys_compare(x, y, f->keys, f->n_keys);
}

/* order[0..n) by group; to[i] is the end of group i in the order of the keys. */
static int sort_records(struct finder *f, int64_t n, int64_t *order, int64_t *to, struct err *err)
{
    OWN(free_at) int64_t *sorted = NULL, *at = NULL;
    int64_t sum = 0;
    PASS_ON(mem_alloc(&sorted, f->n, sizeof *sorted, "groups", err));
    PASS_ON(mem_alloc(&at, f->n, sizeof *at, "groups", err));
    for (int64_t g = 0; g < f->n; g++)
        sorted[g] = g;
    qsort_r(sorted, (size_t)f->n, sizeof *sorted, by_keys, f);
    for (int64_t i = 0; i < f->n; i++) {
        at[sorted[i]] = sum;
        to[i] = sum += f->size[sorted[i]];
    }
    for (int64_t i = 0; i < n; i++)
        if (f->of[i] >= 0)
            order[at[f->of[i]]++] = i; /* records of one group stay in file order */
    return 0;
}

static int by_head(const void *a, const void *b, void *records)
{
    const struct record *r = records;
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    int d = keys_compare(&r[x], &r[y], head_keys, N_HEAD_KEYS);
    return d ? d : (x > y) - (x < y);
}

static int make_groups(const struct recset *set, const enum group_key *keys, int n_keys,
                       unsigned flags, group_filter *filter, const void *ctx, struct grouping *out,
                       struct err *err)
{
    struct grouping gs = {.set = set, .flags = flags, .n_keys = n_keys};
    struct finder f = {0};
    int64_t *to = NULL;
    int rc = 0;
    memcpy(gs.keys, keys, (size_t)n_keys * sizeof *keys);
    TRY(finder_make(set->r, set->n, keys, n_keys, &f, err));
    for (int64_t i = 0; i < set->n; i++) {
        f.of[i] = -1;
        if (!filter || filter(ctx, &set->r[i]))
            find_group(&f, i);
    }
    TRY(mem_alloc(&gs.order, set->n, sizeof *gs.order, "order of records", err));
    TRY(mem_alloc(&to, f.n, sizeof *to, "groups", err));
    TRY(sort_records(&f, set->n, gs.order, to, err));
    for (int64_t g = 0, i = 0; g < f.n; i = to[g++]) {
        if (flags & GROUP_PER_HEAD)
            qsort_r(gs.order + i, (size_t)(to[g] - i), sizeof *gs.order, by_head, set->r);
        TRY(add_group(&gs, i, to[g], STEPS_ALL, err));
        if ((flags & GROUP_SPLIT_STEPS) && mixes_calls(&gs, i, to[g])) {
            TRY(add_group(&gs, i, to[g], STEPS_SPARSE, err));
            gs.has_sparse = true;
        }
    }
    *out = gs;
out:
    finder_free(&f);
    free(to);
    if (rc)
        grouping_free(&gs);
    return rc;
}

/* ---- calls beside the groups ---------------------------------------------------------------- */

struct call_join {
    struct recset set; /* of the calls; their records are the set's */
    struct grouping gs;
    char metric[64]; /* what was asked for last, and the answer */
    bool of_calls;
};

static bool tells_heads_apart(const enum group_key *keys, int n, unsigned flags)
{
    for (int i = 0; i < n; i++)
        if (keys[i] == KEY_HEAD || keys[i] == KEY_KV_HEAD || keys[i] == KEY_SCOPE)
            return true;
    return flags & GROUP_PER_HEAD;
}

/* Groups of both are in the order of the keys, and a group of sparse steps follows its own. */
static void find_partners(struct grouping *gs, const enum group_key *keys, int n_keys,
                          const struct call_join *j)
{
    int64_t at = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        struct group *g = &gs->g[i];
        for (int64_t k = at; k < j->gs.n; k++) {
            int order = keys_compare(j->gs.g[k].first, g->first, keys, n_keys);
            if (order > 0)
                break;
            if (order < 0)
                at = k + 1;
            else if (j->gs.g[k].steps == g->steps || (g->calls < 0 && g->steps == STEPS_SPARSE))
                g->calls = k;
        }
    }
}

static void join_free(struct call_join **j)
{
    if (!*j)
        return;
    free((*j)->gs.order);
    free((*j)->gs.g);
    free(*j);
    *j = NULL;
}

static int join_calls(struct grouping *gs, const enum group_key *keys, int n_keys,
                      group_filter *filter, const void *ctx, struct err *err)
{
    const struct recset *set = gs->set;
    struct call_join *j = NULL;
    int rc = 0;
    if (!set->n_calls || tells_heads_apart(keys, n_keys, gs->flags))
        return 0;
    TRY(mem_zalloc(&j, 1, sizeof *j, "calls", err));
    j->set = recset_calls(set);
    if (recset_varies(&j->set, KEY_HEADS)) /* parts of calls have no time of a call */
        goto out;
    TRY(make_groups(&j->set, keys, n_keys, gs->flags, filter, ctx, &j->gs, err));
    find_partners(gs, keys, n_keys, j);
    gs->calls = j;
    return 0;
out:
    join_free(&j);
    return rc;
}

int grouping_make(const struct recset *set, const enum group_key *keys, int n_keys, unsigned flags,
                  group_filter *filter, const void *ctx, struct grouping *out, struct err *err)
{
    struct grouping gs = {0};
    int rc = make_groups(set, keys, n_keys, flags, filter, ctx, &gs, err);
    if (!rc)
        rc = join_calls(&gs, keys, n_keys, filter, ctx, err);
    if (rc)
        grouping_free(&gs);
    *out = gs;
    return rc;
}

void grouping_free(struct grouping *g)
{
    join_free(&g->calls);
    free(g->order);
    free(g->g);
    *g = (struct grouping){0};
}

bool group_of_calls(const struct grouping *gs, const char *metric)
{
    struct call_join *j = gs->calls;
    if (!j)
        return false;
    if (strcmp(j->metric, metric) != 0) {
        snprintf(j->metric, sizeof j->metric, "%s", metric);
        j->of_calls = any_has(j->set.r, j->set.n, metric) &&
                      (metric_timed(metric) || !any_has(gs->set->r, gs->set->n, metric));
    }
    return j->of_calls;
}

bool group_calls(const struct grouping *gs, const struct group *g, const struct grouping **calls,
                 struct group *out)
{
    if (!gs->calls || g->calls < 0)
        return false;
    *calls = &gs->calls->gs;
    *out = gs->calls->gs.g[g->calls];
    out->steps = g->steps;
    out->n_ok = out->n_skip = out->n_error = 0;
    count(*calls, out);
    return true;
}

/* Statistics over the calls beside a group. */
static int stats_of_calls(const struct grouping *gs, const struct group *g, const char *metric,
                          struct stats *out, double **values, struct err *err)
{
    const struct grouping *calls;
    struct group own;
    if (group_calls(gs, g, &calls, &own))
        return group_stats(calls, &own, metric, out, values, err);
    stats_of(NULL, 0, out);
    if (values)
        return mem_alloc(values, 1, sizeof **values, "values of a group", err);
    return 0;
}

int group_stats(const struct grouping *gs, const struct group *g, const char *metric,
                struct stats *out, double **values, struct err *err)
{
    const struct record *last = NULL;
    enum metric_per per = metric_per(metric);
    struct expr e = expr_parse(metric), dense = expr_parse("dense_call");
    double *x = NULL;
    int64_t n = 0;
    if (group_of_calls(gs, metric))
        return stats_of_calls(gs, g, metric, out, values, err);
    PASS_ON(mem_alloc(&x, g->n, sizeof *x, "values of a group", err));
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &gs->set->r[g->at[i]];
        if (r->status != RECORD_OK || (g->steps == STEPS_SPARSE && is_dense_call(&dense, r)))
            continue;
        double value;
        if (!expr_value(&e, r, &value) ||
            ((gs->flags & GROUP_PER_HEAD) && last && same_owner(last, r, per)))
            continue;
        last = r;
        x[n++] = value;
    }
    stats_of(x, n, out);
    if (values)
        *values = x;
    else
        free(x);
    return 0;
}

/* ---- units ----------------------------------------------------------------------------------- */

static int by_unit(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    if (x->layer != y->layer)
        return x->layer - y->layer;
    return x->head - y->head;
}

int64_t unit_of(const struct units *units, const struct record *r)
{
    const struct unit u = {r->layer, r->head};
    const struct unit *at = bsearch(&u, units->u, (size_t)units->n, sizeof u, by_unit);
    return at - units->u;
}

int units_find(const struct grouping *gs, int64_t from, int64_t to, struct units *out,
               struct err *err)
{
    int64_t n = 0;
    *out = (struct units){.n = 0};
    for (int64_t g = from; g < to; g++)
        n += gs->g[g].n;
    PASS_ON(mem_alloc(&out->u, n, sizeof *out->u, "heads", err));
    n = 0;
    for (int64_t g = from; g < to; g++)
        for (int64_t i = 0; i < gs->g[g].n; i++) {
            const struct record *r = &gs->set->r[gs->g[g].at[i]];
            out->u[n++] = (struct unit){r->layer, r->head};
        }
    qsort(out->u, (size_t)n, sizeof *out->u, by_unit);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || by_unit(&out->u[out->n - 1], out->u + i) != 0)
            out->u[out->n++] = out->u[i];
    return 0;
}

int units_mean(const struct units *units, const struct grouping *gs, const struct group *g,
               const char *metric, const char *with, double *mean, struct err *err)
{
    struct expr value = expr_parse(metric), other = expr_parse(with);
    double *n = NULL, x, y;
    PASS_ON(mem_zalloc(&n, units->n, sizeof *n, "heads", err));
    for (int64_t u = 0; u < units->n; u++)
        mean[u] = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &gs->set->r[g->at[i]];
        if (r->status != RECORD_OK || !expr_value(&value, r, &x) || !expr_value(&other, r, &y))
            continue;
        int64_t u = unit_of(units, r);
        mean[u] += x;
        n[u]++;
    }
    for (int64_t u = 0; u < units->n; u++)
        mean[u] = n[u] > 0 ? mean[u] / n[u] : NAN;
    free(n);
    return 0;
}
