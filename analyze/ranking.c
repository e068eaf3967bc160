/*
 * ranking.c - the table "ranking": which setting wins at equal density (or recall, or error), on
 * how many heads, by how much, and whether chance would do (doc/records.md).
 *
 * The unit of comparison is the query head of a layer: its calls (steps, branches, prompts) are
 * averaged first, because calls of one head are not independent.
 *
 * A setting stands at a place by a target of the replay (@density_elem=0.3). A head on which the
 * search missed the target has another budget than the others and is none of its heads there: a
 * setting that keeps three times as much would win. With --at the curve through all settings that
 * differ in the method's budget parameter alone stands in for it.
 */
#include "analyze/tables.h"

#include "analyze/stats.h"
#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Values within this share of the best one share its win. */
#define RANKING_TIE 0.01

#define SIGNIFICANT 0.05 /* p of a verdict */

/* Where settings are compared. */
struct place {
    char text[128], metric[64]; /* "density_elem=0.3" */
    double value;
    bool curves; /* --at: other settings take part by interpolation */
};

/* One method with parameters: what its units have. */
struct setting {
    const struct record *first;
    double *x, *y; /* [units], owned together: means over calls, NAN where there is none */
    bool *missed;  /* [units], owned: the search did not meet its target */
    int64_t calls; /* ok records */
};

/* A setting with a target, or a curve of settings; y at the place of comparison. */
struct contestant {
    const struct record *first;
    struct buf params, family;
    double *x, *y; /* [units], owned together; NAN where it has no value */
    int64_t calls;
    int64_t units, missed; /* with a value of its own; of these beside the target */
    double mean_missed;    /* what the latter have */
    double mean_x, mean_y, share;
};

/* A row of the table, until the comparisons of all rows are known. */
struct outcome {
    double p;    /* of the test, then corrected for all comparisons of the table */
    bool higher; /* than the best other setting */
};

struct ranking {
    const struct recset *set;
    const char *by;
    enum group_key scope[KEYS_MAX];
    int n_scope;
    struct grouping gs;
    struct outcome *rows; /* owned: one for each row of the table */
    int64_t n_rows, cap_rows;
    /* of one scope */
    struct units units;
    struct setting *settings;
    int64_t n_settings;
    struct contestant *c;
    int64_t n_c;
    bool *common; /* [units]: all contestants have a value */
    int64_t n_common, left_out;
};

/* ---- places --------------------------------------------------------------------------------- */

static int place_parse(const char *text, struct place *at, struct err *err)
{
    size_t len = strcspn(text, "<>=");
    const char *value = text + len + strspn(text + len, "<>=");
    char *end;
    snprintf(at->text, sizeof at->text, "%.*s", (int)strcspn(text, ":"), text);
    snprintf(at->metric, sizeof at->metric, "%.*s", (int)len, text);
    at->value = strtod(value, &end);
    if (!metric_def_find(at->metric) || end == value || (*end && *end != ':'))
        return err_set(err, ERR_USAGE, "--at %s: expected METRIC=X, such as density_elem=0.3",
                       text);
    return 0;
}

/* ---- means of heads ------------------------------------------------------------------------- */

/* Is another density than the one that was asked for all that there is? */
static bool missed_target(const struct record *r)
{
    size_t len = 0;
    const char *end = record_note_value(r, "budget", &len);
    return end && !(len == 3 && strncmp(end, "met", 3) == 0);
}

static int mean_heads(struct ranking *k, const struct group *g, const char *metric,
                      struct setting *s, struct err *err)
{
    s->first = g->first;
    PASS_ON(mem_alloc(&s->x, 2 * k->units.n, sizeof *s->x, "heads", err));
    s->y = s->x + k->units.n;
    PASS_ON(mem_zalloc(&s->missed, k->units.n, sizeof *s->missed, "heads", err));
    PASS_ON(units_mean(&k->units, &k->gs, g, metric, k->by, s->x, err));
    PASS_ON(units_mean(&k->units, &k->gs, g, k->by, metric, s->y, err));
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &k->set->r[g->at[i]];
        if (r->status != RECORD_OK || !record_has(r, metric) || !record_has(r, k->by))
            continue;
        s->missed[unit_of(&k->units, r)] |= missed_target(r);
        s->calls++;
    }
    return 0;
}

/* ---- contestants ---------------------------------------------------------------------------- */

/* *b without the parameters that a search of the method may move. */
static int without_budget(const struct method *m, struct buf *b, struct err *err)
{
    OWN(buf_free) struct buf rest = {0};
    for (const struct budget_param *p = m ? m->params.budget : NULL; p && p->params; p++)
        for (const char *word = p->params; *word;) {
            char name[48];
            size_t len = strcspn(word, " ");
            snprintf(name, sizeof name, "%.*s", (int)len, word);
            buf_reset(&rest);
            params_without(buf_str(b), name, &rest);
            buf_reset(b);
            buf_puts(b, buf_str(&rest));
            word += len + (word[len] == ' ');
        }
    return buf_check(rest.failed ? &rest : b, "parameters", err);
}

/* What settings of one curve have in common: their parameters without those that a search would
 * move, and of a target what shares its value (":per=layer"). */
static int family_of(const struct record *r, struct buf *b, struct err *err)
{
    const char *all = r->params ? r->params : "", *target = params_target(all);
    buf_reset(b);
    buf_put(b, all, *target ? (size_t)(target - 1 - all) : strlen(all));
    int rc = without_budget(method_named(r->method), b, err);
    buf_puts(b, target + strcspn(target, ":"));
    return rc ? rc : buf_check(b, "parameters", err);
}

static bool place_is_of(const struct record *r, const char *place)
{
    const char *t = params_target(r->params);
    size_t len = strcspn(t, ":");
    return len == strlen(place) && strncmp(t, place, len) == 0;
}

static int add_contestant(struct ranking *k, const struct setting *s, const char *params,
                          struct contestant **out, struct err *err)
{
    struct contestant *c = &k->c[k->n_c];
    *c = (struct contestant){.first = s->first, .calls = s->calls};
    k->n_c++;
    PASS_ON(family_of(s->first, &c->family, err));
    buf_puts(&c->params, params ? params : buf_str(&c->family));
    PASS_ON(buf_check(&c->params, "parameters", err));
    PASS_ON(mem_alloc(&c->x, 2 * k->units.n, sizeof *c->x, "heads", err));
    c->y = c->x + k->units.n;
    for (int64_t u = 0; u < k->units.n; u++)
        c->x[u] = c->y[u] = NAN;
    *out = c;
    return 0;
}

/* Values of the heads that have none yet, on the curve through all settings of the contestant's
 * family. */
static int fill_by_curve(struct ranking *k, struct contestant *c, const struct place *at,
                         struct err *err)
{
    OWN(buf_free) struct buf other = {0};
    OWN(free_at) struct curve_point *p = NULL;
    OWN(free_at) bool *member = NULL;
    PASS_ON(mem_alloc(&p, k->n_settings, sizeof *p, "curve", err));
    PASS_ON(mem_zalloc(&member, k->n_settings, sizeof *member, "curve", err));
    for (int64_t i = 0; i < k->n_settings; i++) {
        const struct record *r = k->settings[i].first;
        PASS_ON(family_of(r, &other, err));
        member[i] = strcmp(r->method, c->first->method) == 0 &&
                    strcmp(buf_str(&other), buf_str(&c->family)) == 0;
    }
    for (int64_t u = 0; u < k->units.n; u++) {
        int64_t n = 0;
        for (int64_t i = 0; i < k->n_settings; i++)
            if (member[i] && !isnan(k->settings[i].x[u]))
                p[n++] = (struct curve_point){k->settings[i].x[u], k->settings[i].y[u]};
        if (!isnan(c->y[u]))
            continue;
        c->x[u] = at->value;
        c->y[u] = curve_at(p, n, at->value);
    }
    return 0;
}

static bool family_known(const struct ranking *k, const struct record *r, const char *family)
{
    for (int64_t i = 0; i < k->n_c; i++)
        if (strcmp(k->c[i].first->method, r->method) == 0 &&
            strcmp(buf_str(&k->c[i].family), family) == 0)
            return true;
    return false;
}

/* The heads of a setting with the place as target that meet it. */
static void take_met(const struct ranking *k, const struct setting *s, struct contestant *c)
{
    for (int64_t u = 0; u < k->units.n; u++) {
        if (isnan(s->x[u]))
            continue;
        c->units++;
        if (s->missed[u]) {
            c->mean_missed += (s->x[u] - c->mean_missed) / (double)++c->missed;
            continue;
        }
        c->x[u] = s->x[u];
        c->y[u] = s->y[u];
    }
}

static bool takes_part(const struct setting *s)
{
    return !record_is_bound(s->first) && s->calls > 0;
}

static int find_contestants(struct ranking *k, const struct place *at, struct err *err)
{
    OWN(buf_free) struct buf family = {0};
    struct contestant *c;
    k->n_c = 0;
    for (int64_t i = 0; i < k->n_settings; i++) {
        const struct setting *s = &k->settings[i];
        if (!takes_part(s) || !place_is_of(s->first, at->text))
            continue;
        PASS_ON(add_contestant(k, s, s->first->params, &c, err));
        take_met(k, s, c);
        if (at->curves)
            PASS_ON(fill_by_curve(k, c, at, err));
    }
    for (int64_t i = 0; i < k->n_settings && at->curves; i++) {
        const struct setting *s = &k->settings[i];
        PASS_ON(family_of(s->first, &family, err));
        if (!takes_part(s) || family_known(k, s->first, buf_str(&family)))
            continue;
        PASS_ON(add_contestant(k, s, NULL, &c, err));
        PASS_ON(fill_by_curve(k, c, at, err));
    }
    return 0;
}

/* ---- who is left out ------------------------------------------------------------------------ */

static void contestant_free(struct contestant *c)
{
    buf_free(&c->params);
    buf_free(&c->family);
    free(c->x);
}

static bool has_any(const struct ranking *k, const struct contestant *c)
{
    for (int64_t u = 0; u < k->units.n; u++)
        if (!isnan(c->y[u]))
            return true;
    return false;
}

/* Settings that miss the target on most heads would take the others' heads away, and curves without
 * a value have nothing to compare. */
static void drop_contestants(struct ranking *k, const struct place *at, struct table *t)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < k->n_c; i++) {
        struct contestant *c = &k->c[i];
        const char *params = buf_str(&c->params);
        bool misses = !at->curves && 2 * c->missed > c->units;
        if (!misses && has_any(k, c)) {
            k->c[kept++] = *c;
            continue;
        }
        int own = misses ? (int)strcspn(params, "@") : (int)c->params.len;
        if (misses)
            table_note(t,
                       "%s%s%.*s is left out at %s, which it misses by more than 2 %% on most "
                       "heads: it has %.3g there; --at interpolates where other budgets were "
                       "replayed",
                       c->first->method, own ? ":" : "", own, params, at->text, c->mean_missed);
        else
            table_note(t, "%s%s%.*s has no value at %s (nothing is extrapolated)", c->first->method,
                       own ? ":" : "", own, params, at->text);
        contestant_free(c);
    }
    k->n_c = kept;
}

static int find_place(struct ranking *k, int64_t from, int64_t to, const struct place *at,
                      struct table *t, struct err *err)
{
    PASS_ON(units_find(&k->gs, from, to, &k->units, err));
    PASS_ON(mem_zalloc(&k->settings, to - from, sizeof *k->settings, "settings", err));
    PASS_ON(mem_zalloc(&k->c, 2 * (to - from), sizeof *k->c, "settings", err));
    PASS_ON(mem_zalloc(&k->common, k->units.n, sizeof *k->common, "heads", err));
    for (int64_t g = from; g < to; g++) {
        k->n_settings++;
        PASS_ON(mean_heads(k, &k->gs.g[g], at->metric, &k->settings[g - from], err));
    }
    PASS_ON(find_contestants(k, at, err));
    drop_contestants(k, at, t);
    return 0;
}

static void free_place(struct ranking *k)
{
    for (int64_t i = 0; i < k->n_c; i++)
        contestant_free(&k->c[i]);
    for (int64_t i = 0; i < k->n_settings; i++) {
        free(k->settings[i].x);
        free(k->settings[i].missed);
    }
    free(k->settings);
    free(k->c);
    free(k->common);
    free(k->units.u);
    k->settings = NULL;
    k->c = NULL;
    k->common = NULL;
    k->units = (struct units){0};
    k->n_settings = k->n_c = 0;
}

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

/* Differences to the best other setting, head by head. */
static int compare(const struct ranking *k, const struct contestant *c, const struct contestant *r,
                   struct paired *out, struct err *err)
{
    OWN(free_at) double *d = NULL;
    int64_t n = 0;
    PASS_ON(mem_alloc(&d, k->n_common, sizeof *d, "differences", err));
    for (int64_t u = 0; u < k->units.n; u++)
        if (k->common[u])
            d[n++] = c->y[u] - r->y[u];
    return paired_test(d, n, out, err);
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

/* Columns behind those of the scope. */
enum { AT, METHOD, PARAMS, FIRST };
enum { NUMBERS = 8, P_HOLM = NUMBERS, VERDICT };

/* A row without what depends on the others. */
static int add_row(struct ranking *k, const struct place *at, int64_t i, struct table *t,
                   struct err *err)
{
    const struct contestant *c = &k->c[i], *rival = rival_of(k, i);
    OWN(buf_free) struct buf own = {0};
    struct paired d;
    int64_t col = k->n_scope;
    without_place(buf_str(&c->params), &own);
    PASS_ON(buf_check(&own, "parameters", err));
    PASS_ON(compare(k, c, rival, &d, err));
    PASS_ON(table_row(t, err));
    PASS_ON(table_put_keys(t, c->first, k->scope, k->n_scope, err));
    PASS_ON(table_text(t, col + AT, at->text, err));
    PASS_ON(table_text(t, col + METHOD, c->first->method, err));
    PASS_ON(table_text(t, col + PARAMS, buf_str(&own), err));
    const double numbers[NUMBERS] = {
        (double)k->n_common, c->mean_x, c->mean_y, c->share, d.median, d.low, d.high, d.test.p};
    for (int m = 0; m < NUMBERS; m++)
        table_num(t, col + FIRST + m, numbers[m]);
    PASS_ON(mem_grow(&k->rows, &k->cap_rows, k->n_rows + 1, sizeof *k->rows, "comparisons", err));
    k->rows[k->n_rows++] = (struct outcome){d.test.p, d.test.plus > d.test.minus};
    return 0;
}

/* No comparison, or not of everything: why. */
static void note_place(struct ranking *k, const struct place *at, bool even, struct table *t)
{
    if (k->n_c < 2)
        table_note(t, "at %s fewer than two settings have values: nothing to rank", at->text);
    else if (k->n_common == 0)
        table_note(t, "at %s no head has values of all settings: leave some out (--where)",
                   at->text);
    else if (k->left_out)
        table_note(t, "at %s %lld heads that only some settings have are left out", at->text,
                   (long long)k->left_out);
    if (!even)
        table_note(t, "at %s the settings were not replayed on the same calls", at->text);
}

static int rank_at(struct ranking *k, const struct place *at, struct table *t, struct err *err)
{
    bool even = true;
    find_common(k);
    if (k->n_c >= 2 && k->n_common > 0) {
        share_wins(k);
        for (int64_t i = 0; i < k->n_c; i++) {
            PASS_ON(add_row(k, at, i, t, err));
            even &= at->curves || k->c[i].calls == k->c[0].calls;
        }
    }
    note_place(k, at, even, t);
    return 0;
}

/* What depends on all comparisons of the table. */
static int finish_rows(struct ranking *k, struct table *t, struct err *err)
{
    bool higher_is_better = metric_better(k->by) == BETTER_HIGHER;
    OWN(free_at) double *p = NULL;
    PASS_ON(mem_alloc(&p, k->n_rows, sizeof *p, "verdicts", err));
    for (int64_t i = 0; i < k->n_rows; i++)
        p[i] = k->rows[i].p;
    PASS_ON(holm_correct(p, k->n_rows, err));
    for (int64_t i = 0; i < k->n_rows; i++) {
        struct cell *cell = table_cell(t, i, k->n_scope + FIRST);
        cell[P_HOLM] = (struct cell){.set = true, .num = p[i]};
        cell[VERDICT] =
            (struct cell){.set = true,
                          .text = strdup(!(p[i] < SIGNIFICANT)                   ? "open"
                                         : k->rows[i].higher == higher_is_better ? "better"
                                                                                 : "worse")};
        if (!cell[VERDICT].text)
            return err_set(err, ERR_NOMEM, "verdicts: out of memory");
    }
    return 0;
}

static void note_columns(struct table *t)
{
    table_note(
        t,
        "n: heads that all settings have; won: share of them, values within %g %% of the "
        "best share a head; diff: median over heads to the best other setting, low and high "
        "its 95 %% interval; p: signed-rank test of it, p Holm corrected for all comparisons "
        "of the table; a verdict needs p Holm below %g",
        100 * RANKING_TIE, SIGNIFICANT);
}

static int make_columns(const struct ranking *k, struct table *t, struct err *err)
{
    static const struct {
        const char *name, *title;
        bool mixed; /* densities and errors of several places; shares and p-values align */
    } columns[] = {{"at", "at", false},
                   {"method", "method", false},
                   {"params", "setting", false},
                   {"n", "n", false},
                   {"at_value", "has", true},
                   {"value", "mean", true},
                   {"won", "won", false},
                   {"difference", "diff", true},
                   {"low", "low", false},
                   {"high", "high", false},
                   {"p", "p", false},
                   {"p_holm", "p Holm", false},
                   {"verdict", "verdict", false}};
    const int n = sizeof columns / sizeof *columns;
    PASS_ON(table_key_columns(t, k->scope, k->n_scope, err));
    for (int i = 0; i < n; i++) {
        PASS_ON(table_column(t, columns[i].name, columns[i].title, "",
                             i < FIRST || i == n - 1 ? COL_TEXT
                             : i == FIRST            ? COL_INT
                                                     : COL_REAL,
                             1, err));
        t->cols[t->n_cols - 1].mixed = columns[i].mixed;
    }
    snprintf(t->title, sizeof t->title, "Who wins by %s at equal budget, head by head", k->by);
    return 0;
}

/* ---- the table ------------------------------------------------------------------------------ */

/* The settings of groups [from, to), ranked at one place. */
static int rank_scope(struct ranking *k, int64_t from, int64_t to, const struct place *at,
                      struct table *t, struct err *err)
{
    int rc = find_place(k, from, to, at, t, err);
    if (!rc)
        rc = rank_at(k, at, t, err);
    free_place(k);
    return rc;
}

/* One comparison per target that two settings share. */
static int rank_targets(struct ranking *k, int64_t from, int64_t to, struct table *t,
                        struct err *err)
{
    for (int64_t g = from; g < to; g++) {
        struct place at = {.curves = false};
        const char *target = params_target(k->gs.g[g].first->params);
        bool seen = !*target;
        if (!seen)
            PASS_ON(place_parse(target, &at, err));
        for (int64_t h = from; h < g && !seen; h++)
            seen = place_is_of(k->gs.g[h].first, at.text);
        if (!seen)
            PASS_ON(rank_scope(k, from, to, &at, t, err));
    }
    return 0;
}

bool has_target(const struct recset *set)
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
    if (req->group || req->pivot || req->columns)
        return err_set(err, ERR_USAGE,
                       "its rows and columns are fixed: --at, --by and --where "
                       "choose what is compared");
    if (metric_better(k->by) == BETTER_NEITHER || !metric_def_find(k->by))
        return err_set(err, ERR_USAGE,
                       "--by %s: a metric with a better and a worse direction was expected", k->by);
    if (req->at)
        return place_parse(req->at, at, err);
    else if (!has_target(set))
        return err_set(
            err, ERR_INPUT,
            "the records have no targets (replay -m METHOD@density_elem=0.3): say where settings "
            "are compared, as in --at density_elem=0.3");
    return 0;
}

/* Groups of the settings, in the order of the scope. */
static int group_settings(struct ranking *k, struct err *err)
{
    enum group_key keys[KEYS_MAX];
    PASS_ON(recset_scope(k->set, k->scope, &k->n_scope, err));
    memcpy(keys, k->scope, sizeof keys);
    keys[k->n_scope] = KEY_METHOD;
    keys[k->n_scope + 1] = KEY_PARAMS;
    return grouping_make(k->set, keys, k->n_scope + 2, 0, NULL, NULL, &k->gs, err);
}

int build_ranking(const struct table_def *def, const struct recset *set,
                  const struct table_request *req, struct table *out, struct err *err)
{
    struct ranking k = {.set = set, .by = req->by ? req->by : "err_l1_rel"};
    struct place at = {.curves = true};
    int rc = 0;
    TRY(parse_request(req, set, &k, &at, err));
    TRY(group_settings(&k, err));
    TRY(make_columns(&k, out, err));
    for (int64_t a = 0, b; a < k.gs.n; a = b) {
        for (b = a; b < k.gs.n && same_scope(&k, a, b); b++)
            ;
        TRY(req->at ? rank_scope(&k, a, b, &at, out, err) : rank_targets(&k, a, b, out, err));
    }
    TRY(finish_rows(&k, out, err));
    note_columns(out);
out:
    free(k.rows);
    grouping_free(&k.gs);
    return rc;
}
