/*
 * group.h - records grouped by keys, and the statistics of a metric over a group.
 */
#pragma once

#include "analyze/query.h"
#include "analyze/stats.h"

enum group_steps {
    STEPS_ALL,    /* every cell of the group */
    STEPS_SPARSE, /* only cells of calls that the method did not run dense by its schedule */
};

struct group {
    const struct record *first; /* any member: its key values are the group's */
    const int64_t *at;          /* indices of the members in the set */
    int64_t n;
    int64_t n_ok, n_skip, n_error;
    enum group_steps steps;
    int64_t calls; /* number of the group of calls beside it, or -1 (group_calls) */
};

enum group_flags {
    GROUP_SPLIT_STEPS = 1,
    GROUP_PER_HEAD = 2,
};

struct call_join; /* the calls beside the groups */

struct grouping {
    const struct recset *set;
    unsigned flags;
    enum group_key keys[KEYS_MAX];
    int n_keys;
    int64_t *order;  /* owned: indices sorted by the keys */
    struct group *g; /* owned */
    int64_t n, cap;
    bool has_sparse;         /* some group has STEPS_SPARSE */
    struct call_join *calls; /* owned; NULL: the set has none, or the keys tell heads apart */
};

/* Which records of the set take part; NULL = all. */
typedef bool group_filter(const void *ctx, const struct record *r);

/* Groups in the order of the keys (the first key is the slowest).
 *
 * GROUP_SPLIT_STEPS: a group in which the method ran some calls dense by its own schedule (metric
 * dense_call) and some not is followed by a second group of the same keys with STEPS_SPARSE over
 * the latter only.
 *
 * GROUP_PER_HEAD: for numbers that belong to a head of a trace and not to a method; when several
 * records of a group belong to one head, each metric counts once per head, or once per kv head
 * where it is of the keys alone (PER_KV_HEAD in core/metrics.def).
 *
 * Calls with the keys of a group stand beside it, unless a key is one of a head or the calls are
 * parts of calls (shards that share the heads of one). They are no members and are not counted in
 * it; group_stats takes from them what is measured of whole calls. */
int grouping_make(const struct recset *set, const enum group_key *keys, int n_keys, unsigned flags,
                  group_filter *filter, const void *ctx, struct grouping *out, struct err *err);
void grouping_free(struct grouping *g);

/* Is the metric taken from the calls beside the groups? It is where a call has it, if it is a time
 * or no other record has it. */
bool group_of_calls(const struct grouping *gs, const char *metric);

/* The calls beside a group, *out, a group of *calls; false: there are none. */
bool group_calls(const struct grouping *gs, const struct group *g, const struct grouping **calls,
                 struct group *out);

/* Statistics of a metric over the ok cells of a group that have it, or over the calls beside it.
 * `values` (may be NULL) receives the sorted finite values, malloc'd. The metric may be an
 * expression (query.h). */
int group_stats(const struct grouping *gs, const struct group *g, const char *metric,
                struct stats *out, double **values, struct err *err);

/* Does the key take more than one value within a group? */
bool grouping_varies(const struct grouping *g, enum group_key k);

/* ---- units ----------------------------------------------------------------------------------- */

/* What is paired between groups: a head of a layer. Its calls are not independent, so they are
 * averaged first. */
struct unit {
    int layer, head;
};

struct units {
    struct unit *u; /* owned, sorted */
    int64_t n;
};

/* The units of groups [from, to). Release with free(out->u). */
int units_find(const struct grouping *gs, int64_t from, int64_t to, struct units *out,
               struct err *err);

/* Place of a record's unit; it must be one of them. */
int64_t unit_of(const struct units *units, const struct record *r);

/* mean[0..n): means of a metric over the ok records of each unit that have it and `with`; NAN where
 * there is none. */
int units_mean(const struct units *units, const struct grouping *gs, const struct group *g,
               const char *metric, const char *with, double *mean, struct err *err);
