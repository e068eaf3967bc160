/*
 * ranking_place.c - what every setting has where settings are compared (ranking_impl.h).
 *
 * A setting stands at a place by a target of the replay (@density_elem=0.3). A head on which the
 * search missed the target has another budget than the others and is none of its heads there: a
 * setting that keeps three times as much would win. With --at the curve through all settings that
 * differ in the method's budget parameter alone stands in for it.
 */
#include "analyze/ranking_impl.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "analyze/curve.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int place_parse(const char *text, struct place *at, struct err *err)
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
    int rc = 0;
    s->first = g->first;
    TRY(mem_alloc(&s->x, k->units.n, sizeof *s->x, "heads", err));
    TRY(mem_alloc(&s->y, k->units.n, sizeof *s->y, "heads", err));
    TRY(mem_zalloc(&s->missed, k->units.n, sizeof *s->missed, "heads", err));
    TRY(units_mean(&k->units, &k->gs, g, metric, k->by, s->x, err));
    TRY(units_mean(&k->units, &k->gs, g, k->by, metric, s->y, err));
    for (int64_t i = 0; i < g->n; i++) {
        const struct record *r = &k->set->r[g->at[i]];
        if (r->status != RECORD_OK || !record_has(r, metric) || !record_has(r, k->by))
            continue;
        s->missed[unit_of(&k->units, r)] |= missed_target(r);
        s->calls++;
    }
out:
    return rc;
}

/* ---- contestants ---------------------------------------------------------------------------- */

/* *b without the parameters that a search of the method may move. */
static int without_budget(const struct method *m, struct buf *b, struct err *err)
{
    struct buf rest = {0};
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
    int rc = buf_check(rest.failed ? &rest : b, "parameters", err);
    buf_free(&rest);
    return rc;
}

/* What settings of one curve have in common: their parameters without those that a search would
 * move, and of a target what shares its value (":per=layer"). */
static int family_of(const struct record *r, struct buf *b, struct err *err)
{
    const char *all = r->params ? r->params : "", *target = params_target(all);
    buf_reset(b);
    buf_put(b, all, *target ? (size_t)(target - 1 - all) : strlen(all));
    int rc = without_budget(record_method(r), b, err);
    buf_puts(b, target + strcspn(target, ":"));
    return rc ? rc : buf_check(b, "parameters", err);
}

bool place_is_of(const struct record *r, const char *place)
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
    TRY(family_of(s->first, &c->family, err));
    buf_puts(&c->params, params ? params : buf_str(&c->family));
    TRY(buf_check(&c->params, "parameters", err));
    TRY(mem_alloc(&c->x, k->units.n, sizeof *c->x, "heads", err));
    TRY(mem_alloc(&c->y, k->units.n, sizeof *c->y, "heads", err));
    for (int64_t u = 0; u < k->units.n; u++)
        c->x[u] = c->y[u] = NAN;
    *out = c;
out:
    return rc;
}

/* Values of the heads that have none yet, on the curve through all settings of the contestant's
 * family. */
static int fill_by_curve(struct ranking *k, struct contestant *c, const struct place *at,
                         struct err *err)
{
    struct buf other = {0};
    struct curve_point *p = NULL;
    bool *member = NULL;
    int rc = 0;

    TRY(mem_alloc(&p, k->n_settings, sizeof *p, "curve", err));
    TRY(mem_zalloc(&member, k->n_settings, sizeof *member, "curve", err));
    for (int64_t i = 0; i < k->n_settings; i++) {
        const struct record *r = k->settings[i].first;
        TRY(family_of(r, &other, err));
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
    struct buf family = {0};
    struct contestant *c;
    int rc = 0;
    k->n_c = 0;
    for (int64_t i = 0; i < k->n_settings; i++) {
        const struct setting *s = &k->settings[i];
        if (!takes_part(s) || !place_is_of(s->first, at->text))
            continue;
        TRY(add_contestant(k, s, s->first->params, &c, err));
        take_met(k, s, c);
        if (at->curves)
            TRY(fill_by_curve(k, c, at, err));
    }
    for (int64_t i = 0; i < k->n_settings && at->curves; i++) {
        const struct setting *s = &k->settings[i];
        TRY(family_of(s->first, &family, err));
        if (!takes_part(s) || family_known(k, s->first, buf_str(&family)))
            continue;
        TRY(add_contestant(k, s, NULL, &c, err));
        TRY(fill_by_curve(k, c, at, err));
    }
out:
    buf_free(&family);
    return rc;
}

/* ---- who is left out ------------------------------------------------------------------------ */

static void contestant_free(struct contestant *c)
{
    buf_free(&c->params);
    buf_free(&c->family);
    free(c->x);
    free(c->y);
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
        if (misses && k->per == PER_MODEL)
            table_note(t,
                       "%s%s%.*s is left out at %s, which it misses by more than 2 %% on most "
                       "heads: it has %.3g there; --at interpolates where other budgets were "
                       "replayed",
                       c->first->method, own ? ":" : "", own, params, at->text, c->mean_missed);
        else
            ranking_note(k, t, "%s%s%.*s %s at %s%s", c->first->method, own ? ":" : "", own, params,
                         misses ? "is left out" : "has no value", at->text,
                         misses ? ", which it misses by more than 2 %"
                                : " (nothing is extrapolated)");
        contestant_free(c);
    }
    k->n_c = kept;
}

int ranking_find(struct ranking *k, int64_t from, int64_t to, const struct place *at,
                 struct table *t, struct err *err)
{
    int rc = 0;
    TRY(units_find(&k->gs, from, to, k->per == PER_ONE_HEAD, &k->units, err));
    TRY(mem_zalloc(&k->settings, to - from, sizeof *k->settings, "settings", err));
    TRY(mem_zalloc(&k->c, 2 * (to - from), sizeof *k->c, "settings", err));
    TRY(mem_zalloc(&k->common, k->units.n, sizeof *k->common, "heads", err));
    for (int64_t g = from; g < to; g++) {
        k->n_settings++;
        TRY(mean_heads(k, &k->gs.g[g], at->metric, &k->settings[g - from], err));
    }
    TRY(find_contestants(k, at, err));
    drop_contestants(k, at, t);
out:
    return rc;
}

void ranking_free_place(struct ranking *k)
{
    for (int64_t i = 0; i < k->n_c; i++)
        contestant_free(&k->c[i]);
    for (int64_t i = 0; i < k->n_settings; i++) {
        free(k->settings[i].x);
        free(k->settings[i].y);
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
