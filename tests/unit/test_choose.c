/* Plans: which setting is chosen, what is written, what other programs' files can hold, and what a
 * plan gains in a table. */
#include "analyze/choose.h"
#include "analyze/duo.h"
#include "core/fileio.h"
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

static int choose(enum choose_per per, double quantile)
{
    struct choose_request req = {.cost = "density_exec", .per = per, .quantile = quantile};
    OWN(buf_free) struct buf b = {0};
    struct jw w;
    assert_ok(limits_add(&req.limits, "err_l1_rel<=0.02", &e), &e);
    if (f.n)
        fixture_set(&f, &set);
    jw_init(&w, &b, 2);
    PASS_ON(choose_plan(&set, &req, &w, &sum, &e));
    assert_ok(json_read_text(buf_str(&b), b.len, "plan", &plan, &e), &e);
    return 0;
}

/* "HEAD METHOD PARAMS; ..." of all entries. */
static void entries(struct buf *b)
{
    size_t i;
    json_t *x;
    json_array_foreach(json_object_get(plan, "entries"), i, x)
        buf_printf(b, "%lld %s %s; ", (long long)json_integer_value(json_object_get(x, "head")),
                   json_string_value(json_object_get(x, "method")),
                   json_string_value(json_object_get(x, "params")));
}

#define RUN(setting, head, cost, error)                                                            \
    setting " head=" head " density_exec=" cost " err_l1_rel=" error ";"
#define TWO_HEADS                                                                                  \
    RUN("sale:tau=0.02", "0", ".2", ".01")                                                         \
    RUN("sale:tau=0.01", "0", ".3", ".001")                                                        \
    RUN("sale:tau=0.02", "1", ".2", ".03") RUN("sale:tau=0.01", "1", ".3", ".002")

static const struct chosen {
    const char *name, *records;
    enum choose_per per;
    double quantile;
    const char *entries;
    int64_t heads, dense;
    double cost;
} chosen[] = {
    /* 0.02 is too wrong; a bound is no setting; xattention is as cheap, with the smaller error */
    {"the cheapest within the limits, or dense",
     RUN("sale:tau=0.02", "0", ".2", ".03") RUN("sale:tau=0.01", "0", ".3", ".02")
         RUN("xattention:tau=0.8", "0", ".4", ".001") RUN("oracle", "0", ".1", ".001")
             RUN("sale:tau=0.02", "1", ".2", ".01") RUN("sale:tau=0.01", "1", ".3", ".02")
                 RUN("xattention:tau=0.8", "1", ".2", ".005") RUN("sale:tau=0.02", "2", ".2", ".5")
                     RUN("sale:tau=0.01", "2", "1.1", "0"),
     CHOOSE_HEAD, 1, "0 sale tau=0.01; 1 xattention tau=0.8; ", 3, 1, 0.5},
    /* Partial tiles count whole: dense attention executes more than 1. */
    {"dense costs what its records say",
     RUN("dense", "0..1", "1.1", "0") RUN("sale:tau=0.01", "0", "1.05", ".001")
         RUN("sale:tau=0.01", "1", "1.1", "0"),
     CHOOSE_HEAD, 1, "0 sale tau=0.01; ", 2, 1, 1.075},
    {"a layer has one setting", TWO_HEADS, CHOOSE_LAYER, 1, "0 sale tau=0.01; 1 sale tau=0.01; ", 2,
     0, 0.3},
    {"half of the cells are enough", TWO_HEADS, CHOOSE_MODEL, 0.5,
     "0 sale tau=0.02; 1 sale tau=0.02; ", 2, 0, 0.2},
    {"a setting must have every call",
     RUN("sale:tau=0.01 step=0..1", "0", ".3", ".01") RUN("sale:tau=0.02 step=0", "0", ".1", ".01")
         RUN("sale:tau=0.02 step=1 status=skip", "0", ".1", ".01"),
     CHOOSE_HEAD, 1, "0 sale tau=0.01; ", 1, 0, 0.3},
    /* if every call found the same; what a calibration holds is not written out */
    {"parameters that a search found are written out",
     RUN("sale:bits=16@density_elem=0.1:per=layer step=0..1 note=found=tau=0.0125", "0", ".1",
         ".01") RUN("sale@density_elem=0.05 step=0 note=found=tau=0.1", "0", ".05", ".01")
         RUN("sale@density_elem=0.05 step=1 note=found=tau=0.2", "0", ".05", ".01")
             RUN("sale:calib=abc step=0..1", "0", ".01", ".01"),
     CHOOSE_HEAD, 1, "0 sale bits=16:tau=0.0125; ", 1, 0, 0.1},
};

TEST_EACH(plans_have_the_cheapest_settings_within_the_limits, chosen)
{
    const struct chosen *c = &chosen[_i];
    OWN(buf_free) struct buf b = {0};
    fixture_add(&f, c->records);
    assert_ok(choose(c->per, c->quantile), &e);
    entries(&b);
    ck_assert_msg(strcmp(buf_str(&b), c->entries) == 0, "%s: %s", c->name, buf_str(&b));
    ck_assert_msg(sum.heads == c->heads && sum.dense == c->dense &&
                      fabs(sum.cost - c->cost) < 1e-12,
                  "%s: %d heads, %d dense, %g", c->name, (int)sum.heads, (int)sum.dense, sum.cost);
}

TEST(a_plan_says_what_is_expected)
{
    fixture_add(&f, RUN("sale:tau=0.01", "0", ".3", ".02"));
    assert_ok(choose(CHOOSE_HEAD, 1), &e);
    const json_t *x = json_array_get(json_object_get(plan, "entries"), 0);
    x = json_object_get(json_object_get(x, "expected"), "err_l1_rel");
    ck_assert_double_eq(json_number_value(json_array_get(x, 0)), 0.02);
    ck_assert_str_eq(json_string_value(json_object_get(plan, "limits")), "err_l1_rel<=0.02");
    ck_assert_str_eq(json_string_value(json_object_get(plan, "default")), "dense");
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
    fixture_add(&f, RUN("sale", "0..1", ".1", ".1"));
    record_text(&f.r[1], &f.r[1].model, "another");
    assert_fails(choose(CHOOSE_HEAD, 1), &e, ERR_INPUT, "differ in model");
}

/* ---- the table ------------------------------------------------------------------------------ */

/* Of two single settings only the dearer one meets the limit as often as the plan; on other traces
 * the cheaper one does, which nobody could know. */
TEST(a_plan_is_held_against_the_best_single_setting)
{
    static const char notes[] = "plan=77;plan_limits=err_l1_rel<=0.02;plan_cost=density_exec;"
                                "plan_runs=aaaaaaaa";
#define TRACE(x, error)                                                                            \
    RUN("plan:id=77 trace=xxh3:" x, "0", ".4", ".01")                                              \
    RUN("plan:id=77 trace=xxh3:" x, "1", ".2", ".01")                                              \
    RUN("sale:tau=0.02 trace=xxh3:" x, "0", ".2", error)                                           \
    RUN("sale:tau=0.02 trace=xxh3:" x, "1", ".2", ".01")                                           \
    RUN("sale:tau=0.01 trace=xxh3:" x, "0..1", ".4", ".01")
    fixture_add(&f, TRACE("aaaaaaaaa", ".5") TRACE("bbbbbbbbb", ".01"));
    for (int64_t i = 0; i < f.n; i++)
        if (strcmp(f.r[i].method, "plan") == 0)
            record_note(&f.r[i], "%s", notes);
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

/* ---- DuoAttention's table -------------------------------------------------------------------- */

#define DUO_TABLE "0.9 0.1\t0.5\t0.3\n1\t-0.1\t0\t0.7\n"

/* Four KV heads in each of two layers: what the quantile of numpy leaves below it streams; equal
 * heads, 0 after clipping, in the order of the table. */
static const struct {
    const char *table;
    double sparsity;
    const char *entries;
    enum err_code fails;
    const char *why;
} duos[] = {
    {DUO_TABLE, 0, "", 0, NULL},
    {DUO_TABLE, 0.1, "1/1 ", 0, NULL},
    {DUO_TABLE, 0.5, "0/1 0/3 1/1 1/2 ", 0, NULL},
    {DUO_TABLE, 0.51, "0/1 0/3 1/1 1/2 ", 0, NULL},
    {DUO_TABLE, 0.6, "0/1 0/2 0/3 1/1 1/2 ", 0, NULL},
    {DUO_TABLE, 1, "0/0 0/1 0/2 0/3 1/0 1/1 1/2 1/3 ", 0, NULL},
    {"0 0 0 0\n", 0.5, "", ERR_INPUT, "1 layers of 4 KV heads, the records one of layer 1"},
    {"0 0\n0 0\n", 0.5, "", ERR_INPUT, "2 layers of 2 KV heads"},
    {"0 0\n0\n", 0.5, "", ERR_INPUT, "layer 1 has 1 numbers, layer 0 has 2"},
    {"0 x\n", 0.5, "", ERR_INPUT, "'x' is not a number"},
    {"\n", 0.5, "", ERR_INPUT, "a line of numbers per layer"},
};

TEST_EACH(heads_below_the_quantile_stream, duos)
{
    struct duo_request req = {test_path("duo.tsv"), duos[_i].sparsity, "sink=4:window=8"};
    OWN(buf_free) struct buf b = {0}, have = {0};
    struct jw w;
    json_t *x;
    size_t i;
    assert_ok(file_write_atomic(req.table, duos[_i].table, strlen(duos[_i].table), &e), &e);
    fixture_add(&f, "dense layer=0..1 head=0..3 density_exec=1");
    fixture_set(&f, &set);
    jw_init(&w, &b, 0);
    int rc = duo_plan(&set, &req, &w, &sum, &e);
    ck_assert_int_eq(rc, duos[_i].fails);
    if (rc) {
        assert_fails(rc, &e, duos[_i].fails, duos[_i].why);
    } else {
        assert_ok(json_read_text(buf_str(&b), b.len, "plan", &plan, &e), &e);
        json_array_foreach(json_object_get(plan, "entries"), i, x)
            buf_printf(&have, "%d/%d ", (int)json_integer_value(json_object_get(x, "layer")),
                       (int)json_integer_value(json_object_get(x, "head")));
        ck_assert_str_eq(buf_str(&have), duos[_i].entries);
        ck_assert_int_eq(sum.heads - sum.dense,
                         (int64_t)json_array_size(json_object_get(plan, "entries")));
    }
}
