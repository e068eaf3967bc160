/* Plans: which setting is chosen, what is written, what other programs' files can hold, and what a
 * plan gains in a table. */
#include "analyze/choose.h"
#include "tests/harness/table_fixture.h"

static json_t *plan;
static struct choose_summary sum;

static void end_plan(void)
{
    end();
    json_decref(plan);
    plan = NULL;
}
FIXTURE(begin, end_plan)

static struct record *put(const char *method, const char *params, int head, double cost,
                          double error)
{
    struct record *r = fixture_record(&f, method, params, 0, head);
    fixture_metric(r, "density_exec", cost);
    fixture_metric(r, "err_l1_rel", error);
    return r;
}

static int choose(enum choose_per per, double quantile)
{
    struct choose_request req = {.cost = "density_exec", .per = per, .quantile = quantile};
    struct buf b = {0};
    struct jw w;
    assert_ok(limits_add(&req.limits, "err_l1_rel<=0.02", &e), &e);
    if (f.n)
        fixture_set(&f, &set);
    jw_init(&w, &b, 2);
    int rc = choose_plan(&set, &req, &w, &sum, &e);
    if (!rc)
        assert_ok(json_read_text(buf_str(&b), b.len, "plan", &plan, &e), &e);
    buf_free(&b);
    return rc;
}

/* "sale tau=0.02" of the i-th entry. */
static const char *entry(size_t i)
{
    static char text[128];
    json_t *x = json_array_get(json_object_get(plan, "entries"), i);
    snprintf(text, sizeof text, "%lld %s %s",
             (long long)json_integer_value(json_object_get(x, "head")),
             json_string_value(json_object_get(x, "method")),
             json_string_value(json_object_get(x, "params")));
    return text;
}

static size_t entries(void)
{
    return json_array_size(json_object_get(plan, "entries"));
}

TEST(the_cheapest_within_the_limits_is_chosen)
{
    put("sale", "tau=0.02", 0, 0.2, 0.03); /* too wrong */
    put("sale", "tau=0.01", 0, 0.3, 0.02);
    put("xattention", "tau=0.8", 0, 0.4, 0.001);
    put("oracle", "", 0, 0.1, 0.001); /* a bound is no setting */
    put("sale", "tau=0.02", 1, 0.2, 0.01);
    put("sale", "tau=0.01", 1, 0.3, 0.02);
    put("xattention", "tau=0.8", 1, 0.2, 0.005); /* as cheap, with the smaller error */
    put("sale", "tau=0.02", 2, 0.2, 0.5);
    put("sale", "tau=0.01", 2, 1.1, 0); /* dearer than dense */
    assert_ok(choose(CHOOSE_HEAD, 1), &e);
    ck_assert_uint_eq(entries(), 2);
    ck_assert_str_eq(entry(0), "0 sale tau=0.01");
    ck_assert_str_eq(entry(1), "1 xattention tau=0.8");
    ck_assert(sum.heads == 3 && sum.dense == 1);
    ck_assert_double_eq_tol(sum.cost, (0.3 + 0.2 + 1) / 3, 1e-12);
    const json_t *expected =
        json_object_get(json_array_get(json_object_get(plan, "entries"), 0), "expected");
    ck_assert_double_eq(
        json_number_value(json_array_get(json_object_get(expected, "err_l1_rel"), 0)), 0.02);
    ck_assert_str_eq(json_string_value(json_object_get(plan, "limits")), "err_l1_rel<=0.02");
    ck_assert_str_eq(json_string_value(json_object_get(plan, "default")), "dense");
}

/* Partial tiles count whole: dense attention executes more than 1, and records of it say how much.
 */
TEST(dense_costs_what_its_records_say)
{
    put("dense", "", 0, 1.1, 0);
    put("sale", "tau=0.01", 0, 1.05, 0.001);
    put("dense", "", 1, 1.1, 0);
    put("sale", "tau=0.01", 1, 1.1, 0);
    assert_ok(choose(CHOOSE_HEAD, 1), &e);
    ck_assert_uint_eq(entries(), 1);
    ck_assert_str_eq(entry(0), "0 sale tau=0.01");
    ck_assert(sum.heads == 2 && sum.dense == 1);
    ck_assert_double_eq_tol(sum.cost, (1.05 + 1.1) / 2, 1e-12);
}

TEST(a_layer_has_one_setting)
{
    put("sale", "tau=0.02", 0, 0.2, 0.01);
    put("sale", "tau=0.01", 0, 0.3, 0.001);
    put("sale", "tau=0.02", 1, 0.2, 0.03);
    put("sale", "tau=0.01", 1, 0.3, 0.002);
    assert_ok(choose(CHOOSE_LAYER, 1), &e);
    ck_assert_uint_eq(entries(), 2);
    ck_assert_str_eq(entry(0), "0 sale tau=0.01");
    ck_assert_str_eq(entry(1), "1 sale tau=0.01");
    json_decref(plan);
    assert_ok(choose(CHOOSE_MODEL, 0.5), &e); /* half of the cells are enough */
    ck_assert_str_eq(entry(1), "1 sale tau=0.02");
}

TEST(a_setting_must_have_every_call)
{
    struct record *r;
    for (int step = 0; step < 2; step++) {
        r = put("sale", "tau=0.01", 0, 0.3, 0.01);
        r->step = step;
        r = put("sale", "tau=0.02", 0, 0.1, 0.01);
        r->step = step;
        if (step)
            r->status = RECORD_SKIP;
    }
    assert_ok(choose(CHOOSE_HEAD, 1), &e);
    ck_assert_str_eq(entry(0), "0 sale tau=0.01");
}

/* A search's parameters stand in the plan if every call found the same. */
TEST(found_parameters_are_written_out)
{
    for (int step = 0; step < 2; step++) {
        struct record *r = put("sale", "bits=16@density_elem=0.1:per=layer", 0, 0.1, 0.01);
        r->step = step;
        record_note(r, "found=tau=0.0125;budget=met");
        r = put("sale", "@density_elem=0.05", 0, 0.05, 0.01);
        r->step = step;
        record_note(r, "found=tau=0.%d;budget=met", step + 1);
        r = put("sale", "calib=abc", 0, 0.01, 0.01);
        r->step = step;
    }
    assert_ok(choose(CHOOSE_HEAD, 1), &e);
    ck_assert_str_eq(entry(0), "0 sale bits=16:tau=0.0125");
}

TEST(what_cannot_be_planned_is_refused)
{
    struct limits l = {.n = 0};
    static const char *const bad[] = {"err_l1_rel", "err_l1_rel=0.1", "err_l1_rel<=x", "nope<=1",
                                      "layer<=1"};
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(limits_add(&l, bad[i], &e), ERR_USAGE);
        err_clear(&e);
    }
    assert_ok(limits_add(&l, "cra_p1>=0.9", &e), &e);
    ck_assert(l.n == 1 && l.c[0].relation == AT_LEAST && l.c[0].limit == 0.9);
    put("sale", "", 0, 0.1, 0.1);
    struct record *other = put("sale", "", 1, 0.1, 0.1);
    record_text(other, &other->model, "another");
    assert_fails(choose(CHOOSE_HEAD, 1), &e, ERR_INPUT, "differ in model");
}

/* ---- the table ------------------------------------------------------------------------------ */

/* Of two single settings only the dearer one meets the limit as often as the plan; on other traces
 * the cheaper one does, which nobody could know. */
TEST(a_plan_is_held_against_the_best_single_setting)
{
    for (int trace = 0; trace < 2; trace++)
        for (int head = 0; head < 2; head++) {
            int64_t from = f.n;
            struct record *r = put("plan", "id=77", head, head ? 0.2 : 0.4, 0.01);
            record_note(r, "plan=77;plan_limits=err_l1_rel<=0.02;plan_cost=density_exec");
            record_note(r, "plan_runs=aaaaaaaa");
            put("sale", "tau=0.02", head, 0.2, head || trace ? 0.01 : 0.5);
            put("sale", "tau=0.01", head, 0.4, 0.01);
            for (; from < f.n; from++)
                snprintf(f.r[from].trace, sizeof f.r->trace, "xxh3:%s",
                         trace ? "bbbbbbbbb" : "aaaaaaaaa");
        }
    build("plan", NULL);
    ck_assert_int_eq(t.n_rows, 4);
    is_text(0, "setting", "plan");
    is_text(1, "setting", "sale:tau=0.01");
    is_text(2, "setting", "sale:tau=0.02 (best of the others)");
    is_text(3, "setting", "dense (not replayed)");
    for (int k = 0; k < 2; k++) {
        is_number(0, k ? "cost_others" : "cost_own", 0.3);
        is_number(0, k ? "saved_others" : "saved_own", 0.25);
        is_number(1, k ? "saved_others" : "saved_own", 0);
        is_number(2, k ? "cost_others" : "cost_own", 0.2);
        is_number(2, k ? "within_others" : "within_own", k ? 1 : 0.5);
    }
}
