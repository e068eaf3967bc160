/* Replays against runs with the method inside: points, ranks. */
#include "analyze/inside.h"
#include "tests/harness/table_fixture.h"

FIXTURE(begin, end)

static void add(enum record_scope scope, const char *method, const char *params, const char *metric,
                double value)
{
    int cell = (int)f.n;
    struct record *r = fixture_record(&f, method, params, 0, 0);
    char task[32];
    snprintf(task, sizeof task, "text:sample=%d", cell);
    r->step = cell; /* cells of their own */
    if (scope == RECORD_OF_MODEL) {
        record_of_model(r);
        r->task = strdup(task);
        r->setting = strdup("");
    }
    fixture_metric(r, metric, value);
}

TEST(points_are_means_of_what_both_have)
{
    OWN(free_at) struct inside_point *p = NULL;
    int64_t count;
    add(RECORD_OF_HEAD, "a", "", "err_l2_rel", 1);
    add(RECORD_OF_HEAD, "a", "", "err_l2_rel", 3);
    add(RECORD_OF_MODEL, "a", "", "nll_delta", 0.5);
    add(RECORD_OF_MODEL, "a", "", "nll_delta", 0.75);
    add(RECORD_OF_HEAD, "b", "k=1", "err_l2_rel", 5);  /* not run inside */
    add(RECORD_OF_MODEL, "b", "k=2", "nll_delta", 5);  /* not replayed */
    add(RECORD_OF_HEAD, "dense", "", "err_l2_rel", 0); /* exact on both sides */
    add(RECORD_OF_MODEL, "dense", "", "nll_delta", 0);
    fixture_set(&f, &set);
    assert_ok(inside_points(&set, "err_l2_rel", "nll_delta", &p, &count, &e), &e);
    ck_assert_int_eq(count, 1);
    ck_assert_double_eq(p->replay, 2);
    ck_assert_double_eq(p->inside, 0.625);
    ck_assert_int_eq(p->n_replay, 2);
    ck_assert_int_eq(p->n_inside, 2);
}

TEST(rank_correlation)
{
    /* Ranks 1 2 3 4 5 and 2 1 4 3 5: rho = 1 - 6 * 4 / (5 * 24) = 0.8. Ties have the mean rank. */
    struct inside_point p[5] = {{.replay = 10, .inside = 0.2},
                                {.replay = 20, .inside = 0.1},
                                {.replay = 30, .inside = 9},
                                {.replay = 40, .inside = 8},
                                {.replay = 50, .inside = 100}};
    double rho;
    assert_ok(inside_spearman(p, 5, &rho, &e), &e);
    ck_assert_double_eq_tol(rho, 0.8, 1e-12);
    assert_ok(inside_spearman(p, 4, &rho, &e), &e);
    ck_assert(isnan(rho));
    /* 1.5 1.5 3 4 5 against 1 2 3 4 5: cov 9.5, 9.5 and 10. */
    p[1].replay = 10;
    for (int i = 0; i < 5; i++)
        p[i].inside = i;
    assert_ok(inside_spearman(p, 5, &rho, &e), &e);
    ck_assert_double_eq_tol(rho, 9.5 / sqrt(9.5 * 10), 1e-12);
    for (int i = 0; i < 5; i++)
        p[i].inside = 1;
    assert_ok(inside_spearman(p, 5, &rho, &e), &e);
    ck_assert(isnan(rho));
}

TEST(the_table)
{
    char params[16];
    for (int i = 0; i < 5; i++) {
        snprintf(params, sizeof params, "k=%d", i);
        add(RECORD_OF_HEAD, "a", params, "err_l2_rel", i);
        add(RECORD_OF_MODEL, "a", params, "nll_delta", 10 - i);
    }
    build("inside", NULL);
    ck_assert(has_inside(&set));
    ck_assert_int_eq(t.n_rows, 1);
    is_number(0, "settings", 5);
    is_number(0, "nll_delta", -1);
    add(RECORD_OF_HEAD, "a", "", "err_l2_rel", 1);
    assert_fails(try_build("inside", NULL), &e, ERR_INPUT, "needs");
    ck_assert(!has_inside(&set));
}
