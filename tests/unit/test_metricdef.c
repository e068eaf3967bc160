/* Metric definitions: unique, complete, and every number that a method records has one. */
#include "tests/harness/suite.h"

#include "core/metricdef.h"
#include "tests/harness/testmethods.h"
#include "sim/simulate.h"
#include "tests/harness/golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void begin(void)
{
    metric_def_methods(test_methods);
}
FIXTURE(begin, NULL)

TEST(definitions_are_complete_and_unique)
{
    for (const struct metric_def *m = metric_defs; m->name; m++) {
        ck_assert_msg(m->name[0] && m->unit[0] && m->definition[0] && m->section[0], "%s", m->name);
        ck_assert_msg(strlen(m->name) < METRIC_NAME, "%s", m->name);
        ck_assert_msg(metric_def_find(m->name) == m, "%s is defined twice", m->name);
    }
}

static const struct metric_def *own(const struct method *m, const char *name)
{
    size_t len = strcspn(name, "@");
    for (const struct metric_def *d = m->metrics; d && d->name; d++)
        if (strlen(d->name) == len && strncmp(d->name, name, len) == 0)
            return d;
    return NULL;
}

static const struct metric_def *shared(const char *name)
{
    metric_def_methods(NULL);
    const struct metric_def *d = metric_def_find(name);
    metric_def_methods(test_methods);
    return d;
}

static bool same_facts(const struct metric_def *a, const struct metric_def *b)
{
    const char *x = a->denominator, *y = b->denominator;
    return strcmp(a->unit, b->unit) == 0 && a->better == b->better && a->axis == b->axis &&
           a->per == b->per && a->noise == b->noise && a->level == b->level &&
           (x && y ? strcmp(x, y) == 0 : x == y);
}

TEST_N(own_numbers_are_complete_and_of_one_kind, test_methods_count())
{
    const struct method *m = test_methods[_i];
    for (const struct metric_def *d = m->metrics; d && d->name; d++) {
        ck_assert_msg(d->unit && d->unit[0] && d->definition && d->definition[0], "%s: %s", m->name,
                      d->name);
        ck_assert_msg(!d->section && !d->method, "%s: %s", m->name, d->name);
        ck_assert_msg(strlen(d->name) < METRIC_NAME, "%s", d->name);
        ck_assert_msg(own(m, d->name) == d, "%s declares %s twice", m->name, d->name);
        ck_assert_msg(!shared(d->name), "%s: core/metrics.def has %s", m->name, d->name);
        const struct metric_def *first = metric_def_find(d->name);
        ck_assert_msg(first && same_facts(first, d), "%s: %s is of another kind elsewhere", m->name,
                      d->name);
    }
}

TEST(own_numbers_are_found_where_methods_are_known)
{
    ck_assert_str_eq(metric_def_find("mse_spatial")->unit, "output^2");
    ck_assert_ptr_null(shared("mse_spatial"));
}

TEST(levels_belong_to_their_number)
{
    ck_assert_str_eq(metric_def_find("density_tile@128x64")->name, "density_tile");
    ck_assert_str_eq(metric_def_find("below_b64@0.25")->name, "below_b64");
    ck_assert_ptr_null(metric_def_find("time_total_nsx"));
    ck_assert_ptr_null(metric_def_find("density"));
    ck_assert_ptr_null(metric_def_find(""));
    ck_assert_ptr_null(metric_def_find("@64"));
}

TEST(a_level_is_in_the_name_or_the_definition)
{
    ck_assert_double_eq(metric_level("below_b64@0.25"), 0.25);
    ck_assert_double_eq(metric_level("below_s16_area"), 0.5);
    ck_assert_double_eq(metric_level("sd_sq"), 0.95);
    ck_assert_double_eq(metric_level("sim_k"), 64);
    ck_assert(isnan(metric_level("density_elem")) && isnan(metric_level("unheard_of")));
}

static void check_head(const struct method *m, const struct head_in *in)
{
    struct err e = {0};
    struct record r;
    struct method_run *runs = NULL;
    struct carry carry = {0};
    struct method_ctx ctx = {.carry = m->flags & METHOD_NEEDS_STEPS ? &carry : NULL};
    int64_t n = 0;
    if (!has_defaults(m))
        return;
    record_init(&r);
    assert_ok(method_runs_parse(test_methods, m->name, &runs, &n, &e), &e);
    struct sim_cell cell = {.method = m, .params = runs[0].params, .ctx = &ctx, .in = in};
    assert_ok(sim_run(&cell, &r, &e), &e);
    for (int64_t i = 0; i < record_metrics(&r); i++)
        ck_assert_msg(shared(r.names->name[i]) || own(m, r.names->name[i]),
                      "%s records '%s', which neither core/metrics.def nor the method defines",
                      m->name, r.names->name[i]);
    if (carry.free)
        carry.free(carry.data);
    method_runs_free(runs, n);
    record_free(&r);
}

TEST(every_recorded_number_is_defined)
{
    OWN(sim_head_free) struct sim_head text, video;
    struct err e = {0};
    assert_ok(golden_code_lm(5, 0, PREC_F32, &text, &e), &e);
    assert_ok(golden_video(0, 5, 0, PREC_F32, &video, &e), &e);
    for (const struct method *const *m = test_methods; *m; m++) {
        check_head(*m, &text.in);
        check_head(*m, &video.in);
    }
}
