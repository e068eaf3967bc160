/*
 * judge_table.c - SpargeAttn's table 10: what the judge of self-similarity is worth. Cells that
 * differ in theta or judge alone are compared one by one: theta = -1 and judge=0 (which keeps a
 * calibration's other parameters) accept every block as similar ("without").
 *
 * Sorting by everything but theta brings partners together: O(n log n).
 */
#include "analyze/tables.h"

#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two cells whose output errors differ by more than this are the "filtered" columns. */
#define JUDGE_FILTER 0.05

struct judged {
    const struct record *r;
    struct buf cell; /* the record's identity without theta and judge */
    bool with;       /* theta >= 0, the rule set's own or a calibration's */
};

static bool is_judged(const struct record *r)
{
    return r->status == RECORD_OK && strcmp(r->method, "spargeattn") == 0 &&
           record_has(r, "err_l1_rel") && record_has(r, "sparsity_total");
}

static bool has_judge(const struct record *r)
{
    const char *theta = params_value(r->params, "theta"), *judge = params_value(r->params, "judge");
    return (!judge || *judge != '0') && (!theta || strtod(theta, NULL) >= 0);
}

static int judged_init(struct judged *j, const struct record *r, struct err *err)
{
    struct record other = *r;
    struct buf judged = {0}, rest = {0};
    int rc = 0;
    j->r = r;
    j->with = has_judge(r);
    params_without(r->params, "judge", &judged);
    TRY(buf_check(&judged, "parameters", err));
    params_without(buf_str(&judged), "theta", &rest);
    TRY(buf_check(&rest, "parameters", err));
    other.params = (char *)(uintptr_t)buf_str(&rest);
    record_key(&other, &j->cell);
    TRY(buf_check(&j->cell, "cell", err));
out:
    buf_free(&judged);
    buf_free(&rest);
    return rc;
}

static int by_cell(const void *x, const void *y)
{
    const struct judged *a = x, *b = y;
    int d = strcmp(buf_str(&a->cell), buf_str(&b->cell));
    return d ? d : a->with - b->with;
}

/* ---- pairs ----------------------------------------------------------------------------------- */

struct pairs {
    struct recset set; /* one record per pair: the identity of the cell with the judge */
    int64_t unpaired;
};

/* The metrics of a pair; those ending in _f exist where the filter lets it through. */
static int add_pair(struct pairs *p, const struct record *with, const struct record *without,
                    struct err *err)
{
    const struct {
        const char *name;
        double value;
    } m[] = {{"l1_with", record_get(with, "err_l1_rel")},
             {"l1_without", record_get(without, "err_l1_rel")},
             {"sparsity_with", record_get(with, "sparsity_total")},
             {"sparsity_without", record_get(without, "sparsity_total")}};
    struct record r = *with, none;
    char name[48];
    int rc = 0;

    r.names = NULL;
    r.values = NULL;
    r.pooled = false;
    record_init(&none);
    r.model = none.model;
    r.reason = none.reason;
    record_text(&r, &r.model, "%s", with->model);
    memset(&r.notes, 0, sizeof r.notes);
    r.params = strdup(with->params ? with->params : "");
    if (!r.params)
        FAIL(err, ERR_NOMEM, "pair of cells: out of memory");
    for (int i = 0; i < 4; i++) {
        TRY(record_metric(&r, m[i].name, m[i].value, err));
        snprintf(name, sizeof name, "%s_f", m[i].name);
        if (fabs(m[0].value - m[1].value) > JUDGE_FILTER)
            TRY(record_metric(&r, name, m[i].value, err));
    }
    TRY(mem_grow(&p->set.r, &p->set.cap, p->set.n + 1, sizeof *p->set.r, "pairs", err));
    p->set.r[p->set.n++] = r;
    r = (struct record){0};
out:
    if (rc)
        record_free(&r);
    return rc;
}

/* Of the cells j[0..n) that differ in theta or judge alone the first ones have no judge. */
static int pair_cells(const struct judged *j, int64_t n, struct pairs *p, struct err *err)
{
    int rc = 0;
    if (j[0].with) {
        p->unpaired += n;
        return 0;
    }
    for (int64_t i = 1; i < n && !rc; i++)
        if (j[i].with)
            rc = add_pair(p, j[i].r, j[0].r, err);
    p->unpaired += j[n - 1].with ? 0 : n;
    return rc;
}

static int find_pairs(const struct recset *set, struct pairs *p, struct err *err)
{
    struct judged *j = NULL;
    int64_t n = 0;
    int rc = 0;

    TRY(mem_zalloc(&j, set->n, sizeof *j, "cells", err));
    for (int64_t i = 0; i < set->n; i++)
        if (is_judged(&set->r[i]))
            TRY(judged_init(&j[n++], &set->r[i], err));
    qsort(j, (size_t)n, sizeof *j, by_cell);
    for (int64_t a = 0, b; a < n; a = b) {
        for (b = a; b < n && strcmp(buf_str(&j[a].cell), buf_str(&j[b].cell)) == 0; b++)
            ;
        TRY(pair_cells(j + a, b - a, p, err));
    }
out:
    for (int64_t i = 0; j && i < set->n; i++)
        buf_free(&j[i].cell);
    free(j);
    return rc;
}

static bool judge_data(const struct recset *set)
{
    struct pairs p = {0};
    struct err ignored = {0};
    bool any = find_pairs(set, &p, &ignored) == 0 && p.set.n > 0;
    recset_free(&p.set);
    return any;
}

/* ---- table ----------------------------------------------------------------------------------- */

static const struct {
    const char *metric, *title;
} columns[] = {
    {"l1_with", "L1 with judge"},
    {"l1_without", "L1 without"},
    {"sparsity_with", "sparsity with judge"},
    {"sparsity_without", "sparsity without"},
};

static int add_columns(struct table *t, const enum group_key *keys, int n, struct err *err)
{
    char title[128], name[48];
    int rc = 0;
    TRY(table_key_columns(t, keys, n, err));
    TRY(table_column(t, "n", "n", "pairs of cells", COL_INT, 1, err));
    for (int i = 0; i < 4; i++)
        TRY(table_column(t, columns[i].metric, columns[i].title, "", COL_STATS, 1, err));
    TRY(table_column(t, "n_filtered", "n filtered", "pairs of cells", COL_INT, 1, err));
    for (int i = 0; i < 4; i++) {
        snprintf(title, sizeof title, "%s, filtered", columns[i].title);
        snprintf(name, sizeof name, "%s_filtered", columns[i].metric);
        TRY(table_column(t, name, title, "", COL_STATS, 1, err));
    }
out:
    return rc;
}

static int put_row(struct table *t, const struct grouping *gs, const struct group *g,
                   const enum group_key *keys, int n, struct err *err)
{
    struct stats s;
    char name[48];
    int rc = 0;

    TRY(table_row(t, err));
    TRY(table_put_keys(t, g->first, keys, n, err));
    table_num(t, n, (double)g->n_ok);
    for (int i = 0; i < 4; i++) {
        TRY(group_stats(gs, g, columns[i].metric, &s, NULL, err));
        table_stats(t, n + 1 + i, &s);
        snprintf(name, sizeof name, "%s_f", columns[i].metric);
        TRY(group_stats(gs, g, name, &s, NULL, err));
        table_num(t, n + 5, (double)s.n);
        if (s.n)
            table_stats(t, n + 6 + i, &s);
    }
out:
    return rc;
}

static int build_judge(const struct table_def *def, const struct recset *set,
                       const struct table_request *req, struct table *out, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    struct pairs p = {0};
    struct grouping gs = {0};
    int n, rc = 0;

    if (req->group || req->columns || req->pivot)
        FAIL(err, ERR_USAGE, "--group, --columns and --pivot do not apply to this table");
    TRY(find_pairs(set, &p, err));
    if (p.set.n == 0)
        FAIL(err, ERR_INPUT,
             "no cell of spargeattn has a partner that differs in theta or judge alone: replay "
             "spargeattn:theta=-1 or judge=0 beside the setting");
    TRY(recset_scope(&p.set, keys, &n, err));
    if (!has_key(keys, n, KEY_PERMUTE))
        keys[n++] = KEY_PERMUTE;
    keys[n++] = KEY_PARAMS;
    TRY(add_columns(out, keys, n, err));
    TRY(grouping_make(&p.set, keys, n, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++)
        TRY(put_row(out, &gs, &gs.g[i], keys, n, err));
    table_note(out,
               "without: theta=-1 or judge=0; filtered: pairs whose err_l1_rel differ by more than "
               "%g; %lld "
               "cells have no partner",
               JUDGE_FILTER, (long long)p.unpaired);
out:
    grouping_free(&gs);
    recset_free(&p.set);
    return rc;
}

const struct table_def table_judge = {
    .listed = {"judge",
               "SpargeAttn with and without the judge of self-similarity (SpargeAttn, table 10)",
               "rows: settings of spargeattn that were replayed with theta=-1 or judge=0 as well"},
    .keys = "params",
    .brief = "n,l1_with,l1_without,sparsity_with,sparsity_without",
    .metrics = "",
    .build = build_judge,
    .has_data = judge_data};
