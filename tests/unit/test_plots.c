/* Figures: text cannot escape, failures leave nothing half-done, and thin lines survive. */
#include "tests/harness/drawn.h"
#include "core/mem.h"
#include "core/rng.h"
#include "plots/cells.h"

#include <stdlib.h>
#include <sys/stat.h>

static struct gp g;

static void end_gp(void)
{
    gp_free(&g);
    g = (struct gp){0};
    end();
}
FIXTURE(begin, end_gp)

static bool exists(const char *name)
{
    return access(test_path(name), F_OK) == 0;
}

static const char *read_file(const char *name)
{
    buf_reset(&text);
    assert_ok(buf_read_file(&text, test_path(name), 64 << 20, &e), &e);
    return buf_str(&text);
}

/* Size of a PNG from its header, after its signature was checked. */
static void png_size(const char *name, int *w, int *h)
{
    static const unsigned char signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    const unsigned char *p = (const unsigned char *)read_file(name);
    ck_assert_msg(text.len > 33 && memcmp(p, signature, 8) == 0, "%s is not a PNG", name);
    *w = p[16] << 24 | p[17] << 16 | p[18] << 8 | p[19];
    *h = p[20] << 24 | p[21] << 16 | p[22] << 8 | p[23];
}

static void simple_figure(const char *file, const char *title)
{
    assert_ok(gp_open(&g, test_path(file), 320, 200, NULL, &e), &e);
    assert_ok(gp_data(&g, "dat", "1 2\n2 3\n", 8, &e), &e);
    buf_puts(&g.script, "set title ");
    gp_text(&g, &g.script, title);
    buf_puts(&g.script, " noenhanced\nplot ");
    gp_data_name(&g, "dat");
    buf_puts(&g.script, " with lines\n");
}

/* ---- gnuplot ------------------------------------------------------------------------------- */

TEST(text_cannot_leave_its_quotes)
{
    OWN(buf_free) struct buf b = {0};
    gp_text(NULL, &b, "a'b`rm`");
    ck_assert_str_eq(buf_str(&b), "\"a\\047b\\140rm\\140\"");
    buf_reset(&b);
    gp_text(NULL, &b, "two\nlines\tand \"quotes\" \\");
    ck_assert_str_eq(buf_str(&b), "'two lines and \"quotes\" \\'");
}

/* gnuplot ends a string in single quotes at a pair of quotes that begins it, and at two pairs in a
 * row, whatever its manual says. */
TEST_N(quotes_are_drawn_wherever_they_stand, 6)
{
    static const char *const titles[] = {"'quoted' model", "''", "a''b",
                                         "it's 'x'",       "'",  "\"two\" 'one' \\ @x"};
    simple_figure("quotes.svg", titles[_i]);
    assert_ok(gp_finish(&g, &e), &e);
    ck_assert_msg(strstr(read_file("quotes.svg"), titles[_i]) != NULL, "%s", titles[_i]);
}

/* Neither markup, nor a number format, nor anything that a viewer of the picture would obey. */
TEST(text_is_no_markup_and_no_format)
{
    static const char nasty[] = "%d%g {/Symbol a}^2_3 @x \033[31m \xc2\x9b \xe2\x80\xae \xff";
    assert_ok(gp_open(&g, test_path("format.svg"), 320, 200, NULL, &e), &e);
    buf_puts(&g.script, "set title ");
    gp_text(&g, &g.script, nasty);
    buf_puts(&g.script, " noenhanced\nset ytics (");
    gp_tic(&g, &g.script, nasty);
    buf_puts(&g.script, " 1) noenhanced\nplot [0:2][0:2] x notitle\n");
    assert_ok(gp_finish(&g, &e), &e);
    ck_assert_ptr_nonnull(strstr(read_file("format.svg"), "%d%g {/Symbol a}^2_3 @x \\x1b[31m "
                                                          "\\u009b \\u202e \\xff</text>"));
    /* gnuplot cuts long labels of tics. */
    const char *tic = strstr(buf_str(&text), "<text>%d%g {/Symbol a}^2_3 @x \\x1b[31m");
    ck_assert(tic && strstr(tic + 1, "<text>%d%g {/Symbol a}^2_3 @x \\x1b[31m"));
}

/* Odd names are plain names, of files and directories; a terminal of the user is not taken. */
TEST_N(pictures_are_what_their_names_say, 6)
{
    static const char *const cases[][2] = {{"size.png", "\x89PNG"}, {"it's <a> |b.png", "\x89PNG"},
                                           {"fig.svg", "<?xml"},    {"fig.pdf", "%PDF-"},
                                           {"fig.eps", "%!PS-"},    {"'it'''s'/f''.svg", "<?xml"}};
    int w, h;
    setenv("GNUTERM", "no such terminal", 1); /* every test is a process of its own */
    assert_ok(make_dirs(test_path("'it'''s'"), &e), &e);
    simple_figure(cases[_i][0], "x");
    assert_ok(gp_finish(&g, &e), &e);
    ck_assert_int_eq(memcmp(read_file(cases[_i][0]), cases[_i][1], strlen(cases[_i][1])), 0);
    if (_i < 2) {
        png_size(cases[_i][0], &w, &h);
        ck_assert_msg(w == 320 && h == 200, "%d x %d", w, h);
    }
    ck_assert(!exists("size.png.part"));
}

TEST(a_figure_that_is_given_up_leaves_nothing)
{
    simple_figure("none.png", "x");
    gp_free(&g);
    ck_assert(!exists("none.dat") && !exists("none.png.part"));
}

TEST(a_failure_names_the_figure_and_the_script)
{
    simple_figure("bad.png", "x");
    buf_puts(&g.script, "set nonsense");
    for (int i = 0; i < 99; i++) /* gnuplot repeats the command before it says what is wrong */
        buf_puts(&g.script, " in a long command");
    buf_puts(&g.script, "\n");
    ck_assert_int_eq(gp_finish(&g, &e), ERR_RUN);
    ck_assert_msg(strstr(e.msg, "/bad.png: gnuplot failed with exit 1 (see ") != NULL &&
                      strstr(e.msg, "/bad.gp): \"./bad.gp\" line 14: unrecognized") != NULL,
                  "%s", e.msg);
    ck_assert(exists("bad.gp"));
}

/* A program of this text that is found as gnuplot. */
static void other_gnuplot(const char *program)
{
    OWN(buf_free) struct buf path = {0};
    assert_ok(make_dirs(test_path("bin"), &e), &e);
    assert_ok(file_write_atomic(test_path("bin/gnuplot"), program, strlen(program), &e), &e);
    ck_assert_int_eq(chmod(test_path("bin/gnuplot"), 0755), 0);
    buf_printf(&path, "%s:%s", test_path("bin"), getenv("PATH"));
    setenv("PATH", buf_str(&path), 1); /* every test is a process of its own */
}

TEST(settings_of_gnuplot_are_not_taken)
{
    static const char *const names[] = {"GNUPLOT_LIB", "GNUPLOT_FONTPATH", "FIT_LOG", "GNUTERM",
                                        "GNUX"};
    OWN(buf_free) struct buf program = {0};
    for (int i = 0; i < 5; i++)
        setenv(names[i], "dumb", 1);
    buf_printf(&program, "#!/bin/sh\nenv >'%s'\n", test_path("seen"));
    other_gnuplot(buf_str(&program)); /* draws nothing */
    simple_figure("env.png", "x");
    ck_assert_int_eq(gp_finish(&g, NULL), ERR_RUN);
    read_file("seen");
    for (int i = 0; i < 5; i++)
        ck_assert_msg(!strstr(buf_str(&text), names[i]) == (i < 4), "%s", buf_str(&text));
}

/* Signals that gnuplot alone gets. An interrupt is one of the program. */
TEST_N(a_signal_to_gnuplot_is_told, 2)
{
    static const struct {
        const char *program, *says;
        enum err_code code;
    } cases[] = {
        {"#!/bin/sh\nkill -KILL $$\n", "/sig.png: gnuplot failed with signal 9 (see ", ERR_RUN},
        {"#!/bin/sh\nkill -INT $$\n", "interrupted", ERR_INTERRUPTED}};
    other_gnuplot(cases[_i].program);
    simple_figure("sig.png", "x");
    assert_fails(gp_finish(&g, &e), &e, cases[_i].code, cases[_i].says);
    ck_assert(exists("sig.gp") == (_i == 0) && !exists("sig.png.part"));
    unlink(test_path("sig.gp"));
}

TEST(a_script_that_draws_nothing_is_an_error)
{
    assert_ok(gp_open(&g, test_path("nothing.png"), 320, 200, NULL, &e), &e);
    buf_puts(&g.script, "x = 1\n");
    ck_assert_int_eq(gp_finish(&g, &e), ERR_RUN);
    ck_assert(!exists("nothing.png") && !exists("nothing.png.part"));
}

TEST(suffix_and_size_are_checked)
{
    static const struct {
        const char *name, *says;
        int width;
    } cases[] = {{"fig.jpg", ".png, .svg, .pdf, .eps or .tex", 320},
                 {"dir.png/fig", ".png, .svg, .pdf, .eps or .tex", 320},
                 {".png", ".png, .svg, .pdf, .eps or .tex", 320},
                 {"fig.png", "64 to 16384", 10},
                 {"a\nb.png", "control", 320}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_fails(gp_open(&g, cases[i].name, cases[i].width, 200, NULL, &e), &e, ERR_USAGE,
                     cases[i].says);
}

TEST(a_missing_directory_is_named)
{
    simple_figure("x.png", "x"); /* the data file is the first thing written */
    gp_free(&g);
    assert_ok(gp_open(&g, test_path("no/such/fig.png"), 320, 200, NULL, &e), &e);
    ck_assert_int_eq(gp_data(&g, "dat", "1\n", 2, &e), ERR_IO);
    ck_assert_ptr_nonnull(strstr(e.msg, "no/such"));
}

TEST(tic_steps_are_round)
{
    ck_assert_double_eq(gp_step(8, 8), 1);
    ck_assert_double_eq(gp_step(100, 4), 50);
    ck_assert_double_eq(gp_step(0.7, 3), 0.5);
    ck_assert_int_eq(gp_token_step(2048, 5), 512);
    ck_assert_int_eq(gp_token_step(770, 8), 128);
    ck_assert_int_eq(gp_token_step(3, 8), 1);
}

/* ---- cells --------------------------------------------------------------------------------- */

TEST(a_line_one_cell_wide_survives_pooling)
{
    enum { N = 1024 };
    OWN(free_at) float *m = calloc(N * N, sizeof *m);
    OWN(cells_free) struct cells c;
    const struct head_shape square = {.nq = N, .nk = N};
    ck_assert_ptr_nonnull(m);
    for (int i = 0; i < N; i++)
        m[i * N + 333] = 0.5f;
    assert_ok(cells_from_map(m, &square, 1, cells_factor(N, N, 100), POOL_MAX, &c, &e), &e);
    ck_assert_int_le(c.cols, 100);
    ck_assert_int_eq(c.tokens, 11);
    for (int64_t r = 0; r < c.rows; r++)
        for (int64_t k = 0; k < c.cols; k++)
            ck_assert_float_eq(c.v[r * c.cols + k], k == 333 / 11 ? 0.5f : 0);
}

TEST(means_weigh_allowed_pairs_and_the_rest_is_blank)
{
    /* 4 x 4 tokens, causal, cells of 1 token merged by 2; sums are 1 per allowed pair. */
    float m[16];
    OWN(cells_free) struct cells c;
    const struct head_shape causal = {.nq = 4, .nk = 4, .causal = true};
    for (int i = 0; i < 16; i++)
        m[i] = i % 4 <= i / 4 ? 1 : 0;
    assert_ok(cells_from_map(m, &causal, 1, 2, POOL_MEAN, &c, &e), &e);
    ck_assert_int_eq(c.rows, 2);
    ck_assert_float_eq(c.v[0], 1); /* 3 pairs */
    ck_assert(isnan(c.v[1]));      /* above the diagonal */
    ck_assert_float_eq(c.v[2], 1);
    ck_assert_float_eq(c.v[3], 1);
}

static void check_mask_cells(const struct mask *m, int64_t tokens)
{
    OWN(cells_free) struct cells c;
    OWN(free_at) struct span *s = NULL;
    assert_ok(cells_from_mask(m, NULL, tokens, &c, &e), &e);
    assert_ok(mem_alloc(&s, mask_max_spans(m), sizeof *s, "spans", &e), &e);
    for (int64_t r = 0; r < c.rows; r++)
        for (int64_t k = 0; k < c.cols; k++) {
            int64_t kept = 0, allowed = 0;
            for (int64_t i = r * tokens; i < (r + 1) * tokens && i < m->nq; i++) {
                int64_t n = mask_row_spans(m, i, s);
                for (int64_t j = k * tokens; j < (k + 1) * tokens && j < m->nk; j++) {
                    allowed += j < mask_limit(m, i);
                    for (int64_t q = 0; q < n; q++)
                        kept += j >= s[q].lo && j < s[q].hi;
                }
            }
            float v = c.v[r * c.cols + k];
            ck_assert(allowed ? v == (float)kept / (float)allowed : isnan(v));
        }
}

TEST(kept_shares_of_masks_match_counting)
{
    struct mask m = {0};
    assert_ok(mask_lists_init(&m, 50, 61, 0, 50, true, 8, 4, &e), &e);
    for (int64_t gr = 0; gr < m.ngroups; gr++)
        for (int32_t c = 0; c < 16; c++)
            if (rng_u64(3, (uint64_t)gr, (uint64_t)c) % 3 == 0)
                assert_ok(mask_lists_add(&m, gr, c, &e), &e);
    mask_lists_finish(&m);
    check_mask_cells(&m, 7);
    check_mask_cells(&m, 1);
    check_mask_cells(&m, 64);
    mask_free(&m);
    mask_full(&m, 20, 20, 0, 20, false);
    check_mask_cells(&m, 6);
}

/* ---- figures ------------------------------------------------------------------------------- */

/* Figures of one setting, of parameters by name, of a model with methods inside, or of times: they
 * have tests of their own. */
static bool wants_more(const char *figure)
{
    static const char *const names[] = {"means",  "sweep",    "needle", "growth",
                                        "inside", "tradeoff", "speeds", "steps"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(figure, names[i]) == 0)
            return true;
    return false;
}

TEST(every_figure_of_records_draws)
{
    int w, h;
    fixture_study(&f);
    fixture_add(
        &f, "fg-attn:compare=1 density_elem=.4 dense_call=0 mask_age=3 mask_iou=.8 mask_recall=.9");
    fixture_set(&f, &set);
    struct figure_args a = {.output = test_path("every.png"),
                            .set = &set,
                            .low = NAN,
                            .high = NAN,
                            .methods = sim_methods};
    for (int i = 0; figures[i].listed.name; i++) {
        if (figures[i].input != FIGURE_RECORDS || wants_more(figures[i].listed.name))
            continue;
        assert_ok(figure_draw(&figures[i], &a, &e), &e);
        png_size("every.png", &w, &h);
        ck_assert_msg(w > 100 && h > 100 && exists("every.gp"), "%s", figures[i].listed.name);
        unlink(test_path("every.gp"));
    }
}

TEST(a_heatmap_holds_the_cells_of_the_trace_row_0_first)
{
    float map[25], first, corner;
    assert_drawn(&(struct drawn){
        "heatmap", NULL, "heatmap",
        .a = {.layers = "1", .heads = "1", .low = 1, .high = 2000, .map = MAP_STORED},
        .texts = {"set yrange [40:0]", "set format cb '10^{%T}'", "set logscale cb"},
        .trace = {3, 40, 40, 8}});
    read_file("fig.bin");
    ck_assert_int_eq(text.len, sizeof map);
    assert_ok(trace_read_map(t, 1, 1, NULL, map, &e), &e);
    memcpy(&first, text.data + 5 * sizeof first, sizeof first);
    memcpy(&corner, text.data + 4 * sizeof corner, sizeof corner);
    ck_assert_float_eq(first, map[5]);
    ck_assert(isnan(corner)); /* keys after the query */
}

/* Against a plain softmax over all keys of the head. */
TEST(computed_maps_are_maxima_of_the_softmax)
{
    enum { N = 40, D = 8 };
    drawn_trace(&(struct drawn){.trace = {3, N, N, 0}});
    const struct cells_span part = {10, 13, 4, 17};
    const struct trace_meta *m = trace_meta(t);
    float q[N * D], k[N * D];
    OWN(cells_free) struct cells c;
    assert_ok(map_compute(t, 1, 1, &part, 2, false, &c, &e), &e);
    ck_assert(c.rows == 7 && c.cols == 9);
    assert_ok(trace_read(t, 1, TRACE_Q, 1, 0, N, q, &e), &e);
    assert_ok(trace_read(t, 1, TRACE_K, 1 / (m->heads / m->kv_heads), 0, N, k, &e), &e);
    for (int64_t y = 0; y < c.rows; y++)
        for (int64_t x = 0; x < c.cols; x++) {
            double most = -1;
            for (int i = 10 + 2 * (int)y; i < 12 + 2 * y && i < 23; i++)
                for (int j = 4 + 2 * (int)x; j < 6 + 2 * x && j < 21 && j <= i; j++) {
                    double sum = 0, own = 0;
                    for (int l = 0; l <= i; l++) {
                        double s = 0;
                        for (int d = 0; d < D; d++)
                            s += (double)q[i * D + d] * (double)k[l * D + d];
                        sum += exp(m->scale * s);
                        own = l == j ? exp(m->scale * s) : own;
                    }
                    most = fmax(most, own / sum);
                }
            float got = c.v[y * c.cols + x];
            ck_assert_msg(most < 0 ? isnan(got) : fabs((double)got - most) < 1e-5, "%d %d: %g, %g",
                          (int)y, (int)x, (double)got, most);
        }
}

TEST(token_orders_walk_through_the_grid)
{
    struct trace_meta m = fixture_video(DT_F32); /* 2 frames of 3 x 4 tokens, a cell apart */
    int w, h;
    assert_ok(fixture_write(test_path("v.h5"), &m, 1, &e), &e);
    assert_ok(trace_open(test_path("v.h5"), &t, &e), &e);
    assert_drawn(&(struct drawn){
        "orders", "sale", "order",
        .texts = {"# row: column, row, block of 4 tokens, way to the next token\n"
                  "0 0 0 1 0\n1 0 0 1 0\n2 0 0 1 0\n3 0 0 -3 1\n0 1 1 1 0\n",
                  "# column: column, row, block of 4 tokens, way to the next token\n"
                  "0 0 0 0 1\n0 1 0 0 1\n0 2 0 1 -2\n1 0 0 0 1\n1 1 1 ",
                  "# time: column, row, block of 4 tokens, way to the next token\n"
                  "0 0 0 5 0\n5 0 0 -4 0\n1 0 0 5 0\n6 0 0 -4 0\n2 0 1 "}});
    png_size("fig.png", &w, &h);
    ck_assert(w > 100 && h > 100);
}

/* Masks of one layer and head for two parameter settings. */
static struct maskfile *small_masks(const char *trace_id)
{
    struct maskfile *file = NULL;
    struct record r;
    struct mask m = {0};
    assert_ok(maskfile_create(test_path("m.h5"), true, &file, &e), &e);
    for (int i = 0; i < 2; i++) {
        record_init(&r);
        snprintf(r.trace, sizeof r.trace, "%s", trace_id);
        record_text(&r, &r.model, "fixture");
        snprintf(r.method, sizeof r.method, "streaming");
        r.params = strdup(i ? "window=16" : "");
        r.layer = 1;
        r.head = 1;
        r.n_q = r.n_k = 40;
        r.d = 8;
        r.causal = true;
        assert_ok(mask_lists_init(&m, 40, 40, 0, 40, true, 8, 8, &e), &e);
        for (int64_t gr = 0; gr < 5; gr++)
            assert_ok(mask_lists_add(&m, gr, (int32_t)gr, &e), &e);
        mask_lists_finish(&m);
        assert_ok(maskfile_put(file, &r, NULL, &m, &e), &e);
        mask_free(&m);
        record_free(&r);
    }
    assert_ok(maskfile_commit(&file, &e), &e);
    assert_ok(maskfile_open(test_path("m.h5"), &file, &e), &e);
    return file;
}

TEST(an_overlay_veils_what_the_mask_drops)
{
    /* Two settings are two panels, each under its own head. */
    struct drawn d = {"overlay",
                      NULL,
                      "overlay",
                      .a = {.layers = "1", .heads = "1", .map = MAP_STORED},
                      .texts = {"window=16", "defaults"},
                      .trace = {3, 40, 40, 8}};
    drawn_trace(&d);
    OWN(maskfile_close) struct maskfile *m = small_masks(trace_id(t));
    d.a.masks = m;
    assert_drawn(&d);
    d.a.params = "window=99";
    assert_fails(draw(&d), &e, ERR_INPUT, "no dumped mask");
    d.a.params = "defaults";
    assert_ok(draw(&d), &e);
    read_file("fig.veil.bin");
    ck_assert_int_eq(text.len, 25 * 4);
    for (int r = 0; r < 5; r++)
        for (int k = 0; k < 5; k++) {
            unsigned char alpha = (unsigned char)text.data[(r * 5 + k) * 4 + 3];
            ck_assert_msg((alpha > 0) == (k < r), "row %d column %d: %d", r, k, alpha);
        }
    d.a.heads = "0";
    assert_fails(draw(&d), &e, ERR_INPUT, "no dumped mask");
}

TEST(masks_of_another_trace_are_refused)
{
    OWN(maskfile_close) struct maskfile *m = small_masks("xxh3:00000000000000000000000000000000");
    struct drawn d = {"other",
                      NULL,
                      "overlay",
                      .a = {.masks = m, .layers = "1", .heads = "1", .params = "defaults"},
                      .texts = {"belong to trace"},
                      .fails = ERR_INPUT,
                      .trace = {3, 40, 40, 8}};
    assert_drawn(&d);
    d = (struct drawn){"mask", NULL, "mask", .a = {.masks = m}}; /* which needs no trace */
    assert_drawn(&d);
}
