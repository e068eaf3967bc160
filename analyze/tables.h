/*
 * tables.h - the tables of `lacuna analyze`.
 */
#pragma once

#include "analyze/group.h"
#include "analyze/load.h"
#include "analyze/table.h"
#include "core/buf.h"
#include "core/cmd.h"
#include "core/method.h"

/* What the command line may change. */
struct table_request {
    const char *group;   /* keys in place of the table's own, or NULL */
    const char *columns; /* metric patterns in place of the table's own, or NULL */
    const char *pivot;   /* key whose values become columns of the first metric, or NULL */
    const char *at, *by; /* ranking: "density_elem=0.3", "err_l1_rel", or NULL */
    int64_t rows_most;   /* a longer table of groups stays without rows (table.left_out); 0 = any */
};

enum table_flags {
    TABLE_SPLIT_STEPS = 1,
    TABLE_PER_HEAD = 2,
    TABLE_HAVING = 4,
    TABLE_FIRST = 8,
};

struct table_def;
typedef int table_builder(const struct table_def *def, const struct recset *set,
                          const struct table_request *req, struct table *out, struct err *err);
typedef bool table_check(const struct recset *set);

struct table_def {
    struct listed listed; /* name; title; metrics and keys for `lacuna list` */
    const char *keys, *metrics, *brief, *where; /* tables.def */
    unsigned flags;
    table_builder *build;
    table_check *has_data; /* NULL: some record has one of the metrics */
};

extern const struct table_def table_defs[];     /* ends with build = NULL */
extern const struct listed *const table_list[]; /* the same for struct app, NULL-terminated */

/* Tables with a builder of their own, each in a file. */
extern table_builder build_sample, build_ranking, build_plan, build_inside, build_decode_steps;
extern table_check has_sample, has_target, has_plan, has_inside, has_decode_steps;

/* ERR_USAGE with the nearest name. */
const struct table_def *table_def_find(const char *name, struct err *err);

/* Build a table; *out is initialised on success. ERR_INPUT when no record has any of its metrics.
 */
int table_build(const struct table_def *def, const struct recset *set,
                const struct table_request *req, struct table *out, struct err *err);

/* The first table with data that shows what was measured: of heads, of calls, or of a model with
 * methods inside. */
const struct table_def *table_of_set(const struct recset *set);

/* Does any record have a number for this table? */
bool table_has_data(const struct table_def *def, const struct recset *set);

/* A column for each of the keys, and their values in the last row. */
int table_key_columns(struct table *t, const enum group_key *keys, int n, struct err *err);
int table_put_keys(struct table *t, const struct record *r, const enum group_key *keys, int n,
                   struct err *err);

/* "code-lm, 4096 tokens, 48 heads (6 layers x 8), causal; against dense attention in float64". What
 * differs between records is counted ("3 models") or left out. */
void recset_caption(const struct recset *set, struct buf *b);
