/*
 * plan_table.c - see plan_table.h.
 *
 * The best single setting is the cheapest one that satisfies the plan's limits on at least the same
 * share of the plan's cells, all of which it must have.
 */
#include "analyze/plan_table.h"

#include "analyze/choose.h"
#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"
#include "core/method.h"
#include "core/strmap.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Means of a setting over the cells of a plan. */
struct sums {
    double cost, error;
    int64_t n, within;
};

struct planned {
    const struct recset *set;
    struct limit limits[LIMITS_MOST];
    int n_limits;
    char text[192], cost[64]; /* of the limits; metric */
    struct strmap cells;      /* of the plan on this kind of traces */
    struct sums plan;
};

static void note_text(const struct record *r, const char *key, char *text, size_t size)
{
    size_t len = 0;
    const char *v = record_note_value(r, key, &len);
    snprintf(text, size, "%.*s", v ? (int)len : 0, v ? v : "");
}

static int parse_notes(const struct record *r, struct planned *p, struct err *err)
{
    char one[96];
    int rc = 0;
    note_text(r, "plan_limits", p->text, sizeof p->text);
    note_text(r, "plan_cost", p->cost, sizeof p->cost);
    p->n_limits = 0;
    for (const char *t = p->text; *t && p->n_limits < LIMITS_MOST;) {
        size_t len = strcspn(t, ",");
        snprintf(one, sizeof one, "%.*s", (int)len, t);
        TRY(limit_parse(one, &p->limits[p->n_limits++], err));
        t += len + (t[len] == ',');
    }
out:
    return rc;
}

/* Was the plan made from the record's trace? */
static bool is_own(const struct record *r)
{
    char runs[320], id[16];
    const char *hex = strchr(r->trace, ':');
    note_text(r, "plan_runs", runs, sizeof runs);
    snprintf(id, sizeof id, "%.8s", hex ? hex + 1 : r->trace);
    return strstr(runs, id) != NULL;
}

static void cell_key(const struct record *r, char key[160])
{
    snprintf(key, 160, "%s|%d|%d|%s|%d|%d|%s|%s", r->trace, r->run, r->step, r->branch, r->layer,
             r->head, r->backend, r->precision);
}

static void add(const struct planned *p, const struct record *r, struct sums *s)
{
    bool within = true;
    for (int l = 0; l < p->n_limits; l++)
        within &= limit_holds(&p->limits[l], r);
    s->cost += record_value(r, p->cost);
    s->error += record_value(r, "err_l1_rel");
    s->within += within;
    s->n++;
}

static int take_cells(struct planned *p, const struct group *g, bool own, struct err *err)
{
    char key[160];
    int rc = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &p->set->r[g->at[i]];
        if (r->status != RECORD_OK || is_own(r) != own)
            continue;
        cell_key(r, key);
        TRY(strmap_put(&p->cells, key, 1, err));
        add(p, r, &p->plan);
    }
out:
    return rc;
}

static struct sums sums_of(const struct planned *p, const struct group *g)
{
    struct sums s = {0};
    char key[160];
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &p->set->r[g->at[i]];
        cell_key(r, key);
        if (r->status == RECORD_OK && strmap_get(&p->cells, key) >= 0)
            add(p, r, &s);
    }
    return s;
}

static bool is_single(const struct record *r)
{
    const struct method *const *m = metric_def_known_methods();
    while (m && *m && strcmp((*m)->name, r->method) != 0)
        m++;
    return strcmp(r->method, "plan") != 0 && strcmp(r->method, "dense") != 0 &&
           !(m && *m && (*m)->flags & METHOD_BOUND);
}

static const struct group *best_single(const struct planned *p, const struct grouping *gs,
                                       struct sums *best)
{
    const struct group *found = NULL;
    for (int64_t i = 0; i < gs->n; i++) {
        if (!is_single(gs->g[i].first))
            continue;
        struct sums s = sums_of(p, &gs->g[i]);
        if (s.n == p->plan.n && s.within >= p->plan.within && (!found || s.cost < best->cost)) {
            found = &gs->g[i];
            *best = s;
        }
    }
    return found;
}

enum { C_PLAN, C_DATA, C_SETTING, C_N, C_COST, C_ERROR, C_WITHIN, C_SAVED };

static int put_row(const struct record *plan, bool own, const char *setting, const struct sums *s,
                   double single, struct table *t, struct err *err)
{
    struct buf id = {0};
    int rc = 0;
    TRY(table_row(t, err));
    record_param(plan, "id", &id);
    TRY(buf_check(&id, "plan", err));
    TRY(table_text(t, C_PLAN, buf_str(&id), err));
    TRY(table_text(t, C_DATA, own ? "made from" : "others", err));
    TRY(table_text(t, C_SETTING, setting, err));
    table_num(t, C_N, (double)s->n);
    table_num(t, C_COST, s->cost / (double)s->n);
    table_num(t, C_ERROR, s->error / (double)s->n);
    table_num(t, C_WITHIN, (double)s->within / (double)s->n);
    if (single > 0)
        table_num(t, C_SAVED, 1 - s->cost / (double)s->n / single);
out:
    buf_free(&id);
    return rc;
}

/* Dense as it was replayed on these cells; else what the definition says, where it says it. */
static int put_dense(const struct planned *p, const struct grouping *gs, const struct record *plan,
                     bool own, double single, struct table *t, struct err *err)
{
    const struct metric_def *m = metric_def_find(p->cost);
    struct sums dense = {0};
    for (int64_t i = 0; i < gs->n && dense.n != p->plan.n; i++)
        if (strcmp(gs->g[i].first->method, "dense") == 0)
            dense = sums_of(p, &gs->g[i]);
    if (dense.n == p->plan.n)
        return put_row(plan, own, "dense", &dense, single, t, err);
    if (!m || !m->section || strcmp(m->section, "density") != 0)
        return 0;
    dense = (struct sums){(double)p->plan.n, 0, p->plan.n, p->plan.n};
    return put_row(plan, own, "dense (not replayed)", &dense, single, t, err);
}

static int put_plan(struct planned *p, const struct grouping *gs, const struct group *g, bool own,
                    struct table *t, struct err *err)
{
    struct sums best = {0};
    struct buf name = {0};
    int rc = 0;
    p->plan = (struct sums){0};
    TRY(take_cells(p, g, own, err));
    if (p->plan.n == 0)
        goto out;
    const struct group *single = best_single(p, gs, &best);
    double cost = single ? best.cost / (double)best.n : NAN;
    TRY(put_row(g->first, own, "plan", &p->plan, cost, t, err));
    if (single) {
        buf_printf(&name, "%s%s", single->first->method, single->first->params[0] ? ":" : "");
        params_for_people(single->first, &name);
        TRY(buf_check(&name, "setting", err));
        TRY(put_row(g->first, own, buf_str(&name), &best, cost, t, err));
    } else {
        table_note(t,
                   "no single setting in these records has all %lld cells of the plan (%s) and "
                   "meets %s on as many of them",
                   (long long)p->plan.n, own ? "made from" : "others", p->text);
    }
    TRY(put_dense(p, gs, g->first, own, cost, t, err));
out:
    strmap_free(&p->cells);
    p->cells = (struct strmap){0};
    buf_free(&name);
    return rc;
}

static bool any_plan(const struct recset *set)
{
    for (int64_t i = 0; i < set->n; i++)
        if (set->r[i].status == RECORD_OK && strcmp(set->r[i].method, "plan") == 0)
            return true;
    return false;
}

static int make_columns(struct table *t, struct err *err)
{
    static const struct {
        const char *name, *title;
        enum column_type type;
    } columns[] = {{"plan", "plan", COL_TEXT},       {"data", "traces", COL_TEXT},
                   {"setting", "setting", COL_TEXT}, {"n", "cells", COL_INT},
                   {"cost", "cost", COL_REAL},       {"err_l1_rel", "err_l1_rel", COL_REAL},
                   {"within", "within", COL_REAL},   {"saved", "saved", COL_REAL}};
    int rc = 0;
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        TRY(table_column(t, columns[i].name, columns[i].title, "", columns[i].type, 1, err));
out:
    return rc;
}

static int build_plan(const struct table_def *def, const struct recset *set,
                      const struct table_request *req, struct table *out, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct planned p = {.set = set};
    struct grouping gs = {0};
    bool others = false;
    int rc = 0;

    if (req->group || req->pivot || req->columns)
        FAIL(err, ERR_USAGE, "its rows and columns are fixed: --where chooses what is compared");
    if (!any_plan(set))
        FAIL(err, ERR_INPUT, "no ok record of a plan: lacuna replay T.h5 -m plan:file=PLAN.json");
    TRY(make_columns(out, err));
    TRY(grouping_make(set, keys, 2, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++) {
        const struct group *g = &gs.g[i];
        const struct record *ok = NULL;
        for (int64_t k = 0; k < g->n && !ok; k++)
            ok = set->r[g->at[k]].status == RECORD_OK ? &set->r[g->at[k]] : NULL;
        if (strcmp(g->first->method, "plan") != 0 || !ok)
            continue;
        TRY(parse_notes(ok, &p, err));
        TRY(put_plan(&p, &gs, g, true, out, err));
        int64_t rows = out->n_rows;
        TRY(put_plan(&p, &gs, g, false, out, err));
        others |= out->n_rows > rows;
        table_note(out,
                   "cost: mean %s; within: share of cells that satisfy %s; saved: share of the "
                   "single setting's cost",
                   p.cost, p.text);
    }
    if (!others)
        table_note(out,
                   "the plan was replayed on no other traces than those it was made from, which "
                   "says little: replay it on others");
out:
    grouping_free(&gs);
    return rc;
}

const struct table_def table_plan = {
    {"plan", "What a plan gains over the best single setting and over dense",
     "rows: plan, cheapest single setting with as many cells within the limits, dense; on traces "
     "that the plan was made from and on others"},
    "",
    "density_exec",
    0,
    build_plan,
    any_plan};
