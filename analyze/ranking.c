/*
 * ranking.c - see ranking.h and doc/records.md.
 *
 * The unit of comparison is the query head of a layer: its calls (steps, branches, prompts) are
 * averaged first, because calls of one head are not independent.
 */
#include "analyze/ranking_impl.h"

#include "analyze/metricfacts.h"
#include "analyze/paired.h"
#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNIFICANT 0.05

/* ---- one comparison ------------------------------------------------------------------------- */

static void find_common(struct ranking *k)
{
    k->n_common = k->left_out = 0;
    for (int64_t u = 0; u < k->n_units; u++) {
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
    for (int64_t u = 0; u < k->n_units; u++) {
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

struct verdict {
    double median, low, high;
    struct signed_rank test;
};

static int judge(const struct ranking *k, int64_t i, struct verdict *v, struct err *err)
{
    const struct contestant *c = &k->c[i], *r = rival_of(k, i);
    double *d = NULL;
    int64_t n = 0;
    int rc = 0;
    TRY(mem_alloc(&d, k->n_common, sizeof *d, "differences", err));
    for (int64_t u = 0; u < k->n_units; u++)
        if (k->common[u])
            d[n++] = c->y[u] - r->y[u];
    TRY(median_of(d, n, &v->median, err));
    TRY(median_interval(d, n, &v->low, &v->high, err));
    TRY(signed_rank_test(d, n, &v->test, err));
out:
    free(d);
    return rc;
}

enum {
    C_AT,
    C_METHOD,
    C_PARAMS,
    C_N,
    C_X,
    C_Y,
    C_SHARE,
    C_MEDIAN,
    C_LOW,
    C_HIGH,
    C_P,
    C_HOLM,
    C_VERDICT
};

static const char *in_words(const struct ranking *k, const struct verdict *v, double holm)
{
    if (!(holm < SIGNIFICANT))
        return "open";
    bool higher = v->test.plus > v->test.minus;
    return higher == (metric_better(k->by) == BETTER_HIGHER) ? "better" : "worse";
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

static int put_row(const struct ranking *k, const struct place *at, int64_t i,
                   const struct verdict *v, double holm, struct table *t, struct err *err)
{
    const struct contestant *c = &k->c[i];
    int64_t o = k->n_scope;
    struct buf own = {0};
    int rc = 0;
    TRY(table_row(t, err));
    for (int s = 0; s < k->n_scope; s++)
        TRY(table_put_key(t, s, c->first, k->scope[s], err));
    TRY(table_text(t, o + C_AT, at->text, err));
    TRY(table_text(t, o + C_METHOD, c->first->method, err));
    without_place(buf_str(&c->params), &own);
    TRY(buf_check(&own, "parameters", err));
    TRY(table_text(t, o + C_PARAMS, buf_str(&own), err));
    TRY(table_text(t, o + C_VERDICT, in_words(k, v, holm), err));
    const double numbers[][2] = {
        {C_N, (double)k->n_common}, {C_X, c->mean_x},      {C_Y, c->mean_y},
        {C_SHARE, c->share},        {C_MEDIAN, v->median}, {C_LOW, v->low},
        {C_HIGH, v->high},          {C_P, v->test.p},      {C_HOLM, holm}};
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
        table_num(t, o + (int64_t)numbers[n][0], numbers[n][1]);
out:
    buf_free(&own);
    return rc;
}

static int rank_at(struct ranking *k, const struct place *at, struct table *t, struct err *err)
{
    struct verdict *v = NULL;
    double *p = NULL;
    int rc = 0;

    find_common(k);
    if (k->n_c < 2 || k->n_common == 0) {
        table_note(t, "at %s %s", at->text,
                   k->n_c < 2 ? "fewer than two settings have values: nothing to rank"
                              : "no head has values of all settings: leave some out (--where)");
        goto out;
    }
    share_wins(k);
    TRY(mem_zalloc(&v, k->n_c, sizeof *v, "verdicts", err));
    TRY(mem_alloc(&p, k->n_c, sizeof *p, "verdicts", err));
    bool even = true;
    for (int64_t i = 0; i < k->n_c; i++) {
        TRY(judge(k, i, &v[i], err));
        p[i] = v[i].test.p;
        even &= at->curves || k->c[i].calls == k->c[0].calls;
    }
    holm_correct(p, (int)k->n_c);
    for (int64_t i = 0; i < k->n_c; i++)
        TRY(put_row(k, at, i, &v[i], p[i], t, err));
    if (k->left_out)
        table_note(t, "at %s %lld heads that only some settings have are left out", at->text,
                   (long long)k->left_out);
    if (!even)
        table_note(t, "at %s the settings were not replayed on the same calls", at->text);
out:
    free(v);
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

static int make_columns(const struct ranking *k, struct table *t, struct err *err)
{
    static const struct {
        const char *name, *title;
        enum column_type type;
    } columns[] = {{"at", "at", COL_TEXT},
                   {"method", "method", COL_TEXT},
                   {"params", "setting", COL_TEXT},
                   {"n", "n", COL_INT},
                   {"at_value", "has", COL_REAL},
                   {"value", "mean", COL_REAL},
                   {"won", "won", COL_REAL},
                   {"difference", "diff", COL_REAL},
                   {"low", "low", COL_REAL},
                   {"high", "high", COL_REAL},
                   {"p", "p", COL_REAL},
                   {"p_holm", "p Holm", COL_REAL},
                   {"verdict", "verdict", COL_TEXT}};
    int rc = 0;
    TRY(table_key_columns(t, k->scope, k->n_scope, err));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        TRY(table_column(t, columns[i].name, columns[i].title, "", columns[i].type, 1, err));
        /* Densities and errors of several places; shares and p-values align. */
        t->cols[t->n_cols - 1].mixed = strcmp(columns[i].name, "at_value") == 0 ||
                                       strcmp(columns[i].name, "value") == 0 ||
                                       strcmp(columns[i].name, "difference") == 0;
    }
    snprintf(t->title, sizeof t->title, "Who wins by %s at equal budget, head by head", k->by);
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

static int same_scope(const struct ranking *k, int64_t a, int64_t b)
{
    for (int i = 0; i < k->n_scope; i++)
        if (key_compare(k->gs.g[a].first, k->gs.g[b].first, k->scope[i]) != 0)
            return false;
    return true;
}

static int build_ranking(const struct table_def *def, const struct recset *set,
                         const struct table_request *req, struct table *out, struct err *err)
{
    struct ranking k = {.set = set, .by = req->by ? req->by : "err_l1_rel"};
    enum group_key keys[KEYS_MAX];
    struct place at = {.curves = true};
    int rc = 0;

    if (req->group || req->pivot || req->columns)
        FAIL(err, ERR_USAGE,
             "its rows and columns are fixed: --at, --by and --where "
             "choose what is compared");
    if (metric_better(k.by) == BETTER_NEITHER || !metric_def_find(k.by))
        FAIL(err, ERR_USAGE, "--by %s: a metric with a better and a worse direction was expected",
             k.by);
    if (req->at)
        TRY(place_parse(req->at, &at, err));
    else if (!any_target(set))
        FAIL(err, ERR_INPUT,
             "the records have no targets (replay -m METHOD@density_elem=0.3): say where settings "
             "are compared, as in --at density_elem=0.3");
    TRY(recset_scope(set, k.scope, &k.n_scope, err));
    memcpy(keys, k.scope, sizeof keys);
    keys[k.n_scope] = KEY_METHOD;
    keys[k.n_scope + 1] = KEY_PARAMS;
    TRY(grouping_make(set, keys, k.n_scope + 2, 0, NULL, NULL, &k.gs, err));
    TRY(make_columns(&k, out, err));
    for (int64_t a = 0, b; a < k.gs.n; a = b) {
        for (b = a; b < k.gs.n && same_scope(&k, a, b); b++)
            ;
        TRY(req->at ? rank_scope(&k, a, b, &at, out, err) : rank_targets(&k, a, b, out, err));
    }
    table_note(out,
               "n: heads that all settings have; won: share of them, values "
               "within %g %% of the best share a head; diff: median over heads to the best "
               "other setting, low and high its 95 %% interval; p: signed-rank test of it, p Holm "
               "corrected for the settings; a verdict needs p Holm below %g",
               100 * RANKING_TIE, SIGNIFICANT);
out:
    free(k.units);
    grouping_free(&k.gs);
    return rc;
}

const struct table_def table_ranking = {
    {"ranking", "Who wins at equal density, on how many heads and by how much",
     "rows: settings with equal targets, or --at METRIC=X; --by METRIC (err_l1_rel) decides"},
    "method,params",
    "err_l1_rel",
    0,
    build_ranking,
    any_target};
