/* Replays against runs with the method inside: points, ranks. */
#include "analyze/inside.h"
#include "analyze/tables.h"
#include "core/mem.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err err;
static struct record *r;
static int64_t n, cap;

static void add(enum record_scope scope, const char *method, const char *params, const char *metric,
                double value)
{
    assert_ok(mem_grow(&r, &cap, n + 1, sizeof *r, "records", &err), &err);
    struct record *x = r + n++;
    record_init(x);
    if (scope == RECORD_OF_MODEL)
        record_of_model(x);
    x->step = (int)n; /* cells of their own */
    record_text(x, &x->model, "m");
    snprintf(x->method, sizeof x->method, "%s", method);
    x->params = strdup(params);
    if (scope == RECORD_OF_MODEL) {
        char task[32];
        snprintf(task, sizeof task, "text:sample=%d", (int)n);
        x->task = strdup(task);
        x->setting = strdup("");
    }
    assert_ok(record_metric(x, metric, value, &err), &err);
}

static struct recset take(void)
{
    struct recset set;
    assert_ok(recset_from(r, n, &set, &err), &err);
    r = NULL;
    n = cap = 0;
    return set;
}

START_TEST(points_are_means_of_what_both_have)
{
    struct inside_point *p = NULL;
    int64_t count;
    add(RECORD_OF_HEAD, "a", "", "err_l2_rel", 1);
    add(RECORD_OF_HEAD, "a", "", "err_l2_rel", 3);
    add(RECORD_OF_MODEL, "a", "", "nll_delta", 0.5);
    add(RECORD_OF_MODEL, "a", "", "nll_delta", 0.75);
    add(RECORD_OF_HEAD, "b", "k=1", "err_l2_rel", 5);  /* not run inside */
    add(RECORD_OF_MODEL, "b", "k=2", "nll_delta", 5);  /* not replayed */
    add(RECORD_OF_HEAD, "dense", "", "err_l2_rel", 0); /* exact on both sides */
    add(RECORD_OF_MODEL, "dense", "", "nll_delta", 0);
    struct recset set = take();
    assert_ok(inside_points(&set, "err_l2_rel", "nll_delta", &p, &count, &err), &err);
    ck_assert_int_eq(count, 1);
    ck_assert_double_eq(p->replay, 2);
    ck_assert_double_eq(p->inside, 0.625);
    ck_assert_int_eq(p->n_replay, 2);
    ck_assert_int_eq(p->n_inside, 2);
    free(p);
    recset_free(&set);
}
END_TEST

START_TEST(rank_correlation)
{
    /* Ranks 1 2 3 4 5 and 2 1 4 3 5: rho = 1 - 6 * 4 / (5 * 24) = 0.8. Ties have the mean rank. */
    struct inside_point p[5] = {{.replay = 10, .inside = 0.2},
                                {.replay = 20, .inside = 0.1},
                                {.replay = 30, .inside = 9},
                                {.replay = 40, .inside = 8},
                                {.replay = 50, .inside = 100}};
    double rho;
    assert_ok(inside_spearman(p, 5, &rho, &err), &err);
    ck_assert_double_eq_tol(rho, 0.8, 1e-12);
    assert_ok(inside_spearman(p, 4, &rho, &err), &err);
    ck_assert(isnan(rho));
    /* 1.5 1.5 3 4 5 against 1 2 3 4 5: cov 9.5, 9.5 and 10. */
    p[1].replay = 10;
    for (int i = 0; i < 5; i++)
        p[i].inside = i;
    assert_ok(inside_spearman(p, 5, &rho, &err), &err);
    ck_assert_double_eq_tol(rho, 9.5 / sqrt(9.5 * 10), 1e-12);
    for (int i = 0; i < 5; i++)
        p[i].inside = 1;
    assert_ok(inside_spearman(p, 5, &rho, &err), &err);
    ck_assert(isnan(rho));
}
END_TEST

START_TEST(the_table)
{
    struct table t;
    char params[16];
    for (int i = 0; i < 5; i++) {
        snprintf(params, sizeof params, "k=%d", i);
        add(RECORD_OF_HEAD, "a", params, "err_l2_rel", i);
        add(RECORD_OF_MODEL, "a", params, "nll_delta", 10 - i);
    }
    struct recset set = take();
    ck_assert(has_inside(&set));
    assert_ok(table_build(table_def_find("inside", &err), &set, NULL, &t, &err), &err);
    ck_assert_int_eq(t.n_rows, 1);
    ck_assert_double_eq(table_cell(&t, 0, 1)->num, 5);
    ck_assert_double_eq_tol(table_cell(&t, 0, table_find(&t, "nll_delta"))->num, -1, 1e-12);
    table_free(&t);
    recset_free(&set);
    add(RECORD_OF_HEAD, "a", "", "err_l2_rel", 1);
    set = take();
    ck_assert(!has_inside(&set));
    assert_fails(table_build(table_def_find("inside", &err), &set, NULL, &t, &err), &err, ERR_INPUT,
                 "needs");
    recset_free(&set);
}
END_TEST

SUITE("inside", NULL, NULL, points_are_means_of_what_both_have, rank_correlation, the_table)
