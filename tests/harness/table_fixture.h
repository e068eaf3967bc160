/*
 * table_fixture.h - what the tests of tables share: records, the set and the table that they
 * become, and looks at its cells. Each file that includes it has a state of its own.
 */
#ifndef LACUNA_TABLE_FIXTURE_H
#define LACUNA_TABLE_FIXTURE_H

#include "analyze/tables.h"
#include "core/log.h"
#include "core/metricdef.h"
#include "sim/registry.h"
#include "tests/harness/records_fixture.h"
#include "tests/harness/suite.h"

#include <math.h>
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

#endif
