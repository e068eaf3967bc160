/* Figures: text cannot escape, failures leave nothing half-done, thin lines survive, and a kept
 * script draws the same picture again. */
#include "tests/harness/suite.h"

#include "core/clock.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/metricdef.h"
#include "core/pool.h"
#include "core/rng.h"
#include "plots/cells.h"
#include "plots/figure.h"
#include "sim/registry.h"
#include "tests/harness/records_fixture.h"
#include "tests/harness/trace_fixture.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct err e;
static struct gp g;
static struct fixture_records f;
static struct recset set;
static struct trace *t;
static struct buf text;
static char dir[256];

static void begin(void)
{
    static int number;
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
    metric_def_methods(sim_methods);
    snprintf(dir, sizeof dir, "%s/plots-%d-%d", test_tmpdir(), (int)getpid(), number++);
    assert_ok(make_dirs(dir, &e), &e);
}

static void end(void)
{
    gp_free(&g);
    memset(&g, 0, sizeof g);
    recset_free(&set);
    trace_close(&t);
    buf_free(&text);
}
FIXTURE(begin, end)

static const char *in_dir(const char *name)
{
    static char path[2][400];
    static int k;
    k = !k;
    snprintf(path[k], sizeof path[k], "%s/%s", dir, name);
    return path[k];
}

static bool exists(const char *name)
{
    struct stat st;
    return stat(in_dir(name), &st) == 0;
}

static void read_file(const char *name, struct buf *b)
{
    buf_reset(b);
    assert_ok(buf_read_file(b, in_dir(name), 64 << 20, &e), &e);
}

/* Size of a PNG from its header, after its signature was checked. */
static void png_size(const char *name, int *w, int *h)
{
    static const unsigned char signature[] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    OWN(buf_free) struct buf b = {0};
    read_file(name, &b);
    ck_assert_msg(b.len > 33 && memcmp(b.data, signature, 8) == 0, "%s is not a PNG", name);
    const unsigned char *p = (const unsigned char *)b.data;
    *w = p[16] << 24 | p[17] << 16 | p[18] << 8 | p[19];
    *h = p[20] << 24 | p[21] << 16 | p[22] << 8 | p[23];
}

/* Run `gnuplot SCRIPT` in the figure's directory. */
static int rerun(const char *script)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (chdir(dir) == 0)
            execlp("gnuplot", "gnuplot", script, (char *)NULL);
        _exit(127);
    }
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void simple_figure(const char *file, const char *title)
{
    assert_ok(gp_open(&g, in_dir(file), 320, 200, NULL, &e), &e);
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
    OWN(buf_free) struct buf b = {0};
    simple_figure("quotes.svg", titles[_i]);
    assert_ok(gp_finish(&g, &e), &e);
    read_file("quotes.svg", &b);
    ck_assert_msg(strstr(buf_str(&b), titles[_i]) != NULL, "%s is not in it", titles[_i]);
}

/* Neither markup, nor a number format, nor anything that a viewer of the picture would obey. */
TEST(text_is_no_markup_and_no_format)
{
    static const char nasty[] = "%d%g {/Symbol a}^2_3 @x \033[31m \xc2\x9b \xe2\x80\xae \xff";
    OWN(buf_free) struct buf b = {0};
    assert_ok(gp_open(&g, in_dir("format.svg"), 320, 200, NULL, &e), &e);
    buf_puts(&g.script, "set title ");
    gp_text(&g, &g.script, nasty);
    buf_puts(&g.script, " noenhanced\nset ytics (");
    gp_tic(&g, &g.script, nasty);
    buf_puts(&g.script, " 1) noenhanced\nplot [0:2][0:2] x notitle\n");
    assert_ok(gp_finish(&g, &e), &e);
    read_file("format.svg", &b);
    ck_assert_ptr_nonnull(strstr(buf_str(&b), "%d%g {/Symbol a}^2_3 @x \\x1b[31m \\u009b "
                                              "\\u202e \\xff</text>"));
    /* gnuplot cuts long labels of tics. */
    const char *tic = strstr(buf_str(&b), "<text>%d%g {/Symbol a}^2_3 @x \\x1b[31m");
    ck_assert(tic && strstr(tic + 1, "<text>%d%g {/Symbol a}^2_3 @x \\x1b[31m"));
}

TEST(a_title_is_drawn_and_never_run)
{
    char title[700];
    int w, h;
    snprintf(title, sizeof title, "a'b`touch %s/owned`\nsystem('touch %s/owned') # $(x)", dir, dir);
    simple_figure("nasty.png", title);
    assert_ok(gp_finish(&g, &e), &e);
    png_size("nasty.png", &w, &h);
    ck_assert_int_eq(rerun("nasty.gp"), 0);
    ck_assert_msg(!exists("owned"), "the title was run as a command");
}

/* Odd names are plain names, of files and directories; a terminal of the user is not taken. */
TEST_N(pictures_are_what_their_names_say, 6)
{
    static const char *const cases[][2] = {{"size.png", "\x89PNG"}, {"it's <a> |b.png", "\x89PNG"},
                                           {"fig.svg", "<?xml"},    {"fig.pdf", "%PDF-"},
                                           {"fig.eps", "%!PS-"},    {"'it'''s'/f''.svg", "<?xml"}};
    OWN(buf_free) struct buf b = {0};
    int w, h;
    setenv("GNUTERM", "no such terminal", 1); /* every test is a process of its own */
    assert_ok(make_dirs(in_dir("'it'''s'"), &e), &e);
    simple_figure(cases[_i][0], "x");
    assert_ok(gp_finish(&g, &e), &e);
    read_file(cases[_i][0], &b);
    ck_assert_int_eq(memcmp(b.data, cases[_i][1], strlen(cases[_i][1])), 0);
    if (_i < 2) {
        png_size(cases[_i][0], &w, &h);
        ck_assert_msg(w == 320 && h == 200, "%d x %d", w, h);
    }
    ck_assert(!exists("size.png.part"));
}

TEST(the_kept_script_draws_the_same_bytes)
{
    OWN(buf_free) struct buf first = {0}, again = {0};
    simple_figure("same.png", "it's");
    assert_ok(gp_finish(&g, &e), &e);
    read_file("same.png", &first);
    ck_assert_int_eq(unlink(in_dir("same.png")), 0);
    ck_assert_int_eq(rerun("same.gp"), 0);
    read_file("same.png", &again);
    ck_assert(first.len == again.len && memcmp(first.data, again.data, first.len) == 0);
}

TEST(settings_of_gnuplot_are_not_taken)
{
    static const char program[] = "#!/bin/sh\nenv >../seen\n";
    char *path = strdup(getenv("PATH"));
    OWN(buf_free) struct buf b = {0}, with = {0};
    assert_ok(file_write_atomic(in_dir("gnuplot"), program, sizeof program - 1, &e), &e);
    ck_assert_int_eq(chmod(in_dir("gnuplot"), 0755), 0);
    setenv("GNUPLOT_LIB", "/tmp", 1);
    setenv("GNUPLOT_FONTPATH", "/tmp", 1);
    setenv("FIT_LOG", "/tmp", 1);
    setenv("GNUTERM", "dumb", 1);
    setenv("GNUX", "kept", 1);
    simple_figure("env.png", "x");
    buf_printf(&with, "%s:%s", dir, path);
    setenv("PATH", buf_str(&with), 1);
    ck_assert_int_eq(chdir(dir), 0); /* this gnuplot draws nothing and changes no directory */
    ck_assert_int_eq(mkdir("in", 0777), 0);
    ck_assert_int_eq(chdir("in"), 0);
    gp_finish(&g, NULL);
    setenv("PATH", path, 1);
    free(path);
    read_file("seen", &b);
    ck_assert_msg(!strstr(buf_str(&b), "GNUPLOT_") && !strstr(buf_str(&b), "FIT_LOG") &&
                      !strstr(buf_str(&b), "GNUTERM") && strstr(buf_str(&b), "GNUX=kept"),
                  "%s", buf_str(&b));
}

TEST(without_gnuplot_script_and_data_are_left_and_the_package_is_named)
{
    char *path = strdup(getenv("PATH"));
    simple_figure("none.png", "x");
    setenv("PATH", "", 1);
    int rc = gp_finish(&g, &e);
    setenv("PATH", path, 1);
    free(path);
    ck_assert_int_eq(rc, ERR_MACHINE);
    ck_assert_ptr_nonnull(strstr(e.msg, "install gnuplot-nox"));
    ck_assert(exists("none.gp") && exists("none.dat"));
    ck_assert(!exists("none.png") && !exists("none.png.part"));
    ck_assert_int_eq(rerun("none.gp"), 0);
    ck_assert(exists("none.png"));
}

static void assert_same(const char *name, const struct buf *want)
{
    OWN(buf_free) struct buf got = {0};
    read_file(name, &got);
    ck_assert_msg(got.len == want->len && memcmp(got.data, want->data, got.len) == 0,
                  "%s has changed", name);
}

TEST(a_script_error_leaves_the_old_figure_and_says_why)
{
    static const char *const names[] = {"err.png", "err.gp", "err.dat"};
    struct buf before[3] = {0};
    simple_figure("err.png", "x");
    assert_ok(gp_finish(&g, &e), &e);
    for (int i = 0; i < 3; i++)
        read_file(names[i], &before[i]);
    gp_free(&g);
    assert_ok(gp_open(&g, in_dir("err.png"), 320, 200, NULL, &e), &e);
    assert_ok(gp_data(&g, "dat", "3 4\n", 4, &e), &e);
    buf_puts(&g.script, "plot './err.dat'\nset nonsense here\n");
    assert_fails(gp_finish(&g, &e), &e, ERR_RUN, "nonsense");
    for (int i = 0; i < 3; i++) {
        assert_same(names[i], &before[i]);
        buf_free(&before[i]);
    }
    ck_assert(!exists("err.png.part"));
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
    assert_ok(make_dirs(in_dir("bin"), &e), &e);
    assert_ok(file_write_atomic(in_dir("bin/gnuplot"), program, strlen(program), &e), &e);
    ck_assert_int_eq(chmod(in_dir("bin/gnuplot"), 0755), 0);
    buf_printf(&path, "%s:%s", in_dir("bin"), getenv("PATH"));
    setenv("PATH", buf_str(&path), 1); /* every test is a process of its own */
}

TEST(a_silent_failure_is_a_whole_sentence)
{
    other_gnuplot("#!/bin/sh\nkill -KILL $$\n");
    simple_figure("silent.png", "x");
    ck_assert_int_eq(gp_finish(&g, &e), ERR_RUN);
    ck_assert_ptr_nonnull(strstr(e.msg, "failed with signal 9 (see "));
    ck_assert_str_eq(e.msg + strlen(e.msg) - strlen("/silent.gp)"), "/silent.gp)");
}

/* Interrupt this process, and only it, in a moment. */
static pid_t interrupt_soon(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        usleep(200000);
        kill(getppid(), SIGINT);
        _exit(0);
    }
    ck_assert_int_gt(pid, 0);
    return pid;
}

TEST(an_interrupt_ends_gnuplot_and_leaves_the_old_figure)
{
    OWN(buf_free) struct buf before = {0};
    simple_figure("long.png", "x");
    assert_ok(gp_finish(&g, &e), &e);
    read_file("long.gp", &before);
    gp_free(&g);
    simple_figure("long.png", "x");
    buf_puts(&g.script, "pause 60\n");
    interrupt_install();
    pid_t pid = interrupt_soon();
    double start = clock_s();
    assert_fails(gp_finish(&g, &e), &e, ERR_INTERRUPTED, "interrupted");
    ck_assert_double_lt(clock_s() - start, 30);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    assert_same("long.gp", &before);
    ck_assert(!exists("long.png.part"));
}

TEST(an_interrupt_that_only_gnuplot_got_is_one_too)
{
    other_gnuplot("#!/bin/sh\nkill -INT $$\n");
    simple_figure("int.png", "x");
    assert_fails(gp_finish(&g, &e), &e, ERR_INTERRUPTED, "interrupted");
    ck_assert(!exists("int.gp") && !exists("int.png.part"));
}

TEST(a_script_that_draws_nothing_is_an_error)
{
    assert_ok(gp_open(&g, in_dir("nothing.png"), 320, 200, NULL, &e), &e);
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
    assert_ok(gp_open(&g, in_dir("no/such/fig.png"), 320, 200, NULL, &e), &e);
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

static void assert_has(const char *what)
{
    ck_assert_msg(strstr(buf_str(&text), what) != NULL, "'%s' is not in\n%s", what, buf_str(&text));
}

static void study(void)
{
    fixture_study(&f);
    fixture_set(&f, &set);
}

static struct figure_args args_for(const char *file)
{
    return (struct figure_args){.output = in_dir(file),
                                .set = &set,
                                .trace = t,
                                .low = NAN,
                                .high = NAN,
                                .methods = sim_methods};
}

/* A step that reuses the mask of one before. */
static void add_reused_mask(void)
{
    struct record *r = fixture_record(&f, "fg-attn", "compare=1", 0, 0);
    fixture_metric(r, "density_elem", 0.4);
    fixture_metric(r, "dense_call", 0);
    fixture_metric(r, "mask_age", 3);
    fixture_metric(r, "mask_iou", 0.8);
    fixture_metric(r, "mask_recall", 0.9);
}

/* Figures of one setting, of parameters by name, or of a model with methods inside: they have tests
 * of their own. */
static bool wants_more(const char *figure)
{
    static const char *const names[] = {"means",  "sweep",    "needle", "growth",
                                        "inside", "tradeoff", NULL};
    for (int i = 0; names[i]; i++)
        if (strcmp(figure, names[i]) == 0)
            return true;
    return false;
}

TEST(every_figure_of_records_draws)
{
    fixture_study(&f);
    add_reused_mask();
    fixture_set(&f, &set);
    for (int i = 0; figures[i].listed.name; i++) {
        char name[64], script[64];
        int w, h;
        if (figures[i].input != FIGURE_RECORDS || wants_more(figures[i].listed.name))
            continue;
        snprintf(name, sizeof name, "%s.png", figures[i].listed.name);
        snprintf(script, sizeof script, "%s.gp", figures[i].listed.name);
        struct figure_args a = args_for(name);
        assert_ok(figure_draw(&figures[i], &a, &e), &e);
        png_size(name, &w, &h);
        ck_assert_msg(w > 100 && h > 100 && exists(script), "%s", name);
    }
}

TEST(dominated_settings_are_hollow_and_oracles_dominate_nobody)
{
    study();
    struct figure_args a = args_for("p.png");
    a.metrics = "err_l1_rel";
    assert_ok(figure_draw(figure_find("pareto", &e), &a, &e), &e);
    read_file("p.dat", &text);
    /* streaming 0.315 / 0.3 is worse in both than sale 0.265 / 0.1; the oracle 0.115 / 0.05 would
     * be better than both sales. Columns: density, value, dominated. */
    assert_has("0.315 0.3 1 ");
    assert_has("0.265 0.1 0 ");
    assert_has("0.515 0.02 0 ");
}

TEST(a_sweep_takes_the_default_from_the_method)
{
    study();
    struct figure_args a = args_for("c.png");
    a.x = "tau";
    a.metrics = "err_l1_rel";
    assert_ok(figure_draw(figure_find("curves", &e), &a, &e), &e);
    read_file("c.dat", &text);
    assert_has("\n0.004 0.02 0\n0.02 0.1 0\n");
    ck_assert_ptr_null(strstr(buf_str(&text), "streaming"));
    a.x = "no_such";
    assert_fails(figure_draw(figure_find("curves", &e), &a, &e), &e, ERR_INPUT, "no_such");
}

TEST(differences_need_the_other_method)
{
    study();
    struct figure_args a = args_for("d.png");
    a.method = "sale";
    a.against = "sale:tau=0.02";
    a.metrics = "density_elem";
    assert_ok(figure_draw(figure_find("layerhead", &e), &a, &e), &e);
    read_file("d.dat", &text);
    assert_has("0 0 0.25 \"0.25\"");
    a.against = "sale:tau=7";
    assert_fails(figure_draw(figure_find("layerhead", &e), &a, &e), &e, ERR_INPUT, "tau=7");
}

TEST(no_record_left_is_an_error)
{
    study();
    struct figure_args a = args_for("e.png");
    a.method = "nobody";
    assert_fails(figure_draw(figure_find("bars", &e), &a, &e), &e, ERR_INPUT, "is left to draw");
    a.method = "radial"; /* skipped cells are no data */
    assert_fails(figure_draw(figure_find("pareto", &e), &a, &e), &e, ERR_INPUT, "is left to draw");
    ck_assert_ptr_null(figure_find("heatmaps", &e));
    ck_assert_ptr_nonnull(strstr(e.msg, "did you mean 'heatmap'"));
}

/* A trace of 3 layers x 2 heads, 40 tokens, maps of 8-token cells. */
static void small_trace(int64_t pool)
{
    struct trace_meta m = fixture_text(DT_F32, 2, 2, 40);
    m.pool = pool;
    assert_ok(fixture_write(in_dir("t.h5"), &m, 3, &e), &e);
    assert_ok(trace_open(in_dir("t.h5"), &t, &e), &e);
}

TEST(a_heatmap_holds_the_cells_of_the_trace_row_0_first)
{
    small_trace(8);
    OWN(buf_free) struct buf bin = {0};
    float map[25], first, corner;
    int w, h;
    struct figure_args a = args_for("h.png");
    a.layers = "1";
    a.heads = "1";
    a.low = 1;
    a.high = 2000;
    a.map = MAP_STORED;
    assert_ok(figure_draw(figure_find("heatmap", &e), &a, &e), &e);
    png_size("h.png", &w, &h);
    read_file("h.bin", &bin);
    ck_assert_int_eq(bin.len, 25 * sizeof(float));
    assert_ok(trace_read_map(t, 1, 1, NULL, map, &e), &e);
    memcpy(&first, bin.data + 5 * sizeof first, sizeof first);
    memcpy(&corner, bin.data + 4 * sizeof corner, sizeof corner);
    ck_assert_float_eq(first, map[5]);
    ck_assert(isnan(corner)); /* keys after the query */
    read_file("h.gp", &text);
    assert_has("set yrange [40:0]");
    assert_has("set format cb '10^{%T}'");
    assert_has("set logscale cb");
}

/* Against a plain softmax over all keys of the head. */
TEST(computed_maps_are_maxima_of_the_softmax)
{
    enum { N = 40, D = 8 };
    small_trace(0);
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

TEST(parts_of_maps_have_their_tokens_on_the_axes)
{
    small_trace(8);
    struct figure_args a = args_for("z.png");
    a.layers = "1";
    a.heads = "1";
    a.rows = "10-29";
    a.keys = "4-15";
    assert_ok(figure_draw(figure_find("heatmap", &e), &a, &e), &e);
    read_file("z.gp", &text);
    assert_has("set xrange [4:16]");
    assert_has("set yrange [30:10]");
    a.rows = "10-40";
    assert_fails(figure_draw(figure_find("heatmap", &e), &a, &e), &e, ERR_USAGE, "within 0-39");
    a.rows = "10-29";
    a.map = MAP_STORED;
    assert_fails(figure_draw(figure_find("heatmap", &e), &a, &e), &e, ERR_USAGE, "computed");
}

TEST(grids_have_heads_of_rows_and_columns)
{
    small_trace(8);
    struct figure_args a = args_for("g.png");
    assert_ok(figure_draw(figure_find("heatmap", &e), &a, &e), &e);
    read_file("g.gp", &text);
    assert_has("'layer 1'");
    assert_has("'head 0'");
}

TEST(maps_that_are_not_there_are_explained)
{
    small_trace(0);
    struct figure_args a = args_for("h.png");
    a.map = MAP_STORED;
    assert_fails(figure_draw(figure_find("heatmap", &e), &a, &e), &e, ERR_INPUT, "--maps");
    a.steps = "7";
    assert_fails(figure_draw(figure_find("heatmap", &e), &a, &e), &e, ERR_INPUT,
                 "0/main/0 0/main/1");
}

TEST(token_orders_walk_through_the_grid)
{
    struct trace_meta m = fixture_video(DT_F32); /* 2 frames of 3 x 4 tokens, a cell apart */
    int w, h;
    assert_ok(fixture_write(in_dir("v.h5"), &m, 1, &e), &e);
    assert_ok(trace_open(in_dir("v.h5"), &t, &e), &e);
    struct figure_args a = args_for("o.png");
    assert_ok(figure_draw(figure_find("order", &e), &a, &e), &e);
    png_size("o.png", &w, &h);
    ck_assert(w > 100 && h > 100);
    read_file("o.dat", &text);
    static const char *const begin_with[] = {
        "# row: column, row, block of 4 tokens, way to the next token\n"
        "0 0 0 1 0\n1 0 0 1 0\n2 0 0 1 0\n3 0 0 -3 1\n0 1 1 1 0\n",
        "# column: column, row, block of 4 tokens, way to the next token\n"
        "0 0 0 0 1\n0 1 0 0 1\n0 2 0 1 -2\n1 0 0 0 1\n1 1 1 ",
        "# time: column, row, block of 4 tokens, way to the next token\n"
        "0 0 0 5 0\n5 0 0 -4 0\n1 0 0 5 0\n6 0 0 -4 0\n2 0 1 "};
    for (int i = 0; i < 3; i++)
        ck_assert_ptr_nonnull(strstr(buf_str(&text), begin_with[i]));
}

TEST(text_has_no_token_orders)
{
    small_trace(0);
    struct figure_args a = args_for("o.png");
    assert_fails(figure_draw(figure_find("order", &e), &a, &e), &e, ERR_INPUT, "grid of a video");
}

/* Masks of one layer and head for two parameter settings. */
static struct maskfile *small_masks(const char *trace_id)
{
    struct maskfile *file = NULL;
    struct record r;
    struct mask m = {0};
    assert_ok(maskfile_create(in_dir("m.h5"), true, &file, &e), &e);
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
    assert_ok(maskfile_open(in_dir("m.h5"), &file, &e), &e);
    return file;
}

TEST(an_overlay_veils_what_the_mask_drops)
{
    small_trace(8);
    OWN(maskfile_close) struct maskfile *m = small_masks(trace_id(t));
    OWN(buf_free) struct buf veil = {0};
    struct figure_args a = args_for("o.png");
    a.masks = m;
    a.layers = "1";
    a.heads = "1";
    a.map = MAP_STORED;
    /* Two settings are two panels, each under its own head. */
    assert_ok(figure_draw(figure_find("overlay", &e), &a, &e), &e);
    read_file("o.gp", &text);
    assert_has("window=16");
    assert_has("defaults");
    a.params = "window=99";
    assert_fails(figure_draw(figure_find("overlay", &e), &a, &e), &e, ERR_INPUT, "no dumped mask");
    a.params = "defaults";
    assert_ok(figure_draw(figure_find("overlay", &e), &a, &e), &e);
    read_file("o.veil.bin", &veil);
    ck_assert_int_eq(veil.len, 25 * 4);
    for (int r = 0; r < 5; r++)
        for (int k = 0; k < 5; k++) {
            unsigned char alpha = (unsigned char)veil.data[(r * 5 + k) * 4 + 3];
            ck_assert_msg((alpha > 0) == (k < r), "row %d column %d: %d", r, k, alpha);
        }
    a.heads = "0";
    assert_fails(figure_draw(figure_find("overlay", &e), &a, &e), &e, ERR_INPUT, "no dumped mask");
}

TEST(masks_of_another_trace_are_refused)
{
    small_trace(8);
    OWN(maskfile_close) struct maskfile *m = small_masks("xxh3:00000000000000000000000000000000");
    struct figure_args a = args_for("o.png");
    a.masks = m;
    a.layers = "1";
    a.heads = "1";
    a.params = "defaults";
    assert_fails(figure_draw(figure_find("overlay", &e), &a, &e), &e, ERR_INPUT, "belong to trace");
    a.layers = a.heads = a.params = NULL;
    assert_ok(figure_draw(figure_find("mask", &e), &a, &e), &e); /* the mask alone needs no trace */
}
