/*
 * ranking.c - see ranking.h and doc/records.md.
 *
 * The unit of comparison is the query head of a layer: its calls (steps, branches, prompts) are
 * averaged first, because calls of one head are not independent. A setting stands where it is
 * compared either by a target of the replay (@density_elem=0.3), or, with --at, by interpolation on
 * the curve of the settings that differ in the method's budget parameter alone.
 */
#include "analyze/ranking.h"

#include "analyze/metricfacts.h"
#include "analyze/paired.h"
#include "analyze/params.h"
#include "core/mem.h"
#include "core/method.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNIFICANT 0.05

struct unit {
    int layer, head;
};

/* One method with parameters: what its heads have. */
struct setting {
    const struct record *first;
    double *x, *y; /* [units], owned: means over calls, NAN where there is none */
    int64_t calls; /* ok records */
};

/* A setting with a target, or a curve of settings; y at the place of comparison. */
struct contestant {
    const struct record *first;
    struct buf params;
    double *x, *y; /* [units], owned */
    int64_t calls;
    double mean_x, mean_y, share, p;
};

struct place {
    char text[128], metric[64]; /* "density_elem=0.3" */
    double value;
    bool curves; /* --at: settings without a target take part by interpolation */
};

struct ranking {
    const struct recset *set;
    const char *by;
    enum group_key scope[KEYS_MAX];
    int n_scope;
    struct grouping gs;
    /* of one scope */
    struct unit *units;
    struct setting *settings;
    int64_t n_units, cap_units, n_settings;
    struct contestant *c;
    int64_t n_c;
    bool *common; /* [units]: all contestants have a value */
    int64_t n_common, left_out;
};

/* ---- means of heads ------------------------------------------------------------------------- */

static int by_unit(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    return x->layer != y->layer ? x->layer - y->layer : x->head - y->head;
}

static int64_t unit_of(const struct ranking *k, const struct record *r)
{
    struct unit u = {r->layer, r->head};
    const struct unit *at = bsearch(&u, k->units, (size_t)k->n_units, sizeof u, by_unit);
    return at - k->units;
}

static int find_units(struct ranking *k, int64_t from, int64_t to, struct err *err)
{
    int64_t n = 0;
    int rc = 0;
    k->n_units = 0;
    for (int64_t g = from; g < to; g++)
        for (int64_t i = 0; i < k->gs.g[g].n; i++) {
            const struct record *r = &k->set->r[k->gs.g[g].at[i]];
            TRY(mem_grow(&k->units, &k->cap_units, n + 1, sizeof *k->units, "heads", err));
            k->units[n++] = (struct unit){r->layer, r->head};
        }
    qsort(k->units, (size_t)n, sizeof *k->units, by_unit);
    for (int64_t i = 0; i < n; i++)
        if (i == 0 || by_unit(k->units + i - 1, k->units + i) != 0)
            k->units[k->n_units++] = k->units[i];
out:
    return rc;
}

static int mean_heads(struct ranking *k, const struct group *g, const char *metric,
                      struct setting *s, struct err *err)
{
    double *n = NULL;
    int rc = 0;
    s->first = g->first;
    TRY(mem_zalloc(&s->x, k->n_units, sizeof *s->x, "heads", err));
    TRY(mem_zalloc(&s->y, k->n_units, sizeof *s->y, "heads", err));
    TRY(mem_zalloc(&n, k->n_units, sizeof *n, "heads", err));
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &k->set->r[g->at[i]];
        if (r->status != RECORD_OK || !record_has(r, metric) || !record_has(r, k->by))
            continue;
        int64_t u = unit_of(k, r);
        s->x[u] += record_value(r, metric);
        s->y[u] += record_value(r, k->by);
        n[u]++;
        s->calls++;
    }
    for (int64_t u = 0; u < k->n_units; u++) {
        s->x[u] = n[u] > 0 ? s->x[u] / n[u] : NAN;
        s->y[u] = n[u] > 0 ? s->y[u] / n[u] : NAN;
    }
out:
    free(n);
    return rc;
}

/* ---- contestants ---------------------------------------------------------------------------- */

static const struct method *method_of(const struct record *r)
{
    const struct method *const *m = metric_def_known_methods();
    while (m && *m && strcmp((*m)->name, r->method) != 0)
        m++;
    return m ? *m : NULL;
}

static bool is_bound(const struct record *r)
{
    const struct method *m = method_of(r);
    return m && m->flags & METHOD_BOUND;
}

/* Parameters without those that a search would move. */
static int family_of(const struct record *r, struct buf *b, struct err *err)
{
    const struct method *m = method_of(r);
    struct buf rest = {0};
    int rc = 0;
    buf_reset(b);
    buf_puts(b, r->params ? r->params : "");
    for (const struct budget_param *p = m ? m->budget : NULL; p && p->params; p++)
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
    rc = buf_check(rest.failed ? &rest : b, "parameters", err);
    buf_free(&rest);
    return rc;
}

/* The target without ":per=...", which does not change where settings are compared. */
static bool stands_at(const struct record *r, const char *place)
{
    const char *t = params_target(r->params);
    size_t len = strcspn(t, ":");
    return len == strlen(place) && strncmp(t, place, len) == 0;
}

static int add_contestant(struct ranking *k, const struct setting *s, const char *params,
                          struct contestant **out, struct err *err)
{
    struct contestant *c = &k->c[k->n_c];
    int rc = 0;
    *c = (struct contestant){.first = s->first, .calls = s->calls};
    k->n_c++;
    buf_puts(&c->params, params ? params : "");
    TRY(buf_check(&c->params, "parameters", err));
    TRY(mem_alloc(&c->x, k->n_units, sizeof *c->x, "heads", err));
    TRY(mem_alloc(&c->y, k->n_units, sizeof *c->y, "heads", err));
    *out = c;
out:
    return rc;
}

struct point {
    double x, y;
};

static int by_x(const void *a, const void *b)
{
    double x = ((const struct point *)a)->x, y = ((const struct point *)b)->x;
    return (x > y) - (x < y);
}

/* Between two points: linear in the logarithms, in the numbers themselves where one is not
 * positive. */
static double between(const struct point *a, const struct point *b, double x)
{
    bool log_x = a->x > 0 && b->x > 0, log_y = a->y > 0 && b->y > 0;
    if (a->x == b->x)
        return (a->y + b->y) / 2;
    double t = log_x ? log(x / a->x) / log(b->x / a->x) : (x - a->x) / (b->x - a->x);
    return log_y ? a->y * pow(b->y / a->y, t) : a->y + t * (b->y - a->y);
}

/* y of a curve at x, NAN beyond its ends. */
static double on_curve(struct point *p, int64_t n, double x)
{
    qsort(p, (size_t)n, sizeof *p, by_x);
    for (int64_t i = 0; i < n; i++)
        if (p[i].x == x)
            return p[i].y;
    for (int64_t i = 1; i < n; i++)
        if (p[i - 1].x < x && x < p[i].x)
            return between(p + i - 1, p + i, x);
    return NAN;
}

/* The curve through all settings of the family of settings[s], which is its first one. */
static int add_curve(struct ranking *k, int64_t s, const char *family, const struct place *at,
                     struct err *err)
{
    struct buf other = {0};
    struct point *p = NULL;
    struct contestant *c;
    bool *member = NULL;
    int rc = 0;

    TRY(mem_alloc(&p, k->n_settings, sizeof *p, "curve", err));
    TRY(mem_zalloc(&member, k->n_settings, sizeof *member, "curve", err));
    TRY(add_contestant(k, &k->settings[s], family, &c, err));
    for (int64_t i = s; i < k->n_settings; i++) {
        const struct record *r = k->settings[i].first;
        if (strcmp(r->method, c->first->method) != 0 || *params_target(r->params))
            continue;
        TRY(family_of(r, &other, err));
        member[i] = strcmp(buf_str(&other), family) == 0;
    }
    for (int64_t u = 0; u < k->n_units; u++) {
        int64_t n = 0;
        for (int64_t i = s; i < k->n_settings; i++)
            if (member[i] && !isnan(k->settings[i].x[u]))
                p[n++] = (struct point){k->settings[i].x[u], k->settings[i].y[u]};
        c->x[u] = at->value;
        c->y[u] = on_curve(p, n, at->value);
    }
out:
    buf_free(&other);
    free(member);
    free(p);
    return rc;
}

static bool family_known(const struct ranking *k, const struct record *r, const char *family)
{
    for (int64_t i = 0; i < k->n_c; i++)
        if (strcmp(k->c[i].first->method, r->method) == 0 &&
            !*params_target(k->c[i].first->params) && strcmp(buf_str(&k->c[i].params), family) == 0)
            return true;
    return false;
}

static int find_contestants(struct ranking *k, const struct place *at, struct err *err)
{
    struct buf family = {0};
    struct contestant *c;
    int rc = 0;
    k->n_c = 0;
    for (int64_t i = 0; i < k->n_settings; i++) {
        const struct setting *s = &k->settings[i];
        if (is_bound(s->first) || s->calls == 0)
            continue;
        if (stands_at(s->first, at->text)) {
            TRY(add_contestant(k, s, s->first->params, &c, err));
            memcpy(c->x, s->x, (size_t)k->n_units * sizeof *c->x);
            memcpy(c->y, s->y, (size_t)k->n_units * sizeof *c->y);
        } else if (at->curves && !*params_target(s->first->params)) {
            TRY(family_of(s->first, &family, err));
            if (!family_known(k, s->first, buf_str(&family)))
                TRY(add_curve(k, i, buf_str(&family), at, err));
        }
    }
out:
    buf_free(&family);
    return rc;
}

/* Contestants without a value anywhere are no contestants. */
static void drop_empty(struct ranking *k, const struct place *at, struct table *t)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < k->n_c; i++) {
        struct contestant *c = &k->c[i];
        bool any = false;
        for (int64_t u = 0; u < k->n_units; u++)
            any |= !isnan(c->y[u]);
        if (any) {
            k->c[kept++] = *c;
            continue;
        }
        table_note(t, "%s%s%s has no value at %s (nothing is extrapolated)", c->first->method,
                   c->params.len ? ":" : "", buf_str(&c->params), at->text);
        buf_free(&c->params);
        free(c->x);
        free(c->y);
    }
    k->n_c = kept;
}

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

static void free_contestants(struct ranking *k)
{
    for (int64_t i = 0; i < k->n_c; i++) {
        buf_free(&k->c[i].params);
        free(k->c[i].x);
        free(k->c[i].y);
    }
    k->n_c = 0;
}

static int rank_at(struct ranking *k, const struct place *at, struct table *t, struct err *err)
{
    struct verdict *v = NULL;
    double *p = NULL;
    int rc = 0;

    TRY(find_contestants(k, at, err));
    drop_empty(k, at, t);
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
    free_contestants(k);
    free(v);
    free(p);
    return rc;
}

/* ---- the table ------------------------------------------------------------------------------ */

static int parse_place(const char *text, struct place *at, struct err *err)
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

static void free_settings(struct ranking *k)
{
    for (int64_t i = 0; i < k->n_settings; i++) {
        free(k->settings[i].x);
        free(k->settings[i].y);
    }
    free(k->settings);
    free(k->c);
    free(k->common);
    k->settings = NULL;
    k->c = NULL;
    k->common = NULL;
    k->n_settings = 0;
}

/* The settings of groups [from, to), ranked at one place. */
static int rank_scope(struct ranking *k, int64_t from, int64_t to, const struct place *at,
                      struct table *t, struct err *err)
{
    int rc = 0;
    TRY(find_units(k, from, to, err));
    TRY(mem_zalloc(&k->settings, to - from, sizeof *k->settings, "settings", err));
    TRY(mem_zalloc(&k->c, to - from, sizeof *k->c, "settings", err));
    TRY(mem_zalloc(&k->common, k->n_units, sizeof *k->common, "heads", err));
    for (int64_t g = from; g < to; g++) {
        k->n_settings++;
        TRY(mean_heads(k, &k->gs.g[g], at->metric, &k->settings[g - from], err));
    }
    TRY(rank_at(k, at, t, err));
out:
    free_settings(k);
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
            TRY(parse_place(target, &at, err));
        for (int64_t h = from; h < g && !seen; h++)
            seen = stands_at(k->gs.g[h].first, at.text);
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
        TRY(parse_place(req->at, &at, err));
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
