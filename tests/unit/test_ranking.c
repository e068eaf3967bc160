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

static void assert_param(struct record *r, const char *name, const char *want)
{
    OWN(buf_free) struct buf b = {0};
    ck_assert_int_eq(record_param(r, name, &b), want != NULL);
    ck_assert_str_eq(buf_str(&b), want ? want : "");
}

TEST(a_parameter_has_the_value_in_effect)
{
    struct record *r = fixture_record(&f, "sale", "tau=0.02:dense_below=0", 0, 0);
    assert_param(r, "tau", "0.02");
    assert_param(r, "bits", "4");
    assert_param(r, "window", NULL);
    r = fixture_record(&f, "sale", "bits=16:calib=abc", 0, 1);
    assert_param(r, "tau", "calib");
    assert_param(r, "bits", "16");
    r = fixture_record(&f, "sale", "bits=16@density_elem=0.3", 0, 2);
    record_note(r, "found=tau=0.0125;budget=met");
    assert_param(r, "tau", "0.0125");
    assert_param(r, "bits", "16");
    fixture_set(&f, &set);
}

/* ---- conditions ----------------------------------------------------------------------------- */

static int64_t left(const char *condition)
{
    struct str_list texts = {0};
    str_list_add(&texts, condition);
    fixture_study(&f);
    recset_free(&set);
    fixture_set(&f, &set);
    int rc = recset_where(&texts, &set, &e);
    str_list_free(&texts);
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
    ck_assert_int_eq(left("method=nobody"), ERR_INPUT);
    ck_assert(strstr(e.msg, "method=nobody") != NULL);
    err_clear(&e);
    ck_assert_int_eq(left("cra_min=1"), ERR_USAGE);
    err_clear(&e);
    ck_assert_int_eq(left("layr=1"), ERR_USAGE);
    ck_assert(strstr(e.msg, "did you mean 'layer'") != NULL);
    err_clear(&e);
    ck_assert_int_eq(left("layer"), ERR_USAGE);
    err_clear(&e);
    ck_assert_int_eq(left("layer<x"), ERR_USAGE);
}

/* ---- the table ------------------------------------------------------------------------------ */

static void put(const char *method, const char *params, int head, double density, double error)
{
    struct record *r = fixture_record(&f, method, params, head / 4, head % 4);
    fixture_metric(r, "density_elem", density);
    fixture_metric(r, "err_l1_rel", error);
}

static int rank_per(const char *at, const char *by, const char *per)
{
    const struct table_request req = {.at = at, .by = by, .per = per};
    return try_build("ranking", &req);
}

static int rank(const char *at, const char *by)
{
    return rank_per(at, by, NULL);
}

/* sale beats xattention on seven of eight heads, ties within 1 % on the last; streaming has only
 * seven of them, and the oracle is no contestant. */
TEST(targets_are_ranked_head_by_head)
{
    for (int h = 0; h < 8; h++) {
        put("sale", "@density_elem=0.3", h, 0.3, h < 7 ? 0.1 : 0.2);
        put("xattention", "@density_elem=0.3", h, 0.301, h < 7 ? 0.1 + 0.01 * (h + 1) : 0.201);
        put("xattention", "@density_elem=0.5", h, 0.5, 0.01);
        put("oracle", "@density_elem=0.3", h, 0.3, 0.001);
        put("xattention", "tau=0.5", h, 0.3, 0.0001);
    }
    assert_ok(rank(NULL, NULL), &e);
    ck_assert_int_eq(t.n_rows, 2); /* 0.5 has one setting only: a note */
    is_text(0, "method", "sale");
    is_number(0, "n", 8);
    is_number(0, "won", 7.5 / 8);
    is_number(1, "won", 0.5 / 8);
    /* Differences -0.01 .. -0.07 and -0.001: all eight negative, p = 2 / 2^8. */
    is_number(0, "p", 0.0078125);
    is_number(0, "p_holm", 0.015625);
    is_number(0, "difference", -0.035);
    is_text(0, "verdict", "better");
    is_text(1, "verdict", "worse");
}

/* Layer 0 is sale's on three of four heads, layer 1 minference's on all; xattention misses there.
 */
TEST(every_layer_has_its_winner)
{
    for (int h = 0; h < 8; h++) {
        put("sale", "@density_elem=0.3", h, 0.3, h < 3 ? 0.1 : 0.4);
        put("minference", "bq=64@density_elem=0.3", h, 0.3, 0.2 + 0.01 * h);
        put("xattention", "@density_elem=0.3", h, h < 4 ? 0.3 : 0.6, 0.3);
        if (h >= 4)
            record_note(&f.r[f.n - 1], "budget=next step keeps 0.6");
    }
    assert_ok(rank_per(NULL, NULL, "layer"), &e);
    ck_assert_int_eq(t.n_rows, 2);
    is_text(0, "method", "sale");
    is_text(0, "second", "minference:bq=64");
    is_text(1, "method", "minference");
    is_text(1, "params", "bq=64");
    is_text(1, "second", "sale");
    is_number(0, "layer", 0);
    is_number(0, "n", 4);
    is_number(0, "won", 0.75);
    is_number(1, "won", 1);
    /* -0.1, -0.11, -0.12, 0.17 */
    is_number(0, "difference", -0.105);
    is_number(1, "p", 0.125);
    is_number(1, "p_holm", 0.625); /* of 3 + 2 comparisons */
    ck_assert(has_note("which it misses by more than 2 % (in some layers)"));
}

/* One head: its samples are paired, and calls of one sample are one value. */
TEST(every_head_is_paired_by_sample)
{
    for (int h = 0; h < 2; h++)
        for (int sample = 0; sample < 8; sample++)
            for (int step = 0; step < 2; step++)
                for (int m = 0; m < 2; m++) {
                    put(m ? "sale" : "xattention", "@density_elem=0.3", h, 0.3,
                        0.2 + 0.001 * sample + (m == h ? 0.1 + 0.02 * step : 0));
                    struct record *r = &f.r[f.n - 1];
                    r->step = step;
                    snprintf(r->trace, sizeof r->trace, "xxh3:%d", sample);
                }
    assert_ok(rank_per(NULL, NULL, "head"), &e);
    ck_assert_int_eq(t.n_rows, 2);
    is_text(0, "method", "sale");
    is_text(1, "method", "xattention");
    is_number(1, "head", 1);
    is_number(0, "n", 8);
    is_number(0, "difference", -0.11);
    is_number(0, "p", 2.0 / 256);
    is_number(0, "p_holm", 4 * 2.0 / 256);
    is_text(0, "verdict", "better");
}

TEST(one_sample_is_no_test)
{
    for (int h = 0; h < 8; h++) {
        put("sale", "@density_elem=0.3", h, 0.3, 0.1);
        put("xattention", "@density_elem=0.3", h, 0.3, 0.2);
    }
    assert_ok(rank_per(NULL, NULL, "head"), &e);
    ck_assert_int_eq(t.n_rows, 8);
    is_text(7, "verdict", "open");
    ck_assert(has_note("with 1 sample no test can tell"));
}

/* Curves: log-log between the two neighbours, nothing beyond the ends. */
TEST(curves_are_compared_where_they_meet)
{
    for (int h = 0; h < 3; h++) {
        put("sale", "tau=0.1", h, 0.1, 0.4);
        put("sale", "tau=0.01", h, 0.4, 0.1);
        put("xattention", "tau=0.5", h, 0.1, 0.2);
        put("xattention", "tau=0.8", h, h < 2 ? 0.4 : 0.15, 0.2);
        put("streaming", "window=8", h, 0.3, 0.5);
    }
    assert_ok(rank("density_elem=0.2", NULL), &e);
    ck_assert_int_eq(t.n_rows, 2);
    is_number(0, "n", 2);
    is_text(0, "method", "sale");
    is_number(0, "value", 0.2); /* sqrt(0.4 0.1) at sqrt(0.1 0.4) */
    is_number(0, "won", 0.5);
    is_text(0, "verdict", "open");
    ck_assert(has_note("streaming has no value at density_elem=0.2"));
    ck_assert(has_note("at density_elem=0.2 1 heads that only some settings have are left out"));
}

TEST(what_cannot_be_ranked_is_refused)
{
    put("sale", "tau=0.1", 0, 0.1, 0.4);
    assert_fails(rank(NULL, NULL), &e, ERR_INPUT, "--at density_elem=0.3");
    assert_fails(rank("density=0.1", NULL), &e, ERR_USAGE, "expected METRIC=X");
    assert_fails(rank("density_elem=0.1", "pairs_allowed"), &e, ERR_USAGE, "better and a worse");
    assert_fails(rank_per("density_elem=0.1", NULL, "step"), &e, ERR_USAGE, "--per step");
}

TEST(parameters_are_keys)
{
    const struct table_request req = {
        .group = "method,tau", .pivot = "layer", .columns = "density_elem"};
    put("sale", "tau=0.1", 0, 0.1, 0.4);
    put("sale", "tau=0.1", 4, 0.2, 0.4);
    put("sale", "bits=16:tau=0.1", 4, 0.4, 0.4);
    put("sale", "", 0, 0.3, 0.4);
    build("summary", &req);
    ck_assert_int_eq(t.n_rows, 2);
    is_text(0, "tau", "0.004"); /* the default */
    is_text(1, "tau", "0.1");
    is_mean(1, "layer=1", 2, 0.3);
}
