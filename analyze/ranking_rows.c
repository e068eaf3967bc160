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
    bool higher = v->diff.test.plus > v->diff.test.minus;
    return higher == (metric_better(k->by) == BETTER_HIGHER) ? "better" : "worse";
}

/* ---- notes ---------------------------------------------------------------------------------- */

void ranking_note(const struct ranking *k, struct table *t, const char *fmt, ...)
{
    static const char *const somewhere[] = {"", " (in some layers)", " (on some heads)"};
    struct buf b = {0};
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    buf_printf(&b, "%s%s", text, somewhere[k->per]);
    if (!str_list_has(&t->notes, buf_str(&b)))
        table_note(t, "%s", buf_str(&b));
    buf_free(&b);
}

/* The smallest p of n pairs is 2 / 2^n. */
static void note_power(const struct ranking *k, struct table *t)
{
    double most = 0;
    for (int64_t i = 0; i < k->n_outcomes; i++)
        most = fmax(most, k->outcomes[i].n);
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
    const double numbers[] = {o->n,           o->mean_x,        o->mean_y,
                              o->share,       o->v.diff.median, o->v.diff.low,
                              o->v.diff.high, o->v.diff.test.p, o->v.holm};
    int64_t col = k->n_scope;
    int rc = 0;
    TRY(table_row(t, err));
    TRY(table_put_keys(t, o->first, k->scope, k->n_scope, err));
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
    if (k->per != PER_MODEL)
        note_power(k, t);
    note_columns(k, t);
out:
    return rc;
}
