/*
 * plan_table.c - what a plan gains over the best single setting and over dense.
 *
 * The best single setting is the cheapest one that satisfies the plan's limits on at least the same
 * share of the plan's cells, all of which it must have.
 */
#include "analyze/tables.h"
#include "core/mem.h"

#include "analyze/choose.h"
#include "analyze/params.h"
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
    struct limits limits;
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
    note_text(r, "plan_limits", p->text, sizeof p->text);
    note_text(r, "plan_cost", p->cost, sizeof p->cost);
    return limits_add(&p->limits, p->text, err);
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

static void add(struct planned *p, const struct record *r, struct sums *s)
{
    s->cost += record_value(r, p->cost);
    s->error += record_value(r, "err_l1_rel");
    s->within += where_holds(p->limits.c, p->limits.n, r);
    s->n++;
}

static int take_cells(struct planned *p, const struct group *g, bool own, struct err *err)
{
    char key[160];
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &p->set->r[g->at[i]];
        if (r->status != RECORD_OK || is_own(r) != own)
            continue;
        cell_key(r, key);
        PASS_ON(strmap_put(&p->cells, key, 1, err));
        add(p, r, &p->plan);
    }
    return 0;
}

static struct sums sums_of(struct planned *p, const struct group *g)
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
    return strcmp(r->method, "plan") != 0 && strcmp(r->method, "dense") != 0 && !record_is_bound(r);
}

static const struct group *best_single(struct planned *p, const struct grouping *gs,
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

/* Traces that the plan was made from, and others. */
enum kind { OWN, OTHERS, KINDS };

enum { C_PLAN, C_SETTING, C_FIRST };
enum { V_N, V_COST, V_ERROR, V_WITHIN, V_SAVED, VALUES };

/* What one setting has on one kind of traces, beside the cost of the single setting there. */
static void put_sums(const struct sums *s, enum kind kind, double single, struct table *t)
{
    int64_t c = C_FIRST + kind * VALUES;
    table_num(t, c + V_N, (double)s->n);
    table_num(t, c + V_COST, s->cost / (double)s->n);
    table_num(t, c + V_ERROR, s->error / (double)s->n);
    table_num(t, c + V_WITHIN, (double)s->within / (double)s->n);
    if (single > 0)
        table_num(t, c + V_SAVED, 1 - s->cost / (double)s->n / single);
}

static int begin_row(const struct record *plan, const char *setting, struct table *t,
                     struct err *err)
{
    OWN(buf_free) struct buf id = {0};
    PASS_ON(table_row(t, err));
    record_param(plan, "id", &id);
    PASS_ON(buf_check(&id, "plan", err));
    PASS_ON(table_text(t, C_PLAN, buf_str(&id), err));
    return table_text(t, C_SETTING, setting, err);
}

/* One plan against the other settings. */
struct duel {
    const struct record *plan;
    struct planned on[KINDS]; /* its cells of both kinds; n = 0: none */
    double single[KINDS];     /* mean cost of the single setting, NAN where there is none */
};

static int put_setting(struct duel *d, const struct group *g, const char *suffix, struct table *t,
                       struct err *err)
{
    OWN(buf_free) struct buf name = {0};
    buf_printf(&name, "%s%s", g->first->method, g->first->params[0] ? ":" : "");
    params_for_people(g->first, &name);
    buf_puts(&name, suffix);
    PASS_ON(buf_check(&name, "setting", err));
    PASS_ON(begin_row(d->plan, buf_str(&name), t, err));
    for (int kind = OWN; kind < KINDS; kind++) {
        struct sums s = sums_of(&d->on[kind], g);
        if (s.n > 0 && s.n == d->on[kind].plan.n)
            put_sums(&s, kind, d->single[kind], t);
    }
    return 0;
}

/* The single setting is the one that a user of the plan's data would have taken; where another one
 * turns out better on other traces, it has a row of its own. */
static int put_singles(struct duel *d, const struct grouping *gs, struct table *t, struct err *err)
{
    static const char *const names[] = {"made from", "others"};
    const struct group *best[KINDS] = {NULL};
    struct sums least[KINDS] = {0};
    for (int kind = OWN; kind < KINDS; kind++) {
        struct planned *p = &d->on[kind];
        if (p->plan.n == 0)
            continue;
        best[kind] = best_single(p, gs, &least[kind]);
        if (!best[kind])
            table_note(t,
                       "no single setting in these records has all %lld cells of the plan (%s) "
                       "and meets %s on as many of them",
                       (long long)p->plan.n, names[kind], p->text);
    }
    const struct group *taken = best[OWN] ? best[OWN] : best[OTHERS];
    for (int kind = OWN; kind < KINDS; kind++) {
        struct sums s = {0};
        if (taken && d->on[kind].plan.n)
            s = sums_of(&d->on[kind], taken);
        d->single[kind] = s.n > 0 && s.n == d->on[kind].plan.n ? s.cost / (double)s.n : (double)NAN;
    }
    PASS_ON(begin_row(d->plan, "plan", t, err));
    for (int kind = OWN; kind < KINDS; kind++)
        if (d->on[kind].plan.n)
            put_sums(&d->on[kind].plan, kind, d->single[kind], t);
    if (taken)
        PASS_ON(put_setting(d, taken, "", t, err));
    double cost = least[OTHERS].cost / (double)least[OTHERS].n;
    if (best[OWN] && best[OTHERS] && !(d->single[OTHERS] == cost))
        return put_setting(d, best[OTHERS], " (best of the others)", t, err);
    return 0;
}

/* Dense as it was replayed on these cells; else what the definition says, where it says it. */
static int put_dense(struct duel *d, const struct grouping *gs, struct table *t, struct err *err)
{
    struct planned *any = &d->on[d->on[OWN].plan.n ? OWN : OTHERS];
    const struct metric_def *m = metric_def_find(any->cost);
    bool density = m && m->section && strcmp(m->section, "density") == 0, replayed = false;
    struct sums dense[KINDS] = {0};
    for (int kind = OWN; kind < KINDS; kind++) {
        struct planned *p = &d->on[kind];
        for (int64_t i = 0; p->plan.n && i < gs->n && dense[kind].n != p->plan.n; i++)
            if (strcmp(gs->g[i].first->method, "dense") == 0)
                dense[kind] = sums_of(p, &gs->g[i]);
        replayed |= p->plan.n && dense[kind].n == p->plan.n;
    }
    if (!replayed && !density)
        return 0;
    PASS_ON(begin_row(d->plan, replayed ? "dense" : "dense (not replayed)", t, err));
    for (int kind = OWN; kind < KINDS; kind++) {
        int64_t n = d->on[kind].plan.n;
        if (!replayed)
            dense[kind] = (struct sums){(double)n, 0, n, n};
        if (n && dense[kind].n == n)
            put_sums(&dense[kind], kind, d->single[kind], t);
    }
    return 0;
}

static int put_plan(const struct recset *set, const struct grouping *gs, const struct group *g,
                    const struct record *ok, bool *others, struct table *t, struct err *err)
{
    struct duel d = {.plan = g->first};
    int rc = 0;
    for (int kind = OWN; kind < KINDS; kind++) {
        d.on[kind].set = set;
        TRY(parse_notes(ok, &d.on[kind], err));
        TRY(take_cells(&d.on[kind], g, kind == OWN, err));
    }
    *others |= d.on[OTHERS].plan.n > 0;
    TRY(put_singles(&d, gs, t, err));
    TRY(put_dense(&d, gs, t, err));
    table_note(t,
               "cost: mean %s; within: share of cells that satisfy %s; saved: share of the single "
               "setting's cost, which is that of the next row",
               d.on[OWN].cost,
               *d.on[OWN].text ? d.on[OWN].text : "the plan's limits, which has none");
out:
    for (int kind = OWN; kind < KINDS; kind++)
        strmap_free(&d.on[kind].cells);
    return rc;
}

bool has_plan(const struct recset *set)
{
    for (int64_t i = 0; i < set->n; i++)
        if (set->r[i].status == RECORD_OK && strcmp(set->r[i].method, "plan") == 0)
            return true;
    return false;
}

static int make_columns(struct table *t, struct err *err)
{
    static const char *const kinds[] = {"made from", "others"};
    static const struct {
        const char *name, *title;
    } values[] = {{"n", "cells"},
                  {"cost", "cost"},
                  {"err_l1_rel", "err_l1_rel"},
                  {"within", "within"},
                  {"saved", "saved"}};
    char name[48];
    PASS_ON(table_column(t, "plan", "plan", "", COL_TEXT, 1, err));
    PASS_ON(table_column(t, "setting", "setting", "", COL_TEXT, 1, err));
    for (int kind = OWN; kind < KINDS; kind++)
        for (int v = 0; v < VALUES; v++) {
            snprintf(name, sizeof name, "%s_%s", values[v].name, kind == OWN ? "own" : "others");
            PASS_ON(table_column(t, name, values[v].title, kinds[kind],
                                 v == V_N ? COL_INT : COL_REAL, 1, err));
        }
    return 0;
}

int build_plan(const struct table_def *def, const struct recset *set,
               const struct table_request *req, struct table *out, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    OWN(grouping_free) struct grouping gs = {0};
    bool others = false;
    if (req->group || req->pivot || req->columns)
        return err_set(err, ERR_USAGE,
                       "its rows and columns are fixed: --where chooses what is compared");
    if (!has_plan(set))
        return err_set(err, ERR_INPUT,
                       "no ok record of a plan: lacuna replay T.h5 -m plan:file=PLAN.json");
    PASS_ON(make_columns(out, err));
    PASS_ON(grouping_make(set, keys, 2, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0; i < gs.n; i++) {
        const struct group *g = &gs.g[i];
        const struct record *ok = NULL;
        for (int64_t k = 0; k < g->n && !ok; k++)
            ok = set->r[g->at[k]].status == RECORD_OK ? &set->r[g->at[k]] : NULL;
        if (strcmp(g->first->method, "plan") == 0 && ok)
            PASS_ON(put_plan(set, &gs, g, ok, &others, out, err));
    }
    if (!others)
        table_note(out,
                   "the plan was replayed on no other traces than those it was made from, which "
                   "says little: replay it on others");
    return 0;
}
