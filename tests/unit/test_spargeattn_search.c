/*
 * SpargeAttn, per-head search: bisection, bins of theta, inputs, bounds.
 */
#include "tests/harness/spargerun.h"

#include <math.h>
#include <string.h>

struct fake {
    bool pass;
    int n;
    double tau[16], pv[16];
};

static int fake_eval(void *ctx, double tau, double pv, double *l1, double *sparsity,
                     struct err *err)
{
    struct fake *f = ctx;
    ck_assert_int_lt(f->n, 16);
    f->tau[f->n] = tau;
    f->pv[f->n++] = pv;
    *l1 = f->pass ? 0 : 1;
    *sparsity = f->n;
    return 0;
}

TEST(bisection_points)
{
    double x, sparsity;
    struct fake f = {true, 0, {0}, {0}};
    MUST(sparge_bisect_tau(fake_eval, &f, 0.5, &x, &sparsity, ERR));
    ck_assert_int_eq(f.n, 8);
    for (int i = 0; i < 8; i++) {
        ck_assert_double_eq_tol(f.tau[i], 0.1 / exp2(i), 1e-15);
        ck_assert_double_eq(f.pv[i], 50);
    }
    ck_assert_double_eq_tol(f.tau[7], 0.00078125, 1e-15);
    ck_assert_double_eq_tol(x, 0.000390625, 1e-15);
    ck_assert_double_eq(sparsity, 8);

    f = (struct fake){false, 0, {0}, {0}};
    MUST(sparge_bisect_tau(fake_eval, &f, 0.5, &x, &sparsity, ERR));
    ck_assert_int_eq(f.n, 11);
    ck_assert_double_eq(x, 1);

    f = (struct fake){true, 0, {0}, {0}};
    MUST(sparge_bisect_pv(fake_eval, &f, 0.5, 0.3, &x, ERR));
    ck_assert_int_eq(f.n, 9);
    ck_assert_double_eq_tol(x, 0.0390625, 1e-12);
    f = (struct fake){false, 0, {0}, {0}};
    MUST(sparge_bisect_pv(fake_eval, &f, 0.5, 0.3, &x, ERR));
    ck_assert_int_eq(f.n, 10);
    ck_assert_double_eq_tol(x, 49.9707, 1e-4);
    ck_assert_double_eq(f.tau[0], 0.3);
}

TEST(bins_of_theta)
{
    struct sparge_point best, p[] = {
                                  {-1, 0.5, 20, 0.5},
                                  {-1 + 1.0 / 16, 0.6, 10, 0.3}, /* bin 0: 0.8 */
                                  {-1 + 2.0 / 16, 0.4, 5, 0.45},
                                  {-1 + 3.0 / 16, 0.3, 30, 0.4}, /* bin 1: 0.85 */
                                  {0, 0.2, 1, 0.6},              /* bin 8: 0.6, mean 0.6 */
                              };
    sparge_pick(p, 5, &best);
    ck_assert_double_eq(best.theta, -1 + 3.0 / 16);
    ck_assert_double_eq(best.tau, 0.4);
    ck_assert_double_eq(best.pv, 30);
    ck_assert_double_eq_tol(best.sparsity, 0.425, 1e-15);
    /* A tie goes to the bin that appears first. */
    p[0].sparsity = p[1].sparsity = p[2].sparsity = p[3].sparsity = 0.5;
    sparge_pick(p, 4, &best);
    ck_assert_double_eq(best.theta, -1 + 1.0 / 16);
    struct sparge_point swapped[] = {p[2], p[3], p[0], p[1]};
    sparge_pick(swapped, 4, &best);
    ck_assert_double_eq(best.theta, -1 + 3.0 / 16);
}

static json_t *found(const char *text, const struct head_in *samples, int n)
{
    char full[256];
    json_t *doc = NULL;
    snprintf(full, sizeof full, "spargeattn:%s", text);
    MUST(calibrate_text(full, samples, n, &doc, ERR));
    return doc;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

TEST(calibrated_head_keeps_the_bound)
{
    static const char *const text[] = {"l1=0.3:l2=0.35", "search=grid:l1=0.3:l2=0.35",
                                       "profile=paper:l1=0.3:l2=0.35",
                                       "arith=sage1:l1=0.3:l2=0.35:tune_pv=0"};
    HEAD(h, golden_video, 0, 0, 0, PREC_F32);
    for (int i = 0; i < 4; i++) {
        OWN(json_decrefp) json_t *doc = found(text[i], &h.in, 1);
        double theta = number(doc, "theta"), tau = number(doc, "tau"), pv = number(doc, "pv");
        ck_assert(json_is_false(json_object_get(doc, "dense")));
        ck_assert_int_eq(json_object_get(doc, "sink") != NULL, i != 2);
        ck_assert(theta >= -1 && theta <= 1 && tau >= 0 && tau <= 1 && pv > 0 && pv <= 50);
        if (i == 3)
            ck_assert_double_eq(pv, 20);
        char run[256];
        snprintf(run, sizeof run, "theta=%.17g:tau=%.17g:pv=%.17g%s%s", theta, tau, pv,
                 i == 2 ? ":profile=paper" : "", i == 3 ? ":arith=sage1" : "");
        /* tau is half a step beyond the last setting that was tried, hence the margin. */
        ck_assert_double_lt(sparge_metric(run, &h, "err_l1_rel"), 0.35 * 1.1);
        ck_assert_double_gt(sparge_metric(run, &h, "sparsity_qk"), 0.1);
    }
}

/* A head keeps filter 2 up to the share of its tiles that it skips in a replay, of all inputs. */
TEST_N(filter_stays_where_it_pays, 2)
{
    const char *rules = _i ? "pv_tail=0:tile=64x128" : "profile=paper";
    struct sim_head h[2];
    struct head_in two[2];
    double kept = 0, pv = 0;
    char text[128], run[256];
    for (int i = 0; i < 2; i++) {
        MUST(golden_video(0, 0, i, PREC_F32, &h[i], ERR));
        two[i] = h[i].in;
        two[i].step = i;
    }
    snprintf(text, sizeof text, "%s:l1=0.1:l2=0.9", rules);
    OWN(json_decrefp) json_t *always = found(text, two, 2);
    snprintf(run, sizeof run, "%s:sink=%d:theta=%.17g:tau=%.17g:pv=%.17g", rules, _i,
             number(always, "theta"), number(always, "tau"), number(always, "pv"));
    for (int i = 0; i < 2; i++) {
        kept += 1 - sparge_metric(run, h + i, "sparsity_qk");
        pv += 1 - sparge_metric(run, h + i, "sparsity_pv");
    }
    double share = 1 - pv / kept;
    ck_assert(json_is_false(json_object_get(always, "dense")));
    ck_assert_msg(share > 0.02 && share < 0.98, "%s skips %g", run, share);
    for (int above = 0; above < 2; above++) {
        snprintf(text, sizeof text, "%s:l1=0.1:l2=0.9:pv_min=%.17g", rules,
                 share + (above ? 1e-6 : -1e-6));
        OWN(json_decrefp) json_t *doc = found(text, two, 2);
        const char *off = json_string_value(json_object_get(doc, "pv"));
        ck_assert_int_eq(off && strcmp(off, "off") == 0, above);
        if (above)
            json_object_set(doc, "pv", json_object_get(always, "pv"));
        ck_assert(json_equal(doc, always));
    }
    sim_head_free(&h[0]);
    sim_head_free(&h[1]);
}

TEST(share_that_pays_is_a_share)
{
    struct method_run *runs = NULL;
    int64_t n = 0;
    FAILS(method_runs_parse(test_methods, "spargeattn:pv_min=1.5", &runs, &n, ERR), ERR_USAGE,
          "expected a number in [0, 1]");
}

TEST(impossible_bound_makes_the_head_dense)
{
    HEAD(h, golden_code_lm, 5, 7, PREC_F32);
    OWN(json_decrefp) json_t *doc = found("l1=1e-9:l2=2e-9", &h.in, 1);
    ck_assert(json_is_true(json_object_get(doc, "dense")));
    ck_assert_double_eq(number(doc, "theta"), 1);
    ck_assert_double_eq(number(doc, "tau"), 1);
}

TEST(branches_of_a_step_are_one_input)
{
    static const struct {
        int step;
        const char *branch;
        int size; /* of the input that begins here, 0 = inside one */
    } c[] = {{0, "cond", 2},   {0, "uncond", 0}, {1, "cond", 1}, {2, "cond", 2},
             {2, "uncond", 0}, {2, "cond", 1},   {0, "main", 1}, {0, "main", 1}};
    struct head_in in[8];
    memset(in, 0, sizeof in);
    for (int i = 0; i < 8; i++) {
        in[i].step = c[i].step;
        in[i].branch = c[i].branch;
    }
    for (int i = 0; i < 8; i++)
        if (c[i].size)
            ck_assert_int_eq(sparge_input_size(in, 8, i), c[i].size);
}

/* Two equal branches have the error and the sparsity of one; equal inputs give equal points. */
TEST(repeated_samples_change_nothing)
{
    struct head_in two[2];
    HEAD(h, golden_video, 0, 0, 0, PREC_F32);
    two[0] = two[1] = h.in;
    OWN(json_decrefp) json_t *one = found("l1=0.3:l2=0.35", two, 1);
    for (int step = 0; step < 2; step++) {
        two[1].branch = "other";
        two[1].step = h.in.step + step;
        OWN(json_decrefp) json_t *doc = found("l1=0.3:l2=0.35", two, 2);
        ck_assert(json_equal(one, doc));
    }
}

/* A head that an input made dense stays dense: later inputs are not looked at. */
TEST(dense_is_for_good)
{
    struct sim_head h[2];
    struct head_in two[2];
    MUST(random_head(4, 384, 384, 128, false, 0.3, PREC_F32, &h[0], ERR));
    MUST(golden_video(0, 0, 0, PREC_F32, &h[1], ERR));
    const char *text = "l1=0.2:l2=0.3:search=grid";
    for (int first = 0; first < 2; first++) {
        two[0] = h[first].in;
        two[1] = h[!first].in;
        two[1].step = two[0].step + 1;
        OWN(json_decrefp)
        json_t *alone = found(text, two, 1), *both = found(text, two, 2);
        bool dense = json_is_true(json_object_get(alone, "dense"));
        ck_assert_int_eq(dense, first == 0);
        if (dense)
            ck_assert(json_equal(alone, both));
    }
    sim_head_free(&h[0]);
    sim_head_free(&h[1]);
}

TEST(calibrate_refuses_topk)
{
    struct head_in in = {.x = {.nq = 4, .nk = 8, .d = 4, .causal = true}};
    struct err err = {0};
    json_t *doc = NULL;
    FAILS(calibrate_text("spargeattn:select=topk", &in, 1, &doc, ERR), ERR_USAGE, "select=cdf");
    ck_assert_int_eq(calibrate_text("spargeattn", &in, 1, &doc, &err), METHOD_SKIP);
}
