/*
 * ranking.c - see ranking.h and doc/records.md.
 *
 * The unit of comparison is the query head of a layer: its calls (steps, branches, prompts) are
 * averaged first, because calls of one head are not independent.
 */
#include "analyze/ranking_impl.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one comparison ------------------------------------------------------------------------- */

static void find_common(struct ranking *k)
{
    k->n_common = k->left_out = 0;
    for (int64_t u = 0; u < k->units.n; u++) {
        int64_t have = 0;
        for (int64_t i = 0; i < k->n_c; i++)
            have += isfinite(k->c[i].y[u]);
        k->common[u] = have == k->n_c;
        k->n_common += have == k->n_c;
        k->left_out += have > 0 && have < k->n_c;
    }
}

static bool better(const char *by, double a, double b)
{
    return metric_better(by) == BETTER_HIGHER ? a > b : a < b;
}

static void share_wins(struct ranking *k)
{
    for (int64_t i = 0; i < k->n_c; i++)
        k->c[i].share = k->c[i].mean_x = k->c[i].mean_y = 0;
    for (int64_t u = 0; u < k->units.n; u++) {
        int64_t ties = 0;
        if (!k->common[u])
            continue;
        double best = k->c[0].y[u];
        for (int64_t i = 1; i < k->n_c; i++)
            if (better(k->by, k->c[i].y[u], best))
                best = k->c[i].y[u];
        for (int64_t i = 0; i < k->n_c; i++)
            ties += fabs(k->c[i].y[u] - best) <= RANKING_TIE * fabs(best);
        for (int64_t i = 0; i < k->n_c; i++) {
            struct contestant *c = &k->c[i];
            if (fabs(c->y[u] - best) <= RANKING_TIE * fabs(best))
                c->share += 1.0 / (double)ties / (double)k->n_common;
            c->mean_x += c->x[u] / (double)k->n_common;
            c->mean_y += c->y[u] / (double)k->n_common;
        }
    }
}

/* The best of the others, by mean. */
static const struct contestant *rival_of(const struct ranking *k, int64_t i)
{
    const struct contestant *r = NULL;
    for (int64_t j = 0; j < k->n_c; j++)
        if (j != i && (!r || better(k->by, k->c[j].mean_y, r->mean_y)))
            r = &k->c[j];
    return r;
}

static int judge(const struct ranking *k, int64_t i, struct verdict *v, struct err *err)
{
    const struct contestant *c = &k->c[i], *r = rival_of(k, i);
    double *d = NULL;
    int64_t n = 0;
    int rc = 0;
    TRY(mem_alloc(&d, k->n_common, sizeof *d, "differences", err));
    for (int64_t u = 0; u < k->units.n; u++)
        if (k->common[u])
            d[n++] = c->y[u] - r->y[u];
    TRY(paired_test(d, n, &v->diff, err));
out:
    free(d);
    return rc;
}

/* Parameters without the target, which the column "at" has; what shares them stays. */
static void without_place(const char *params, struct buf *b)
{
    const char *target = params_target(params), *per = strchr(target, ':');
    size_t own = *target ? (size_t)(target - 1 - params) : strlen(params);
    buf_put(b, params, own);
    if (per)
        buf_puts(b, own ? per : per + 1);
}

static int add_outcome(struct ranking *k, const struct place *at, int64_t i, struct err *err)
{
    const struct contestant *c = &k->c[i], *rival = rival_of(k, i);
    struct outcome *o;
    int rc = 0;
    TRY(mem_grow(&k->outcomes, &k->cap_outcomes, k->n_outcomes + 1, sizeof *k->outcomes,
                 "comparisons", err));
    o = &k->outcomes[k->n_outcomes++];
    *o = (struct outcome){.first = c->first,
                          .method = c->first->method,
                          .n = (double)k->n_common,
                          .mean_x = c->mean_x,
                          .mean_y = c->mean_y,
                          .share = c->share};
    snprintf(o->at, sizeof o->at, "%s", at->text);
    without_place(buf_str(&c->params), &o->params);
    without_place(buf_str(&rival->params), &o->second);
    const char *sep = o->second.len ? ":" : "";
    struct buf own = o->second;
    o->second = (struct buf){0};
    buf_printf(&o->second, "%s%s%s", rival->first->method, sep, buf_str(&own));
    buf_free(&own);
    TRY(judge(k, i, &o->v, err));
    TRY(buf_check(o->params.failed ? &o->params : &o->second, "parameters", err));
out:
    return rc;
}

/* Of the last n outcomes. */
static void crown(struct ranking *k, int64_t n)
{
    struct outcome *o = k->outcomes + k->n_outcomes - n, *best = o;
    for (int64_t i = 1; i < n; i++)
        if (o[i].share > best->share ||
            (o[i].share == best->share && better(k->by, o[i].mean_y, best->mean_y)))
            best = &o[i];
    best->first_place = true;
}

/* No comparison, or not of everything: why. */
static void note_place(struct ranking *k, const struct place *at, bool even, struct table *t)
{
    if (k->n_c < 2)
        ranking_note(k, t, "at %s fewer than two settings have values: nothing to rank", at->text);
    else if (k->n_common == 0)
        ranking_note(k, t, "at %s no %s has values of all settings: leave some out (--where)",
                     at->text, ranking_unit(k, false));
    else if (k->left_out && k->per == PER_MODEL)
        table_note(t, "at %s %lld heads that only some settings have are left out", at->text,
                   (long long)k->left_out);
    if (!even)
        ranking_note(k, t, "at %s the settings were not replayed on the same calls", at->text);
}

static int rank_at(struct ranking *k, const struct place *at, struct table *t, struct err *err)
{
    bool even = true;
    int rc = 0;
    find_common(k);
    if (k->n_c >= 2 && k->n_common > 0) {
        share_wins(k);
        for (int64_t i = 0; i < k->n_c; i++) {
            TRY(add_outcome(k, at, i, err));
            even &= at->curves || k->c[i].calls == k->c[0].calls;
        }
        crown(k, k->n_c);
    }
    note_place(k, at, even, t);
out:
    return rc;
}

/* Over all comparisons of the table. */
static int correct_all(struct ranking *k, struct err *err)
{
    double *p = NULL;
    int rc = mem_alloc(&p, k->n_outcomes, sizeof *p, "verdicts", err);
    for (int64_t i = 0; !rc && i < k->n_outcomes; i++)
        p[i] = k->outcomes[i].v.diff.test.p;
    if (!rc)
        rc = holm_correct(p, k->n_outcomes, err);
    for (int64_t i = 0; !rc && i < k->n_outcomes; i++)
        k->outcomes[i].v.holm = p[i];
    free(p);
    return rc;
}

/* ---- the table ------------------------------------------------------------------------------ */

/* The settings of groups [from, to), ranked at one place. */
static int rank_scope(struct ranking *k, int64_t from, int64_t to, const struct place *at,
                      struct table *t, struct err *err)
{
    int rc = ranking_find(k, from, to, at, t, err);
    if (!rc)
        rc = rank_at(k, at, t, err);
    ranking_free_place(k);
    return rc;
}

/* One comparison per target that two settings share. */
static int rank_targets(struct ranking *k, int64_t from, int64_t to, struct table *t,
                        struct err *err)
{
    int rc = 0;
    for (int64_t g = from; g < to; g++) {
        struct place at = {.curves = false};
        const char *target = params_target(k->gs.g[g].first->params);
        bool seen = !*target;
        if (!seen)
            TRY(place_parse(target, &at, err));
        for (int64_t h = from; h < g && !seen; h++)
            seen = place_is_of(k->gs.g[h].first, at.text);
        if (!seen)
            TRY(rank_scope(k, from, to, &at, t, err));
    }
out:
    return rc;
}

static bool any_target(const struct recset *set)
{
    for (int64_t i = 0; i < set->n; i++)
        if (set->r[i].status == RECORD_OK && *params_target(set->r[i].params))
            return true;
    return false;
}

static bool same_scope(const struct ranking *k, int64_t a, int64_t b)
{
    return same_keys(k->gs.g[a].first, k->gs.g[b].first, k->scope, k->n_scope);
}

static int parse_request(const struct table_request *req, const struct recset *set,
                         struct ranking *k, struct place *at, struct err *err)
{
    static const char *const pers[] = {"model", "layer", "head"};
    const char *per = req->per ? req->per : "model";
    int rc = 0;
    if (req->group || req->pivot || req->columns)
        FAIL(err, ERR_USAGE,
             "its rows and columns are fixed: --at, --by, --per and --where "
             "choose what is compared");
    if (metric_better(k->by) == BETTER_NEITHER || !metric_def_find(k->by))
        FAIL(err, ERR_USAGE, "--by %s: a metric with a better and a worse direction was expected",
             k->by);
    while (strcmp(per, pers[k->per]) != 0)
        if (++k->per > PER_ONE_HEAD)
            FAIL(err, ERR_USAGE, "--per %s: model, layer or head was expected", per);
    if (req->at)
        TRY(place_parse(req->at, at, err));
    else if (!any_target(set))
        FAIL(err, ERR_INPUT,
             "the records have no targets (replay -m METHOD@density_elem=0.3): say where settings "
             "are compared, as in --at density_elem=0.3");
out:
    return rc;
}

/* Groups of the settings, in the order of scope, layer and head. */
static int group_settings(struct ranking *k, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    int rc = recset_scope(k->set, k->scope, &k->n_scope, err);
    if (rc)
        return rc;
    if (k->per != PER_MODEL)
        k->scope[k->n_scope++] = KEY_LAYER;
    if (k->per == PER_ONE_HEAD)
        k->scope[k->n_scope++] = KEY_HEAD;
    memcpy(keys, k->scope, sizeof keys);
    keys[k->n_scope] = KEY_METHOD;
    keys[k->n_scope + 1] = KEY_PARAMS;
    return grouping_make(k->set, keys, k->n_scope + 2, 0, NULL, NULL, &k->gs, err);
}

static void ranking_free(struct ranking *k)
{
    for (int64_t i = 0; i < k->n_outcomes; i++) {
        buf_free(&k->outcomes[i].params);
        buf_free(&k->outcomes[i].second);
    }
    free(k->outcomes);
    grouping_free(&k->gs);
}

static int build_ranking(const struct table_def *def, const struct recset *set,
                         const struct table_request *req, struct table *out, struct err *err)
{
    struct ranking k = {.set = set, .by = req->by ? req->by : "err_l1_rel"};
    struct place at = {.curves = true};
    int rc = 0;

    TRY(parse_request(req, set, &k, &at, err));
    TRY(group_settings(&k, err));
    for (int64_t a = 0, b; a < k.gs.n; a = b) {
        for (b = a; b < k.gs.n && same_scope(&k, a, b); b++)
            ;
        TRY(req->at ? rank_scope(&k, a, b, &at, out, err) : rank_targets(&k, a, b, out, err));
    }
    TRY(correct_all(&k, err));
    TRY(ranking_put_rows(&k, out, err));
out:
    ranking_free(&k);
    return rc;
}

const struct table_def table_ranking = {
    .listed = {"ranking", "Who wins at equal density, on how many heads and by how much",
               "rows: settings with equal targets, or --at METRIC=X; --by METRIC (err_l1_rel) "
               "decides; with "
               "--per layer|head the winner of each"},
    .keys = "method,params",
    .metrics = "err_l1_rel",
    .brief = "at,method,params,value,won,difference,verdict",
    .build = build_ranking,
    .has_data = any_target};
