/* Metric definitions: unique, complete, and every number that a method records has one. */
#include "tests/suite.h"

#include "core/metricdef.h"
#include "sim/registry.h"
#include "sim/simulate.h"
#include "tests/golden.h"

#include <stdlib.h>
#include <string.h>

START_TEST(definitions_are_complete_and_unique)
{
    for (const struct metric_def *m = metric_defs; m->name; m++) {
        ck_assert_msg(m->name[0] && m->unit[0] && m->definition[0] && m->section[0], "%s", m->name);
        ck_assert_msg(strlen(m->name) < sizeof((struct metric *)0)->name, "%s", m->name);
        ck_assert_msg(metric_def_find(m->name) == m, "%s is defined twice", m->name);
    }
}
END_TEST

START_TEST(levels_and_models_belong_to_their_number)
{
    ck_assert_str_eq(metric_def_find("density_tile@128x64")->name, "density_tile");
    ck_assert_str_eq(metric_def_find("below_b64@0.25")->name, "below_b64");
    ck_assert_str_eq(metric_def_find("time_total_ns_model")->name, "time_total_ns");
    ck_assert_ptr_null(metric_def_find("time_total_nsx"));
    ck_assert_ptr_null(metric_def_find("density"));
    ck_assert_ptr_null(metric_def_find("_model"));
    ck_assert_ptr_null(metric_def_find(""));
    ck_assert_ptr_null(metric_def_find("@64"));
}
END_TEST

static void check_head(const struct method *m, const struct head_in *in)
{
    struct err e = {0};
    struct record r;
    struct method_run *runs = NULL;
    struct carry carry = {0};
    struct method_ctx ctx = {.carry = m->flags & METHOD_NEEDS_STEPS ? &carry : NULL};
    int64_t n = 0;

    record_init(&r);
    assert_ok(method_runs_parse(sim_methods, m->name, &runs, &n, &e), &e);
    assert_ok(sim_run(m, runs[0].params, &ctx, in, NULL, NULL, &r, &e), &e);
    for (int64_t i = 0; i < r.n_metrics; i++)
        ck_assert_msg(metric_def_find(r.metrics[i].name) != NULL,
                      "%s records '%s', which core/metrics.def does not define", m->name,
                      r.metrics[i].name);
    if (carry.free)
        carry.free(carry.data);
    method_runs_free(runs, n);
    record_free(&r);
}

START_TEST(every_recorded_number_is_defined)
{
    struct sim_head text, video;
    struct err e = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F32, &text, &e), &e);
    assert_ok(golden_video(0, 5, 0, PREC_F32, &video, &e), &e);
    for (const struct method *const *m = sim_methods; *m; m++) {
        check_head(*m, &text.in);
        check_head(*m, &video.in);
    }
    sim_head_free(&text);
    sim_head_free(&video);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("metricdef");
    TCase *c = tcase_create("metricdef");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, definitions_are_complete_and_unique);
    tcase_add_test(c, levels_and_models_belong_to_their_number);
    tcase_add_test(c, every_recorded_number_is_defined);
    suite_add_tcase(s, c);
    return s;
}
