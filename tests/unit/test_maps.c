/* Figures of maps: of any shape they show what they hold, axes end where the tokens do, and titles
 * tell the panels apart. */
#include "tests/harness/drawn.h"
#include "core/maskfile.h"
#include "plots/canvas.h"
#include "plots/cells.h"
#include "plots/series.h"

#include <png.h>
#include <stdlib.h>

FIXTURE(begin, end)

/* Share of a picture's pixels that are coloured: neither white nor grey. */
static double coloured(void)
{
    png_image image = {.version = PNG_IMAGE_VERSION};
    size_t n, found = 0;
    ck_assert_msg(png_image_begin_read_from_file(&image, test_path("fig.png")), "no PNG");
    image.format = PNG_FORMAT_RGB;
    OWN(free_at) unsigned char *px = malloc(PNG_IMAGE_SIZE(image));
    ck_assert(px && png_image_finish_read(&image, NULL, px, 0, NULL));
    n = (size_t)image.width * image.height;
    for (size_t i = 0; i < n; i++)
        found += abs(px[3 * i] - px[3 * i + 1]) + abs(px[3 * i + 1] - px[3 * i + 2]) > 24;
    return (double)found / (double)n;
}

#define TEXT_MAP .trace = {3, 40, 40, 8}
#define NO_MAP .trace = {3, 40, 40, 0}

static const struct drawn drawn[] = {
    {"a map of one row", NULL, "heatmap", .texts = {"8 queries x 512 keys"},
     .trace = {1, 8, 512, 64}, .coloured = 0.2},
    {"a map of one cell", NULL, "heatmap",
     .texts = {", 1 token'", "set xrange [0:1]", "set ytics 0,1,1 "}, .trace = {1, 1, 1, 64},
     .coloured = 0.3},
    {"axes end with the tokens", NULL, "heatmap",
     .texts = {"set xrange [0:100]", "set yrange [100:0]"}, .trace = {1, 100, 100, 64}},
    {"parts have their tokens on the axes", NULL, "heatmap",
     .a = {.layers = "1", .heads = "1", .rows = "10-29", .keys = "4-15"},
     .texts = {"set xrange [4:16]", "set yrange [30:10]"}, TEXT_MAP},
    {"parts lie within the map", NULL, "heatmap",
     .a = {.layers = "1", .heads = "1", .rows = "10-40", .keys = "4-15"}, .texts = {"within 0-39"},
     .fails = ERR_USAGE, TEXT_MAP},
    {"parts are computed", NULL, "heatmap",
     .a = {.layers = "1", .heads = "1", .rows = "10-29", .map = MAP_STORED}, .texts = {"computed"},
     .fails = ERR_USAGE, TEXT_MAP},
    {"grids have heads of rows and columns", NULL, "heatmap", .texts = {"'layer 1'", "'head 0'"},
     TEXT_MAP},
    {"maps that are not stored are explained", NULL, "heatmap", .a = {.map = MAP_STORED},
     .texts = {"--maps"}, .fails = ERR_INPUT, NO_MAP},
    {"calls that are not there are explained", NULL, "heatmap",
     .a = {.map = MAP_STORED, .steps = "7"}, .texts = {"0/main/0 0/main/1"}, .fails = ERR_INPUT,
     NO_MAP},
    {"text has no token orders", NULL, "order", .texts = {"grid of a video"}, .fails = ERR_INPUT,
     NO_MAP},
    /* a cell per layer and head */
    {"heads of one layer", "sale layer=3 head=0..7 density_elem=.1+.1i", "layerhead",
     .coloured = 0.1},
    {"layers of one head", "sale layer=3..10 density_elem=.1+.1i", "layerhead", .coloured = 0.1},
    {"a late layer is drawn where it is",
     "sale layer=3 head=2147483647 density_elem=.25; sale layer=2147483647 density_elem=.5",
     "layerhead",
     .texts = {"\n1 0 0.25 \"0.25\" 1 \"2147483647\" \"3\"\n",
               "\n0 1 0.5 \"0.50\" 1 \"0\" \"2147483647\"\n", "set yrange [1.5:-0.5]"},
     .coloured = 0.05},
    {"24 layers are counted by whole round steps, at most 10 tics",
     "sale layer=3..26 head=0..23 density_elem=.1+.001i", "layerhead",
     .a = {.width = 400, .height = 300}, .texts = {"('3' 0, '8' 5, "}},
    {"an error that is not zero is not written 0",
     "sale err_l1_rel=0; sale head=1 err_l1_rel=.0033; sale head=2 err_l1_rel=.13;"
     "sale head=3 err_l1_rel=5e-17; sale head=4 err_l1_rel=.998",
     "layerhead", .a = {.metrics = "err_l1_rel"},
     .texts = {"0 0 0 \"0\"", "\"3e-3\"", "\"0.13\"", "\"5e-17\"", "\">.99\""}},
    {"parameters stand below the method, and the data have them all",
     "streaming:sink=4:window=128 layer=0..1 head=0..1 density_elem=0+.1i;"
     "streaming:sink=4:window=64 layer=0..1 head=0..1 density_elem=.4+.1i",
     "layerhead",
     .texts = {"!'sink=4", "set title 'streaming'.\"\\n\".'window=128'",
               "# streaming sink=4:window=128:"}},
    {"a difference to another setting", NULL, "layerhead",
     .a = {.method = "sale", .against = "sale:tau=0.02", .metrics = "density_elem"},
     .texts = {"0 0 0.25 \"0.25\""}},
    {"a difference to a setting that is not there", NULL, "layerhead",
     .a = {.method = "sale", .against = "sale:tau=7", .metrics = "density_elem"},
     .texts = {"tau=7"}, .fails = ERR_INPUT},
};

TEST_EACH(maps_show_what_they_hold, drawn)
{
    assert_drawn(&drawn[_i]);
    if (drawn[_i].coloured > 0)
        ck_assert_double_gt(coloured(), drawn[_i].coloured);
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

TEST(a_share_is_not_rounded_to_all_or_nothing)
{
    static const struct {
        double x;
        int digits;
        const char *want;
    } cases[] = {{0.99998, 3, ">0.999"}, {0.99998, 4, ">0.9999"}, {0.0001, 3, "<0.001"},
                 {1, 3, "1.000"},        {0, 3, "0.000"},         {0.25, 3, "0.250"}};
    for (int i = 0; i < 6; i++) {
        char got[16];
        title_share(cases[i].x, cases[i].digits, got);
        ck_assert_str_eq(got, cases[i].want);
    }
}

/* Lines are of like length, a unit stays together, a word that is too long at its colon breaks
 * there all the same; LaTeX's letters are narrower. */
TEST(texts_have_as_many_lines_as_they_need)
{
    static const struct {
        const char *text;
        int width;
        const char *want;
        enum gp_type type;
    } cases[] = {
        {"attention mass kept, mean of rows", 30, "'attention mass'.\"\\n\".'kept, mean of rows'",
         GP_PNG},
        {"pairs kept [kept/allowed pairs]", 24, "'pairs kept'.\"\\n\".'[kept/allowed pairs]'",
         GP_PNG},
        {"streaming sink=4:window=128", 12, "'streaming'.\"\\n\".'sink=4:'.\"\\n\".'window=128'",
         GP_PNG},
        {"profile=paper:a=16", 13, "'profile=paper:'.\"\\n\".'a=16'", GP_PNG},
        {"attention mass kept", 4, "'attention mass kept'", GP_TEX},
    };
    ck_assert_int_eq(canvas_count_lines("attention mass kept, mean of rows", 40), 1);
    ck_assert_int_eq(canvas_count_lines("attention mass kept, mean of rows", 20), 2);
    for (int i = 0; i < 5; i++) {
        struct gp g = {.type = cases[i].type};
        buf_reset(&text);
        canvas_put(&g, &text, cases[i].text, cases[i].width, gp_text);
        ck_assert_str_eq(buf_str(&text), cases[i].want);
    }
}

TEST(a_long_text_keeps_both_ends)
{
    static const char *const cases[][2] = {{"0123456789", "0123456789"},
                                           {"0123456789abc", "0123...abc"}};
    for (int i = 0; i < 2; i++) {
        buf_reset(&text);
        title_cut(cases[i][0], 10, &text);
        ck_assert_str_eq(buf_str(&text), cases[i][1]);
    }
}

TEST(what_panels_share_is_left_out_and_what_differs_stays)
{
    OWN(buf_free) struct buf shared = {0};
    struct title_params p[] = {
        {.above = "a", .params = "theta=-1:tau=0.5:pv=20:pv_scope=warp:map_dtype=input"},
        {.above = "a", .params = "theta=-1:tau=0.5:pv=40:pv_scope=warp:map_dtype=input"},
        {.above = "a", .params = "theta=-1:tau=1"}};
    title_params(p, 3, 28, &shared);
    ck_assert_str_eq(buf_str(&shared), "theta=-1");
    ck_assert_str_eq(p[0].text, "tau=0.5:pv=20..._dtype=input");
    ck_assert_str_eq(p[1].text, "tau=0.5:pv=40..._dtype=input");
    ck_assert_str_eq(p[2].text, "tau=1");
    buf_reset(&shared);
    title_params(p, 2, 28, &shared);
    ck_assert_str_eq(p[0].text, "pv=20");
    p[0].params = NULL;
    buf_reset(&shared);
    title_params(p, 1, 28, &shared);
    ck_assert_str_eq(p[0].text, "");
}

/* A mask of 64 tokens that drops one pair. */
static void put_mask(struct maskfile *file, const char *params)
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
    assert_ok(maskfile_put(file, &r, NULL, &m, &e), &e);
}

TEST(a_mask_with_long_settings_says_which_it_is)
{
    static const char rest[] = ":pv_scope=warp:sink=1:smooth_k=0:map_dtype=input:cdf_dtype=bf16";
    OWN(maskfile_close) struct maskfile *file = NULL;
    struct drawn d = {"long settings", "sale", "mask",
                      .texts = {"'Masks of spargeattn:theta=-1:pv=20, layer 2;",
                                "'tau=0.5:pv_scope=warp:sink=1:...:cdf_dtype=bf16'",
                                "'tau=0.6:", "'>0.999'", "!smooth_k"}};
    char params[200];
    assert_ok(maskfile_create(test_path("m.h5"), true, &file, &e), &e);
    for (int i = 0; i < 3; i++) {
        snprintf(params, sizeof params, "theta=-1:tau=0.%d:pv=20%s", 5 + i, i < 2 ? rest : "");
        put_mask(file, params);
    }
    assert_ok(maskfile_commit(&file, &e), &e);
    assert_ok(maskfile_open(test_path("m.h5"), &file, &e), &e);
    d.a.masks = file;
    assert_drawn(&d);
}
