/* Rankings: paired statistics with numbers of textbooks and of SciPy, parameter texts with targets,
 * parameters as keys, conditions, and the table on records made by hand. */
#include "tests/harness/table_fixture.h"
#include "analyze/stats.h"
#include "analyze/params.h"
#include "analyze/query.h"

FIXTURE(begin, end)

/* ---- statistics ----------------------------------------------------------------------------- */

TEST(signed_ranks_are_exact_for_few_pairs)
{
    const double six[] = {1, 2, 3, 4, 5, -6};
    const double ten[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    const double ties[] = {1, 1, -1, 2, 2, 3, -3, 4, 5, 5}; /* all 2^10 signs, counted elsewhere */
    const double zeros[] = {0, 1, 0, 2, 3, 4, 5, -6, 0};
    struct paired r;
    assert_ok(paired_test(six, 6, &r, &e), &e);
    ck_assert(r.test.plus == 15 && r.test.minus == 6 && r.test.n == 6);
    ck_assert_double_eq(r.test.p, 0.4375);
    assert_ok(paired_test(ten, 10, &r, &e), &e);
    ck_assert_double_eq(r.test.p, 0.001953125);
    assert_ok(paired_test(ties, 10, &r, &e), &e);
    ck_assert_double_eq(r.test.minus, 8.5);
    ck_assert_double_eq(r.test.p, 0.060546875);
    assert_ok(paired_test(zeros, 9, &r, &e), &e);
    ck_assert_double_eq(r.test.p, 0.4375);
    assert_ok(paired_test(zeros, 1, &r, &e), &e);
    ck_assert(r.test.n == 0 && r.test.p == 1);
}

/* SciPy 1.x: wilcoxon(d, zero_method="wilcox", correction=False, mode="approx"). */
TEST(signed_ranks_of_many_pairs_correct_for_ties)
{
    double d[40];
    struct paired r;
    for (int i = 0; i < 40; i++)
        d[i] = i * 37 % 23 - 9 + (i % 3 ? 0.5 : 0);
    assert_ok(paired_test(d, 40, &r, &e), &e);
    ck_assert_double_eq(fmin(r.test.plus, r.test.minus), 273);
    ck_assert_double_eq_tol(r.test.p, 0.06546013430688614, 1e-12);
}

TEST(holm_steps_down)
{
    double p[] = {0.01, 0.04, 0.03}, with_gap[] = {NAN, 0.04, 0.03}, many[400];
    assert_ok(holm_correct(p, 3, &e), &e);
    ck_assert_double_eq_tol(p[0], 0.03, 1e-15);
    ck_assert_double_eq_tol(p[1], 0.06, 1e-15);
    ck_assert_double_eq_tol(p[2], 0.06, 1e-15);
    assert_ok(holm_correct(with_gap, 3, &e), &e);
    ck_assert(isnan(with_gap[0]));
    ck_assert_double_eq_tol(with_gap[2], 0.06, 1e-15);
    for (int i = 0; i < 400; i++) /* as many as a comparison per head has */
        many[i] = (400 - i) * 1e-5;
    assert_ok(holm_correct(many, 400, &e), &e);
    ck_assert_double_eq_tol(many[399], 400 * 1e-5, 1e-15);
    ck_assert_double_eq_tol(many[0], 200.0 * 201 * 1e-5, 1e-12); /* the largest (400 - k) p */
}

TEST(medians_and_their_intervals)
{
    const double x[] = {5, 1, 4, 2, 3}, same[] = {7, 7, 7};
    struct paired r;
    assert_ok(paired_test(x, 4, &r, &e), &e);
    ck_assert_double_eq(r.median, 3); /* of 5, 1, 4, 2 */
    /* Of five values the median of a resample is the least with probability 0.058: within 2.5 %. */
    assert_ok(paired_test(x, 5, &r, &e), &e);
    ck_assert(r.median == 3 && r.low == 1 && r.high == 5);
    assert_ok(paired_test(same, 3, &r, &e), &e);
    ck_assert(r.low == 7 && r.high == 7);
}

/* ---- parameters ----------------------------------------------------------------------------- */

TEST(a_target_is_the_last_word)
{
    OWN(buf_free) struct buf b = {0};
    const char *text = "sink=4:dilate=none@density_elem=0.3:per=layer", *p = text;
    size_t len;
    ck_assert_ptr_eq(params_next(&p, &len), text);
    ck_assert_uint_eq(len, 6);
    ck_assert_uint_eq((params_next(&p, &len), len), 11);
    const char *last = params_next(&p, &len);
    ck_assert_str_eq(last, "@density_elem=0.3:per=layer");
    ck_assert_ptr_null(params_next(&p, &len));
    ck_assert_uint_eq(params_value_len(params_value(text, "dilate")), 4);
    ck_assert_uint_eq(params_value_len(params_value(text, "@density_elem")), 3);
    ck_assert_str_eq(params_target(text), "density_elem=0.3:per=layer");
    ck_assert_str_eq(params_target("calib=a@b"), "");
    params_without(text, "sink", &b);
    ck_assert_str_eq(buf_str(&b), "dilate=none@density_elem=0.3:per=layer");
}

TEST(a_parameter_has_the_value_in_effect)
{
    static const struct {
        int record;
        const char *name, *want;
    } cases[] = {{0, "tau", "0.02"}, {0, "bits", "4"},     {0, "window", NULL}, {1, "tau", "calib"},
                 {1, "bits", "16"},  {2, "tau", "0.0125"}, {2, "bits", "16"}};
    fixture_add(&f, "sale:tau=0.02:dense_below=0; sale:bits=16:calib=abc head=1;"
                    "sale:bits=16@density_elem=0.3 head=2 note=found=tau=0.0125");
    for (int i = 0; i < 7; i++) {
        OWN(buf_free) struct buf b = {0};
        ck_assert_int_eq(record_param(&f.r[cases[i].record], cases[i].name, &b),
                         cases[i].want != NULL);
        ck_assert_str_eq(buf_str(&b), cases[i].want ? cases[i].want : "");
    }
    fixture_set(&f, &set);
}

/* ---- conditions ----------------------------------------------------------------------------- */

static int64_t left(const char *condition)
{
    OWN(str_list_free) struct str_list texts = {0};
    str_list_add(&texts, condition);
    fixture_study(&f);
    recset_free(&set);
    fixture_set(&f, &set);
    int rc = recset_where(&texts, &set, &e);
    return rc ? rc : set.n;
}

TEST(conditions_choose_records)
{
    int64_t all = left("layer>=0"), sale = left("method=sale"), tau = left("tau=0.02");
    ck_assert_int_gt(all, sale);
    ck_assert_int_gt(sale, tau);
    ck_assert_int_gt(tau, 0);
    ck_assert_int_eq(left("method!=sale"), all - sale);
    ck_assert_int_eq(left("method=s*,layer=0..1,status=ok|skip|error"), left("method=s*"));
    ck_assert_int_eq(left("layer=0") + left("layer=1"), all);
    ck_assert_int_eq(left("density_elem<=0.3") + left("density_elem>0.3"), left("status=ok"));
    ck_assert_int_eq(left("method=sale,tau<0.02") + left("method=sale,tau>=0.02"), sale);
    static const char *const bad[][2] = {
        {"cra_min=1", ""}, {"layr=1", "did you mean 'layer'"}, {"layer", ""}, {"layer<x", ""}};
    for (int i = 0; i < 4; i++)
        assert_fails((int)left(bad[i][0]), &e, ERR_USAGE, bad[i][1]);
    assert_fails((int)left("method=nobody"), &e, ERR_INPUT, "method=nobody");
}

/* ---- the table ------------------------------------------------------------------------------ */

static const struct tabled tabled[] = {
    /* sale beats xattention on seven of eight heads and ties within 1 % on the last: differences
     * -0.01 .. -0.07 and -0.001 are all negative, p = 2 / 2^8. The oracle is no contestant, and of
     * 0.5 there is one setting only. */
    {"targets are ranked head by head",
     "sale@density_elem=0.3 head=0..6 density_elem=.3 err_l1_rel=.1;"
     "sale@density_elem=0.3 head=7 density_elem=.3 err_l1_rel=.2;"
     "xattention@density_elem=0.3 head=0..6 density_elem=.301 err_l1_rel=.11+.01i;"
     "xattention@density_elem=0.3 head=7 density_elem=.301 err_l1_rel=.201;"
     "xattention@density_elem=0.5 head=0..7 density_elem=.5 err_l1_rel=.01;"
     "oracle@density_elem=0.3 head=0..7 density_elem=.3 err_l1_rel=.001;"
     "xattention:tau=0.5 head=0..7 density_elem=.3 err_l1_rel=.0001",
     "ranking", .rows = 2,
     .cells =
         "0 method:sale n:8 won:.9375 p:.0078125 p_holm:.015625 difference:-.035 verdict:better;"
         "1 won:.0625 verdict:worse"},
    /* Log-log between the two neighbours, nothing beyond the ends: sale has sqrt(0.4 0.1) at
     * sqrt(0.1 0.4). */
    {"curves are compared where they meet",
     "sale:tau=0.1 head=0..2 density_elem=.1 err_l1_rel=.4; sale:tau=0.01 head=0..2 "
     "density_elem=.4 err_l1_rel=.1;"
     "xattention:tau=0.5 head=0..2 density_elem=.1 err_l1_rel=.2;"
     "xattention:tau=0.8 head=0..1 density_elem=.4 err_l1_rel=.2;"
     "xattention:tau=0.8 head=2 density_elem=.15 err_l1_rel=.2;"
     "streaming:window=8 head=0..2 density_elem=.3 err_l1_rel=.5",
     "ranking", .req = {.at = "density_elem=0.2"}, .rows = 2,
     .cells = "0 method:sale n:2 value:.2 won:.5 verdict:open",
     .notes = {"streaming has no value at density_elem=0.2",
               "at density_elem=0.2 1 heads that only some settings have are left out"}},
    {"without a target there is a budget to give", "sale:tau=0.1 density_elem=.1", "ranking",
     .notes = {"--at density_elem=0.3"}, .fails = ERR_INPUT},
    {"a budget is of a metric", "sale:tau=0.1 density_elem=.1", "ranking",
     .req = {.at = "density=0.1"}, .notes = {"expected METRIC=X"}, .fails = ERR_USAGE},
    {"what is ranked by has a better side", "sale:tau=0.1 density_elem=.1", "ranking",
     .req = {.at = "density_elem=0.1", .by = "pairs_allowed"}, .notes = {"better and a worse"},
     .fails = ERR_USAGE},
    {"parameters are keys, with their defaults",
     "sale:tau=0.1 density_elem=.1; sale:tau=0.1 layer=1 density_elem=.2;"
     "sale:bits=16:tau=0.1 layer=1 density_elem=.4; sale density_elem=.3",
     "summary", .req = {.group = "method,tau", .pivot = "layer", .columns = "density_elem"},
     .rows = 2, .cells = "0 tau:0.004; 1 tau:0.1 layer=1:.3/2"},
};

TEST_EACH(rankings_say_who_wins, tabled)
{
    assert_table(&tabled[_i]);
}
