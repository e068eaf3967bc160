/* Tables and figures of video traces: what is paired, what is left out, order of rows, by hand. */

#include "tests/harness/table_fixture.h"
#include "analyze/params.h"
#include "core/fileio.h"
#include "plots/figure.h"
#include "tests/harness/trace_fixture.h"

#include <stdio.h>
#include <sys/stat.h>

FIXTURE(begin, end)

static struct record *video(const char *method, const char *params, int step, int layer, int head)
{
    struct record *r = fixture_record(&f, method, params, layer, head);
    fixture_video_record(r, step);
    snprintf(r->permute, sizeof r->permute, "none");
    return r;
}

TEST(parameters_taken_apart)
{
    const char *p = "M=64:tau=0.02:tau1=3";
    OWN(buf_free) struct buf b = {0};
    ck_assert_ptr_eq(params_value(p, "tau"), p + 9);
    ck_assert_str_eq(params_value(p, "tau1"), "3");
    ck_assert_ptr_null(params_value(p, "ta"));
    ck_assert_ptr_null(params_value(NULL, "tau"));
    params_without(p, "tau", &b);
    ck_assert_str_eq(buf_str(&b), "M=64:tau1=3");
    buf_reset(&b);
    params_without("M=64", "M", &b);
    ck_assert_str_eq(buf_str(&b), "");
}

/* ---- blocks ---------------------------------------------------------------------------------- */

TEST(blocks_count_once_per_head)
{
    for (int head = 0; head < 2; head++)
        for (int twice = 0; twice < 2; twice++) { /* the same statistics under two settings */
            struct record *r = video("dense", twice ? "c=0.25+0.5" : "", 0, 0, head);
            fixture_metric(r, "below_b16", 0.6 + 0.1 * head);
            fixture_metric(r, "below_s128", 0.3);
            if (twice)
                fixture_metric(r, "below_b16@0.25", 0.1 + 0.2 * head);
        }
    build("blocks", NULL);
    ck_assert_int_eq(t.n_rows, 1);
    is_text(0, "permute", "none");
    is_mean(0, "below_b16", 2, 0.65);
    is_mean(0, "below_b16@0.25", 2, 0.2);
    is_mean(0, "below_s128", 2, 0.3);
}

/* ---- threshold ------------------------------------------------------------------------------- */

static void slice(const char *params, int head, double density, bool dense)
{
    struct record *r = video("fg-attn", params, head, 0, head);
    fixture_metric(r, "density_elem", density);
    fixture_metric(r, "cra_mean", 1 - density / 10);
    fixture_metric(r, "dense_call", dense);
}

TEST(thresholds_come_in_order_without_refresh_steps_and_pooled_masks)
{
    slice("refresh=1:tau=2", 0, 0.2, false);
    slice("refresh=1:tau=0.25", 0, 0.6, false);
    slice("refresh=1", 0, 0.4, false);
    slice("refresh=1", 1, 0.5, false);
    slice("refresh=1", 2, 1, true);
    slice("c1=0.5:mode=pooled", 0, 0.9, false);
    build("threshold", NULL);
    ck_assert_int_eq(t.n_rows, 3);
    static const char *const tau[] = {"0.25", "0.5", "2"};
    static const double density[] = {0.6, 0.45, 0.2};
    for (int i = 0; i < 3; i++) {
        is_text(i, "tau", tau[i]);
        is_mean(i, "density_elem", i == 1 ? 2 : 1, density[i]);
    }
    ck_assert_int_lt(table_find(&t, "steps"), 0);
}

/* Two calls beside two heads; the dense call of a refresh step and other methods' times are none of
 * theirs. */
static void slice_call(const char *method, int layer, double attend, bool dense)
{
    struct record *r = video(method, "refresh=1", layer, layer, -1);
    r->scope = RECORD_OF_CALL;
    r->kv_head = -1;
    fixture_metric(r, "time_attend_ns", attend);
    fixture_metric(r, "speedup", 4e6 / attend);
    fixture_metric(r, "dense_call", dense);
    if (strcmp(method, "dense") == 0)
        fixture_metric(r, "time_select_ns", 1);
}

TEST(thresholds_have_the_times_of_calls)
{
    slice("refresh=1", 0, 0.4, false);
    slice("refresh=1", 1, 0.5, false);
    slice("refresh=1", 2, 1, true);
    slice("refresh=1:tau=2", 1, 0.2, false);
    slice_call("fg-attn", 0, 1e6, false);
    slice_call("fg-attn", 1, 2e6, false);
    slice_call("fg-attn", 2, 4e6, true);
    slice_call("dense", 0, 4e6, false);
    build("threshold", NULL);
    ck_assert_int_eq(t.n_rows, 2);
    is_number(0, "n", 2);
    is_number(0, "calls", 2);
    is_mean(0, "time_attend_ns", 2, 1.5e6);
    is_mean(0, "speedup", 2, 3);
    is_number(1, "calls", 0);
    ck_assert(!cell(1, "time_attend_ns")->set);
    ck_assert(has_note("`calls` counts whole calls"));
}

/* ---- permutations ---------------------------------------------------------------------------- */

static void in_order(const char *permute, int head, double sim, double l1, double sparsity)
{
    struct record *d = video("dense", "", 0, 0, head), *s;
    snprintf(d->permute, sizeof d->permute, "%s", permute);
    fixture_metric(d, "sim_q", sim);
    fixture_metric(d, "sim_k", sim / 2);
    s = video("spargeattn", "tau=0.9", 0, 0, head);
    snprintf(s->permute, sizeof s->permute, "%s", permute);
    fixture_metric(s, "err_l1_rel", l1);
    fixture_metric(s, "sparsity_total", sparsity);
}

TEST(similarities_stand_beside_the_methods_in_the_same_order)
{
    in_order("none", 0, 0.4, 0.02, 0.3);
    in_order("none", 1, 0.6, 0.04, 0.5);
    in_order("hilbert", 0, 0.8, 0.01, 0.7);
    /* The method's own parameter asks for the order; a call dense by schedule does not count. */
    struct record *own = video("spargeattn", "permute=hilbert:tau=0.9", 0, 0, 1);
    fixture_metric(own, "err_l1_rel", 0.03);
    fixture_metric(own, "sparsity_total", 0.9);
    struct record *refresh = video("fg-attn", "", 0, 0, 0);
    fixture_metric(refresh, "sparsity_total", 0);
    fixture_metric(refresh, "dense_call", 1);
    build("permutations", NULL);
    ck_assert_int_eq(t.n_rows, 6);
    is_text(0, "order", "hilbert");
    is_mean(0, "sim_q", 1, 0.8);
    is_text(1, "params", "permute=hilbert:tau=0.9");
    is_mean(1, "sparsity_total", 1, 0.9);
    is_mean(2, "sparsity_total", 1, 0.7);
    is_text(3, "order", "none");
    is_mean(3, "sim_q", 2, 0.5);
    is_mean(3, "sim_k", 2, 0.25);
    is_mean(5, "err_l1_rel", 2, 0.03);
}

TEST(stored_and_row_order_are_one)
{
    in_order("none", 0, 0.4, 0.02, 0.3);
    in_order("row", 1, 0.6, 0.04, 0.5);
    in_order("row", 0, 0.4, 0.02, 0.3); /* the first cell again */
    build("permutations", NULL);
    ck_assert_int_eq(t.n_rows, 2);
    is_mean(0, "sim_q", 2, 0.5);
    is_mean(1, "err_l1_rel", 2, 0.03);
}

/* ---- stability and samples ------------------------------------------------------------------- */

static void reused(int layer, int head, int age, double iou)
{
    struct record *r = video("fg-attn", "compare=1", age, layer, head);
    fixture_metric(r, "mask_age", age);
    fixture_metric(r, "mask_iou", iou);
    fixture_metric(r, "mask_recall", iou + 0.05);
    fixture_metric(r, "dense_call", 0);
}

static void two_layers_of_masks(void)
{
    for (int layer = 0; layer < 2; layer++) {
        struct record *r = video("fg-attn", "compare=1", 0, layer, 0); /* refresh: no age */
        fixture_metric(r, "density_elem", 1);
        fixture_metric(r, "dense_call", 1);
        for (int age = 1; age <= 10; age += 9)
            for (int head = 0; head < 2; head++)
                reused(layer, head, age, 0.9 - 0.02 * age - 0.1 * head - 0.2 * layer);
    }
}

TEST(stability_goes_by_layer_and_age)
{
    two_layers_of_masks();
    build("stability", NULL);
    ck_assert_int_eq(t.n_rows, 4);
    for (int i = 0; i < 4; i++) {
        is_number(i, "layer", i / 2);
        is_number(i, "mask_age", i % 2 ? 10 : 1);
        double want = 0.85 - (i % 2 ? 0.2 : 0.02) - 0.2 * (i / 2);
        is_mean(i, "mask_iou", 2, want);
        is_mean(i, "mask_recall", 2, want + 0.05);
    }
}

static void sparge(const char *params, int head, double l1, double sparsity)
{
    struct record *r = video("spargeattn", params, 0, 0, head);
    fixture_metric(r, "err_l1_rel", l1);
    fixture_metric(r, "sparsity_total", sparsity);
}

TEST(tables_of_other_records_say_what_is_missing)
{
    sparge("tau=0.9", 0, 0.02, 0.2);
    fixture_set(&f, &set);
    static const char *const names[] = {"stability", "blocks", "threshold", "permutations"};
    for (int i = 0; i < 4; i++) {
        const struct table_def *def = table_def_find(names[i], &e);
        ck_assert(!table_has_data(def, &set));
        ck_assert_int_eq(table_build(def, &set, NULL, &t, &e), ERR_INPUT);
        err_clear(&e);
    }
}

TEST(samples_are_traces)
{
    sparge("", 0, 0.02, 0.2);
    sparge("", 1, 0.02, 0.4);
    struct record *r = video("spargeattn", "", 0, 0, 0);
    snprintf(r->trace, sizeof r->trace, "xxh3:w");
    fixture_metric(r, "sparsity_total", 0.9);
    build("by-sample", NULL);
    ck_assert_int_eq(t.n_rows, 2);
    is_mean(0, "sparsity_total", 2, 0.3);
    is_mean(1, "sparsity_total", 1, 0.9);
}

/* ---- figures --------------------------------------------------------------------------------- */

/* Draw into the test's directory and return the figure's data file. */
static void draw(const char *name, struct buf *data)
{
    const struct figure *figure = figure_find(name, &e);
    const char *path = test_path("fig.png");
    struct stat st;
    struct figure_args a = {.output = path, .set = &set, .low = NAN, .high = NAN};
    ck_assert_ptr_nonnull(figure);
    assert_ok(figure_draw(figure, &a, &e), &e);
    ck_assert(stat(path, &st) == 0 && st.st_size > 1000);
    assert_ok(buf_read_file(data, test_path("fig.dat"), 1 << 20, &e), &e);
}

TEST(stability_is_drawn_by_layer)
{
    OWN(buf_free) struct buf data = {0};
    two_layers_of_masks();
    fixture_set(&f, &set);
    draw("stability", &data);
    ck_assert_ptr_nonnull(strstr(buf_str(&data), "\n1 0.83 "));
    ck_assert_ptr_nonnull(strstr(buf_str(&data), "\n10 0.45 "));
}

/* A row per head, a column per step: as many maps in the data as panels. */
static void draw_steps(const struct trace *trace, const char *layer, const char *head, int panels)
{
    struct stat st;
    struct figure_args a = {.output = test_path("steps.png"),
                            .trace = trace,
                            .layers = layer,
                            .heads = head,
                            .steps = "all",
                            .map = MAP_STORED,
                            .low = NAN,
                            .high = NAN};
    assert_ok(figure_draw(figure_find("heatmap", &e), &a, &e), &e);
    int64_t cells = trace_map_cells(trace, false) * trace_map_cells(trace, true);
    ck_assert(stat(test_path("steps.bin"), &st) == 0 &&
              st.st_size == panels * cells * (int64_t)sizeof(float));
}

TEST(maps_of_a_head_over_steps)
{
    struct trace_meta m = fixture_video(DT_F32);
    OWN(trace_close) struct trace *trace = NULL;
    const char *path = test_path("v.h5");
    int steps = 0, layers = 0, calls = 24;
    m.pool = 4; /* divides the 24 tokens: a sample per cell */
    assert_ok(fixture_write(path, &m, calls, &e), &e);
    assert_ok(trace_open(path, &trace, &e), &e);
    for (int i = 0; i < calls; i++) {
        const struct trace_call *c = trace_call(trace, i);
        bool first_branch = strcmp(c->branch, trace_call(trace, 0)->branch) == 0;
        steps += first_branch && c->layer == trace_call(trace, 0)->layer;
        layers += first_branch && c->step == trace_call(trace, 0)->step;
    }
    ck_assert(steps > 1 && layers > 1);
    draw_steps(trace, "0", "0", steps);
    draw_steps(trace, "all", "0", steps * layers);
    struct figure_args a = {
        .output = "x.png", .trace = trace, .steps = "0,99", .low = NAN, .high = NAN};
    assert_fails(figure_draw(figure_find("heatmap", &e), &a, &e), &e, ERR_INPUT, "no such call");
    a.steps = NULL;
    a.branch = "nobody";
    assert_fails(figure_draw(figure_find("heatmap", &e), &a, &e), &e, ERR_INPUT, "no such call");
}
