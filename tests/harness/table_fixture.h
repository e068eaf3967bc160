/*
 * table_fixture.h - what the tests of tables share: records, the set and the table that they
 * become, and looks at its cells. Each file that includes it has a state of its own.
 */
#pragma once

#include "analyze/tables.h"
#include "core/log.h"
#include "core/metricdef.h"
#include "sim/registry.h"
#include "tests/harness/records_fixture.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err e;
static struct fixture_records f;
static struct recset set;
static struct table t;

static inline void begin(void)
{
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
    metric_def_methods(sim_methods);
}

static inline void end(void)
{
    table_free(&t);
    recset_free(&set);
}

/* A table of the records so far, or of the set where there are no new ones. */
static inline int try_build(const char *name, const struct table_request *req)
{
    const struct table_def *def = table_def_find(name, &e);
    ck_assert_msg(def != NULL, "%s", e.msg);
    table_free(&t);
    if (f.n) {
        recset_free(&set);
        fixture_set(&f, &set);
    }
    return table_build(def, &set, req, &t, &e);
}

static inline void build(const char *name, const struct table_request *req)
{
    assert_ok(try_build(name, req), &e);
}

static inline const struct cell *cell(int64_t row, const char *column)
{
    int64_t c = table_find(&t, column);
    ck_assert_msg(c >= 0, "no column %s", column);
    ck_assert_int_lt(row, t.n_rows);
    return table_cell(&t, row, c);
}

static inline void is_text(int64_t row, const char *column, const char *want)
{
    ck_assert_str_eq(cell(row, column)->text, want);
}

static inline void is_number(int64_t row, const char *column, double want)
{
    const struct cell *c = cell(row, column);
    ck_assert_msg(c->set && fabs(c->num - want) < 1e-12, "row %d %s: %g, expected %g", (int)row,
                  column, c->num, want);
}

static inline void is_mean(int64_t row, const char *column, int64_t n, double want)
{
    const struct cell *c = cell(row, column);
    ck_assert_msg(c->set && c->stats.n == n && fabs(c->stats.mean - want) < 1e-12,
                  "row %d %s: mean %g of %d, expected %g of %d", (int)row, column, c->stats.mean,
                  (int)c->stats.n, want, (int)n);
}

static inline bool has_note(const char *text)
{
    for (int64_t i = 0; i < t.notes.n; i++)
        if (strstr(t.notes.items[i], text))
            return true;
    return false;
}

/* A table of records (fixture_add; NULL: of the study), or why there is none. */
struct tabled {
    const char *name, *records, *table;
    struct table_request req;
    int64_t rows;
    const char *cells; /* "ROW COLUMN:VALUE ...; ...", VALUE a text, "-" for none, a number or the
                        * mean "X/N" of N values; "!COLUMN": there is none */
    const char *notes[3]; /* parts of notes; with '!' of none */
    enum err_code fails;  /* with notes[0] in the message */
};

static inline void is_word(const char *name, int64_t row, char *word)
{
    char *value = word + strcspn(word, ":"), *of;
    if (word[0] == '!') {
        ck_assert_msg(table_find(&t, word + 1) < 0, "%s: there is a column %s", name, word + 1);
        return;
    }
    ck_assert_msg(*value == ':', "%s: COLUMN:VALUE was expected", word);
    *value++ = '\0';
    const struct cell *c = cell(row, word);
    enum column_type type = t.cols[table_find(&t, word)].type;
    double x = strtod(value, &of), found = type == COL_STATS ? c->stats.mean : c->num;
    bool ok = type == COL_TEXT                    ? strcmp(c->text, value) == 0
              : strcmp(value, "-") == 0           ? !c->set
              : isinf(x)                          ? c->stats.all_inf
              : *of && atoi(of + 1) != c->stats.n ? false
                                                  : c->set && fabs(found - x) < 1e-12;
    ck_assert_msg(ok, "%s, row %d, %s: '%s' %g of %d, expected %s", name, (int)row, word,
                  c->text ? c->text : "", found, (int)c->stats.n, value);
}

static inline void are_cells(const struct tabled *d)
{
    OWN(free_at) char *copy = strdup(d->cells ? d->cells : "");
    char *rows = NULL, *words = NULL;
    for (char *p = strtok_r(copy, ";", &rows); p; p = strtok_r(NULL, ";", &rows)) {
        char *number = strtok_r(p, " ", &words);
        for (char *word; (word = strtok_r(NULL, " ", &words)) != NULL;)
            is_word(d->name, atoi(number), word);
    }
}

static inline void assert_table(const struct tabled *d)
{
    if (d->records)
        fixture_add(&f, d->records);
    else
        fixture_study(&f);
    int rc = try_build(d->table, &d->req);
    ck_assert_msg(rc == (int)d->fails, "%s: %d '%s'", d->name, rc, e.msg);
    if (rc) {
        ck_assert_msg(strstr(e.msg, d->notes[0]) != NULL, "%s: '%s'", d->name, e.msg);
        return;
    }
    ck_assert_msg(t.n_rows == d->rows, "%s: %d rows", d->name, (int)t.n_rows);
    are_cells(d);
    for (int i = 0; i < 3 && d->notes[i]; i++)
        ck_assert_msg(d->notes[i][0] == '!' ? !has_note(d->notes[i] + 1) : has_note(d->notes[i]),
                      "%s: note '%s'", d->name, d->notes[i]);
}
