/* Recall, error and count metrics on cases that can be computed by hand, and the identities that
 * doc/records.md states. */
#include "core/rng.h"
#include "sim/metrics.h"
#include "tests/harness/suite.h"

#include <math.h>
#include <string.h>

TEST(percentiles_are_nearest_rank)
{
    double x[384];
    for (int i = 0; i < 384; i++)
        x[i] = i + 1;
    ck_assert_double_eq(percentile_sorted(x, 100, 1), 1);
    ck_assert_double_eq(percentile_sorted(x, 100, 5), 5);
    ck_assert_double_eq(percentile_sorted(x, 100, 50), 50);
    ck_assert_double_eq(percentile_sorted(x, 384, 1), 4);
    ck_assert_double_eq(percentile_sorted(x, 384, 5), 20);
    ck_assert_double_eq(percentile_sorted(x, 384, 50), 192);
    ck_assert_double_eq(percentile_sorted(x + 6, 1, 1), 7);
    ck_assert_double_eq(percentile_sorted(x + 6, 1, 99), 7);
}

TEST(ratios_of_zero)
{
    ck_assert_double_eq(ratio_or_inf(0, 0), 0);
    ck_assert(isinf(ratio_or_inf(1, 0)));
    ck_assert_double_eq(ratio_or_inf(1, 4), 0.25);
}

/* Feed `n` rows of two channels with the given outputs. */
static void feed(struct metrics_acc *a, int64_t n, const double *out, const double *ref,
                 const double *lse_mask, const double *lse_out, const double *lse_ref)
{
    MUST(metrics_init(a, n, 2, ERR));
    metrics_add_rows(a, 0, n, out, ref, lse_mask, lse_out, lse_ref);
}

static struct record finish(struct metrics_acc *a, const struct mask *m)
{
    struct record r;
    record_init(&r);
    MUST(metrics_add_mask(a, m, -1, ERR));
    MUST(metrics_finish(a, m->nq, m->nk, false, &r, ERR));
    metrics_free(a);
    return r;
}

#define assert_metric(r, name, want) ck_assert_double_eq_tol(record_get(&(r), name), want, 1e-12)

TEST(dense_is_perfect)
{
    struct metrics_acc a;
    struct mask m;
    double out[20], lse[10];
    for (int i = 0; i < 20; i++)
        out[i] = rng_normal(1, 1, (uint64_t)i);
    for (int i = 0; i < 10; i++)
        lse[i] = i;
    feed(&a, 10, out, out, lse, lse, lse);
    mask_full(&m, 10, 10, 0, 10, true);
    OWN(record_free) struct record r = finish(&a, &m);
    static const char *const ones[] = {"density_elem", "density_tile", "cra_min",
                                       "cra_p1",       "cra_p5",       "cra_p50",
                                       "cra_mean",     "err_cos",      "err_cos_row_min"};
    static const char *const zeros[] = {
        "sparsity_qk", "sparsity_pv", "sparsity_total", "err_l1_rel",  "err_l1_tok", "err_l2_rel",
        "err_rmse",    "err_max",     "err_lse_mean",   "err_lse_max", "rows_empty"};
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        assert_metric(r, ones[i], 1);
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++)
        assert_metric(r, zeros[i], 0);
    assert_metric(r, "density_rect", 11.0 / 20);
    ck_assert_double_ge(record_get(&r, "density_exec"), 1);
}

TEST(empty_mask_keeps_nothing)
{
    struct metrics_acc a;
    OWN(mask_free) struct mask m;
    double ref[20], zero[20] = {0}, lse[10] = {0}, none[10];
    for (int i = 0; i < 20; i++)
        ref[i] = 1 + i;
    for (int i = 0; i < 10; i++)
        none[i] = -INFINITY;
    feed(&a, 10, zero, ref, none, none, lse);
    MUST(mask_lists_init(&m, 10, 10, 0, 10, false, 5, 5, ERR));
    mask_lists_finish(&m);
    OWN(record_free) struct record r = finish(&a, &m);
    assert_metric(r, "density_elem", 0);
    assert_metric(r, "density_tile", 0);
    assert_metric(r, "density_exec", 0);
    assert_metric(r, "cra_min", 0);
    assert_metric(r, "cra_mean", 0);
    assert_metric(r, "err_l1_rel", 1);
    assert_metric(r, "err_l2_rel", 1);
    assert_metric(r, "err_cos", 0);
    assert_metric(r, "rows_empty", 10);
    assert_metric(r, "sparsity_total", 1);
}

TEST(errors_by_hand)
{
    struct metrics_acc a;
    struct mask m;
    /* Two rows of two channels: delta = (1, 0), (0, -2). */
    const double out[] = {2, 1, 3, 2}, ref[] = {1, 1, 3, 4};
    const double half = log(0.5), mask_lse[] = {half, half}, zero[] = {0, 0};
    feed(&a, 2, out, ref, mask_lse, mask_lse, zero);
    mask_full(&m, 2, 2, 0, 2, false);
    OWN(record_free) struct record r = finish(&a, &m);
    assert_metric(r, "err_l1_rel", 3.0 / 9);
    assert_metric(r, "err_l1_tok", 1.5);
    assert_metric(r, "err_l2_rel", sqrt(5.0 / 27));
    assert_metric(r, "err_rmse", sqrt(5.0 / 4));
    assert_metric(r, "err_max", 2);
    assert_metric(r, "err_cos", 20 / (sqrt(18) * sqrt(27)));
    assert_metric(r, "err_cos_row_min", 17 / (sqrt(13) * 5));
    assert_metric(r, "cra_min", 0.5);
    assert_metric(r, "err_lse_mean", -half);
}

TEST(two_products_have_their_own_sparsity)
{
    OWN(metrics_free) struct metrics_acc a;
    OWN(mask_free) struct mask m;
    OWN(record_free) struct record r;
    double zero[8] = {0};
    record_init(&r);
    feed(&a, 4, zero, zero, zero, zero, zero);
    MUST(mask_lists_init(&m, 4, 8, 0, 4, false, 2, 2, ERR));
    MUST(mask_lists_add_run(&m, 0, 0, 4, ERR));
    MUST(mask_lists_add(&m, 1, 3, ERR));
    mask_lists_finish(&m);
    MUST(metrics_add_mask(&a, &m, 3, ERR));
    MUST(metrics_finish(&a, 4, 8, false, &r, ERR));
    assert_metric(r, "sparsity_qk", 0.375);
    assert_metric(r, "sparsity_pv", 0.625);
    assert_metric(r, "sparsity_total", 0.5);
}

TEST(nan_output_is_not_hidden)
{
    struct metrics_acc a;
    struct mask m;
    const double out[] = {1, NAN, 1, 1}, ref[] = {1, 1, 1, 1}, zero[] = {0, 0};
    feed(&a, 2, out, ref, zero, zero, zero);
    mask_full(&m, 2, 2, 0, 2, false);
    OWN(record_free) struct record r = finish(&a, &m);
    ck_assert(isnan(record_get(&r, "err_max")));
    ck_assert(isnan(record_get(&r, "err_l1_rel")));
    ck_assert_ptr_nonnull(strstr(buf_str(&r.notes), "nonfinite=err_l1_rel"));
}
