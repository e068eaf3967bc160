/* compare finds every difference and only those; the report holds everything it shows. */
#include "tests/harness/suite.h"

#include "analyze/compare.h"
#include "report/report.h"
#include "core/fileio.h"
#include "core/log.h"
#include "core/manifest.h"
#include "core/metricdef.h"
#include "plots/gp.h"
#include "sim/registry.h"
#include "tests/harness/records_fixture.h"
#include "tests/harness/trace_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err e;
static struct recset a, b;
static struct table t;
static struct compare_result res;
static char dir[256];
static struct report r;
static struct buf page;

static void begin(void)
{
    static int number;
    memset(&e, 0, sizeof e);
    log_set_level(LOG_ERROR);
    metric_def_methods(sim_methods);
    snprintf(dir, sizeof dir, "%s/report-%d-%d", test_tmpdir(), (int)getpid(), number++);
    assert_ok(make_dirs(dir, &e), &e);
}

static void end(void)
{
    table_free(&t);
    recset_free(&a);
    recset_free(&b);
    report_free(&r);
    buf_free(&page);
}
FIXTURE(begin, end)

/* ---- compare ------------------------------------------------------------------------------- */

static const struct compared {
    const char *name, *a, *b;
    double rtol;
    const char *ignore, *metrics;
    struct {
        int64_t only_a, only_b, status, reason, values;
    } want;
} compared[] = {
    {"missing cells, statuses and reasons", /* one cell less, one more */
     "dense layer=0..1 x=1; sale x=1; radial status=skip reason=one",
     "dense x=1; dense layer=9 x=1; sale status=error x=1; radial status=skip reason=another", 1e-9,
     .want = {1, 1, 1, 1, 0}},
    {"times are not compared", "dense host_attend_ns=4e6",
     "dense host_attend_ns=5e6 time_total_ns_q1=1 speedup=2 copies=8 tensor_pipe_pct=66 "
     "dram_read_bytes=1e6",
     1e-9, .want = {0}},
    {"unless they are asked for", "dense host_attend_ns=4e6", "dense host_attend_ns=5e6 copies=8",
     1e-9, .metrics = "host_*", .want = {.values = 1}},
    {"a metric of one side and infinity differ, not a number does not",
     "dense extra=1; dense head=1 err_l1_rel=nan; dense layer=1 err_l1_rel=inf",
     "dense; dense head=1 err_l1_rel=nan; dense layer=1 err_l1_rel=0", 1e9, .want = {.values = 2}},
    {"back ends are other cells", "sale head=0..3 x=1", "sale head=0..3 backend=cuda x=1", 1e-9,
     .want = {4, 4, 0, 0, 0}},
    {"unless they are ignored", "sale head=0..3 x=1", "sale head=0..3 backend=cuda x=1", 1e-9,
     .ignore = "backend,precision", .want = {0}},
};

static int compare(const char *of_a, const char *of_b, const struct compare_opts *o)
{
    struct fixture_records f = {0};
    fixture_add(&f, of_a);
    fixture_set(&f, &a);
    fixture_add(&f, of_b);
    fixture_set(&f, &b);
    return compare_sets(&a, &b, o, &res, &t, &e);
}

TEST_EACH(sets_differ_in, compared)
{
    const struct compared *c = &compared[_i];
    struct compare_opts o = {c->rtol, 1e-12, c->ignore, c->metrics, 0};
    assert_ok(compare(c->a, c->b, &o), &e);
    ck_assert_msg(res.only_a == c->want.only_a && res.only_b == c->want.only_b &&
                      res.status == c->want.status && res.reason == c->want.reason &&
                      res.values == c->want.values,
                  "%s: %d only in A, %d only in B, %d statuses, %d reasons, %d values", c->name,
                  (int)res.only_a, (int)res.only_b, (int)res.status, (int)res.reason,
                  (int)res.values);
    ck_assert_int_eq(compare_differences(&res), c->want.only_a + c->want.only_b + c->want.status +
                                                    c->want.reason + c->want.values);
}

TEST(a_key_that_tells_cells_apart_is_not_ignored)
{
    struct compare_opts o = {1e-9, 0, "params", NULL, 0};
    assert_fails(compare("sale x=1; sale:tau=1 x=1", "sale x=1", &o), &e, ERR_USAGE, "same cell");
}

/* ---- report -------------------------------------------------------------------------------- */

TEST(base64_of_the_rfc)
{
    static const char *const cases[][2] = {{"", ""},
                                           {"f", "Zg=="},
                                           {"fo", "Zm8="},
                                           {"foo", "Zm9v"},
                                           {"foob", "Zm9vYg=="},
                                           {"fooba", "Zm9vYmE="},
                                           {"foobar", "Zm9vYmFy"}};
    OWN(buf_free) struct buf out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf_reset(&out);
        base64(cases[i][0], strlen(cases[i][0]), &out);
        ck_assert_str_eq(buf_str(&out), cases[i][1]);
    }
}

TEST(shell_words_read_back)
{
    OWN(buf_free) struct buf out = {0};
    shell_word("out/a-1", &out);
    buf_puts(&out, " ");
    shell_word("it's $(x)", &out);
    buf_puts(&out, " ");
    shell_word("", &out);
    ck_assert_str_eq(buf_str(&out), "out/a-1 'it'\\''s $(x)' ''");
}

TEST(no_text_of_the_data_ends_their_element)
{
    OWN(buf_free) struct buf json = {0}, out = {0};
    buf_puts(&json, "{\"model\":\"</script><!-- & <b>\"}");
    json_in_html(&json, &out);
    ck_assert_str_eq(buf_str(&out), "{\"model\":\"\\u003c/script\\u003e\\u003c!-- \\u0026 "
                                    "\\u003cb\\u003e\"}");
    OWN(json_decrefp) json_t *back = json_loads(buf_str(&out), 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(back, "model")), "</script><!-- & <b>");
}

static void make_report(bool with_figures)
{
    static struct app app = {.methods = sim_methods};
    static char records[300], out[300];
    struct fixture_records f = {0};
    r = (struct report){.app = &app, .title = "A <b> report", .figures = with_figures};
    snprintf(records, sizeof records, "%s/records", dir);
    snprintf(out, sizeof out, "%s/out", dir);
    fixture_study(&f);
    fixture_write_records(&f, records);
    r.dir = out;
    str_list_add(&r.records, records);
    assert_ok(make_dirs(out, &e), &e);
    assert_ok(recset_load(&r.records, &r.set, &e), &e);
}

static void write_page(void)
{
    char path[400], arg0[] = "lacuna", arg1[] = "report", *argv[] = {arg0, arg1, NULL};
    assert_ok(report_build(&r, 2, argv, &e), &e);
    snprintf(path, sizeof path, "%s/index.html", r.dir);
    assert_ok(buf_read_file(&page, path, 64 << 20, &e), &e);
}

static void must_have(const char *text)
{
    ck_assert_msg(strstr(buf_str(&page), text) != NULL, "the page lacks: %s", text);
}

/* Everything the page refers to is in it or lies beside it. */
static void check_references(void)
{
    static const char *const attrs[] = {"href=\"", "src=\""};
    for (int k = 0; k < 2; k++)
        for (const char *p = buf_str(&page); (p = strstr(p, attrs[k]));) {
            char path[700];
            struct stat st;
            p += strlen(attrs[k]);
            if (*p == '#' || strncmp(p, "data:image/png;base64,", 22) == 0)
                continue;
            snprintf(path, sizeof path, "%s/%.*s", r.dir, (int)strcspn(p, "\""), p);
            ck_assert_msg(stat(path, &st) == 0 && st.st_size > 0, "%s", path);
        }
    ck_assert_ptr_null(strstr(buf_str(&page), "src=\"http"));
}

/* Two script elements: data, which do not run, and the one that the policy allows. */
static void check_scripts(void)
{
    const char *data = strstr(buf_str(&page), "<script"), *own = strstr(data + 1, "<script");
    ck_assert_int_eq(strncmp(data, "<script type=\"application/json\" id=\"data\">", 42), 0);
    ck_assert_int_eq(strncmp(own, "<script>\"use strict\";", 21), 0);
    ck_assert_ptr_null(strstr(own + 1, "<script>"));
    must_have("default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
              "script-src 'sha256-");
}

TEST(the_page_has_findings_tables_definitions_reasons_and_manifest)
{
    make_report(false);
    write_page();
    must_have("<title>A &lt;b&gt; report</title>");
    must_have("22 cells: 20 ok, 1 skipped, 1 failed");
    must_have("id=\"table-summary\"");
    must_have("bidirectional only");
    must_have("kept/allowed pairs");
    must_have("<code>cra_min</code>");
    must_have("--table summary</code>");
    must_have("&quot;program&quot;: &quot;lacuna&quot;");
    must_have("keeps the fewest pairs of the settings");
    must_have(", worst ");
    must_have("<code>lacuna analyze ");
    const char *findings = strstr(buf_str(&page), "id=\"findings\"");
    ck_assert(findings && findings < strstr(buf_str(&page), "id=\"tables\""));
    ck_assert_ptr_nonnull(strstr(buf_str(&r.findings), "<li>"));
    check_references();
    check_scripts();
    ck_assert_int_eq(r.n_figures, 0);
}

TEST(figures_are_inside_the_page_with_their_commands)
{
    make_report(true);
    char trace[300];
    struct trace_meta m = fixture_text(DT_F32, 2, 2, 40);
    m.pool = 8;
    snprintf(trace, sizeof trace, "%s/t.h5", dir);
    assert_ok(fixture_write(trace, &m, 3, &e), &e);
    str_list_add(&r.traces, trace);
    str_list_add(&r.masks, "no-such-masks.h5"); /* is left out with a warning */
    write_page();
    ck_assert_int_ge(r.n_figures, 8);
    must_have("src=\"data:image/png;base64,iVBORw0KGgo");
    must_have("lacuna plot pareto ");
    must_have("id=\"figure-heatmap-0\"");
    check_references();
}

TEST(without_gnuplot_the_page_says_so)
{
    make_report(true);
    char *path = strdup(getenv("PATH"));
    setenv("PATH", "", 1);
    write_page();
    setenv("PATH", path, 1);
    free(path);
    ck_assert(r.no_gnuplot);
    ck_assert_int_eq(r.n_figures, 0);
    must_have("Not drawn: <code>lacuna plot pareto");
    must_have("install gnuplot-nox");
}

TEST(inputs_are_found_through_the_manifests)
{
    make_report(false);
    char path[400];
    const char *text = "{\"directory\": \"%s\", \"argv\": [\"lacuna\", \"replay\", \"t.h5\", "
                       "\"--dump-masks\", \"m.h5\"], \"inputs\": [{\"path\": \"t.h5\"}, "
                       "{\"path\": \"gone.h5\"}]}";
    OWN(buf_free) struct buf doc = {0};
    buf_printf(&doc, text, dir);
    snprintf(path, sizeof path, "%s/records/manifest.json", dir);
    assert_ok(file_write_atomic(path, buf_str(&doc), doc.len, &e), &e);
    snprintf(path, sizeof path, "%s/t.h5", dir);
    assert_ok(file_write_atomic(path, "x", 1, &e), &e);
    str_list_add(&r.traces, path); /* named already: not twice */
    snprintf(path, sizeof path, "%s/m.h5", dir);
    assert_ok(file_write_atomic(path, "x", 1, &e), &e);
    assert_ok(report_find_inputs(&r, &e), &e);
    ck_assert_int_eq(r.traces.n, 1);
    ck_assert_int_eq(r.masks.n, 1);
    ck_assert_str_eq(r.masks.items[0], path);
}
