/*
 * ranking_rows.c - the table "ranking" as people read it (ranking_impl.h): a row per setting and
 * place, or with a comparison per layer or head the winner of each, and who wins how often.
 */
#include "analyze/ranking_impl.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIGNIFICANT 0.05

const char *ranking_unit(const struct ranking *k, bool many)
{
    if (k->per == PER_ONE_HEAD)
        return many ? "samples" : "sample";
    return many ? "heads" : "head";
}

static const char *in_words(const struct ranking *k, const struct verdict *v)
{
    if (!(v->holm < SIGNIFICANT))
        return "open";
    bool higher = v->test.plus > v->test.minus;
    return higher == (metric_better(k->by) == BETTER_HIGHER) ? "better" : "worse";
}

/* ---- notes ---------------------------------------------------------------------------------- */

void ranking_count(struct ranking *k, int64_t n, const char *item, const char *fmt, ...)
{
    struct err ignored = {0}; /* a note less is no failure of the table */
    char text[256];
    int64_t i = 0;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    while (i < k->n_tallies &&
           (strcmp(k->tallies[i].text, text) != 0 || strcmp(k->tallies[i].item, item) != 0))
        i++;
    if (i == k->n_tallies) {
        if (mem_grow(&k->tallies, &k->cap_tallies, i + 1, sizeof *k->tallies, "notes", &ignored))
            return;
        struct tally more = {strdup(text), strdup(item), 0};
        if (!more.text || !more.item) {
            free(more.text);
            free(more.item);
            return;
        }
        k->tallies[k->n_tallies++] = more;
    }
    k->tallies[i].n += n;
}

static const char *places(const struct ranking *k)
{
    return k->per == PER_LAYER ? "layers" : "heads";
}

static bool said_before(const struct ranking *k, int64_t i)
{
    int64_t j = 0;
    while (strcmp(k->tallies[j].text, k->tallies[i].text) != 0)
        j++;
    return j < i;
}

/* "TEXT (layers): sale 6, minference 2"; without items "TEXT (layers): 6". */
static void put_tally(const struct ranking *k, int64_t first, struct table *t)
{
    const struct tally *all = k->tallies;
    struct buf b = {0};
    for (int64_t i = first; i < k->n_tallies; i++)
        if (strcmp(all[i].text, all[first].text) == 0)
            buf_printf(&b, "%s%s%s%lld", b.len ? ", " : "", all[i].item, *all[i].item ? " " : "",
                       (long long)all[i].n);
    table_note(t, "%s (%s): %s", all[first].text, places(k), buf_str(&b));
    buf_free(&b);
}

static bool same_name(const struct outcome *a, const struct outcome *b)
{
    return strcmp(a->at, b->at) == 0 && strcmp(a->method, b->method) == 0 &&
           strcmp(buf_str(&a->params), buf_str(&b->params)) == 0;
}

/* How many first places outcome i's setting has at its target, and how many of them hold. */
static int64_t count_firsts(const struct ranking *k, int64_t i, int64_t *held)
{
    const struct outcome *o = k->outcomes;
    int64_t n = 0;
    for (int64_t j = 0; j < k->n_outcomes; j++)
        if (o[j].first_place && same_name(&o[i], &o[j])) {
            n++;
            *held += strcmp(in_words(k, &o[j].v), "better") == 0;
        }
    return n;
}

static bool named_before(const struct ranking *k, int64_t i, bool by_place_alone)
{
    const struct outcome *o = k->outcomes;
    for (int64_t j = 0; j < i; j++)
        if (o[j].first_place &&
            (by_place_alone ? strcmp(o[i].at, o[j].at) == 0 : same_name(&o[i], &o[j])))
            return true;
    return false;
}

/* "first places at density_elem=0.3 (heads): sale 26, minference 22; 20 of these verdicts hold". */
static void note_winners_at(const struct ranking *k, int64_t from, struct table *t)
{
    struct buf b = {0};
    int64_t held = 0;
    for (int64_t i = from; i < k->n_outcomes; i++) {
        const struct outcome *o = &k->outcomes[i];
        if (!o->first_place || strcmp(o->at, k->outcomes[from].at) != 0 ||
            named_before(k, i, false))
            continue;
        int64_t n = count_firsts(k, i, &held);
        buf_printf(&b, "%s%s%s%s %lld", b.len ? ", " : "", o->method, o->params.len ? ":" : "",
                   buf_str(&o->params), (long long)n);
    }
    table_note(t, "first places at %s (%s): %s; %lld of these verdicts hold", k->outcomes[from].at,
               places(k), buf_str(&b), (long long)held);
    buf_free(&b);
}

static void note_winners(const struct ranking *k, struct table *t)
{
    double most = 0;
    for (int64_t i = 0; i < k->n_outcomes; i++) {
        if (k->outcomes[i].n > most)
            most = k->outcomes[i].n;
        if (k->outcomes[i].first_place && !named_before(k, i, true))
            note_winners_at(k, i, t);
    }
    /* The smallest p of n pairs is 2 / 2^n. */
    if (k->n_outcomes && ldexp(2, -(int)fmin(most, 60)) >= SIGNIFICANT)
        table_note(t, "with %.0f %s no test can tell: the smallest p is %.2g", most,
                   ranking_unit(k, most != 1), fmin(1, ldexp(2, -(int)most)));
}

static void note_columns(const struct ranking *k, struct table *t)
{
    table_note(
        t,
        "n: %s that all settings have; won: share of them, values "
        "within %g %% of the best share a %s; diff: median over %s to the best "
        "other setting%s, low and high its 95 %% interval; p: signed-rank test of it, p Holm "
        "corrected for all comparisons of the table; a verdict needs p Holm below %g",
        ranking_unit(k, true), 100 * RANKING_TIE, ranking_unit(k, false), ranking_unit(k, true),
        k->per == PER_MODEL ? "" : " (second)", SIGNIFICANT);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static int make_columns(const struct ranking *k, struct table *t, struct err *err)
{
    static const struct {
        const char *name, *title;
        enum column_type type;
        bool winners_alone;
    } columns[] = {{"at", "at", COL_TEXT, false},
                   {"method", "method", COL_TEXT, false},
                   {"params", "setting", COL_TEXT, false},
                   {"second", "second", COL_TEXT, true},
                   {"n", "n", COL_INT, false},
                   {"at_value", "has", COL_REAL, false},
                   {"value", "mean", COL_REAL, false},
                   {"won", "won", COL_REAL, false},
                   {"difference", "diff", COL_REAL, false},
                   {"low", "low", COL_REAL, false},
                   {"high", "high", COL_REAL, false},
                   {"p", "p", COL_REAL, false},
                   {"p_holm", "p Holm", COL_REAL, false},
                   {"verdict", "verdict", COL_TEXT, false}};
    int rc = 0;
    TRY(table_key_columns(t, k->scope, k->n_scope, err));
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        if (columns[i].winners_alone && k->per == PER_MODEL)
            continue;
        TRY(table_column(t, columns[i].name, columns[i].title, "", columns[i].type, 1, err));
        /* Densities and errors of several places; shares and p-values align. */
        t->cols[t->n_cols - 1].mixed = strcmp(columns[i].name, "at_value") == 0 ||
                                       strcmp(columns[i].name, "value") == 0 ||
                                       strcmp(columns[i].name, "difference") == 0;
    }
    snprintf(t->title, sizeof t->title, "Who wins by %s at equal budget, %s", k->by,
             k->per == PER_MODEL   ? "head by head"
             : k->per == PER_LAYER ? "in each layer"
                                   : "on each head");
out:
    return rc;
}

static int put_row(const struct ranking *k, const struct outcome *o, struct table *t,
                   struct err *err)
{
    const double numbers[] = {o->n,     o->mean_x, o->mean_y,   o->share, o->v.median,
                              o->v.low, o->v.high, o->v.test.p, o->v.holm};
    int64_t col = k->n_scope;
    int rc = 0;
    TRY(table_row(t, err));
    for (int s = 0; s < k->n_scope; s++)
        TRY(table_put_key(t, s, o->first, k->scope[s], err));
    TRY(table_text(t, col++, o->at, err));
    TRY(table_text(t, col++, o->method, err));
    TRY(table_text(t, col++, buf_str(&o->params), err));
    if (k->per != PER_MODEL)
        TRY(table_text(t, col++, buf_str(&o->second), err));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        table_num(t, col++, numbers[i]);
    TRY(table_text(t, col, in_words(k, &o->v), err));
out:
    return rc;
}

int ranking_put_rows(struct ranking *k, struct table *t, struct err *err)
{
    int rc = 0;
    TRY(make_columns(k, t, err));
    if (k->per == PER_LAYER)
        t->brief = "at,layer,method,params,second,won,difference,verdict";
    if (k->per == PER_ONE_HEAD)
        t->brief = "at,layer,head,method,params,second,difference,verdict";
    for (int64_t i = 0; i < k->n_outcomes; i++)
        if (k->per == PER_MODEL || k->outcomes[i].first_place)
            TRY(put_row(k, &k->outcomes[i], t, err));
    if (k->per != PER_MODEL && k->n_outer == 0)
        note_winners(k, t);
    for (int64_t i = 0; i < k->n_tallies; i++)
        if (!said_before(k, i))
            put_tally(k, i, t);
    note_columns(k, t);
out:
    return rc;
}
