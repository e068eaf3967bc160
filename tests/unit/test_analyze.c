/* Tables: statistics by hand, groups that mix nothing they must not, exact text of every format. */

#include "tests/harness/table_fixture.h"
#include "analyze/csv.h"
#include "analyze/format.h"
#include "analyze/metricfacts.h"
#include "core/fileio.h"
#include "core/json.h"

#include <fnmatch.h>
#include <stdio.h>

FIXTURE(begin, end)

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

static const struct tabled tabled[] = {
    {"rows are means over heads and layers, the baseline first",
     "sale density_elem=.2; sale head=1 density_elem=.4; sale layer=1 density_elem=.9; dense "
     "density_elem=1",
     "summary", .rows = 2, .cells = "0 method:dense; 1 n:3 density_elem:.5/3"},
    {"skipped and failed cells are counted and never averaged", NULL, "summary", .rows = 7,
     .cells = "0 method:dense n:4", .notes = {"22 cells: 20 ok, 1 skipped, 1 failed"}},
    {"models, lengths and back ends are not averaged", /* n_k follows from n_q, the model is one */
     "sale density_elem=.2; sale n=128 trace=b density_elem=.4; sale backend=cuda density_elem=.8",
     "summary", .rows = 3, .cells = "0 n_q:64 backend:cpu !n_k !model"},
    {"unless they are asked to be",
     "sale density_elem=.2; sale n=128 trace=b density_elem=.4; sale backend=cuda density_elem=.8",
     "summary", .req = {.group = "method"}, .rows = 1,
     .notes = {"rows average over cells that differ in n_q, n_k, backend"}},
    {"groups and columns of the command line win", NULL, "summary",
     .req = {.group = "layer,method", .columns = "cra_m*"}, .rows = 10,
     .cells = "0 layer:0 method:dense cra_min:.9 cra_mean:1 !density_elem"},
    {"a long table stays without rows", NULL, "summary",
     .req = {.group = "layer,method", .columns = "cra_m*", .rows_most = 3}, .rows = 0},
    {"columns of nothing are refused", NULL, "summary", .req = {.columns = "no_such"},
     .notes = {"no_such"}, .fails = ERR_USAGE},
    {"a pivot puts a key into columns",
     "sale density_elem=.2; sale head=1 density_elem=.4; sale layer=10 density_elem=.5;"
     "dense layer=2 density_elem=1",
     "summary", .req = {.group = "method", .columns = "density_elem", .pivot = "layer"}, .rows = 2,
     .cells = "0 layer=0:- layer=2:1 layer=10:-; 1 layer=0:.3 layer=2:- layer=10:.5"},
    {"dense calls of a schedule are also left out", /* sale happens to keep everything once */
     "fg-attn step=0 density_elem=1 dense_call=1; fg-attn step=1 density_elem=.5 dense_call=0;"
     "fg-attn step=2 density_elem=1 dense_call=1; fg-attn step=3 density_elem=.7 dense_call=0;"
     "sale step=0 density_elem=1; sale step=1..3 density_elem=.5",
     "summary", .rows = 3,
     .cells = "0 steps:all density_elem:.8; 1 steps:sparse n:2 density_elem:.6; 2 method:sale"},
    {"numbers of the exact map count once per head", /* which three methods report */
     "dense:c=# copy=0..1 below_b64=.1; dense:c=# head=1 copy=0..1 below_b64=.5;"
     "dense:c=2 below_b64=.1 sd_sq=.9; dense:c=2 head=1 below_b64=.5 sd_sq=.9",
     "map", .rows = 1, .cells = "0 n:2 below_b64:.3/2 sd_sq:.9/2"},
    {"similarity of keys counts once per key head",
     "dense head=0..1 kv_head=0 sim_q=0+.1i sim_k=.2 sim_k@32=.1;"
     "dense head=2..3 kv_head=1 sim_q=.2+.1i sim_k=.8 sim_k@32=.7",
     "map", .rows = 1, .cells = "0 sim_q:.15/4 sim_k:.5/2 sim_k@32:.4/2"},
    {"what differs between rows is not mixed",
     "sale density_elem=.2; streaming layer=1 density_elem=.4", "summary",
     .req = {.group = "layer"}, .rows = 2, .notes = {"!rows average over cells that differ"}},
    {"what a row mixes is said to be mixed", "sale density_elem=.2; streaming density_elem=.4",
     "summary", .req = {.group = "layer"}, .rows = 1,
     .notes = {"rows average over cells that differ in method"}},
    {"cells that all were skipped are counted", "svg1 head=0..1 status=skip", "summary", .rows = 1,
     .cells = "0 n:0 skip:2"},
    {"skipped cells have no columns", "svg1 head=0..1 status=skip", "summary",
     .req = {.pivot = "layer"}, .notes = {"no cell is ok"}, .fails = ERR_INPUT},
    {"values that are not finite are reported",
     "sale density_elem=inf; sale head=1 density_elem=.5", "summary", .rows = 1,
     .cells = "0 density_elem:.5/1", .notes = {"1 values that are not finite were left out"}},
    {"values that are all infinite say so themselves", "radial psnr=inf; svg1 psnr=30",
     "eval-clips", .rows = 2, .cells = "0 psnr:inf; 1 psnr:30", .notes = {"!left out"}},
    {"what a search found stands by target", /* the first is of no search */
     "sale:tau=1 density_elem=.6 cra_p1=1; sale@density_elem=0.3 density_elem=.4 budget_miss=.1",
     "budget", .rows = 1, .cells = "0 target:density_elem=0.3"},
};

TEST_EACH(tables_say_what_records_do, tabled)
{
    assert_table(&tabled[_i]);
}

TEST(metrics_combine_in_expressions)
{
    fixture_add(&f, "sale density_elem=.3 time_quant_ns=1 time_select_ns=2 time_dense_ns=12");
    const struct record *r = f.r;
    ck_assert_double_eq_tol(record_value(r, "1-density_elem"), 0.7, 1e-15);
    ck_assert_double_eq(record_value(r, "100*(time_quant_ns+time_select_ns)/time_dense_ns"), 25);
    ck_assert_double_eq(record_value(r, "1-time_dense_ns/time_select_ns-1"), -6);
    ck_assert(!record_has(r, "(time_quant_ns") && !record_has(r, "time_quant_ns of 2"));
    ck_assert(!record_has(r, "") && !record_has(r, "1"));
    ck_assert(!record_has(r, "time_select_ns/time_attend_ns"));
    ck_assert(isnan(record_value(r, "no_such")));
    fixture_set(&f, &set);
}

TEST(a_cell_of_two_directories_counts_once_and_the_last_wins)
{
    const char *a = test_path("a"), *b = test_path("b");
    OWN(str_list_free) struct str_list dirs = {0};
    fixture_add(&f, "sale density_elem=.2; sale head=1 density_elem=.4");
    fixture_write_records(&f, a);
    fixture_add(&f, "sale head=1 density_elem=.6; sale layer=1 density_elem=.7");
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
    OWN(buf_free) struct buf b = {0};
    format_as(format, &b);
    ck_assert_msg(strstr(buf_str(&b), text) != NULL, "no '%s' in\n%s", text, buf_str(&b));
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
    ck_assert_str_eq(buf_str(&b), "**50% of &lt;a> & b_c**\n"
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
        {"<img src=x onerror=a()>", "| &lt;img src=x onerror=a()> |",
         "&lt;img src=x onerror=a()&gt;"},
        {"</td><!-- <?x", "| &lt;/td>&lt;!-- &lt;?x |", "&lt;/td&gt;&lt;!-- &lt;?x"},
        {"&lt;b> &#60; R&D", "| \\&lt;b> \\&#60; R\\&D |", "&amp;lt;b&gt; &amp;#60; R&amp;D"},
        {"a < b & c <= d", "| a < b & c <= d |", "a &lt; b &amp; c &lt;= d"},
        {"[x](javascript:a())", "| [x\\](javascript:a()) |", "[x](javascript:a())"},
        {"a\\|b \\<i>", "| a\\\\\\|b \\\\&lt;i> |", "a\\|b \\&lt;i&gt;"},
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
        {"a,b\n1,2\n3\n", ":3: 1 fields"}, {"a\n\"never ends\n", "does not end"}, {"", "empty"}};
    struct csv c = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(test_path("bad.csv"), cases[i][0]);
        assert_fails(csv_read(test_path("bad.csv"), &c, &e), &e, ERR_INPUT, cases[i][1]);
    }
}
