/*
 * chart_groups.c - the cells of a chart: which are chosen, how they are grouped, what their groups
 * are called and over what they are averaged.
 */
#include "plots/chart.h"

#include "core/indexlist.h"
#include "core/metricdef.h"
#include "core/text.h"

#include "analyze/tables.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- groups -------------------------------------------------------------------------------- */

static bool fits(const void *ctx, const struct record *r)
{
    const struct chart_groups *c = ctx;
    const struct figure_args *a = c->args;
    return r->status == RECORD_OK && index_list_has(c->layers.at, c->layers.n, r->layer) &&
           index_list_has(c->heads.at, c->heads.n, r->head) &&
           index_list_has(c->steps.at, c->steps.n, r->step) &&
           (!a->branch || strcmp(a->branch, r->branch) == 0) && figure_takes(a, r);
}

static bool same_setting(const struct chart_groups *c, const struct record *a,
                         const struct record *b)
{
    return same_keys(a, b, c->scope, c->n_scope) && key_compare(a, b, KEY_METHOD) == 0 &&
           key_compare(a, b, KEY_PARAMS) == 0;
}

/* Are the dense calls of the record's method and parameters left out? */
static bool leaves_dense_out(const struct chart_groups *c, const struct record *r)
{
    for (int64_t i = 0; i < c->settings.n; i++)
        if (c->settings.g[i].steps == STEPS_SPARSE && same_setting(c, c->settings.g[i].first, r))
            return true;
    return false;
}

/* The chosen cells without the dense calls of those that also ran sparse ones. */
static bool fits_sparse(const void *ctx, const struct record *r)
{
    return fits(ctx, r) && !(record_value(r, "dense_call") == 1 && leaves_dense_out(ctx, r));
}

static int list(const char *text, const char *option, struct chosen *c, struct err *err)
{
    c->n = -1;
    return text ? index_list_parse(text, -1, option, &c->at, &c->n, err) : 0;
}

/* Drop groups in which no cell has the metric. */
static int drop_without(struct grouping *gs, const char *metric, struct err *err)
{
    struct stats s;
    int64_t kept = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        int rc = group_stats(gs, &gs->g[i], metric, &s, NULL, err);
        if (rc)
            return rc;
        if (s.n > 0)
            gs->g[kept++] = gs->g[i];
    }
    gs->n = kept;
    return 0;
}

/* Scope keys, then those of the figure. */
static int choose_keys(const enum group_key *keys, int n_keys, enum group_key without,
                       struct chart_groups *c, struct err *err)
{
    enum group_key scope[KEYS_MAX];
    int n, rc = recset_scope(c->args->set, scope, &n, err);
    if (rc)
        return rc;
    for (int i = 0; i < n; i++)
        if (scope[i] != without)
            c->scope[c->n_scope++] = scope[i];
    for (int i = 0; i < c->n_scope; i++)
        c->keys[c->n_keys++] = c->scope[i];
    for (int i = 0; i < n_keys; i++)
        c->keys[c->n_keys++] = keys[i];
    return 0;
}

/* Which settings ran some calls dense and others not. */
static int group_settings(struct chart_groups *c, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    int n = c->n_scope;
    memcpy(keys, c->scope, sizeof keys);
    keys[n++] = KEY_METHOD;
    keys[n++] = KEY_PARAMS;
    return grouping_make(c->args->set, keys, n, GROUP_SPLIT_STEPS, fits, c, &c->settings, err);
}

int chart_nothing(const struct figure_args *a, const char *metric, struct err *err)
{
    struct str_list recorded = {0};
    struct names names = {0};
    char hint[HINT_MAX] = "";
    if (!metric)
        return err_set(err, ERR_INPUT, "no ok record is left to draw");
    int rc = recset_metrics(a->set, "*", &recorded, err);
    for (int64_t i = 0; !rc && i < recorded.n; i++)
        names_add(&names, recorded.items[i]);
    if (!rc && !metric_def_find(metric))
        did_you_mean(metric, names.items, hint);
    if (!rc)
        rc = err_set(err, ERR_INPUT, "no ok record with %s is left to draw%s", metric,
                     metric_def_find(metric) ? ""
                     : hint[0]               ? hint
                                             : ": `lacuna list metrics` names all metrics");
    str_list_free(&recorded);
    return rc;
}

int chart_group(const struct figure_args *a, const enum group_key *keys, int n_keys, unsigned flags,
                const char *metric, enum group_key without, struct chart_groups *out,
                struct err *err)
{
    struct chart_groups c = {.args = a};
    bool split = flags & GROUP_SPLIT_STEPS;
    int rc = 0;

    TRY(list(a->layers, "--layers", &c.layers, err));
    TRY(list(a->heads, "--heads", &c.heads, err));
    TRY(list(a->steps, "--steps", &c.steps, err));
    TRY(choose_keys(keys, n_keys, without, &c, err));
    if (split)
        TRY(group_settings(&c, err));
    TRY(grouping_make(a->set, c.keys, c.n_keys, flags & ~(unsigned)GROUP_SPLIT_STEPS,
                      split ? fits_sparse : fits, &c, &c.gs, err));
    if (metric)
        TRY(drop_without(&c.gs, metric, err));
    if (c.gs.n == 0)
        TRY(chart_nothing(a, metric, err));
    *out = c;
out:
    if (rc)
        chart_groups_free(&c);
    return rc;
}

void chart_groups_free(struct chart_groups *c)
{
    free(c->layers.at);
    free(c->heads.at);
    free(c->steps.at);
    grouping_free(&c->gs);
    grouping_free(&c->settings);
    *c = (struct chart_groups){0};
}

/* ---- names --------------------------------------------------------------------------------- */

static void scope_text(const struct chart_groups *c, const struct record *r, struct buf *b)
{
    for (int i = 0; i < c->n_scope; i++) {
        buf_puts(b, i ? " " : "");
        if (c->scope[i] != KEY_MODEL)
            buf_printf(b, "%s=", key_name(c->scope[i]));
        key_text(r, c->scope[i], b);
    }
}

void chart_name(const struct chart_groups *c, const struct record *r, const char *params,
                struct buf *b)
{
    struct buf scope = {0};
    scope_text(c, r, &scope);
    series_name(buf_str(&scope), r->method, params, false, b);
    b->failed |= scope.failed;
    buf_free(&scope);
}

int chart_series(const struct chart_groups *c, const struct record *r, const char *params,
                 struct series_list *l, struct err *err)
{
    struct buf scope = {0};
    int s = -1;
    l->methods = c->args->methods;
    scope_text(c, r, &scope);
    if (!buf_check(&scope, "series", err))
        s = series_of_setting(l, buf_str(&scope), r->method, params, leaves_dense_out(c, r), err);
    buf_free(&scope);
    return s;
}

/* Different values of the key in a group, counted up to a limit that no title needs to pass. */
static int values_of(const struct grouping *gs, const struct group *g, enum group_key k)
{
    const struct record *seen[1000];
    int n = 0;
    for (int64_t i = 0; i < g->n && n < 1000; i++) {
        const struct record *r = &gs->set->r[g->at[i]];
        int j = 0;
        while (j < n && key_compare(seen[j], r, k) != 0)
            j++;
        if (j == n)
            seen[n++] = r;
    }
    return n;
}

/* Least and most values of a key in a group. */
struct spread {
    int least, most;
};

static struct spread spread_of(const struct grouping *gs, enum group_key k)
{
    struct spread s = {INT_MAX, 0};
    for (int64_t i = 0; i < gs->n; i++) {
        int n = values_of(gs, &gs->g[i], k);
        s.least = n < s.least ? n : s.least;
        s.most = n > s.most ? n : s.most;
    }
    return s;
}

/* Records of a group with one of the metrics (NULL: all records). */
static int64_t count_having(const struct grouping *gs, const struct group *g,
                            const struct str_list *metrics)
{
    int64_t n = 0;
    for (int64_t i = 0; i < g->n; i++) {
        bool has = !metrics;
        for (int64_t k = 0; metrics && k < metrics->n; k++)
            has = has || record_has(&gs->set->r[g->at[i]], metrics->items[k]);
        n += has;
    }
    return n;
}

/* Of methods inside a model a record is a text, a prompt or a clip. Groups with none of the metrics
 * are not drawn. */
static bool over_tasks(const struct grouping *gs, const struct str_list *metrics, struct buf *b)
{
    int64_t least = INT64_MAX, most = 0;
    for (int64_t i = 0; i < gs->n; i++) {
        if (gs->g[i].first->scope != RECORD_OF_MODEL)
            return false;
        int64_t n = count_having(gs, &gs->g[i], metrics);
        if (n == 0)
            continue;
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    buf_printf(b, "%s%lld %s", least < most ? "up to " : "", (long long)most,
               most == 1 ? "text or prompt" : "texts or prompts");
    return true;
}

void chart_over(const struct chart_groups *c, const struct str_list *metrics, struct buf *b)
{
    static const struct {
        enum group_key key;
        const char *many;
    } all[] = {{KEY_LAYER, "layers"},
               {KEY_STEP, "steps"},
               {KEY_BRANCH, "branches"},
               {KEY_RUN, "runs"},
               {KEY_TRACE, "traces"}};
    enum { N = sizeof all / sizeof *all };
    struct spread s[N];
    int left = 0;
    if (over_tasks(&c->gs, metrics, b))
        return;
    for (int k = 0; k < N; k++) {
        s[k] = spread_of(&c->gs, all[k].key);
        left += s[k].most > 1;
    }
    buf_puts(b, "heads");
    const char *before = " of ";
    for (int k = 0; k < N; k++)
        if (s[k].most > 1) {
            buf_printf(b, "%s%s%d %s", before, s[k].least < s[k].most ? "up to " : "", s[k].most,
                       all[k].many);
            before = --left > 1 ? ", " : " and ";
        }
}
