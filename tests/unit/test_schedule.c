/* Which jobs run side by side, in which order, and who waits for whom. */
#include "tests/harness/suite.h"

#include "reproduce/schedule.h"

#include <stdlib.h>
#include <string.h>

static struct err e;

static void begin(void)
{
    memset(&e, 0, sizeof e);
}

/* Two tables: one of traces, one of times. Job 0 makes the input of the others. */
enum { INPUT, REPLAY, EVAL, TIMED_EVAL };
static struct recipe_job jobs[] = {
    {.name = "input", .kind = DO_CAPTURE, .args = ""},
    {.name = "run", .kind = DO_REPLAY, .args = "--precision f32"},
    {.name = "ask", .kind = DO_EVAL, .args = "--task needle"},
    {.name = "first", .kind = DO_EVAL, .args = "--task needle --samples 5"},
};
static const struct recipe recipes[] = {{.id = "a:1", .needs = "T", .jobs = jobs, .n_jobs = 4},
                                        {.id = "a:2", .needs = "TK", .jobs = jobs, .n_jobs = 4}};

#define STEPS 4
static struct step steps[STEPS];
static struct plan plan;

/* recipe, job, key, seconds of each step. */
static void make(const int what[STEPS][2], const char *const keys[STEPS], const double seconds[])
{
    memset(steps, 0, sizeof steps);
    plan = (struct plan){
        .recipes = recipes, .n_recipes = 2, .s = steps, .n = STEPS, .cuda = true, .at_once = 4};
    for (int i = 0; i < STEPS; i++) {
        steps[i] = (struct step){
            .recipe = what[i][0], .job = what[i][1], .ready = true, .alone = seconds[i]};
        snprintf(steps[i].key, sizeof steps[i].key, "%s", keys[i]);
    }
}

/* Start the step that comes next; -1: none. */
static int start(void)
{
    int at = plan_choose(&plan);
    struct job j = {.first = at};
    if (at < 0)
        return at;
    snprintf(j.key, sizeof j.key, "%s", steps[at].key);
    assert_ok(plan_begun(&plan, &j, &e), &e);
    return at;
}

static void end(int at)
{
    struct job j = {.first = at};
    snprintf(j.key, sizeof j.key, "%s", steps[at].key);
    plan_ended(&plan, &j);
    steps[at].done = true;
}

START_TEST(what_is_timed_waits_until_nothing_runs)
{
    const int what[][2] = {{0, REPLAY}, {1, REPLAY}, {0, EVAL}, {1, TIMED_EVAL}};
    const char *const keys[] = {"a", "b", "c", "d"};
    make(what, keys, (double[]){1, 50, 3, 9});
    ck_assert_int_eq(start(), 2); /* the longest that needs no time */
    ck_assert_int_eq(start(), 0);
    ck_assert_int_eq(start(), -1);
    end(2);
    ck_assert_int_eq(start(), -1);
    end(0);
    ck_assert_int_eq(start(), 1);
    ck_assert_int_eq(start(), -1); /* alone */
    end(1);
    ck_assert_int_eq(start(), 3);
    end(3);
    ck_assert_int_eq(start(), -1);
    str_list_free(&plan.running);
}
END_TEST

START_TEST(without_a_gpu_nothing_is_timed)
{
    const int what[][2] = {{0, REPLAY}, {1, REPLAY}, {0, EVAL}, {1, TIMED_EVAL}};
    const char *const keys[] = {"a", "b", "c", "d"};
    make(what, keys, (double[]){1, 50, 3, 9});
    plan.cuda = false;
    for (int i = 0; i < STEPS; i++)
        ck_assert_int_eq(start(), ((const int[]){1, 3, 2, 0})[i]);
    str_list_free(&plan.running);
}
END_TEST

START_TEST(equal_work_is_started_once)
{
    const int what[][2] = {{0, INPUT}, {1, INPUT}, {0, EVAL}, {1, INPUT}};
    const char *const keys[] = {"same", "same", "c", "same"};
    make(what, keys, (double[]){5, 5, 3, 5});
    ck_assert_int_eq(start(), 0);
    ck_assert(!step_waits(&plan, &steps[1]));
    ck_assert_int_eq(start(), 2);
    ck_assert_int_eq(start(), -1);
    end(0);
    steps[1].done = steps[3].done = true;
    ck_assert_int_eq(start(), -1);
    str_list_free(&plan.running);
}
END_TEST

START_TEST(the_longest_way_to_the_end_comes_first)
{
    const int what[][2] = {{0, INPUT}, {0, INPUT}, {0, REPLAY}, {0, EVAL}};
    const char *const keys[] = {"a", "b", "c", "d"};
    int in = 0;
    make(what, keys, (double[]){1, 4, 20, 10});
    steps[2].in = &in; /* the replay reads the first capture */
    steps[2].n_in = 1;
    steps[2].ready = false;
    ck_assert_int_eq(start(), 0); /* 1 + 20 */
    ck_assert_int_eq(start(), 3);
    ck_assert_int_eq(start(), 1);
    end(0);
    steps[2].ready = true;
    ck_assert_int_eq(start(), 2);
    str_list_free(&plan.running);
}
END_TEST

START_TEST(a_unit_that_is_timed_later_is_not_run_before)
{
    const int what[][2] = {{0, REPLAY}, {1, REPLAY}, {0, REPLAY}, {0, EVAL}};
    const char *const keys[] = {"a", "a", "b", "c"};
    struct step_unit later = {.id = "plain", .kept = -1, .later = true};
    struct step_unit timed = {.id = "timed", .kept = -1};
    struct step_unit both[] = {later, {.id = "other", .kept = -1}};
    make(what, keys, (double[]){9, 9, 1, 2});
    steps[0].units = &later;
    steps[1].units = &timed;
    steps[2].units = both;
    steps[0].n_units = steps[1].n_units = 1;
    steps[2].n_units = 2;
    ck_assert(!step_waits(&plan, &steps[0]));
    ck_assert(step_waits(&plan, &steps[1]));
    ck_assert(step_waits(&plan, &steps[2]));
    str_list_add(&plan.running, "other"); /* by another step's job */
    ck_assert(!step_waits(&plan, &steps[2]));
    str_list_free(&plan.running);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("schedule");
    TCase *t = tcase_create("schedule");
    tcase_add_checked_fixture(t, begin, NULL);
    tcase_add_test(t, what_is_timed_waits_until_nothing_runs);
    tcase_add_test(t, without_a_gpu_nothing_is_timed);
    tcase_add_test(t, equal_work_is_started_once);
    tcase_add_test(t, the_longest_way_to_the_end_comes_first);
    tcase_add_test(t, a_unit_that_is_timed_later_is_not_run_before);
    suite_add_tcase(s, t);
    return s;
}
