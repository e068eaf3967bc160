/*
 * choose.c - see choose.h.
 *
 * A setting is a candidate for a head (layer, model) if it has an ok record of every call that any
 * setting has there: a mean over the calls that a method did not skip would flatter it.
 */
#include "analyze/choose.h"

#include "analyze/group.h"
#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/sort.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int limits_add(struct limits *l, const char *text, struct err *err)
{
    int n = 0, rc = where_parse("--limit", text, l->c + l->n, LIMITS_MOST - l->n, &n, err);
    for (int i = l->n; i < l->n + n && !rc; i++)
        if (l->c[i].is_key)
            rc = err_set(err, ERR_USAGE,
                         "--limit '%s': a limit is of a metric, such as err_l1_rel<=0.02",
                         l->c[i].text);
    l->n += rc ? 0 : n;
    return rc;
}

/* ---- candidates ----------------------------------------------------------------------------- */

struct candidate {
    const struct record *first;
    char *params;                /* as a replay takes them, owned; NULL: not a setting of its own */
    const struct record **cells; /* [n], owned: ok records */
    int64_t n, ok;               /* ok: that satisfy all limits */
    double cost, error;          /* means */
};

struct place {
    int layer, kv_head, head; /* -1: all */
    struct candidate *c;
    int64_t n, cap;
    int64_t calls; /* distinct cells of any setting */
    int chosen;    /* -1: dense */
    double dense;  /* cost of dense attention, NAN: not known */
};

struct chooser {
    const struct recset *set;
    const struct choose_request *req;
    struct limits limits; /* of the request; they remember records */
    struct grouping gs;   /* by place, method, parameters */
    struct place *places;
    int64_t n, cap;
    int64_t calibrated, drifting, bounds; /* records that no plan can name */
};

/* The parameters that a plan can hold for a setting with these cells: those of a search are filled
 * in if all cells have found the same. */
static int plan_params(struct chooser *k, struct candidate *c, struct err *err)
{
    const struct record *r = c->first;
    OWN(buf_free) struct buf b = {0};
    size_t len, other;
    if (params_value(r->params, "calib") || strcmp(r->method, "plan") == 0) {
        k->calibrated++;
        return 0;
    }
    if (strcmp(r->method, "dense") == 0 || record_is_bound(r)) {
        k->bounds++;
        return 0;
    }
    const char *target = params_target(r->params);
    buf_put(&b, r->params ? r->params : "",
            *target ? (size_t)(target - 1 - r->params) : strlen(r->params ? r->params : ""));
    if (*target) {
        const char *found = c->n ? record_note_value(c->cells[0], "found", &len) : NULL;
        for (int64_t i = 1; found && i < c->n; i++) {
            const char *x = record_note_value(c->cells[i], "found", &other);
            if (!x || other != len || strncmp(x, found, len) != 0)
                found = NULL;
        }
        if (!found) {
            k->drifting++;
            return 0;
        }
        buf_puts(&b, b.len ? ":" : "");
        buf_put(&b, found, len);
    }
    PASS_ON(buf_check(&b, "parameters", err));
    if (!(c->params = strdup(buf_str(&b))))
        return err_set(err, ERR_NOMEM, "parameters: out of memory");
    return 0;
}

static int add_candidate(struct chooser *k, struct place *p, const struct group *g, struct err *err)
{
    PASS_ON(mem_grow(&p->c, &p->cap, p->n + 1, sizeof *p->c, "settings", err));
    struct candidate *c = &p->c[p->n++];
    *c = (struct candidate){.first = g->first};
    double n = 0;
    PASS_ON(mem_alloc(&c->cells, g->n, sizeof *c->cells, "cells", err));
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &k->set->r[g->at[i]];
        if (r->status != RECORD_OK)
            continue;
        c->cells[c->n++] = r;
        c->ok += where_holds(k->limits.c, k->limits.n, r);
        n++;
        c->cost += record_value(r, k->req->cost);
        c->error += record_value(r, "err_l1_rel");
    }
    c->cost /= n;
    c->error /= n;
    return plan_params(k, c, err);
}

/* Is a better than b? Costs are plain means; ties go to the smaller error. */
static bool better(const struct candidate *a, const struct candidate *b)
{
    if (a->cost != b->cost)
        return a->cost < b->cost;
    return a->error < b->error;
}

static bool is_density(const char *metric)
{
    const struct metric_def *m = metric_def_find(metric);
    return m && m->section && strcmp(m->section, "density") == 0;
}

/* What dense attention costs at a place: by its own records, else 1 of a density. */
static double dense_cost(const struct chooser *k, const struct place *p)
{
    for (int64_t i = 0; i < p->n; i++)
        if (strcmp(p->c[i].first->method, "dense") == 0 && isfinite(p->c[i].cost))
            return p->c[i].cost;
    return strncmp(k->req->cost, "density_", 8) == 0 ? 1 : NAN;
}

static void choose_at(const struct chooser *k, struct place *p)
{
    p->chosen = -1;
    p->dense = dense_cost(k, p);
    for (int64_t i = 0; i < p->n; i++) {
        const struct candidate *c = &p->c[i];
        bool complete = c->n == p->calls && c->n > 0 && isfinite(c->cost);
        bool within = (double)c->ok >= k->req->quantile * (double)c->n;
        if (!c->params || !complete || !within || c->cost >= p->dense)
            continue;
        if (p->chosen < 0 || better(c, &p->c[p->chosen]))
            p->chosen = (int)i;
    }
}

/* ---- places --------------------------------------------------------------------------------- */

static bool is_at(const struct place *p, const struct record *r)
{
    return (p->layer < 0 || p->layer == r->layer) && (p->kv_head < 0 || p->kv_head == r->kv_head) &&
           (p->head < 0 || p->head == r->head);
}

/* Cells of each place, whatever the setting: their number. */
static int count_calls(struct chooser *k, struct err *err)
{
    static const enum group_key cell[] = {KEY_LAYER, KEY_HEAD, KEY_TRACE,
                                          KEY_RUN,   KEY_STEP, KEY_BRANCH};
    OWN(grouping_free) struct grouping gs = {0};
    PASS_ON(grouping_make(k->set, cell, 6, 0, NULL, NULL, &gs, err));
    for (int64_t i = 0, p = 0; i < gs.n; i++) { /* both are in the order of layer and head */
        while (!is_at(&k->places[p], gs.g[i].first))
            p++;
        k->places[p].calls++;
    }
    return 0;
}

static int find_places(struct chooser *k, struct err *err)
{
    enum group_key keys[4];
    int n = 0;
    if (k->req->per != CHOOSE_MODEL)
        keys[n++] = KEY_LAYER;
    if (k->req->per == CHOOSE_HEAD || k->req->per == CHOOSE_KV_HEAD)
        keys[n++] = k->req->per == CHOOSE_HEAD ? KEY_HEAD : KEY_KV_HEAD;
    keys[n++] = KEY_METHOD;
    keys[n++] = KEY_PARAMS;
    PASS_ON(grouping_make(k->set, keys, n, 0, NULL, NULL, &k->gs, err));
    for (int64_t i = 0; i < k->gs.n; i++) {
        const struct record *r = k->gs.g[i].first;
        struct place at = {.layer = k->req->per == CHOOSE_MODEL ? -1 : r->layer,
                           .kv_head = k->req->per == CHOOSE_KV_HEAD ? r->kv_head : -1,
                           .head = k->req->per == CHOOSE_HEAD ? r->head : -1};
        struct place *last = k->n ? &k->places[k->n - 1] : NULL;
        if (!last || !is_at(last, r)) {
            PASS_ON(mem_grow(&k->places, &k->cap, k->n + 1, sizeof *k->places, "places", err));
            last = &k->places[k->n++];
            *last = at;
        }
        PASS_ON(add_candidate(k, last, &k->gs.g[i], err));
    }
    PASS_ON(count_calls(k, err));
    for (int64_t i = 0; i < k->n; i++)
        choose_at(k, &k->places[i]);
    return 0;
}

/* ---- the plan ------------------------------------------------------------------------------- */

/* Median, 10th and 90th percentile (nearest rank) of a metric over cells. */
static int put_expected(const struct candidate *c, const struct record *of, const char *metric,
                        struct jw *w, struct err *err)
{
    OWN(free_at) double *x = NULL;
    int64_t n = 0;
    PASS_ON(mem_alloc(&x, c->n, sizeof *x, "values", err));
    for (int64_t i = 0; i < c->n; i++)
        if (c->cells[i]->layer == of->layer && c->cells[i]->head == of->head)
            x[n++] = record_value(c->cells[i], metric);
    sort_f64(x, n);
    jw_karr(w, metric);
    for (int q = 0; q < 3; q++) {
        static const double level[] = {0.5, 0.1, 0.9};
        int64_t rank = (int64_t)ceil(level[q] * (double)n);
        jw_num(w, x[rank < 1 ? 0 : rank - 1]);
    }
    jw_arr_end(w);
    return 0;
}

static int put_entry(const struct chooser *k, const struct candidate *c, const struct record *of,
                     struct jw *w, struct err *err)
{
    int64_t cells = 0;
    jw_obj(w);
    jw_members(w, JW_INT("layer", of->layer), JW_INT("head", of->head),
               JW_STR("method", c->first->method), JW_STR("params", c->params));
    jw_kobj(w, "expected");
    PASS_ON(put_expected(c, of, k->req->cost, w, err));
    for (int l = 0; l < k->limits.n; l++)
        if (strcmp(k->limits.c[l].name, k->req->cost) != 0)
            PASS_ON(put_expected(c, of, k->limits.c[l].name, w, err));
    jw_obj_end(w);
    for (int64_t i = 0; i < c->n; i++)
        cells += c->cells[i]->layer == of->layer && c->cells[i]->head == of->head;
    jw_kint(w, "cells", cells);
    jw_obj_end(w);
    return 0;
}

static int put_entries(const struct chooser *k, struct jw *w, struct choose_summary *sum,
                       struct err *err)
{
    static const enum group_key keys[] = {KEY_LAYER, KEY_HEAD};
    const struct place *p = k->places;
    OWN(grouping_free) struct grouping heads = {0};
    double total = 0;
    PASS_ON(grouping_make(k->set, keys, 2, 0, NULL, NULL, &heads, err));
    jw_karr(w, "entries");
    for (int64_t i = 0; i < heads.n; i++) {
        const struct record *r = heads.g[i].first;
        while (!is_at(p, r))
            p++;
        sum->heads++;
        if (p->chosen < 0) {
            sum->dense++;
            total += p->dense;
            continue;
        }
        const struct candidate *c = &p->c[p->chosen];
        double cost = 0, n = 0;
        for (int64_t j = 0; j < c->n; j++)
            if (c->cells[j]->layer == r->layer && c->cells[j]->head == r->head) {
                cost += record_value(c->cells[j], k->req->cost);
                n++;
            }
        total += cost / n;
        PASS_ON(put_entry(k, c, r, w, err));
    }
    jw_arr_end(w);
    sum->cost = is_density(k->req->cost) && sum->heads ? total / (double)sum->heads : NAN;
    return 0;
}

static void put_limits(const struct limits *l, struct jw *w)
{
    OWN(buf_free) struct buf b = {0};
    for (int i = 0; i < l->n; i++)
        buf_printf(&b, "%s%s", i ? "," : "", l->c[i].text);
    jw_kstr(w, "limits", buf_str(&b));
}

static int put_traces(const struct recset *set, struct jw *w, struct err *err)
{
    static const enum group_key key[] = {KEY_TRACE};
    OWN(grouping_free) struct grouping gs = {0};
    PASS_ON(grouping_make(set, key, 1, 0, NULL, NULL, &gs, err));
    jw_karr(w, "runs");
    for (int64_t i = 0; i < gs.n; i++)
        jw_str(w, gs.g[i].first->trace);
    jw_arr_end(w);
    return 0;
}

static int check_set(const struct recset *set, const struct choose_request *req, struct err *err)
{
    static const enum group_key one[] = {KEY_MODEL,   KEY_PERMUTE,   KEY_CAUSAL,
                                         KEY_BACKEND, KEY_PRECISION, KEY_SCOPE};
    for (size_t i = 0; i < sizeof one / sizeof *one; i++)
        if (recset_varies(set, one[i]))
            return err_set(err, ERR_INPUT,
                           "the records differ in %s: a plan is for one (choose with --where)",
                           key_name(one[i]));
    for (int64_t i = 0; i < set->n; i++)
        if (set->r[i].scope == RECORD_OF_MODEL)
            return err_set(err, ERR_INPUT,
                           "a plan chooses for heads; records of `lacuna eval` are of whole "
                           "models: give those of a replay");
    for (int64_t i = 0; i < set->n; i++)
        if (set->r[i].status == RECORD_OK && record_has(&set->r[i], req->cost))
            return 0;
    if (set->n_calls && metric_timed(req->cost))
        return err_set(err, ERR_INPUT,
                       "%s is known of whole calls only, a plan chooses for heads: replay with "
                       "--copies 0 times heads one by one",
                       req->cost);
    return err_set(err, ERR_INPUT, "no ok record has a metric %s (--cost)", req->cost);
}

static void chooser_free(struct chooser *k)
{
    for (int64_t i = 0; i < k->n; i++) {
        for (int64_t j = 0; j < k->places[i].n; j++) {
            free(k->places[i].c[j].params);
            free(k->places[i].c[j].cells);
        }
        free(k->places[i].c);
    }
    free(k->places);
    grouping_free(&k->gs);
}

int choose_plan(const struct recset *set, const struct choose_request *req, struct jw *w,
                struct choose_summary *sum, struct err *err)
{
    static const char *const per[] = {"head", "kv-head", "layer", "model"};
    OWN(chooser_free) struct chooser k = {.set = set, .req = req, .limits = req->limits};
    *sum = (struct choose_summary){0};
    PASS_ON(check_set(set, req, err));
    PASS_ON(find_places(&k, err));
    if (k.calibrated)
        log_warn(
            "settings with calib= or of a plan are left out: a plan holds parameters, no files");
    if (k.drifting)
        log_warn("settings whose search found another parameter in every call of a head are left "
                 "out: replay them with :per=layer, :per=model, or as a sweep");
    jw_obj(w);
    jw_members(w, JW_STR("format", "lacuna-plan"), JW_INT("version", 1),
               JW_STR("model", set->r[0].model), JW_STR("permute", set->r[0].permute));
    put_limits(&req->limits, w);
    jw_members(w, JW_NUM("quantile", req->quantile), JW_STR("cost", req->cost),
               JW_STR("per", per[req->per]));
    PASS_ON(put_traces(set, w, err));
    jw_kstr(w, "default", "dense");
    PASS_ON(put_entries(&k, w, sum, err));
    jw_obj_end(w);
    return 0;
}
