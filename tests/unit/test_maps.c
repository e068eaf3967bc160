/* Figures of maps: of any shape they show what they hold, axes end where the tokens do, and titles
 * tell the panels apart. */
#include "tests/harness/suite.h"

#include "core/fileio.h"
#include "core/log.h"
#include "core/maskfile.h"
#include "plots/canvas.h"
#include "plots/cells.h"
#include "plots/series.h"
#include "tests/harness/records_fixture.h"
#include "tests/harness/trace_fixture.h"

#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct err e;
static struct buf text;

static void begin(void)
{
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
}

static void end(void)
{
    buf_free(&text);
}
FIXTURE(begin, end)

static const char *read_text(const char *name)
{
    buf_reset(&text);
    assert_ok(buf_read_file(&text, test_path(name), 64 << 20, &e), &e);
    return buf_str(&text);
}

static void assert_has(const char *name, const char *what)
{
    const char *all = read_text(name);
    ck_assert_msg(strstr(all, what) != NULL, "%s lacks %s:\n%.3000s", name, what, all);
}

static void assert_lacks(const char *name, const char *what)
{
    const char *all = read_text(name);
    ck_assert_msg(strstr(all, what) == NULL, "%s has %s:\n%.3000s", name, what, all);
}

/* Share of a picture's pixels that are coloured: neither white nor grey. */
static double coloured(const char *name)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    size_t n, found = 0;
    ck_assert_msg(png_image_begin_read_from_file(&image, test_path(name)), "%s: no PNG", name);
    image.format = PNG_FORMAT_RGB;
    unsigned char *px = malloc(PNG_IMAGE_SIZE(image));
    ck_assert(px && png_image_finish_read(&image, NULL, px, 0, NULL));
    n = (size_t)image.width * image.height;
    for (size_t i = 0; i < n; i++)
        found += abs(px[3 * i] - px[3 * i + 1]) + abs(px[3 * i + 1] - px[3 * i + 2]) > 24;
    free(px);
    return (double)found / (double)n;
}

static struct figure_args args_for(const char *file)
{
    return (struct figure_args){.output = test_path(file), .low = NAN, .high = NAN};
}

static void draw(const char *figure, struct figure_args *a)
{
    assert_ok(figure_draw(figure_find(figure, &e), a, &e), &e);
}

/* A trace of one layer with two heads and maps of 64-token cells. */
static struct trace *map_trace(int64_t n_q, int64_t n_k)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 2, n_k);
    struct trace *t = NULL;
    m.n_q = n_q;
    m.pool = 64;
    assert_ok(fixture_write(test_path("t.h5"), &m, 1, &e), &e);
    assert_ok(trace_open(test_path("t.h5"), &t, &e), &e);
    return t;
}

static void draw_map(const char *file, int64_t n_q, int64_t n_k)
{
    OWN(trace_close) struct trace *t = map_trace(n_q, n_k);
    struct figure_args a = args_for(file);
    a.trace = t;
    draw("heatmap", &a);
}

/* ---- maps of one row or column ------------------------------------------------------------- */

TEST(a_map_of_one_row_or_cell_is_drawn)
{
    draw_map("row.png", 8, 512);
    ck_assert_double_gt(coloured("row.png"), 0.2);
    assert_has("row.gp", "8 queries x 512 keys");
    draw_map("cell.png", 1, 1);
    ck_assert_double_gt(coloured("cell.png"), 0.3);
    assert_has("cell.gp", ", 1 token'");
}

/* `name` is another name of the figure's trace. */
static void assert_spares_input(const char *name)
{
    struct str_list inputs = {0};
    struct trace *t = map_trace(64, 128);
    struct figure_args a = args_for("own.png");
    str_list_add(&inputs, test_path("t.h5"));
    a.trace = t;
    a.inputs = &inputs;
    ck_assert_int_eq(link(test_path("t.h5"), test_path(name)), 0);
    assert_fails(figure_draw(figure_find("heatmap", &e), &a, &e), &e, ERR_USAGE, name);
    ck_assert_int_eq(access(test_path("own.png.part"), F_OK), -1);
    ck_assert_int_eq(unlink(test_path(name)), 0);
    draw("heatmap", &a); /* its files alone are no hindrance */
    trace_close(&t);
    str_list_free(&inputs);
    ck_assert_int_eq(unlink(test_path("own.png")) + unlink(test_path("own.gp")) +
                         unlink(test_path("own.bin")) + unlink(test_path("t.h5")),
                     0);
}

TEST(no_file_of_a_figure_overwrites_its_input)
{
    assert_spares_input("own.png");
    assert_spares_input("own.gp");
    assert_spares_input("own.bin");
}

/* Records of `layers` layers from layer 3 on and `heads` heads. */
static void head_records(struct fixture_records *f, int layers, int heads)
{
    for (int i = 0; i < layers * heads; i++) {
        struct record *r = fixture_record(f, "sale", "", 3 + i / heads, i % heads);
        fixture_metric(r, "density_elem", 0.1 + 0.1 * (i % 7));
    }
}

static void draw_layerhead(const char *file, struct fixture_records *f, const char *metric)
{
    OWN(recset_free) struct recset set = {0};
    struct figure_args a = args_for(file);
    fixture_set(f, &set);
    a.set = &set;
    a.metrics = metric;
    draw("layerhead", &a);
}

TEST(layerhead_draws_one_layer_and_one_head)
{
    struct fixture_records f = {0};
    head_records(&f, 1, 8);
    draw_layerhead("layer.png", &f, NULL);
    ck_assert_double_gt(coloured("layer.png"), 0.1);
    head_records(&f, 8, 1);
    draw_layerhead("head.png", &f, NULL);
    ck_assert_double_gt(coloured("head.png"), 0.1);
}

TEST(a_late_layer_is_drawn_where_it_is)
{
    struct fixture_records f = {0};
    fixture_metric(fixture_record(&f, "sale", "", 3, INT32_MAX), "density_elem", 0.25);
    fixture_metric(fixture_record(&f, "sale", "", INT32_MAX, 0), "density_elem", 0.5);
    draw_layerhead("late.png", &f, NULL);
    assert_has("late.dat", "\n1 0 0.25 \"0.25\" 1 \"2147483647\" \"3\"\n");
    assert_has("late.dat", "\n0 1 0.5 \"0.50\" 1 \"0\" \"2147483647\"\n");
    assert_has("late.gp", "set yrange [1.5:-0.5]");
    ck_assert_double_gt(coloured("late.png"), 0.05);
}

/* ---- axes ---------------------------------------------------------------------------------- */

TEST(token_axes_end_with_the_tokens)
{
    draw_map("axes.png", 100, 100);
    assert_has("axes.gp", "set xrange [0:100]");
    assert_has("axes.gp", "set yrange [100:0]");
    draw_map("axes.png", 1, 1);
    assert_has("axes.gp", "set xrange [0:1]");
    assert_has("axes.gp", "set ytics 0,1,1 ");
}

TEST(every_cell_has_a_sample_the_last_part_of_one_too)
{
    for (int64_t n = 1; n <= 120; n++)
        for (int64_t tokens = 1; tokens <= 13; tokens++) {
            int64_t cols = (n + tokens - 1) / tokens, seen = -1;
            for (int64_t i = 0; i < cols; i++) {
                int64_t cell = cells_sample(i, cols, n, tokens);
                ck_assert_int_le(cell, seen + 1);
                seen = cell;
            }
            ck_assert_int_eq(seen, cols - 1);
        }
}

TEST(layers_and_heads_are_counted_by_whole_round_steps)
{
    struct fixture_records f = {0};
    OWN(recset_free) struct recset set = {0};
    head_records(&f, 24, 24);
    fixture_set(&f, &set);
    struct figure_args a = args_for("steps.png");
    a.set = &set;
    a.width = 400;
    a.height = 300;
    draw("layerhead", &a);
    assert_has("steps.gp", "('3' 0, '8' 5, "); /* 24 layers, at most 10 tics */
}

/* ---- texts --------------------------------------------------------------------------------- */

static void assert_share(double x, int digits, const char *want)
{
    char got[16];
    title_share(x, digits, got);
    ck_assert_str_eq(got, want);
}

TEST(a_share_is_not_rounded_to_all_or_nothing)
{
    assert_share(0.99998, 3, ">0.999");
    assert_share(0.99998, 4, ">0.9999");
    assert_share(0.0001, 3, "<0.001");
    assert_share(1, 3, "1.000");
    assert_share(0, 3, "0.000");
    assert_share(0.25, 3, "0.250");
}

TEST(an_error_that_is_not_zero_is_not_written_0)
{
    static const double error[] = {0, 0.0033, 0.13, 5e-17, 0.998};
    struct fixture_records f = {0};
    for (int i = 0; i < 5; i++)
        fixture_metric(fixture_record(&f, "sale", "", 0, i), "err_l1_rel", error[i]);
    draw_layerhead("err.png", &f, "err_l1_rel");
    assert_has("err.dat", "0 0 0 \"0\"");
    assert_has("err.dat", "\"3e-3\"");
    assert_has("err.dat", "\"0.13\"");
    assert_has("err.dat", "\"5e-17\"");
    assert_has("err.dat", "\">.99\"");
}

TEST(texts_have_as_many_lines_as_they_need)
{
    struct gp g = {.type = GP_PNG};
    OWN(buf_free) struct buf b = {0};
    ck_assert_int_eq(canvas_count_lines("attention mass kept, mean of rows", 40), 1);
    ck_assert_int_eq(canvas_count_lines("attention mass kept, mean of rows", 20), 2);
    canvas_put(&g, &b, "attention mass kept, mean of rows", 30, gp_text); /* lines of like length */
    ck_assert_str_eq(buf_str(&b), "'attention mass'.\"\\n\".'kept, mean of rows'");
    buf_reset(&b);
    canvas_put(&g, &b, "pairs kept [kept/allowed pairs]", 24, gp_text); /* a unit stays together */
    ck_assert_str_eq(buf_str(&b), "'pairs kept'.\"\\n\".'[kept/allowed pairs]'");
    buf_reset(&b);
    canvas_put(&g, &b, "streaming sink=4:window=128", 12, gp_text);
    ck_assert_str_eq(buf_str(&b), "'streaming'.\"\\n\".'sink=4:'.\"\\n\".'window=128'");
    buf_reset(&b);
    canvas_put(&g, &b, "profile=paper:a=16", 13, gp_text); /* too long at the colon: still there */
    ck_assert_str_eq(buf_str(&b), "'profile=paper:'.\"\\n\".'a=16'");
    buf_reset(&b);
    g.type = GP_TEX; /* LaTeX's letters are narrower */
    canvas_put(&g, &b, "attention mass kept", 4, gp_text);
    ck_assert_str_eq(buf_str(&b), "'attention mass kept'");
}

TEST(a_long_text_keeps_both_ends)
{
    OWN(buf_free) struct buf b = {0};
    title_cut("0123456789", 10, &b);
    ck_assert_str_eq(buf_str(&b), "0123456789");
    buf_reset(&b);
    title_cut("0123456789abc", 10, &b);
    ck_assert_str_eq(buf_str(&b), "0123...abc");
}

TEST(what_panels_share_is_left_out_and_what_differs_stays)
{
    OWN(buf_free) struct buf shared = {0};
    struct title_params t[] = {
        {.above = "a", .params = "theta=-1:tau=0.5:pv=20:pv_scope=warp:map_dtype=input"},
        {.above = "a", .params = "theta=-1:tau=0.5:pv=40:pv_scope=warp:map_dtype=input"},
        {.above = "a", .params = "theta=-1:tau=1"}};
    title_params(t, 3, 28, &shared);
    ck_assert_str_eq(buf_str(&shared), "theta=-1");
    ck_assert_str_eq(t[0].text, "tau=0.5:pv=20..._dtype=input");
    ck_assert_str_eq(t[1].text, "tau=0.5:pv=40..._dtype=input");
    ck_assert_str_eq(t[2].text, "tau=1");
    buf_reset(&shared);
    title_params(t, 2, 28, &shared);
    ck_assert_str_eq(t[0].text, "pv=20");
    t[0].params = NULL;
    buf_reset(&shared);
    title_params(t, 1, 28, &shared);
    ck_assert_str_eq(t[0].text, "");
}

/* A mask of 64 tokens that drops one pair. */
static void put_mask(struct maskfile *f, const char *params)
{
    OWN(record_free) struct record r;
    OWN(mask_free) struct mask m = {0};
    record_init(&r);
    snprintf(r.method, sizeof r.method, "spargeattn");
    r.params = strdup(params);
    r.layer = 2;
    r.head = 7;
    r.n_q = r.n_k = 64;
    r.d = 8;
    r.causal = true;
    assert_ok(mask_lists_init(&m, 64, 64, 0, 64, true, 1, 1, &e), &e);
    for (int32_t i = 0; i < 64; i++)
        for (int32_t k = 0; k <= i; k++)
            if (i != 5 || k != 3)
                assert_ok(mask_lists_add(&m, i, k, &e), &e);
    mask_lists_finish(&m);
    assert_ok(maskfile_put(f, &r, NULL, &m, &e), &e);
}

TEST(a_mask_with_long_settings_says_which_it_is)
{
    static const char rest[] = ":pv_scope=warp:sink=1:smooth_k=0:map_dtype=input:cdf_dtype=bf16";
    OWN(maskfile_close) struct maskfile *f = NULL;
    struct figure_args a = args_for("long.png");
    char params[200];
    assert_ok(maskfile_create(test_path("m.h5"), true, &f, &e), &e);
    for (int i = 0; i < 3; i++) {
        snprintf(params, sizeof params, "theta=-1:tau=0.%d:pv=20%s", 5 + i, i < 2 ? rest : "");
        put_mask(f, params);
    }
    assert_ok(maskfile_commit(&f, &e), &e);
    assert_ok(maskfile_open(test_path("m.h5"), &f, &e), &e);
    a.masks = f;
    draw("mask", &a);
    assert_has("long.gp", "'Masks of spargeattn:theta=-1:pv=20, layer 2;");
    assert_has("long.gp", "'tau=0.5:pv_scope=warp:sink=1:...:cdf_dtype=bf16'");
    assert_has("long.gp", "'tau=0.6:");
    assert_has("long.gp", "'>0.999'");
    assert_lacks("long.gp", "smooth_k");
}

TEST(layerhead_names_the_parameters_below_the_method)
{
    struct fixture_records f = {0};
    for (int i = 0; i < 8; i++) {
        const char *params = i / 4 ? "sink=4:window=64" : "sink=4:window=128";
        fixture_metric(fixture_record(&f, "streaming", params, i % 4 / 2, i % 2), "density_elem",
                       0.1 * i);
    }
    draw_layerhead("names.png", &f, NULL);
    assert_lacks("names.gp", "sink=4");
    assert_has("names.gp", "set title 'streaming'.\"\\n\".'window=128'");
    assert_has("names.dat", "# streaming sink=4:window=128:"); /* the data has it all */
}
