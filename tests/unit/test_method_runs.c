/* "name:key=v1,v2": finding methods, sweeps, ranges, canonical parameters, calibration files. */
#include "tests/harness/suite.h"

#include "core/buf.h"
#include "core/fileio.h"
#include "core/hash.h"
#include "core/method_run.h"
#include "tests/harness/testmethods.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct params {
    int64_t window, half;
    double tau;
    int kind;
    bool sink;
    struct share budget;
    char *segments, *file;
};

static const char *const kinds[] = {"mean", "max", NULL};

static const struct opt params_table[] = {
    OPT_INT(struct params, window, "64", 1, 1 << 20, "tokens", "Window."),
    OPT_NUM(struct params, tau, "0.9", 0, 1, "", "Threshold."),
    OPT_ENUM(struct params, kind, "mean", kinds, "Pooling."),
    OPT_BOOL(struct params, sink, "0", "Keep the sink."),
    OPT_SHARE(struct params, budget, "8%", 0, 1e6, "", "Budget."),
    OPT_STR(struct params, segments, "2048", NULL, "Lengths."),
    OPT_STR(struct params, file, NULL, NULL, "Table.", .flags = OPT_OUTSIDE, .unit = "file"),
    {0},
};

/* Also derives a field, as methods may. */
static int validate(void *p, struct err *err)
{
    struct params *x = p;
    if (x->window > 1000 && x->kind == 1)
        return err_set(err, ERR_USAGE, "kind max needs a window up to 1000");
    x->half = x->window / 2;
    return 0;
}

static int find_nothing(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                        int n, struct jw *w, struct err *err)
{
    return 0;
}

/* clang-format off */
static const struct method plain = {
    .name = "plain", .alias = "simple", .flags = METHOD_CAUSAL,
    .params = {.table = params_table, .size = sizeof(struct params), .validate = validate}};
static const struct method tuned = {
    .name = "tuned", .flags = METHOD_CAUSAL, .search = {.calibrate = find_nothing},
    .params = {.table = params_table, .size = sizeof(struct params), .validate = validate}};
/* clang-format on */
static const struct param_scope max_scopes[] = {{"sink window", "kind=max"}, {0}};
static const struct method scoped = {
    .name = "scoped",
    .flags = METHOD_CAUSAL,
    .params = {.table = params_table, .size = sizeof(struct params), .scopes = max_scopes}};
static const struct method *const methods[] = {&plain, &tuned, &scoped, NULL};

static struct err e;
static struct method_run *runs;
static int64_t n;

static void begin(void)
{
    memset(&e, 0, sizeof e);
    runs = NULL;
    n = 0;
}

static void end(void)
{
    method_runs_free(runs, n);
}
FIXTURE(begin, end)

static int parse(const char *text)
{
    return method_runs_parse(methods, text, &runs, &n, &e);
}

static const struct params *of(int64_t i)
{
    return runs[i].params;
}

TEST(methods_are_found_by_name_and_alias)
{
    ck_assert_ptr_eq(method_find(methods, "plain", &e), &plain);
    ck_assert_ptr_eq(method_find(methods, "simple", &e), &plain);
    ck_assert_ptr_null(method_find(methods, "tunde", &e));
    ck_assert_int_eq(e.code, ERR_USAGE);
    ck_assert_ptr_nonnull(strstr(e.msg, "unknown method 'tunde'; did you mean 'tuned'?"));
}

TEST(a_bare_name_is_all_defaults)
{
    assert_ok(parse("simple"), &e);
    ck_assert_int_eq(n, 1);
    ck_assert_str_eq(runs[0].canonical, "");
    ck_assert(of(0)->window == 64 && of(0)->half == 32 && of(0)->tau == 0.9);
}

TEST(sweeps_are_the_product_with_the_first_key_slowest)
{
    assert_ok(parse("plain:kind=max,mean:window=16,32,48"), &e);
    static const char *const want[] = {"window=16:kind=max", "window=32:kind=max",
                                       "window=48:kind=max", "window=16",
                                       "window=32",          "window=48"};
    ck_assert_int_eq(n, 6);
    for (int i = 0; i < 6; i++)
        ck_assert_str_eq(runs[i].canonical, want[i]);
}

TEST(repetitions_are_kept_once_across_texts)
{
    char a[] = "plain:window=16", b[] = "plain:window=64", c[] = "simple", d[] = "tuned:window=16";
    char *const texts[] = {a, b, c, d, a};
    assert_ok(method_runs_parse_all(methods, texts, 5, &runs, &n, &e), &e);
    ck_assert_int_eq(n, 3);
    assert_ok(method_runs_parse_all(methods, texts, 2, &runs, &n, &e), &e);
    ck_assert_int_eq(n, 3);
    ck_assert_ptr_eq(runs[2].method, &tuned);
    assert_ok(parse("plain:window=16,17"), &e);
    ck_assert_int_eq(n, 4);
}

TEST(logarithmic_ranges_have_exact_ends)
{
    assert_ok(parse("plain:tau=0.01..0.5/log8"), &e);
    ck_assert_int_eq(n, 8);
    ck_assert(of(0)->tau == 0.01 && of(7)->tau == 0.5);
    for (int i = 0; i < 8; i++)
        ck_assert_double_eq_tol(of(i)->tau, 0.01 * pow(50, i / 7.0), 1e-12);
}

TEST(linear_ranges_and_lists_mix)
{
    assert_ok(parse("plain:window=7,16..64/lin4"), &e);
    static const int64_t want[] = {7, 16, 32, 48, 64};
    ck_assert_int_eq(n, 5);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(of(i)->window, want[i]);
}

/* Finding repetitions among many runs must not take the square of their number. */
TEST(large_sweeps_are_expanded_and_repetitions_of_all_texts_are_dropped)
{
    assert_ok(parse("plain:window=1..10000/lin10000:tau=0,0.25,0.5,0.75,1"), &e);
    ck_assert_int_eq(n, 50000);
    assert_ok(parse("tuned:window=1..10000/lin10000:tau=0,0.25,0.5,0.75,1"), &e);
    ck_assert_int_eq(n, 100000);
    assert_ok(parse("plain:tau=0.5:window=9999,10000,10001"), &e);
    ck_assert_int_eq(n, 100001);
    ck_assert_str_eq(runs[100000].canonical, "window=10001:tau=0.5");
}

TEST(ranges_fall_and_round_and_carry_percent)
{
    assert_ok(parse("plain:window=1..4/log9"), &e);
    ck_assert_int_eq(n, 4); /* 1, 2, 3, 4 after rounding and dropping repeats */
    assert_ok(parse("plain:budget=40%..10%/lin4"), &e);
    ck_assert_int_eq(n, 8);
    ck_assert_str_eq(runs[4].canonical, "budget=40%");
    ck_assert_str_eq(runs[5].canonical, "budget=30%");
    ck_assert_str_eq(runs[7].canonical, "budget=10%");
    assert_ok(parse("plain:tau=0.1..0.3/lin3"), &e);
    ck_assert_str_eq(runs[9].canonical, "tau=0.2");
}

TEST(equal_runs_are_kept_once)
{
    assert_ok(parse("plain:tau=0.5,0.50,5e-1"), &e);
    assert_ok(parse("simple:tau=0.5"), &e);
    assert_ok(parse("plain:tau=0.9"), &e);
    assert_ok(parse("tuned:tau=0.5"), &e);
    ck_assert_int_eq(n, 3);
    assert_ok(parse("plain:tau=0,-0,0..0/lin1:budget=0%,-0%"), &e);
    ck_assert_int_eq(n, 4);
}

TEST(canonical_text_parses_to_itself)
{
    assert_ok(parse("plain:segments=1024+4096:sink:budget=12:tau=1e-3:kind=max"), &e);
    ck_assert_str_eq(runs[0].canonical, "tau=0.001:kind=max:sink=1:budget=12:segments=1024+4096");
    char again[256];
    snprintf(again, sizeof again, "tuned:%s", runs[0].canonical);
    assert_ok(parse(again), &e);
    ck_assert_int_eq(n, 2);
    ck_assert_str_eq(runs[1].canonical, runs[0].canonical);
}

static const struct {
    const char *text, *message;
} bad[] = {
    {"", "unknown method ''"},
    {"plian", "did you mean 'plain'"},
    {"plain:tua=1", "did you mean 'tau'"},
    {"plain:tau", "tau=VALUE"},
    {"plain:tau=2", "in [0, 1]"},
    {"plain:tau=", "''"},
    {"plain:tau=0.1,", "''"},
    {"plain:tau=0.1:tau=0.2", "twice"},
    {"plain:tau=0.1..0.2", "/lin"},
    {"plain:tau=0.1..0.2/5", "/lin"},
    {"plain:tau=0.1..0.2/lin", "/lin"},
    {"plain:tau=0.1..0.2/lin1", "2..10000"},
    {"plain:tau=0.1..0.2/lin0", "2..10000"},
    {"plain:tau=0.1..0.2/lin99999", "2..10000"},
    {"plain:tau=0..0.2/log3", "positive"},
    {"plain:tau=0.1..2/lin3", "in [0, 1]"},
    {"plain:tau=0x1", "'0x1' is not valid"},
    {"plain:tau=0x0..0x1/lin3", "not a range"},
    {"plain:budget=0x8%", "'0x8%' is not valid"},
    {"plain:budget=1%..9/lin3", "range"},
    {"plain:window=2000:kind=max", "method plain: kind max needs"},
    {"plain:calib=x", "no per-head parameters"},
    {"tuned:calib=", "calib=FILE"},
    {"tuned:calib=no/such", "no/such"},
    {"plain:window=1..5000/lin5000:tau=0..1/lin5000", "more than"},
};

TEST_EACH(bad_texts_are_refused_and_keep_earlier_runs, bad)
{
    assert_ok(parse("plain"), &e);
    assert_fails(parse(bad[_i].text), &e, strstr(bad[_i].text, "no/such") ? ERR_INPUT : ERR_USAGE,
                 bad[_i].message);
    ck_assert_int_ge(n, 1);
    ck_assert_str_eq(runs[0].canonical, "");
}

/* ---- text from a file ------------------------------------------------------------------------ */

static const struct {
    const char *text, *message;
} no_data[] = {
    {"exec:cmd=true", "method exec: cmd names a command, which text from a file may not: do that"},
    {"mask:file=no/such", "method mask: file names a file"},
    {"minference:pattern=table:table=no/such", "table names a file"},
    {"plan:file=no/such", "method plan: file names a file"},
    {"sale:calib=no/such", "method sale: calib names a file"},
    {"streaming:window=16,64", "is a sweep"},
    {"streaming:window=16..64/lin3", "is a sweep"},
    {"streaming@density_elem=0.3", "is a target"},
    {"streaming:windw=3", "did you mean 'window'"},
    {"streaming:window=x", "window: 'x' is not valid"},
};

TEST_EACH(data_names_no_file_and_no_command, no_data)
{
    assert_fails(method_setting_parse(test_methods, no_data[_i].text, ": do that", &runs, &e), &e,
                 ERR_USAGE, no_data[_i].message);
    ck_assert_ptr_null(runs);
}

TEST(data_is_a_setting)
{
    assert_ok(method_setting_parse(test_methods, "streaming:window=64", ": do that", &runs, &e),
              &e);
    n = 1;
    ck_assert_str_eq(runs[0].canonical, "window=64");
    end();
    assert_ok(method_setting_parse(test_methods, "exec:cmd=true", NULL, &runs, &e), &e);
    ck_assert_str_eq(runs[0].canonical, "cmd=true");
}

/* What a method opens is a parameter that data may not set; dsa's session is memory alone. */
TEST(parameters_that_lead_outside_are_marked)
{
    for (const struct method *const *m = test_methods; *m; m++) {
        bool marked = false;
        for (const struct opt *o = (*m)->params.table; o->type != OPT_END; o++) {
            bool names = o->unit && (!strcmp(o->unit, "file") || !strcmp(o->unit, "command"));
            ck_assert_msg(names == !!(o->flags & OPT_OUTSIDE), "%s: %s", (*m)->name, o->name);
            marked |= names;
        }
        bool opens = (*m)->session.open && strcmp((*m)->name, "dsa") != 0;
        ck_assert_msg(marked || (!(*m)->params.identify && !opens), "%s", (*m)->name);
    }
}

/* ---- calibration ----------------------------------------------------------------------------- */

static char calib_path[512], calib_text[600];

static void write_calib(const char *text)
{
    snprintf(calib_path, sizeof calib_path, "%s/calib,1.json", test_tmpdir());
    assert_ok(file_write_atomic(calib_path, text, strlen(text), &e), &e);
    snprintf(calib_text, sizeof calib_text, "tuned:tau=0.3:calib=%s", calib_path);
}

static const char calib_good[] =
    "{\"method\":\"tuned\",\"note\":\"x\",\"heads\":["
    "{\"layer\":0,\"head\":3,\"tau\":0.25,\"window\":128,\"kind\":\"max\"},"
    "{\"layer\":2,\"head\":0,\"budget\":\"5%\",\"sink\":true}]}";

TEST(calibration_overrides_single_heads)
{
    void *p = NULL;
    write_calib(calib_good);
    assert_ok(parse(calib_text), &e);
    ck_assert_int_eq(n, 1);
    assert_ok(method_params_for_head(&runs[0], 0, 3, 1000, &p, &e), &e);
    struct params *x = p;
    ck_assert(x->tau == 0.3 && x->window == 128 && x->half == 64 && x->kind == 1 && !x->sink);
    opt_free(params_table, p);
    free(p);
    assert_ok(method_params_for_head(&runs[0], 2, 0, 1000, &p, &e), &e);
    x = p;
    ck_assert(x->tau == 0.3 && x->window == 64 && x->sink && x->budget.value == 0.05);
    opt_free(params_table, p);
    free(p);
    assert_ok(method_params_for_head(&runs[0], 1, 1, 1000, &p, &e), &e);
    x = p;
    ck_assert(x->tau == 0.3 && !x->sink && x->budget.value == 0.08);
    opt_free(params_table, p);
    free(p);
}

/* Parse tuned:GIVEN:calib=FILE; the text after the file's hash, which must be in between. */
static const char *beside(const char *given, const char *settings)
{
    static char text[600];
    snprintf(text, sizeof text, "tuned:%s%scalib=%s", given, given[0] ? ":" : "", calib_path);
    assert_ok(parse(text), &e);
    const char *canonical = runs[n - 1].canonical, *calib = strstr(canonical, "calib=");
    ck_assert_ptr_nonnull(calib);
    ck_assert_int_eq(calib - canonical, strlen(settings));
    ck_assert_int_eq(strncmp(canonical, settings, strlen(settings)), 0);
    return calib + strlen("calib=") + 32;
}

static struct params head_of(int64_t run, int layer, int head)
{
    void *p = NULL;
    assert_ok(method_params_for_head(&runs[run], layer, head, 1000, &p, &e), &e);
    struct params copy = *(struct params *)p;
    opt_free(params_table, p);
    free(p);
    copy.segments = NULL;
    return copy;
}

/* Also where it is the parameter's default: that it was given counts, not what it is. */
TEST(what_is_given_beside_a_calibration_wins)
{
    write_calib(calib_good);
    ck_assert_str_eq(beside("", ""), "");
    ck_assert_str_eq(beside("tau=0.9", ""), ":tau=0.9");
    ck_assert_str_eq(beside("kind=mean:tau=0.5:window=64", ""), ":window=64:tau=0.5:kind=mean");
    ck_assert_int_eq(n, 3);
    ck_assert_double_eq(head_of(0, 0, 3).tau, 0.25);
    ck_assert_double_eq(head_of(1, 0, 3).tau, 0.9);
    ck_assert_int_eq(head_of(1, 0, 3).window, 128); /* not given */
    struct params x = head_of(2, 0, 3);
    ck_assert(x.tau == 0.5 && x.kind == 0 && x.window == 64 && x.half == 32);
    ck_assert(head_of(2, 2, 0).sink);
}

/* What a calibration was made with holds for its replay, and loses against what is given. */
TEST(settings_of_a_calibration_stand_in_for_defaults)
{
    write_calib("{\"method\":\"tuned\",\"params\":{\"window\":256,\"tau\":0.4,\"budget\":\"5%\","
                "\"segments\":\"a:b\"},\"heads\":[{\"layer\":0,\"head\":0,\"tau\":0.2}]}");
    const char *all = "window=256:budget=5%:segments=a-b:";
    ck_assert_str_eq(beside("", all), "");
    ck_assert_int_eq(head_of(0, 0, 0).window, 256);
    ck_assert_double_eq(head_of(0, 0, 0).tau, 0.2);
    ck_assert_double_eq(head_of(0, 0, 1).tau, 0.4); /* not in the file */
    ck_assert_str_eq(beside("window=256", all), "");
    ck_assert_int_eq(n, 1); /* it says what the file says */
    ck_assert_str_eq(beside("window=64", "budget=5%:segments=a-b:"), ":window=64");
    ck_assert_int_eq(head_of(1, 0, 0).window, 64);
}

TEST(a_parameter_outside_of_its_scope_is_refused)
{
    assert_ok(parse("scoped:kind=max:window=5:sink=1"), &e);
    assert_ok(parse("scoped:tau=0.5:window=64"), &e); /* the default says nothing */
    assert_fails(parse("scoped:window=5"), &e, ERR_USAGE,
                 "method scoped: window=5 counts with kind=max only, not with kind=mean");
    memset(&e, 0, sizeof e);
    assert_fails(parse("scoped:kind=mean,max:sink=1"), &e, ERR_USAGE, "sink=1");
}

/* A misspelt one would refuse nothing, or everything. */
TEST(scopes_name_parameters_and_values_that_exist)
{
    int64_t seen = 0;
    for (const struct method *const *m = test_methods; *m; m++)
        for (const struct param_scope *s = (*m)->params.scopes; s && s->params; s++, seen++) {
            char text[256], *word, *save = NULL;
            snprintf(text, sizeof text, "%s", s->params);
            for (word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
                ck_assert_msg(opt_find((*m)->params.table, word) != NULL, "%s: %s", (*m)->name,
                              word);
            snprintf(text, sizeof text, "%s", s->only);
            const struct opt *key = opt_find((*m)->params.table, strtok_r(text, "=", &save));
            ck_assert(key && key->type == OPT_ENUM);
            while ((word = strtok_r(NULL, "|", &save))) {
                int k = 0;
                while (key->values[k] && strcmp(key->values[k], word) != 0)
                    k++;
                ck_assert_msg(key->values[k] != NULL, "%s: %s", (*m)->name, word);
            }
        }
    ck_assert_int_gt(seen, 10);
}

TEST(a_calibration_holds_for_its_model_and_order)
{
    write_calib(calib_good);
    assert_ok(parse(calib_text), &e);
    assert_ok(method_calib_fits(&runs[0], "any", "time", &e), &e); /* the file does not say */
    ck_assert(!method_calib_lacks(&runs[0], 0, 3, 1000));
    ck_assert(method_calib_lacks(&runs[0], 0, 2, 1000));
    write_calib("{\"method\":\"tuned\",\"model\":\"toy\",\"permute\":\"none\",\"heads\":[]}");
    assert_ok(parse(calib_text), &e);
    assert_ok(method_calib_fits(&runs[1], "toy", "none", &e), &e);
    assert_fails(method_calib_fits(&runs[1], "toy-2", "none", &e), &e, ERR_INPUT,
                 "with model toy and");
    memset(&e, 0, sizeof e);
    assert_fails(method_calib_fits(&runs[1], "toy", "time", &e), &e, ERR_INPUT,
                 "with token order none and");
    memset(&e, 0, sizeof e);
    assert_ok(parse("tuned:tau=0.5"), &e);
    assert_ok(method_calib_fits(&runs[2], "any", "time", &e), &e);
    ck_assert(!method_calib_lacks(&runs[2], 0, 0, 1000));
}

TEST(canonical_form_has_the_hash_of_the_contents)
{
    char want[96], id[HASH_TEXT_MAX];
    write_calib(calib_good);
    assert_ok(parse(calib_text), &e);
    hash_text(hash_bytes(calib_good, strlen(calib_good)), id);
    snprintf(want, sizeof want, "calib=%s:tau=0.3", id + 5);
    ck_assert_str_eq(runs[0].canonical, want);
    write_calib("{\"method\":\"tuned\",\"heads\":[]}");
    assert_ok(parse(calib_text), &e);
    ck_assert_int_eq(n, 2);
    ck_assert_str_ne(runs[1].canonical, want);
}

static const struct {
    const char *text, *message;
} bad_calib[] = {
    {"{\"method\":\"plain\",\"heads\":[]}", "calibrates method plain"},
    {"{\"heads\":[]}", "\"method\" is missing"},
    {"{\"method\":\"tuned\"}", "\"heads\""},
    {"{\"method\":\"tuned\",\"heads\":{}}", "an array"},
    {"{\"method\":\"tuned\",\"heads\":[{\"layer\":0}]}", "\"head\" is missing"},
    {"{\"method\":\"tuned\",\"heads\":[3]}", "heads[0]"},
    {"{\"method\":\"tuned\",\"heads\":[{\"layer\":-1,\"head\":0}]}", "not a head"},
    {"{\"method\":\"tuned\",\"heads\":[{\"layer\":0,\"head\":0,\"tua\":1}]}", "did you mean 'tau'"},
    {"{\"method\":\"tuned\",\"heads\":[{\"layer\":0,\"head\":0,\"tau\":7}]}", "layer 0 head 0"},
    {"{\"method\":\"tuned\",\"heads\":[{\"layer\":0,\"head\":0,\"tau\":[1]}]}", "\"tau\""},
    {"{\"method\":\"tuned\",\"heads\":[{\"layer\":1,\"head\":0},{\"layer\":1,\"head\":0}]}",
     "twice"},
    {"[]", "\"method\""},
    {"{\"method\":\"tuned\",\"params\":7,\"heads\":[]}", "params: an object"},
    {"{\"method\":\"tuned\",\"params\":{\"tua\":1},\"heads\":[]}", "did you mean 'tau'"},
    {"{\"method\":\"tuned\",\"params\":{\"tau\":null},\"heads\":[]}", "\"tau\""},
    {"{\"method\":\"tuned\",\"params\":{\"window\":2000,\"kind\":\"max\"},\"heads\":[]}",
     "params: kind max needs"},
    {"{\"method\":\"tuned\",\"params\":{\"file\":\"x\"},\"heads\":[]}",
     "params: \"file\" names a file, which a calibration may not: take it out"},
    {"{\"method\":\"tuned\",\"heads\":[{\"layer\":0,\"head\":0,\"file\":\"x\"}]}",
     "layer 0 head 0: \"file\" names a file"},
};

TEST_EACH(bad_calibration_files_are_bad_input, bad_calib)
{
    write_calib(bad_calib[_i].text);
    assert_fails(parse(calib_text), &e, ERR_INPUT, bad_calib[_i].message);
    ck_assert_int_eq(n, 0);
}

TEST(a_head_has_at_most_64_lengths)
{
    for (int k = 64; k <= 65; k++) {
        OWN(buf_free) struct buf b = {0};
        buf_puts(&b, "{\"method\":\"tuned\",\"heads\":[");
        for (int i = 0; i < k; i++)
            buf_printf(&b, "%s{\"layer\":0,\"head\":0,\"tokens\":[%d,%d]}", i ? "," : "", i, i + 1);
        buf_puts(&b, "]}");
        write_calib(buf_str(&b));
        if (k == 64)
            assert_ok(parse(calib_text), &e);
        else
            assert_fails(parse(calib_text), &e, ERR_INPUT, "occurs more than 64 times");
    }
}

TEST(a_head_that_calibration_makes_invalid_is_named)
{
    write_calib("{\"method\":\"tuned\",\"heads\":[{\"layer\":4,\"head\":2,\"window\":2000,"
                "\"kind\":\"max\"}]}");
    assert_fails(parse(calib_text), &e, ERR_INPUT, "layer 4 head 2: kind max needs");
}

TEST(skip_is_an_answer_with_a_reason)
{
    struct method_ctx ctx = {0};
    ck_assert_int_eq(method_skip(&ctx, "needs %d tokens", 64), METHOD_SKIP);
    ck_assert_str_eq(ctx.skip, "needs 64 tokens");
}
