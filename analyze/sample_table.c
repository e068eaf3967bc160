/*
 * sample_table.c - what a sample of query rows says about all rows: values with their intervals.
 *
 * A cell has the standard error se of a metric from the differences of neighbouring groups of rows,
 * with half as many degrees of freedom as groups: its half-width is t_(groups/2, 0.975) se. All
 * heads of a trace have the same rows, so errors of a mean over cells do not cancel: its half-width
 * is the mean of theirs.
 */
#include "analyze/tables.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUFFIX "~se"

/* 97.5 % point of Student's t (Abramowitz and Stegun, 26.7.5), within 0.5 % from 3 degrees on. */
static double t_975(double df)
{
    double z = 1.959963984540054, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z;
    return z + (z3 + z) / (4 * df) + (5 * z5 + 16 * z3 + 3 * z) / (96 * df * df) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * df * df * df);
}

/* Groups of sampled rows of a record, 0 where it has all rows. */
static int64_t groups_of(const struct record *r)
{
    size_t len;
    const char *at = record_note_value(r, "rows", &len);
    return at ? strtoll(at, NULL, 10) : 0;
}

static bool is_sample(const void *ctx, const struct record *r)
{
    (void)ctx;
    return r->status == RECORD_OK && groups_of(r) >= 2;
}

bool has_sample(const struct recset *set)
{
    for (int64_t i = 0; i < set->n; i++)
        if (is_sample(NULL, &set->r[i]))
            return true;
    return false;
}

struct estimate {
    double value, half;
    int64_t n;
};

/* Mean of a metric over the cells of a group, and its half-width. */
static struct estimate estimate_of(const struct recset *set, const struct group *g,
                                   const char *metric)
{
    struct estimate e = {0, 0, 0};
    char name[64];
    snprintf(name, sizeof name, "%s" SUFFIX, metric);
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &set->r[g->at[i]];
        double x = record_get(r, metric), se = record_get(r, name);
        if (!isfinite(x) || !isfinite(se))
            continue;
        e.value += x;
        e.half += t_975((double)groups_of(r) / 2) * se;
        e.n++;
    }
    e.value /= (double)e.n;
    e.half /= (double)e.n;
    return e;
}

/* The metrics that have a standard error, in the order of the records. */
static int sampled_metrics(const struct recset *set, const char *patterns, struct str_list *out,
                           struct err *err)
{
    OWN(str_list_free) struct str_list all = {0};
    PASS_ON(recset_metrics(set, "*" SUFFIX, &all, err));
    for (int64_t i = 0; i < all.n; i++) {
        size_t len = strlen(all.items[i]) - strlen(SUFFIX);
        all.items[i][len] = '\0';
        if (name_matches(patterns, all.items[i]))
            str_list_add(out, all.items[i]);
    }
    if (out->failed)
        return err_set(err, ERR_NOMEM, "names of metrics");
    return 0;
}

enum { METRIC_COL, VALUE_COL, HALF_COL, LOW_COL, HIGH_COL, CELLS_COL };

static int add_columns(struct table *t, struct err *err)
{
    PASS_ON(table_column(t, "metric", "metric", "", COL_TEXT, 1, err));
    PASS_ON(table_column(t, "value", "estimate", "", COL_REAL, 1, err));
    PASS_ON(table_column(t, "half_width", "+-", "", COL_REAL, 1, err));
    PASS_ON(table_column(t, "low", "from", "", COL_REAL, 1, err));
    PASS_ON(table_column(t, "high", "to", "", COL_REAL, 1, err));
    PASS_ON(table_column(t, "cells", "cells", "", COL_INT, 1, err));
    for (int64_t i = t->n_cols - 5; i < t->n_cols - 1; i++)
        t->cols[i].mixed = true;
    return 0;
}

static int put_estimate(struct table *t, int64_t col, const char *metric, const struct estimate *e,
                        struct err *err)
{
    const struct metric_def *def = metric_def_find(metric);
    bool share = def && def->axis == AXIS_SHARE;
    bool positive = share || (def && def->axis == AXIS_LOG) || strncmp(metric, "density_", 8) == 0;
    double low = e->value - e->half, high = e->value + e->half;
    int rc = table_text(t, col + METRIC_COL, metric, err);
    table_num(t, col + VALUE_COL, e->value);
    table_num(t, col + HALF_COL, e->half);
    table_num(t, col + LOW_COL, positive && low < 0 ? 0 : low);
    table_num(t, col + HIGH_COL, share && high > 1 ? 1 : high);
    table_num(t, col + CELLS_COL, (double)e->n);
    return rc;
}

int build_sample(const struct table_def *def, const struct recset *set,
                 const struct table_request *req, struct table *out, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    OWN(grouping_free) struct grouping gs = {0};
    OWN(str_list_free) struct str_list metrics = {0};
    int n = 0;
    if (req->group || req->pivot)
        return err_set(err, ERR_USAGE, "--group and --pivot do not apply to this table");
    if (req->columns)
        PASS_ON(recset_check_metrics(set, NULL, "--columns", req->columns, err));
    PASS_ON(recset_scope(set, keys, &n, err));
    keys[n++] = KEY_METHOD;
    keys[n++] = KEY_PARAMS;
    PASS_ON(grouping_make(set, keys, n, 0, is_sample, NULL, &gs, err));
    PASS_ON(sampled_metrics(set, req->columns ? req->columns : def->metrics, &metrics, err));
    if (gs.n == 0 || metrics.n == 0)
        return err_set(
            err, ERR_INPUT,
            "no record is of a sample of query rows (lacuna capture --rows, trace subset --rows)");
    PASS_ON(table_key_columns(out, keys, n, err));
    PASS_ON(add_columns(out, err));
    for (int64_t g = 0; g < gs.n; g++)
        for (int64_t m = 0; m < metrics.n; m++) {
            struct estimate e = estimate_of(set, &gs.g[g], metrics.items[m]);
            if (e.n == 0)
                continue;
            PASS_ON(table_row(out, err));
            PASS_ON(table_put_keys(out, gs.g[g].first, keys, n, err));
            PASS_ON(put_estimate(out, n, metrics.items[m], &e, err));
        }
    table_note(out,
               "Estimates for all query rows from a sample of them, with 95 %% intervals: t of "
               "half as many degrees of freedom as groups of rows, times the standard error.");
    table_note(out, "Means over cells; the heads of a trace share their rows, so the half-width is "
                    "the mean of theirs. Intervals of few groups and of errors that few rows make "
                    "are too narrow.");
    return 0;
}
