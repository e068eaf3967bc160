/* Tables: statistics by hand, groups that mix nothing they must not, exact text of every format. */

#include "tests/harness/table_fixture.h"
#include "analyze/csv.h"
#include "analyze/format.h"
#include "analyze/metricfacts.h"
#include "core/fileio.h"
#include "core/json.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

FIXTURE(begin, end)

static struct record *with(const char *method, const char *params, int layer, int head, double x)
{
    struct record *r = fixture_record(&f, method, params, layer, head);
    fixture_metric(r, "density_elem", x);
    return r;
}

/* ---- statistics ---------------------------------------------------------------------------- */

TEST(statistics_of_four_values_by_hand)
{
    double x[] = {5, 1, 4, 2};
    struct stats s;
    stats_of(x, 4, &s);
    ck_assert_int_eq(s.n, 4);
    ck_assert_double_eq(s.mean, 3);
    ck_assert_double_eq_tol(s.sd, 1.8257418583505538, 1e-15); /* sqrt(10/3) */
    ck_assert_double_eq(s.min, 1);
    ck_assert_double_eq(s.median, 3);
    ck_assert_double_eq(s.max, 5);
}

TEST(statistics_of_few_or_odd_values)
{
    double one[] = {7}, three[] = {9, -1, 2}, bad[] = {NAN, 3, INFINITY, 1};
    double large[] = {1e9 + 1, 1e9 + 2, 1e9 + 3}; /* their common part does not eat the deviation */
    struct stats s;
    stats_of(large, 3, &s);
    ck_assert_double_eq_tol(s.sd, 1, 1e-9);
    stats_of(one, 1, &s);
    ck_assert(s.n == 1 && s.mean == 7 && s.median == 7 && isnan(s.sd));
    stats_of(three, 3, &s);
    ck_assert(s.median == 2 && s.min == -1 && s.max == 9);
    stats_of(bad, 4, &s);
    ck_assert(s.n == 2 && s.n_bad == 2 && s.mean == 2 && s.max == 3);
    stats_of(one, 0, &s);
    ck_assert(s.n == 0 && isnan(s.mean) && isnan(s.median));
}

/* ---- keys ---------------------------------------------------------------------------------- */

TEST(numbers_in_texts_sort_by_value)
{
    ck_assert_int_lt(natural_compare("k=8", "k=16"), 0);
    ck_assert_int_lt(natural_compare("a=0.9", "a=0.95"), 0);
    ck_assert_int_lt(natural_compare("a=0.05", "a=0.5"), 0);
    ck_assert_int_lt(natural_compare("", "a"), 0);
    ck_assert_int_gt(natural_compare("b=1", "a=2"), 0);
    ck_assert_int_eq(natural_compare("x=1:y=2", "x=1:y=2"), 0);
    ck_assert_int_ne(natural_compare("x=1.0", "x=1"), 0);
}

TEST(keys_are_parsed_once_each_and_unknown_ones_named)
{
    enum group_key keys[KEYS_MAX];
    int n;
    assert_ok(keys_parse("layer,method,layer", "--group", keys, &n, &e), &e);
    ck_assert(n == 2 && keys[0] == KEY_LAYER && keys[1] == KEY_METHOD);
    assert_fails(keys_parse("layr", "--group", keys, &n, &e), &e, ERR_USAGE,
                 "did you mean 'layer'");
    assert_fails(keys_parse("", "--group", keys, &n, &e), &e, ERR_USAGE, "no key");
}

/* ---- groups -------------------------------------------------------------------------------- */

TEST(rows_are_means_over_heads_and_layers)
{
    with("sale", "", 0, 0, 0.2);
    with("sale", "", 0, 1, 0.4);
    with("sale", "", 1, 0, 0.9);
    with("dense", "", 0, 0, 1);
    build("summary", NULL);
    ck_assert_int_eq(t.n_rows, 2);
    is_text(0, "method", "dense"); /* the baseline comes first */
    is_number(1, "n", 3);
    ck_assert_double_eq_tol(cell(1, "density_elem")->stats.mean, 0.5, 1e-15);
    ck_assert_double_eq_tol(cell(1, "density_elem")->stats.sd, 0.36055512754639896, 1e-15);
    ck_assert_double_eq(cell(1, "density_elem")->stats.median, 0.4);
}

TEST(skipped_and_failed_cells_are_counted_and_never_averaged)
{
    fixture_study(&f);
    build("summary", NULL);
    int64_t seen = 0;
    for (int64_t i = 0; i < t.n_rows; i++) {
        seen += (int64_t)(cell(i, "n")->num + cell(i, "skip")->num + cell(i, "error")->num);
        if (strcmp(cell(i, "method")->text, "radial") == 0)
            ck_assert(cell(i, "skip")->num == 1 && !cell(i, "density_elem")->set);
        if (strcmp(cell(i, "method")->text, "chipmunk") == 0)
            ck_assert(cell(i, "error")->num == 1 && cell(i, "n")->num == 0);
    }
    ck_assert_int_eq(seen, 22);
    ck_assert(has_note("22 cells: 20 ok, 1 skipped, 1 failed"));
}

TEST(the_status_table_gives_the_reasons)
{
    fixture_study(&f);
    build("status", NULL);
    int found = 0;
    for (int64_t i = 0; i < t.n_rows; i++) {
        found += strcmp(cell(i, "reason")->text, "bidirectional only") == 0 &&
                 strcmp(cell(i, "status")->text, "skip") == 0;
        found += strcmp(cell(i, "reason")->text, "out of memory") == 0 &&
                 strcmp(cell(i, "status")->text, "error") == 0;
    }
    ck_assert_int_eq(found, 2);
}

TEST(models_lengths_and_backends_are_not_averaged)
{
    with("sale", "", 0, 0, 0.2);
    with("sale", "", 0, 0, 0.4)->n_q = 128;
    f.r[1].n_k = 128;
    snprintf(f.r[1].trace, sizeof f.r[1].trace, "xxh3:b");
    struct record *r = with("sale", "", 0, 0, 0.8);
    snprintf(r->backend, sizeof r->backend, "cuda");
    build("summary", NULL);
    ck_assert_int_eq(t.n_rows, 3);
    ck_assert_int_ge(table_find(&t, "n_q"), 0);
    ck_assert_int_ge(table_find(&t, "backend"), 0);
    ck_assert_int_eq(table_find(&t, "n_k"), -1);   /* follows from n_q */
    ck_assert_int_eq(table_find(&t, "model"), -1); /* the same everywhere */
    struct table_request req = {.group = "method"};
    build("summary", &req);
    ck_assert_int_eq(t.n_rows, 1);
    ck_assert(has_note("rows average over cells that differ in n_q, n_k, backend"));
}

TEST(groups_and_columns_of_the_command_line_win)
{
    fixture_study(&f);
    struct table_request req = {.group = "layer,method", .columns = "cra_m*"};
    build("summary", &req);
    ck_assert_str_eq(t.cols[0].name, "layer");
    ck_assert_str_eq(t.cols[1].name, "method");
    ck_assert_int_eq(table_find(&t, "density_elem"), -1);
    ck_assert_int_eq(t.n_cols, 2 + 3 + 2);
    is_number(0, "layer", 0);
    req.rows_most = 3;
    build("summary", &req);
    ck_assert_int_eq(t.n_rows, 0);
    ck_assert_int_gt(t.left_out, 3);
    req.columns = "no_such";
    assert_fails(try_build("summary", &req), &e, ERR_USAGE, "no_such");
}

TEST(a_pivot_puts_a_key_into_columns)
{
    with("sale", "", 0, 0, 0.2);
    with("sale", "", 0, 1, 0.4);
    with("sale", "", 10, 0, 0.5);
    with("dense", "", 2, 0, 1);
    struct table_request req = {.group = "method", .columns = "density_elem", .pivot = "layer"};
    build("summary", &req);
    ck_assert_int_eq(t.n_cols, 4);
    ck_assert_str_eq(t.cols[1].name, "layer=0");
    ck_assert_str_eq(t.cols[2].name, "layer=2");
    ck_assert_str_eq(t.cols[3].name, "layer=10");
    ck_assert(!cell(0, "layer=0")->set && cell(0, "layer=2")->stats.mean == 1);
    ck_assert_double_eq_tol(cell(1, "layer=0")->stats.mean, 0.3, 1e-15);
    ck_assert_double_eq(cell(1, "layer=10")->stats.mean, 0.5);
}

TEST(dense_calls_of_a_schedule_are_also_left_out)
{
    for (int step = 0; step < 4; step++) {
        struct record *r = with("fg-attn", "", 0, 0, step % 2 ? 0.4 + 0.1 * step : 1);
        fixture_video_record(r, step);
        fixture_metric(r, "dense_call", step % 2 ? 0 : 1);
        r = with("sale", "", 0, 0, step ? 0.5 : 1); /* happens to keep everything once */
        fixture_video_record(r, step);
    }
    build("summary", NULL);
    ck_assert_int_eq(t.n_rows, 3);
    is_text(0, "steps", "all");
    ck_assert_double_eq_tol(cell(0, "density_elem")->stats.mean, 0.8, 1e-15);
    is_text(1, "steps", "sparse");
    is_number(1, "n", 2);
    ck_assert_double_eq_tol(cell(1, "density_elem")->stats.mean, 0.6, 1e-15);
    is_text(2, "method", "sale");
}

TEST(numbers_of_the_exact_map_count_once_per_head)
{
    for (int head = 0; head < 2; head++)
        for (int c = 0; c < 3; c++) { /* three methods report the same head */
            char params[16];
            snprintf(params, sizeof params, "c=%d", c);
            struct record *r = fixture_record(&f, "dense", params, 0, head);
            fixture_metric(r, "below_b64", head ? 0.5 : 0.1);
            if (c == 2)
                fixture_metric(r, "sd_sq", 0.9);
        }
    build("map", NULL);
    ck_assert_int_eq(t.n_rows, 1);
    is_number(0, "n", 2);
    ck_assert_int_eq(cell(0, "below_b64")->stats.n, 2);
    ck_assert_double_eq_tol(cell(0, "below_b64")->stats.mean, 0.3, 1e-15);
    ck_assert_int_eq(cell(0, "sd_sq")->stats.n, 2);
}

TEST(similarity_of_keys_counts_once_per_kv_head)
{
    for (int head = 0; head < 4; head++) {
        struct record *r = fixture_record(&f, "dense", "", 0, head);
        r->kv_head = head / 2;
        fixture_metric(r, "sim_q", 0.1 * head);
        fixture_metric(r, "sim_k", head / 2 ? 0.8 : 0.2);
        fixture_metric(r, "sim_k@32", head / 2 ? 0.7 : 0.1);
    }
    build("map", NULL);
    ck_assert_int_eq(cell(0, "sim_q")->stats.n, 4);
    ck_assert_int_eq(cell(0, "sim_k")->stats.n, 2);
    ck_assert_double_eq_tol(cell(0, "sim_k")->stats.mean, 0.5, 1e-15);
    ck_assert_int_eq(cell(0, "sim_k@32")->stats.n, 2);
}

/* What differs between rows is not averaged. */
TEST(only_what_a_row_mixes_is_said_to_be_mixed)
{
    with("sale", "", 0, 0, 0.2);
    with("streaming", "", 1, 0, 0.4);
    struct table_request req = {.group = "layer"};
    build("summary", &req);
    ck_assert(!has_note("rows average over cells that differ"));
    with("sale", "", 0, 0, 0.2);
    with("streaming", "", 0, 0, 0.4);
    build("summary", &req);
    ck_assert(has_note("rows average over cells that differ in method"));
}

TEST(cells_that_all_were_skipped_are_counted)
{
    fixture_record(&f, "svg1", "", 0, 0)->status = RECORD_SKIP;
    fixture_record(&f, "svg1", "", 0, 1)->status = RECORD_SKIP;
    build("summary", NULL);
    ck_assert_int_eq(t.n_rows, 1);
    is_number(0, "n", 0);
    is_number(0, "skip", 2);
    struct table_request req = {.pivot = "layer"};
    assert_fails(try_build("summary", &req), &e, ERR_INPUT, "no cell is ok");
}

TEST(metrics_combine_in_expressions)
{
    struct record *r = with("sale", "", 0, 0, 0.3);
    fixture_metric(r, "time_quant_ns", 1);
    fixture_metric(r, "time_select_ns", 2);
    fixture_metric(r, "time_dense_ns", 12);
    ck_assert_double_eq_tol(record_value(r, "1-density_elem"), 0.7, 1e-15);
    ck_assert_double_eq(record_value(r, "100*(time_quant_ns+time_select_ns)/time_dense_ns"), 25);
    ck_assert_double_eq(record_value(r, "1-time_dense_ns/time_select_ns-1"), -6);
    ck_assert(!record_has(r, "(time_quant_ns") && !record_has(r, "time_quant_ns of 2"));
    ck_assert(!record_has(r, "") && !record_has(r, "1"));
    ck_assert(!record_has(r, "time_select_ns/time_attend_ns"));
    ck_assert(isnan(record_value(r, "no_such")));
    fixture_set(&f, &set);
}

TEST(values_that_are_not_finite_are_reported)
{
    with("sale", "", 0, 0, INFINITY);
    with("sale", "", 0, 1, 0.5);
    build("summary", NULL);
    ck_assert_double_eq(cell(0, "density_elem")->stats.mean, 0.5);
    ck_assert(has_note("1 values that are not finite were left out"));
}

TEST(values_that_are_all_infinite_say_so_themselves)
{
    fixture_metric(with("radial", "", 0, 0, 1), "psnr", INFINITY);
    fixture_metric(with("svg1", "", 0, 0, 1), "psnr", 30);
    build("eval-clips", NULL);
    ck_assert(cell(0, "psnr")->stats.all_inf && !cell(1, "psnr")->stats.all_inf);
    ck_assert(!has_note("left out"));
}

TEST(a_cell_of_two_directories_counts_once_and_the_last_wins)
{
    const char *a = test_path("a"), *b = test_path("b");
    OWN(str_list_free) struct str_list dirs = {0};
    with("sale", "", 0, 0, 0.2);
    with("sale", "", 0, 1, 0.4);
    fixture_write_records(&f, a);
    with("sale", "", 0, 1, 0.6);
    with("sale", "", 1, 0, 0.7);
    fixture_write_records(&f, b);
    str_list_add(&dirs, a);
    str_list_add(&dirs, b);
    assert_ok(recset_load(&dirs, &set, &e), &e);
    ck_assert_int_eq(set.n, 3);
    ck_assert_int_eq(set.repeated, 1);
    build("summary", NULL);
    ck_assert_double_eq_tol(cell(0, "density_elem")->stats.mean, 0.5, 1e-15);
    ck_assert(has_note("1 cells stood in several directories"));
}

TEST(what_a_search_found_stands_by_target)
{
    fixture_metric(with("sale", "tau=1", 0, 0, 0.6), "cra_p1", 1); /* no search */
    fixture_metric(with("sale", "@density_elem=0.3", 0, 0, 0.4), "budget_miss", 0.1);
    build("budget", NULL);
    ck_assert_int_eq(t.n_rows, 1);
    is_text(0, "target", "density_elem=0.3");
}

static bool defines(const struct metric_def *m, const char *pattern)
{
    for (; m && m->name; m++)
        if (fnmatch(pattern, m->name, 0) == 0)
            return true;
    return false;
}

/* A table of numbers that nothing records could never be filled. */
TEST(tables_show_defined_metrics)
{
    for (int i = 0; table_defs[i].build; i++) {
        char list[512], *save = NULL;
        snprintf(list, sizeof list, "%s", table_defs[i].metrics);
        for (char *p = strtok_r(list, ",", &save); p; p = strtok_r(NULL, ",", &save)) {
            p[strcspn(p, "@")] = '\0';
            bool found = defines(metric_defs, p);
            for (const struct method *const *m = sim_methods; *m && !found; m++)
                found = defines((*m)->metrics, p);
            ck_assert_msg(found, "table %s: no metric is called %s", table_defs[i].listed.name, p);
        }
    }
}

TEST(no_directory_and_no_records_are_errors)
{
    OWN(str_list_free) struct str_list dirs = {0};
    assert_fails(recset_load(&dirs, &set, &e), &e, ERR_USAGE, "no directory");
    str_list_add(&dirs, "no/such/dir");
    ck_assert_int_eq(recset_load(&dirs, &set, &e), ERR_INPUT);
}

TEST(every_table_builds_or_says_what_is_missing)
{
    fixture_study(&f);
    fixture_set(&f, &set);
    for (int i = 0; table_defs[i].build; i++) {
        int rc = table_build(&table_defs[i], &set, NULL, &t, &e);
        ck_assert_msg(table_has_data(&table_defs[i], &set) ? rc == 0 : rc == ERR_INPUT, "%s: %s",
                      table_defs[i].listed.name, e.msg);
        if (!rc)
            table_free(&t);
        err_clear(&e);
    }
    ck_assert_ptr_null(table_def_find("sumary", &e));
    ck_assert_ptr_nonnull(strstr(e.msg, "did you mean 'summary'"));
}

TEST(densities_name_their_denominator_and_units_are_defined)
{
    static const char *const names[] = {
        "density_elem",   "density_tile",        "density_exec", "density_rect",
        "density_native", "density_tile@64x64",  "sparsity_qk",  "sparsity_pv",
        "sparsity_total", "sparsity_total_rect", "cra_min",      "below_b64",
        "sd_sq"};
    const char *unit;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ck_assert_msg(metric_unit(names[i])[0] != '\0', "%s", names[i]);
        ck_assert_ptr_nonnull(metric_def_find(names[i]));
    }
    ck_assert_double_eq(metric_scale("host_attend_ns", &unit), 1e-6);
    ck_assert_str_eq(unit, "ms");
    ck_assert_double_eq(metric_scale("err_lse_mean", &unit), 1);
    ck_assert_str_eq(unit, "nat");
}

TEST(facts_of_an_expression_are_those_of_its_first_metric)
{
    ck_assert_int_eq(metric_better("cra_p1"), BETTER_HIGHER);
    ck_assert_int_eq(metric_better("density_tile@64x64"), BETTER_LOWER);
    ck_assert_int_eq(metric_better("1-density_elem"), BETTER_HIGHER);
    ck_assert_int_eq(metric_better("1-cra_min"), BETTER_LOWER);
    ck_assert_int_eq(metric_better("1-pairs_allowed"), BETTER_NEITHER);
    ck_assert_int_eq(metric_better("time_select_ns/speedup"), BETTER_LOWER);
    ck_assert_int_eq(metric_better("unheard_of"), BETTER_LOWER);
    ck_assert_int_eq(metric_axis("time_attend_ns_q1"), AXIS_LOG);
    ck_assert_int_eq(metric_axis("1-err_l1_rel"), AXIS_PLAIN);
    ck_assert_int_eq(metric_axis("1-density_elem"), AXIS_SHARE);
    ck_assert_int_eq(metric_axis("density_exec"), AXIS_PLAIN); /* it can exceed 1 */
    ck_assert_int_eq(metric_axis("unheard_of"), AXIS_PLAIN);
    ck_assert_int_eq(metric_per("sim_k@32"), PER_KV_HEAD);
    ck_assert_int_eq(metric_per("sim_q@32"), PER_HEAD);
    ck_assert_int_eq(metric_noise("time_attend_ns_q1"), NOISE_MEASURED);
    ck_assert_int_eq(metric_noise("dram_read_bytes"), NOISE_MEASURED);
    ck_assert_int_eq(metric_noise("err_cos"), NOISE_ROUNDING);
    ck_assert_int_eq(metric_noise("pairs_kept"), NOISE_NONE);
}

/* ---- formats ------------------------------------------------------------------------------- */

/* A table with every kind of column and characters that each format must escape. */
static void sample(void)
{
    struct stats a = {3, 0, 0.25, 0.05, 0.2, 0.25, 0.3, 0.2, 0.3, false, false},
                 one = {1, 0, 0.5, NAN, 0.5, 0.5, 0.5, 0.5, 0.5, false, false};
    table_init(&t, "x", "50% of <a> & b_c");
    assert_ok(table_column(&t, "params", "parameters", "", COL_TEXT, 1, &e), &e);
    assert_ok(table_column(&t, "n", "n", "", COL_INT, 1, &e), &e);
    assert_ok(table_column(&t, "density", "density", "kept/allowed", COL_STATS, 1, &e), &e);
    assert_ok(table_column(&t, "t_ns", "t", "ms", COL_REAL, 1e-6, &e), &e);
    assert_ok(table_row(&t, &e), &e);
    assert_ok(table_text(&t, 0, "a|b,\"c\"", &e), &e);
    table_num(&t, 1, 3);
    table_stats(&t, 2, &a);
    table_num(&t, 3, 1500000);
    assert_ok(table_row(&t, &e), &e);
    assert_ok(table_text(&t, 0, "", &e), &e);
    table_num(&t, 1, 2);
    table_stats(&t, 2, &one);
    table_note(&t, "1 < 2");
}

static void format_as(const char *name, struct buf *b)
{
    buf_reset(b);
    format_table(format_find(name, &e), &t, &(struct sheet_opts){.wide = true}, b);
    assert_ok(buf_check(b, "table", &e), &e);
}

static void shows(const char *format, const char *text)
{
    struct buf b = {0};
    format_as(format, &b);
    ck_assert_msg(strstr(buf_str(&b), text) != NULL, "no '%s' in\n%s", text, buf_str(&b));
    buf_free(&b);
}

/* A table of one column. */
static void numbers(const char *unit, double scale, const double *x, int64_t n)
{
    table_free(&t);
    table_init(&t, "x", "x");
    assert_ok(table_column(&t, "x", "x", unit, COL_REAL, scale, &e), &e);
    for (int64_t i = 0; i < n; i++) {
        assert_ok(table_row(&t, &e), &e);
        table_num(&t, 0, x[i]);
    }
}

TEST(markdown_is_aligned_and_escaped)
{
    OWN(buf_free) struct buf b = {0};
    sample();
    format_as("md", &b);
    ck_assert_str_eq(buf_str(&b), "**50% of \\<a> & b_c**\n"
                                  "\n"
                                  "| parameters |  n | density [kept/allowed] | t [ms] |\n"
                                  "| :--------- | -: | ---------------------: | -----: |\n"
                                  "| a\\|b,\"c\"   |  3 |        0.2500 \u00b1 0.0500 | 1.5000 |\n"
                                  "| (defaults) |  2 |           0.5000 (n=1) |      - |\n"
                                  "\n"
                                  "- 1 < 2\n");
}

/* 10 of 10, 9 of 10, none of 4; other values have no interval. */
TEST(shares_have_wilsons_interval)
{
    double ten[10], none[4] = {0, 0, 0, 0}, part[] = {0, 0.5, 1};
    struct stats of;
    double low, high;

    for (int i = 0; i < 10; i++)
        ten[i] = 1;
    stats_of(ten, 10, &of);
    ck_assert(of.zero_one);
    stats_wilson(&of, &low, &high);
    ck_assert_double_eq_tol(low, 0.7225, 5e-5);
    ck_assert_double_eq(high, 1);
    ten[3] = 0;
    stats_of(ten, 10, &of);
    stats_wilson(&of, &low, &high);
    ck_assert_double_eq_tol(low, 0.5958, 5e-5);
    ck_assert_double_eq_tol(high, 0.9821, 5e-5);
    stats_of(none, 4, &of);
    stats_wilson(&of, &low, &high);
    ck_assert_double_eq(low, 0);
    ck_assert_double_eq_tol(high, 1 - 0.5101, 5e-5); /* as 4 of 4, the other way round */
    stats_of(part, 3, &of);
    ck_assert(!of.zero_one);
    stats_of(part, 0, &of);
    ck_assert(!of.zero_one);
}

/* Rounding beside the values is 0 for people; a small deviation of small values is not, and no
 * digit is lost for programs. */
TEST(deviations_that_are_rounding_are_shown_as_zero)
{
    sample();
    struct stats *s = &table_cell(&t, 0, 2)->stats;
    *s = (struct stats){3, 0, 0.3, 1.1e-16, 0.3, 0.3, 0.3, 0.3, 0.3, false, false};
    table_cell(&t, 1, 2)->stats =
        (struct stats){3, 0, 2e-16, 1e-16, 1e-16, 2e-16, 3e-16, 1e-16, 3e-16, false, false};
    shows("md", "0.3000 \u00b1 0.0000 |");
    shows("md", "2e-16 \u00b1 1e-16");
    s->sd = 1e-13;
    shows("md", "0.3000 \u00b1 1e-13");
    s->sd = 1.1e-16;
    shows("csv", "1.1e-16");

    double equal[] = {0.1, 0.1, 0.1}; /* their sum is not 3 x 0.1 in double */
    struct stats of;
    stats_of(equal, 3, &of);
    ck_assert_double_eq(of.sd, 0);
}

/* What a table shows of the texts of a file is text for every reader of the table. */
TEST(text_of_a_cell_is_no_html_no_link_and_no_command)
{
    static const struct {
        const char *text, *md, *html;
    } cells[] = {
        {"<img src=x onerror=a()>", "| \\<img src=x onerror=a()> |",
         "&lt;img src=x onerror=a()&gt;"},
        {"</td><!-- <?x", "| \\</td>\\<!-- \\<?x |", "&lt;/td&gt;&lt;!-- &lt;?x"},
        {"&lt;b> &#60; R&D", "| \\&lt;b> \\&#60; R\\&D |", "&amp;lt;b&gt; &amp;#60; R&amp;D"},
        {"a < b & c <= d", "| a < b & c <= d |", "a &lt; b &amp; c &lt;= d"},
        {"[x](javascript:a())", "| [x\\](javascript:a()) |", "[x](javascript:a())"},
        {"a\\|b \\<i>", "| a\\\\\\|b \\\\\\<i> |", "a\\|b \\&lt;i&gt;"},
        {"\033[2J\xc2\x9b\xe2\x80\xae\xff\n", "| \\x1b[2J\\u009b\\u202e\\xff\\x0a |",
         "\\x1b[2J\\u009b\\u202e\\xff\\x0a"},
    };
    sample();
    shows("html", "<caption>50% of &lt;a&gt; &amp; b_c</caption>");
    shows("html", ">a|b,&quot;c&quot;</td>");
    table_free(&t);
    assert_ok(table_column(&t, "x", "x", "", COL_TEXT, 1, &e), &e);
    assert_ok(table_row(&t, &e), &e);
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++) {
        assert_ok(table_text(&t, 0, cells[i].text, &e), &e);
        shows("md", cells[i].md);
        shows("html", cells[i].html);
    }
}

TEST(a_spreadsheet_computes_nothing_of_a_table)
{
    static const char *const texts[][2] = {
        {"=1+1", "\"'=1+1\""},
        {"+cmd|' /C calc'!A0", "\"'+cmd|' /C calc'!A0\""},
        {"-2+3", "\"'-2+3\""},
        {"@SUM(1,2)", "\"'@SUM(1,2)\""},
        {"=\"a\"", "\"'=\"\"a\"\"\""},
        {"-0x10", "\"'-0x10\""},
        {"-0.25", "-0.25"},
        {"+1e-3", "+1e-3"},
        {"-inf", "-inf"},
        {"-", "-"},
        {"a=1", "a=1"},
    };
    char want[64];
    assert_ok(table_column(&t, "=x()", "x", "", COL_TEXT, 1, &e), &e);
    assert_ok(table_row(&t, &e), &e);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_ok(table_text(&t, 0, texts[i][0], &e), &e);
        snprintf(want, sizeof want, "\"'=x()\"\r\n%s\r\n", texts[i][1]);
        shows("csv", want);
    }
}

TEST(csv_follows_rfc_4180_with_all_digits)
{
    sample();
    table_cell(&t, 0, 2)->stats.mean = 1.0 / 3;
    shows("csv",
          "params,n,density,density_sd,density_n,density_min,density_median,density_max,t_ns\r\n"
          "\"a|b,\"\"c\"\"\",3,0.3333333333333333,0.05,3,0.2,0.25,0.3,1500000\r\n"
          ",2,0.5,,1,0.5,0.5,0.5,\r\n");
}

TEST(latex_text_has_no_bare_special_character)
{
    OWN(buf_free) struct buf b = {0};
    tex_text("\\ {x} $ # ~ ^ <a> & b_c 5% | [1] --wide", &b);
    ck_assert_str_eq(buf_str(&b), "\\textbackslash{} \\{x\\} \\$ \\# \\textasciitilde{} "
                                  "\\textasciicircum{} \\textless{}a\\textgreater{} \\& b\\_c 5\\% "
                                  "\\textbar{} {[}1] -{}-wide");
}

TEST(json_reads_back)
{
    OWN(buf_free) struct buf b = {0};
    json_t *doc = NULL, *row;
    sample();
    format_as("json", &b);
    assert_ok(json_read_text(buf_str(&b), b.len, "table", &doc, &e), &e);
    row = json_array_get(json_object_get(doc, "rows"), 0);
    ck_assert_str_eq(json_string_value(json_object_get(row, "params")), "a|b,\"c\"");
    ck_assert_int_eq(json_integer_value(json_object_get(row, "n")), 3);
    ck_assert_double_eq(json_number_value(json_object_get(json_object_get(row, "density"), "sd")),
                        0.05);
    row = json_array_get(json_object_get(doc, "rows"), 1);
    ck_assert(json_is_null(json_object_get(row, "t_ns")));
    ck_assert(json_is_null(json_object_get(json_object_get(row, "density"), "sd")));
    json_decref(doc);
}

/* One number of another size does not change how the others are written. */
TEST(each_number_keeps_its_digits)
{
    static const double x[] = {0.95, 5.37e-4, 0.9999803,  0.9999967, 1 - 1e-15,
                               1,    0.00123, -0.9999803, 3.9e-17},
                        small[] = {0.125, 3.25e-7, 0}, times[] = {1.005e9, 2e4};
    static const char *const texts[] = {" 0.9500 ", " 0.000537 ", " 0.99998 ",  " 0.999997 ",
                                        " 1.0000 ", " 0.0012 ",   " -0.99998 ", " 3.9e-17 "};
    numbers("", 1, x, 9);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        shows("md", texts[i]);
    t.cols[0].mixed = true;
    shows("md", " 0.99998 ");
    shows("md", " 0.00123 ");
    numbers("", 1, small, 3);
    shows("md", " 3.25e-07 ");
    shows("md", " 0.1250 ");
    numbers("ms", 1e-6, times, 2);
    shows("md", " 1005 ");
    shows("md", " 0.02 ");
}

TEST(long_latex_tables_are_grids_below_each_other)
{
    double x[60] = {1.5e-7};
    OWN(buf_free) struct buf b = {0};
    for (int i = 1; i < 60; i++)
        x[i] = 0.5;
    numbers("", 1, x, 60);
    shows("tex", "1.5$\\times10^{-7}$");
    format_as("tex", &b);
    const char *first = strstr(buf_str(&b), "\\begin{tabular}{@{}r@{}}");
    ck_assert(first && strstr(first + 1, "\\begin{tabular}") && !strstr(first, "\\caption"));
    ck_assert_ptr_null(strstr(buf_str(&b), "\\begin{table}"));
}

TEST(an_unknown_format_is_refused_with_the_list)
{
    ck_assert_ptr_null(format_find("xlsx", &e));
    ck_assert_int_eq(e.code, ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.msg, "md, csv, tex, json, html"));
}

/* ---- CSV in -------------------------------------------------------------------------------- */

static void write_text(const char *path, const char *text)
{
    assert_ok(file_write_atomic(path, text, strlen(text), &e), &e);
}

TEST(csv_fields_read_back_what_was_quoted)
{
    OWN(csv_free) struct csv c = {0};
    int64_t at;
    write_text(test_path("q.csv"), "a,b\r\n\"x, \"\"y\"\"\",2\n\"two\nlines\",\n,last");
    assert_ok(csv_read(test_path("q.csv"), &c, &e), &e);
    ck_assert_int_eq(c.n, 4);
    ck_assert_int_eq(c.fields, 2);
    ck_assert_str_eq(c.row[1][0], "x, \"y\"");
    ck_assert_str_eq(c.row[2][0], "two\nlines");
    ck_assert_str_eq(c.row[2][1], "");
    ck_assert_str_eq(c.row[3][1], "last");
    assert_ok(csv_column(&c, "b", "q.csv", &at, &e), &e);
    ck_assert_int_eq(at, 1);
    assert_fails(csv_column(&c, "z", "q.csv", &at, &e), &e, ERR_INPUT, "no column 'z'");
}

TEST(broken_csv_is_refused_with_its_line)
{
    static const char *const cases[][2] = {
        {"a,b\n1,2\n3\n", ":3: 1 fields"},
        {"a\n\"never ends\n", "does not end"},
        {"a,b\n1,\"\tx\ny\"\n2,\033[31mred\n", ":4: a field has a control character U+001B"},
        {"a\n\xe9t\xe9\n", ":2: a field has a byte 0xE9, which is not UTF-8"},
        {"", "empty"}};
    struct csv c = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(test_path("bad.csv"), cases[i][0]);
        assert_fails(csv_read(test_path("bad.csv"), &c, &e), &e, ERR_INPUT, cases[i][1]);
    }
}
