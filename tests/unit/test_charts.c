/* Charts of records: what they average over, what they leave out, and that nothing drawn can be
 * mistaken for something else. The tests read the data and the script beside the picture. */
#include "tests/harness/suite.h"

#include "core/fileio.h"
#include "core/log.h"
#include "plots/chart.h"
#include "plots/series.h"
#include "sim/registry.h"
#include "tests/harness/records_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct err e;
static struct fixture_records f;
static struct recset set;
static struct buf dat, script, caption;

static void begin(void)
{
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
    metric_def_methods(sim_methods);
}

static void end(void)
{
    recset_free(&set);
    buf_free(&dat);
    buf_free(&script);
    buf_free(&caption);
}
FIXTURE(begin, end)

static struct figure_args args(void)
{
    return (struct figure_args){.output = test_path("fig.png"),
                                .set = &set,
                                .methods = sim_methods,
                                .low = NAN,
                                .high = NAN};
}

static void read_beside(const char *suffix, struct buf *b)
{
    char name[16];
    snprintf(name, sizeof name, "fig.%s", suffix);
    buf_reset(b);
    assert_ok(buf_read_file(b, test_path(name), 1 << 20, &e), &e);
}

/* Draw from the records made so far (those of an earlier call stay) and read data and script. */
static void draw(const char *figure, const struct figure_args *a)
{
    if (f.n) {
        recset_free(&set);
        fixture_set(&f, &set);
    }
    assert_ok(figure_draw(figure_find(figure, &e), a, &e), &e);
    read_beside("dat", &dat);
    read_beside("gp", &script);
    read_beside("txt", &caption);
}

static void draw_metric(const char *figure, const char *metric)
{
    struct figure_args a = args();
    a.metrics = metric;
    draw(figure, &a);
}

static void draw_all(const char *figure)
{
    draw_metric(figure, NULL);
}

static void assert_has(const struct buf *b, const char *text)
{
    ck_assert_msg(strstr(buf_str(b), text) != NULL, "'%s' is not in\n%s", text, buf_str(b));
}

static void assert_lacks(const struct buf *b, const char *text)
{
    ck_assert_msg(strstr(buf_str(b), text) == NULL, "'%s' is in\n%s", text, buf_str(b));
}

static int count(const struct buf *b, const char *text)
{
    int n = 0;
    for (const char *p = buf_str(b); (p = strstr(p, text)); p++)
        n++;
    return n;
}

static struct record *add(const char *method, const char *params, int layer, int head,
                          double density)
{
    struct record *r = fixture_record(&f, method, params, layer, head);
    snprintf(r->precision, sizeof r->precision, "f64");
    fixture_metric(r, "density_elem", density);
    return r;
}

/* ---- phases -------------------------------------------------------------------------------- */

static void add_times(const char *method, double select, double attend)
{
    struct record *r = add(method, "", 0, 0, 1);
    fixture_metric(r, "time_attend_ns", attend);
    if (select >= 0) {
        fixture_metric(r, "time_select_ns", select);
        fixture_metric(r, "time_total_ns", select + attend);
    }
}

TEST(a_method_whose_selection_was_not_measured_is_hatched)
{
    add_times("oracle", -1, 20e3);
    add_times("spargeattn", 3e3, 9e3);
    draw_all("phases");
    /* Position, 1 = selection missing, then running sums. */
    assert_has(&dat, "# oracle\n0 1 0 0 20\n");
    assert_has(&dat, "# spargeattn\n1 0 0 3 12\n");
    assert_has(&script, "selection not measured");
    assert_has(&script, "fs pattern");
}

TEST(where_all_selections_were_measured_nothing_is_hatched)
{
    struct record *dense = add("dense", "", 0, 0, 1); /* chooses nothing: a total, no selection */
    fixture_metric(dense, "time_attend_ns", 4e4);
    fixture_metric(dense, "time_total_ns", 4e4);
    add_times("spargeattn", 3e3, 9e3);
    draw_all("phases");
    assert_lacks(&script, "not measured");
    assert_lacks(&script, "pattern");
}

TEST(a_method_without_times_is_no_empty_bar)
{
    add_times("spargeattn", 3e3, 9e3);
    add("sale", "", 0, 0, 0.5);
    draw_all("phases");
    assert_lacks(&dat, "sale");
    assert_has(&script, "1 setting without times left out");
}

TEST(the_kind_of_times_is_that_of_the_chosen_methods)
{
    add_times("spargeattn", 3e3, 9e3);
    fixture_metric(add("sale", "", 0, 0, 0.5), "host_attend_ns", 4e6);
    struct figure_args a = args();
    a.method = "sale";
    draw("phases", &a);
    assert_has(&script, "wall time of the CPU reference");
    assert_has(&dat, "# sale\n0 0 0 0 4\n");
    assert_has(&script, "time [ms]");
}

TEST(short_times_are_in_microseconds_on_few_tics)
{
    add_times("spargeattn", 1e3, 2.8e3);
    draw_all("phases");
    assert_has(&dat, "# spargeattn\n0 0 0 1 3.8\n");
    assert_has(&script, "time [µs]");
    assert_has(&script, "set xtics 1 nomirror\n");
}

/* A clip of exact attention: its task says the size. */
static struct record *add_clip(const char *method, int64_t tokens, double attn, double speedup)
{
    struct record *r = add(method, "", -1, -1, 1);
    char task[64];
    record_of_model(r);
    r->layer = r->head = -1;
    r->n_q = r->n_k = tokens;
    snprintf(task, sizeof task, "video:size=1x8x%lld:steps=50:text=ab", (long long)(8 * tokens));
    free(r->task);
    r->task = strdup(task);
    fixture_metric(r, "time_attn_ns", attn);
    fixture_metric(r, "time_product_ns", 2e6);
    fixture_metric(r, "time_other_ns", 1e6);
    fixture_metric(r, "generation_speedup", speedup);
    return r;
}

TEST(parts_of_a_clips_step_are_stacked_by_size)
{
    add_clip("dense", 384, 3e6, 1);
    add_clip("dense", 768, 12e6, 1);
    draw_all("phases");
    assert_has(&dat, "tokens=384: dense\n0 0 3 5 6\n");
    assert_has(&dat, "tokens=768: dense\n1 0 12 14 15\n");
    assert_has(&script, "Mean time of a denoising step, measured on the GPU");
    assert_has(&script, "'linear'");
}

TEST(bars_of_whole_models_have_no_layer)
{
    add_clip("dense", 384, 3e6, 1);
    add_clip("radial", 384, 1.5e6, 1.5);
    draw_metric("bars", "generation_speedup");
    assert_has(&dat, "-1 1.5 1.5 1.5\n");
    assert_has(&script, "Speed-up of a generation, median over");
    assert_lacks(&script, "layer");
    assert_has(&script, "unset xtics");
}

/* ---- what is averaged ---------------------------------------------------------------------- */

/* 2 layers x 2 steps x 2 heads of a method. */
static void add_video(const char *method)
{
    for (int i = 0; i < 8; i++) {
        struct record *r = add(method, "", i / 4, i % 2, 0.5 + 0.01 * i);
        fixture_video_record(r, i / 2 % 2);
        fixture_metric(r, "cra_min", 0.1 * i);
        fixture_metric(r, "err_l1_rel", 0.1);
    }
}

TEST(titles_say_what_varies_beside_the_head)
{
    add_video("sale");
    draw_all("cdf");
    assert_has(&caption, "share of heads of 2 layers and 2 steps at or below a value");
    assert_has(&script, "share of heads of calls");
    draw_all("pareto");
    assert_has(&caption, "; mean over heads of 2 layers and 2 steps.");
    draw_all("bars");
    assert_has(&caption, "Pairs kept by layer, median over heads of 2 steps.");
    draw_all("curves");
    assert_has(&caption, "Pairs kept against denoising step, mean over heads of 2 layers.");
    struct figure_args a = args();
    a.steps = "0";
    draw("bars", &a);
    assert_has(&caption, "median over heads.");
}

TEST(groups_over_different_numbers_say_up_to)
{
    add_video("sale");
    fixture_video_record(add("streaming", "", 0, 0, 0.5), 0);
    fixture_video_record(add("streaming", "", 1, 0, 0.5), 0);
    draw_all("pareto");
    assert_has(&caption, "; mean over heads of 2 layers and up to 2 steps.");
}

/* The schedule runs layer 0 and step 0 dense, the rest with a mask. */
static void add_scheduled(const char *method)
{
    for (int i = 0; i < 8; i++) {
        int layer = i / 4, step = i / 2 % 2;
        bool dense = layer == 0 || step == 0;
        struct record *r = add(method, "", layer, i % 2, dense ? 1 : 0.25);
        fixture_video_record(r, step);
        fixture_metric(r, "dense_call", dense);
        fixture_metric(r, "cra_min", dense ? 1 : 0.75);
        fixture_metric(r, "err_l1_rel", dense ? 0 : 0.1);
    }
}

TEST(calls_run_dense_by_schedule_are_left_out_and_the_legend_says_so)
{
    add_scheduled("radial");
    draw_all("pareto");
    assert_has(&dat, "\n0.25 0.1 0 ");
    assert_has(&script, "'radial (sparse calls)'");
    draw_all("bars");
    assert_has(&dat, " 1 0.25 0.25 0.25\n");
    assert_lacks(&dat, " 0 1 1 1\n"); /* layer 0 ran no mask */
    assert_has(&script, "'radial (sparse calls)'");
    draw_all("cdf");
    assert_has(&dat, "\n0.75 0\n0.75 1\n");
    assert_has(&script, "'radial (sparse calls)'");
}

TEST(calls_that_all_ran_dense_are_drawn_as_they_are)
{
    add_scheduled("radial");
    struct figure_args a = args();
    a.layers = "0";
    draw("cdf", &a);
    assert_has(&dat, "\n1 0\n1 1\n");
    assert_lacks(&script, "sparse calls");
}

TEST(against_the_step_a_schedule_is_seen)
{
    add_scheduled("radial");
    draw_all("curves");
    assert_has(&dat, "\n0 1 0\n1 0.625 ");
    assert_lacks(&script, "sparse calls");
}

/* ---- pareto -------------------------------------------------------------------------------- */

static void add_error(const char *method, const char *precision, double density, double error)
{
    struct record *r = add(method, "", 0, 0, density);
    snprintf(r->precision, sizeof r->precision, "%s", precision);
    fixture_metric(r, "err_l1_rel", error);
}

/* What is rounding stands on the lower edge, not down at 1e-17, and is not dominated by dense. */
TEST_N(rounding_is_an_error_of_zero, 3)
{
    static const struct {
        const char *precision;
        double error;
        const char *drawn;
    } cases[] = {{"f64", 3.9e-17, "\n1 0.001 0 3.9e-17 "},
                 {"f32", 3e-8, "\n1 0.001 0 3e-08 "},
                 {"f64", 3e-8, "\n1 3e-08 1 3e-08 "}};
    add_error("dense", cases[_i].precision, 1, 0);
    add_error("minference", cases[_i].precision, 1, cases[_i].error);
    add_error("sale", cases[_i].precision, 0.5, 0.002);
    draw_metric("pareto", "err_l1_rel");
    assert_has(&dat, cases[_i].drawn);
    assert_has(&script, _i < 2 ? "set yrange [0.001:" : "set yrange [1e-08:");
}

TEST(a_metric_that_no_record_has_gets_no_panel)
{
    add_error("sale", "f64", 0.5, 0.002);
    draw_all("pareto"); /* recalls are of the default panels, too */
    assert_has(&script, "relative L1 error");
    assert_lacks(&script, "attention mass");
    struct figure_args a = args();
    a.metrics = "err_l1_rel,cra_mean";
    assert_fails(figure_draw(figure_find("pareto", &e), &a, &e), &e, ERR_USAGE,
                 "metric 'cra_mean'");
}

/* A count of pairs that are allowed says nothing about a method. */
TEST(texts_without_the_metric_are_not_counted)
{
    for (int i = 0; i < 5; i++) {
        struct record *r = add("sale", "", -1, -1, 0.5);
        r->scope = RECORD_OF_MODEL;
        r->trace[5] = (char)('a' + i);
        if (i < 2)
            fixture_metric(r, "nll_delta", 0.1);
        else
            fixture_metric(r, "score", 0.5);
    }
    draw_metric("pareto", "nll_delta");
    assert_has(&caption, "mean over 2 texts or prompts.");
}

TEST(a_metric_without_a_better_direction_dominates_nobody)
{
    fixture_metric(add("sale", "", 0, 0, 0.5), "pairs_allowed", 10);
    fixture_metric(add("minference", "", 0, 0, 0.6), "pairs_allowed", 20);
    draw_metric("pareto", "pairs_allowed");
    assert_has(&dat, "\n0.6 20 0 20 ");
    assert_lacks(&script, "'ideal'");
}

TEST(times_are_drawn_in_the_unit_of_their_axis)
{
    fixture_metric(add("sale", "", 0, 0, 0.5), "time_total_ns", 2e6);
    draw_metric("pareto", "time_total_ns");
    assert_has(&dat, "\n0.5 2 0 2 ");
    assert_has(&script, "'time of the whole call [ms]'");
}

/* ---- curves -------------------------------------------------------------------------------- */

/* The parameter of which most values occur; one that no method varies is no axis. */
TEST_N(the_usual_axis, 3)
{
    static const struct {
        const char *settings[6][2], *axis;
    } cases[] = {
        {{{"streaming", "sink=4:window=64"}, {"streaming", "sink=4:window=128"}}, "window"},
        {{{"spargeattn", ""},
          {"spargeattn", "judge=0"},
          {"spargeattn", "theta=-1:tau=0.5:pv=20"},
          {"spargeattn", "theta=-1:tau=0.6:pv=20"},
          {"spargeattn", "theta=-1:tau=0.7:pv=20"}},
         "tau"},
        {{{"streaming", "sink=4"}, {"sale", "tau=0.02"}}, "layer"}};
    char title[64];
    for (int i = 0; cases[_i].settings[i][0]; i++)
        for (int layer = 0; layer < 2; layer++)
            add(cases[_i].settings[i][0], cases[_i].settings[i][1], layer, 0, 0.2);
    draw_all("curves");
    snprintf(title, sizeof title, "Pairs kept against %s", cases[_i].axis);
    assert_has(&script, title);
}

TEST(a_step_that_was_chosen_is_no_axis)
{
    add_video("sale");
    struct figure_args a = args();
    a.steps = "1";
    draw("curves", &a);
    assert_has(&script, "Pairs kept against layer");
}

/* ---- axes ---------------------------------------------------------------------------------- */

TEST(tics_of_counts_are_whole)
{
    ck_assert_double_eq(gp_count_step(6, 8), 1);
    ck_assert_double_eq(gp_count_step(16, 8), 2);
    ck_assert_double_eq(gp_count_step(20, 8), 5);
    ck_assert_double_eq(gp_count_step(40, 16), 5);
    ck_assert_double_eq(gp_count_step(81, 8), 20);
    for (int layer = 0; layer < 20; layer++)
        add("sale", "", layer, 0, 0.5);
    draw_all("curves");
    assert_has(&script, "set xtics 2 nomirror\n");
}

TEST(tics_of_lengths_double_and_fit_the_page)
{
    for (int i = 0; i < 3; i++) {
        struct record *r = add("sale", "", 0, 0, 0.5);
        r->n_q = r->n_k = 8192 << i;
        r->trace[5] = (char)('a' + i);
    }
    struct figure_args a = args();
    a.x = "n_q";
    a.width = 400;
    draw("curves", &a);
    assert_has(&script, "set logscale x 2\n");
    assert_has(&script, "set xtics ('8K' 8192, '16K' 16384, '32K' 32768)\n");
}

TEST(marks_from_elsewhere_are_open_and_named)
{
    for (int i = 0; i < 3; i++) {
        struct record *r = add("sale", "", i, 0, 0.5);
        r->n_q = r->n_k = 8192 << i;
        r->trace[5] = (char)('a' + i);
    }
    struct figure_args a = args();
    a.x = "n_q";
    a.marks = "printed (M)=32768:0.25,1048576:0.75";
    draw("curves", &a);
    assert_has(&dat, "# printed (M): x, y\n32768 0.25\n1048576 0.75\n");
    assert_has(&script, "index 1 using ($1-0):2 with points pt 64");
    assert_has(&script, "title 'printed (M)'");
    assert_has(&script, "'1M' 1048576"); /* the axis has room for them */
    assert_has(&caption, "Grey marks: printed (M).");
}

TEST(marks_stand_where_no_bar_is)
{
    for (int i = 0; i < 3; i++)
        fixture_metric(add("sale", "", i, 0, 0.5), "sparsity_total", 0.1 * i);
    struct figure_args a = args();
    a.x = "layer";
    a.marks = "printed (M)=0:0.5,7:0.9"; /* more layers than ours */
    draw("means", &a);
    assert_has(&script, "index 1 using ($1-0):2 with points pt 64");
    assert_has(&script, "set xrange [-0.6:7.6]");
    assert_has(&script, "using 1:(0):3 with labels"); /* which marks do not hide */
    a.marks = NULL;
    draw("means", &a);
    assert_lacks(&script, "pt 64");
    assert_has(&script, "using 1:2:3 with labels");
    static const char *const bad[] = {"M", "=1:2", "M=1", "M=1:2,", "M=1:x", "M=1:2,3", "M="};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        memset(&e, 0, sizeof e);
        a.marks = bad[i];
        ck_assert_int_eq(figure_draw(figure_find("means", &e), &a, &e), ERR_USAGE);
        ck_assert_msg(strncmp(e.msg, "--marks: ", 9) == 0, "%s: %s", bad[i], e.msg);
    }
}

TEST(a_scaled_metric_does_not_name_its_old_unit)
{
    OWN(buf_free) struct buf b = {0};
    double scale;
    chart_metric_label("time_total_ns", &b, &scale);
    ck_assert_str_eq(buf_str(&b), "time of the whole call [ms]");
    ck_assert_double_eq(scale, 1e-6);
    buf_reset(&b);
    chart_metric_label("time_select_ns_q1", &b, &scale);
    ck_assert_str_eq(buf_str(&b), "time_select_q1 [ms]");
    buf_reset(&b);
    chart_metric_label("err_lse_mean", &b, &scale);
    ck_assert_str_eq(buf_str(&b), "mean error of the log-sum-exp [nat]");
}

/* ---- size ---------------------------------------------------------------------------------- */

TEST(a_size_that_drops_names_is_refused_with_one_that_does_not)
{
    char params[32];
    for (int i = 0; i < 8; i++) {
        snprintf(params, sizeof params, "window=%d", i + 1);
        add("streaming", params, 0, 0, 0.2);
    }
    fixture_set(&f, &set);
    struct figure_args a = args();
    a.width = 700;
    a.height = 200;
    assert_fails(figure_draw(figure_find("bars", &e), &a, &e), &e, ERR_USAGE,
                 "too small for this figure (700x223 would do)");
    a.height = 223;
    draw("bars", &a);
    a.width = 150;
    assert_fails(figure_draw(figure_find("bars", &e), &a, &e), &e, ERR_USAGE, "331x261 would do");
}

/* A speed-up belongs to one length: a method is a line that leads from length to length. */
TEST(speed_ups_of_two_lengths_are_two_points)
{
    static const char *const tasks[2] = {"kv:domain=c:tokens=1024:depth=0:sample=0",
                                         "kv:domain=c:tokens=2048:depth=0:sample=0"};
    for (int i = 0; i < 2; i++) {
        struct record *r = add("streaming", "", 0, 0, 0.5);
        record_of_model(r);
        r->task = strdup(tasks[i]);
        fixture_metric(r, "attn_speedup", 2 + 2 * i);
        fixture_metric(r, "answer_p", 0.75 - 0.25 * i);
    }
    struct figure_args a;
    fixture_set(&f, &set);
    a = args();
    a.x = "attn_speedup";
    a.metrics = "answer_p";
    draw("curves", &a);
    assert_has(&dat, "# streaming: x, mean, sd\n2 0.75 0\n4 0.5 0\n");
}

/* Of evals a group of bars is a task; its name stands below it. */
TEST(bars_stand_by_task)
{
    static const char *const tasks[2] = {"kv:domain=c:tokens=1024:depth=0:sample=0",
                                         "file:file=qasper.jsonl:metric=f1:hash=0:line=1"};
    for (int i = 0; i < 2; i++) {
        struct record *r = add("streaming", "", 0, 0, 0.2 + 0.1 * i);
        record_of_model(r);
        r->task = strdup(tasks[i]);
    }
    struct figure_args a;
    fixture_set(&f, &set);
    a = args();
    a.x = "task";
    draw("bars", &a);
    assert_has(&script, "'kv' ");
    assert_has(&script, "'qasper.jsonl' ");
    assert_has(&dat, " 1 0.2 0.2 0.2\n"); /* tasks by name */
    assert_has(&caption, "by task, median over 1 text or prompt");
    a.x = "head";
    assert_fails(figure_draw(figure_find("bars", &e), &a, &e), &e, ERR_USAGE,
                 "by layer or by task");
}

TEST(whiskers_are_named_where_they_are_drawn)
{
    char params[32];
    for (int i = 0; i < 16; i++) {
        snprintf(params, sizeof params, "window=%d", i / 2 + 1);
        add("streaming", params, 0, i % 2, 0.2 + 0.01 * i);
    }
    draw_all("bars");
    assert_has(&dat, " 0 0.205 0.2 0.21\n");
    assert_has(&script, "with vectors");
    assert_has(&caption, "Whiskers: quartiles.");
    struct figure_args a = args();
    a.width = 332;
    a.height = 460;
    draw("bars", &a);
    assert_lacks(&script, "with vectors");
    assert_lacks(&caption, "Whiskers");
    a = args();
    a.heads = "0"; /* one value has no spread */
    draw("bars", &a);
    assert_lacks(&script, "with vectors");
}

/* ---- labels -------------------------------------------------------------------------------- */

static void setting(struct series_list *l, const char *method, const char *params)
{
    ck_assert_int_ge(series_of_setting(l, "", method, params, false, &e), 0);
}

/* What all settings share is left out, the middle of what is long, unless two would look alike. */
TEST_N(labels_tell_settings_apart, 4)
{
    static const char *const cases[][6][3] = {
        {{"streaming", "sink=4:window=64", "streaming window=64"},
         {"streaming", "sink=4:window=128", "streaming window=128"},
         {"spargeattn", "theta=-1:tau=0.9", "spargeattn theta=-1:tau=0.9"},
         {"sale", "", "sale"},
         {"sale", "tau=0.02", "sale tau=0.02"}},
        {{"spargeattn", "", "spargeattn"},
         {"spargeattn", "theta=-1:tau=0.5:pv=20:pv_scope=warp:map_dtype=input:cdf=bf16",
          "spargeattn theta=-1:tau=0.5:pv=20:...:cdf=bf16"},
         {"spargeattn", "theta=-1:tau=0.5:pv=40:pv_scope=warp:map_dtype=input:cdf=bf16",
          "spargeattn theta=-1:tau=0.5:pv=40:...:cdf=bf16"}},
        {{"sale", "one=11111111112222222222:two=1:three=3333333333:four=1:five=5555555555555555",
          "sale one=11111111112222222222:two=1:three=3333333333:four=1"},
         {"sale", "one=11111111112222222222:two=1:three=3333333334:four=2:five=5555555555555555",
          "sale one=11111111112222222222:two=1:three=3333333334:four=2"}},
        {{"sale", "one=1111111111:two=1:three=3333333333:four=1:five=5555555555:six=66666666",
          "sale one=1111111111:two=1:three=3333333333:four=1:five=5555555555:six=66666666"}},
    };
    OWN(series_free) struct series_list l = {0};
    for (int i = 0; cases[_i][i][0]; i++)
        setting(&l, cases[_i][i][0], cases[_i][i][1]);
    assert_ok(series_labels(&l, 60, &e), &e);
    for (int i = 0; i < l.n; i++)
        if (_i != 2)
            ck_assert_str_eq(l.s[i].label, cases[_i][i][2]);
        else /* alike in front and behind */
            ck_assert_str_ne(l.s[i].label, l.s[!i].label);
}

TEST(the_legend_shows_the_labels)
{
    const char *a = "theta=-1:tau=0.5:pv=20:pv_scope=warp:map_dtype=input:cdf_dtype=bf16";
    add("spargeattn", a, 0, 0, 0.2);
    add("spargeattn", "theta=-1:tau=0.6", 0, 0, 0.2);
    draw_all("bars");
    assert_has(&script, "title 'spargeattn tau=0.6'");
    assert_lacks(&script, "theta");
    assert_has(&dat, a);
}

/* ---- styles -------------------------------------------------------------------------------- */

TEST(settings_of_a_method_differ_in_more_than_their_shade)
{
    OWN(series_free) struct series_list l = {0};
    char params[32];
    for (int i = 0; i < 10; i++) {
        snprintf(params, sizeof params, "window=%d", i);
        setting(&l, "streaming", params);
    }
    series_shade(&l, TELL_DASH_POINT);
    for (int i = 0; i < 10; i++)
        for (int k = 0; k < i; k++)
            ck_assert(l.s[i].dash != l.s[k].dash || l.s[i].point != l.s[k].point);
    char shade[8];
    style_shade(style_of(NULL, "streaming"), 9, 10, 0.5, shade);
    ck_assert_int_lt(strtol(l.s[9].color + 1, NULL, 16), strtol(shade + 1, NULL, 16));
    series_shade(&l, TELL_SHADE);
    ck_assert_int_eq(l.s[9].dash, 1);
}

TEST(lines_of_a_cdf_have_dashes_and_marks_and_stand_clear_of_the_frame)
{
    for (int i = 0; i < 40; i++)
        fixture_metric(add("streaming", i % 2 ? "window=8" : "window=4", 0, i / 2, 0.5), "cra_min",
                       i / 39.0);
    fixture_metric(add("dense", "", 0, 0, 1), "cra_min", 1);
    draw_all("cdf");
    assert_has(&script, "set xrange [-0.03:1.03]");
    assert_has(&script, "with steps lw 1.4 dt 2");
    assert_has(&script, "every 4::"); /* 21 rows, 6 marks */
    assert_has(&script, "with points pt");
    ck_assert_int_eq(count(&script, "keyentry with linespoints"), 3);
}

/* Twelve settings of three methods: more than a panel holds. */
static void add_many(void)
{
    static const char *const methods[] = {"sale", "spargeattn", "streaming"};
    char params[32];
    for (int i = 0; i < 12; i++) {
        snprintf(params, sizeof params, "%s=0.%d", i / 4 == 2 ? "alpha" : "tau", 1 + i % 4);
        for (int layer = 0; layer < 2; layer++) {
            struct record *r = add(methods[i / 4], params, layer, 0, 0.1 * (i % 4 + 1));
            fixture_metric(r, "cra_min", 0.05 * (i + layer));
        }
    }
}

TEST(many_settings_are_panels_of_methods)
{
    add_many();
    draw_all("cdf");
    ck_assert_int_eq(count(&script, "plot NaN"), 3);
    ck_assert_int_eq(count(&script, "lc rgb '#d9d9d9' notitle"), 3 * 8); /* those of the others */
    assert_has(&script, "set title 'spargeattn'");
    assert_has(&script, "title 'tau=0.1'");
    assert_has(&caption,
               "One panel per method, 12 settings in all; grey: those of the other panels");
    draw_all("bars");
    ck_assert_int_eq(count(&script, "set key at"), 3);
    ck_assert_int_eq(count(&script, "set yrange [0:1]\n"), 3);
}

TEST(settings_that_are_not_drawn_are_counted)
{
    char params[32];
    for (int i = 0; i < 20; i++) {
        snprintf(params, sizeof params, "window=%d", i + 1);
        add("streaming", params, 0, 0, 0.2);
    }
    draw_all("bars");
    assert_has(&caption, " 8 of 20 settings of streaming are drawn");
    assert_has(&script, "'streaming window=1'");
    assert_has(&script, "'streaming window=20'");
}

TEST(a_parameter_of_two_methods_is_two_axes)
{
    add_many();
    struct figure_args a = args();
    a.x = "tau";
    draw("curves", &a);
    ck_assert_int_eq(count(&script, "plot NaN"), 2);
    assert_has(&script, "set title 'sale'");
    assert_lacks(&script, "#d9d9d9");
    assert_has(&caption, "means something else in each method");
    ck_assert_int_eq(count(&script, "keyentry"), 0); /* the panel's title names its only line */
    add_many();
    add("sale", "tau=0.1:mode=x", 0, 0, 0.3);
    draw("curves", &a);
    assert_has(&script, "title 'mode=x'");
}

TEST(calibrations_are_joined_by_density)
{
    for (int i = 0; i < 3; i++) {
        char params[32];
        snprintf(params, sizeof params, "calib=xxh3:%d", i);
        fixture_metric(add("spargeattn", params, 0, 0, 0.2 * (i + 1)), "cra_mean", 0.7 + 0.1 * i);
    }
    struct figure_args a = args();
    a.x = "density_elem";
    a.metrics = "cra_mean";
    draw("curves", &a);
    assert_has(&dat, "# spargeattn: x, mean, sd\n0.2 0.7 0\n0.4 0.8 0\n0.6 0.9 0\n");
    assert_has(&script, "set xlabel 'pairs kept [kept/allowed pairs]'");
}

TEST(paper_has_a_width_in_inches_and_its_legend_below)
{
    add_many();
    struct figure_args a = args();
    a.output = test_path("fig.pdf");
    a.style = (struct gp_style){.look = LOOK_PAPER};
    a.untitled = true;
    a.metrics = "cra_min";
    a.width = (int)(3.3 * gp_units_per_inch(GP_PDF, &a.style));
    draw("pareto", &a);
    assert_has(&script, "set terminal pdfcairo size 3.3in,");
    assert_has(&script, "font 'Sans,8'");
    assert_has(&script, "vertical maxrows");
    assert_lacks(&script, "font_title\n"); /* no title */
    assert_has(&caption, "Pairs kept against");
    a.style.font = "Serif";
    a.output = test_path("fig.eps");
    draw("pareto", &a);
    assert_has(&script, "set terminal epscairo");
    assert_has(&script, "font 'Serif,8'");
}

TEST(text_for_latex_is_escaped_and_its_lines_stand_beside_it)
{
    add_many();
    struct figure_args a = args();
    OWN(buf_free) struct buf tex = {0};
    a.output = test_path("fig.tex");
    a.title = "50 % of $x_1$ \\input";
    a.metrics = "cra_min";
    draw("pareto", &a);
    assert_has(&script, "'50 \\% of \\$x\\_1\\$ \\textbackslash{}input'");
    read_beside("tex", &tex);
    assert_has(&tex, "includegraphics");
    assert_ok(buf_read_file(&tex, test_path("fig.pdf"), 1 << 20, &e), &e);
}

TEST(settings_with_a_target_have_a_line_of_their_own)
{
    static const char *const params[] = {"tau=0.1", "tau=0.2", "@density_elem=0.3",
                                         "@density_elem=0.5"};
    for (int i = 0; i < 4; i++)
        fixture_metric(add("sale", params[i], 0, 0, 0.2 + 0.1 * i), "err_l1_rel", 0.1);
    draw_all("pareto");
    assert_has(&dat, "# sale: ");
    assert_has(&dat, "# sale @density_elem: ");
}

TEST(a_sweep_has_a_cell_per_setting)
{
    struct figure_args a = args();
    a.x = "alpha_c";
    a.y = "alpha_s";
    add("sampleattention", "alpha_c=0.5:alpha_s=0.5", 0, 0, 0.1);
    add("sampleattention", "alpha_c=0.5:alpha_s=0.5", 0, 1, 0.3);
    add("sampleattention", "alpha_c=0.9:alpha_s=0.5", 0, 0, 0.4);
    add("sampleattention", "alpha_c=0.9", 0, 0, 0.6);
    draw("sweep", &a);
    assert_has(&dat, "0 0 0.2 \"0.200\" 1 \"0.5\" \"0.5\"\n");
    assert_has(&dat, "1 0 0.4 \"0.400\"");
    assert_has(&dat, "1 1 0.6 \"0.600\" 0 \"0.9\" \"unset\"\n");
    ck_assert_int_eq(count(&dat, "\n"),
                     6); /* the head, and no cell for a setting that is not there */
    add("sampleattention", "alpha_c=0.9:chunks=2", 0, 0, 0.6);
    recset_free(&set);
    fixture_set(&f, &set);
    assert_fails(figure_draw(figure_find("sweep", &e), &a, &e), &e, ERR_INPUT, "one value each");
    a.y = NULL;
    assert_fails(figure_draw(figure_find("sweep", &e), &a, &e), &e, ERR_USAGE,
                 "needs two parameters");
}

TEST(the_colour_bar_of_a_sweep_has_a_title_at_every_size)
{
    struct figure_args a = args();
    a.x = "alpha_c";
    a.y = "alpha_s";
    add("sampleattention", "alpha_c=0.5:alpha_s=0.5", 0, 0, 0.1);
    add("sampleattention", "alpha_c=0.9:alpha_s=0.5", 0, 0, 0.4);
    draw("sweep", &a);
    assert_has(&script, "set label 'pairs kept");
    a.width = 396;
    draw("sweep", &a);
    assert_has(&script, "set label 'pairs kept");
}

TEST(means_have_their_numbers_and_the_mean_of_all_bars)
{
    struct figure_args a = args();
    a.metrics = "density_elem";
    add("sale", "", 0, 0, 0.1);
    add("sale", "", 0, 1, 0.3);
    add("sale", "", 1, 0, 0.999);
    add("sale", "", 1, 1, 0.999);
    draw("means", &a);
    assert_has(&dat, "0 0.2 \"0.20\" 0\n1 0.999 \">0.99\" 1\n"); /* never rounded to 1 */
    assert_has(&script, "'mean of all 0.60'");
    assert_has(&script, ", 0.5995 with lines lw 1.6 dt 2");
    assert_has(&caption, "Dashed: the mean of the bars.");
    a.x = "step";
    assert_fails(figure_draw(figure_find("means", &e), &a, &e), &e, ERR_USAGE, "layer or sample");
}

TEST(means_of_samples_begin_with_the_largest)
{
    struct figure_args a = args();
    a.metrics = "density_elem";
    a.x = "sample";
    for (int i = 0; i < 3; i++) {
        struct record *r = add("sale", "", 0, 0, 0.5 + 0.02 * (i == 1) - 0.02 * (i == 2));
        snprintf(r->trace, sizeof r->trace, "%d", 3 - i);
    }
    draw("means", &a);
    assert_has(&dat, "0 0.52 \"0.520\" 2\n1 0.5 \"0.500\" 1\n2 0.48 \"0.480\" 3\n");
    assert_has(&script, "set xtics nomirror ('2' 0, '1' 1, '3' 2)");
    add("sale", "", 0, 0, 0.5);
    add("sale", "tau=0.5", 0, 0, 0.5);
    recset_free(&set);
    fixture_set(&f, &set);
    assert_fails(figure_draw(figure_find("means", &e), &a, &e), &e, ERR_USAGE, "of one setting");
}

TEST(a_sweep_shows_settings_that_differ_in_nothing_else)
{
    struct figure_args a = args();
    a.x = "alpha_c";
    a.y = "alpha_s";
    add("sampleattention", "alpha_c=0.5", 0, 0, 0.1);
    add("sampleattention", "alpha_c=0.9", 0, 0, 0.3);
    add("sampleattention", "alpha_c=0.9:chunks=2", 0, 0, 0.6);
    fixture_set(&f, &set);
    assert_fails(figure_draw(figure_find("sweep", &e), &a, &e), &e, ERR_USAGE,
                 "differ in more than alpha_c and alpha_s");
}
