/*
 * Calibration over traces: which samples a head gets, the file that comes out, its application, and
 * the command's refusals.
 */
#include "core/cmd.h"
#include "core/fileio.h"
#include "sim/calibrate.h"
#include "sim/registry.h"
#include "sim/methods/spargeattn/spargeattn.h"
#include "tests/harness/golden.h"
#include "tests/harness/suite.h"
#include "tests/harness/testmethods.h"
#include "tests/harness/trace_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct command cmd_calibrate;

static const int video_steps[] = {0, 3}, video_layers[] = {0, 5};

/* The golden video heads as a trace: 2 layers, 2 heads, steps 0 and 3. */
static void write_video(const char *path, const char *model)
{
    struct trace_meta m = fixture_video(DT_F32);
    struct trace_writer *w;
    snprintf(m.name, sizeof m.name, "%s", model);
    m.layers = 2;
    m.head_dim = m.v_dim = 128;
    m.scale = 1 / sqrt(128);
    m.grid_t = 4;
    m.grid_h = 8;
    m.grid_w = 12;
    m.n_q = m.n_k = 384;
    MUST(trace_create(path, &m, 4, true, &w, ERR));
    for (int i = 0; i < 4; i++) {
        struct trace_call c = {.step = video_steps[i / 2],
                               .layer = i % 2,
                               .branch = "cond",
                               .timestep = 1000 - i / 2,
                               .sigma = 1,
                               .order = i};
        MUST(trace_begin_call(w, &c, ERR));
        for (int h = 0; h < 2; h++) {
            HEAD(g, golden_video, c.step, video_layers[c.layer], h, PREC_F32);
            MUST(trace_put_head(w, TRACE_Q, h, 0, 384, g.q, ERR));
            MUST(trace_put_head(w, TRACE_K, h, 0, 384, g.k, ERR));
            MUST(trace_put_head(w, TRACE_V, h, 0, 384, g.v, ERR));
        }
        MUST(trace_end_call(w, ERR));
    }
    double x[51];
    for (int i = 0; i < 51; i++)
        x[i] = 1 - i / 50.0;
    MUST(trace_put_run(w, TRACE_SIGMAS, 51, x, ERR));
    MUST(trace_put_run(w, TRACE_TIMESTEPS, 50, x, ERR));
    MUST(trace_commit(&w, ERR));
}

/* A calibration of two traces (the same file twice is a legal set of samples). */
struct session {
    struct calibrate c;
    struct trace *traces[2];
    struct method_run *runs;
};

static void session_open(struct session *s, const char *method, int n_traces,
                         const char *const *paths)
{
    memset(s, 0, sizeof *s);
    s->runs = run_of(method);
    for (int i = 0; i < n_traces; i++)
        MUST(trace_open(paths[i], &s->traces[i], ERR));
    s->c.run = s->runs;
    s->c.traces = s->traces;
    s->c.n_traces = n_traces;
    s->c.load = (struct head_load){.precision = PREC_F32, .permute = "none"};
}

static void session_close(struct session *s)
{
    calibrate_free(&s->c);
    trace_close(&s->traces[0]);
    trace_close(&s->traces[1]);
    run_free(&s->runs);
}

static char *written(const struct calibrate *c)
{
    struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 2);
    calibrate_write(c, &w);
    return b.data;
}

TEST(samples_come_by_trace_then_call)
{
    const char *paths[2] = {test_path("a.h5"), test_path("b.h5")};
    OWN(session_close) struct session s;
    struct call_select all = {"all", "all", "all", ""}, some = {"1", "0", "3", "cond"};
    write_video(paths[0], "m");
    write_video(paths[1], "m");
    session_open(&s, "spargeattn", 2, paths);
    MUST(calibrate_plan(&s.c, &all, NULL, ERR));
    ck_assert_int_eq(s.c.n_jobs, 4);
    for (int i = 0; i < 4; i++) {
        const struct calibrate_job *j = &s.c.jobs[i];
        ck_assert_int_eq(j->layer, i / 2);
        ck_assert_int_eq(j->head, i % 2);
        ck_assert_int_eq(j->n, 4);
        for (int k = 0; k < 4; k++) {
            const struct trace_call *c =
                trace_call(s.traces[j->samples[k].trace], j->samples[k].call);
            ck_assert_int_eq(j->samples[k].trace, k / 2);
            ck_assert_int_eq(c->layer, j->layer);
            ck_assert_int_eq(c->step, video_steps[k % 2]);
        }
    }
    struct calibrate_cost cost = calibrate_costs(&s.c);
    ck_assert_int_eq(cost.samples, 4);
    ck_assert_int_eq(cost.bytes, (int64_t)16 * 3 * 384 * 128 * 4);
    calibrate_free(&s.c);
    MUST(calibrate_plan(&s.c, &some, NULL, ERR));
    ck_assert_int_eq(s.c.n_jobs, 1);
    ck_assert_int_eq(s.c.jobs[0].n, 2);
    calibrate_free(&s.c);
    some.branch = "uncond";
    FAILS(calibrate_plan(&s.c, &some, NULL, ERR), ERR_USAGE, "--branch uncond");
}

TEST(models_do_not_mix)
{
    const char *paths[2] = {test_path("a.h5"), test_path("b.h5")};
    OWN(session_close) struct session s;
    struct call_select all = {NULL, NULL, NULL, NULL};
    write_video(paths[0], "one");
    write_video(paths[1], "two");
    session_open(&s, "spargeattn", 2, paths);
    FAILS(calibrate_plan(&s.c, &all, NULL, ERR), ERR_INPUT, "one model at a time");
}

/* The file holds what the method finds on the same heads, whatever the number of threads, and a
 * replay's parameters come from it. */
TEST(file_is_applied_to_its_heads)
{
    const char *path = test_path("a.h5"), *calib = test_path("calib.json");
    struct call_select sel = {"0", "all", "all", ""};
    char *text[2];
    const char *method = "spargeattn:search=grid:l1=0.3:l2=0.35";
    write_video(path, "m");
    for (int k = 0; k < 2; k++) {
        OWN(session_close) struct session s;
        session_open(&s, method, 1, &path);
        MUST(calibrate_plan(&s.c, &sel, NULL, ERR));
        MUST(calibrate_execute(&s.c, NULL, k ? 2 : 1, ERR));
        ck_assert_int_eq(calibrate_skipped(&s.c), 0);
        text[k] = written(&s.c);
    }
    ck_assert_str_eq(text[0], text[1]);
    MUST(file_write_atomic(calib, text[0], strlen(text[0]), ERR));

    json_t *doc = NULL;
    MUST(json_read_file(calib, 1 << 20, &doc, ERR));
    ck_assert_str_eq(json_string_value(json_object_get(doc, "method")), "spargeattn");
    json_t *params = json_object_get(doc, "params"), *traces = json_object_get(doc, "traces");
    ck_assert_double_eq(json_number_value(json_object_get(params, "l1")), 0.3);
    ck_assert_str_eq(json_string_value(json_object_get(json_array_get(traces, 0), "path")), path);
    ck_assert_int_eq(json_array_size(json_object_get(doc, "heads")), 2);

    char run[600];
    snprintf(run, sizeof run, "spargeattn:calib=%s", calib);
    OWN(run_free) struct method_run *one = run_of(run);
    for (int h = 0; h < 3; h++) { /* layer 1 is not in the file */
        json_t *e = json_array_get(json_object_get(doc, "heads"), (size_t)h);
        OWN(free_at) void *raw;
        MUST(method_params_for_head(one, h == 2, h % 2, 1000, &raw, ERR));
        const struct sparge_params *p = raw;
        ck_assert_int_eq(p->sink, e != NULL);
        ck_assert_double_eq(p->tau, e ? json_number_value(json_object_get(e, "tau")) : 0.98);
        if (e) {
            ck_assert_double_eq(p->theta, json_number_value(json_object_get(e, "theta")));
            ck_assert_double_eq(p->pv, json_number_value(json_object_get(e, "pv")));
            ck_assert_int_eq(p->dense, json_is_true(json_object_get(e, "dense")));
        }
        opt_free(one->method->params.table, raw);
    }
    json_decref(doc);
    free(text[0]);
    free(text[1]);
}

/* ---- application ---------------------------------------------------------------------------- */

/* A calibration file of a method, with these "params" and one entry of layer 0, head 0. */
static const char *calib_file(const char *method, const char *params, const char *entry)
{
    const char *path = test_path("by-hand.json");
    OWN(buf_free) struct buf b = {0};
    buf_printf(&b,
               "{\"method\":\"%s\",\"permute\":\"none\",\"params\":%s,\"heads\":[{\"layer\":0,"
               "\"head\":0,%s}]}",
               method, params, entry);
    MUST(file_write_atomic(path, buf_str(&b), b.len, ERR));
    return path;
}

/* METHOD:GIVEN:calib=FILE, its canonical text with '#' for the file's hash, and a parameter of
 * layer 0, head 0 as text. */
static void applied(const char *method, const char *given, const char *file, const char *name,
                    char canonical[200], char value[64], struct err *err)
{
    char text[700];
    struct method_run *runs = NULL;
    int64_t n = 0;
    void *p = NULL;
    struct buf b = {0};
    canonical[0] = value[0] = '\0';
    snprintf(text, sizeof text, "%s:calib=%s%s%s", method, file, given[0] ? ":" : "", given);
    if (method_runs_parse(sim_methods, text, &runs, &n, err) == 0) {
        const char *at = strstr(runs[0].canonical, "calib=") + 6;
        snprintf(canonical, 200, "%.*s#%s", (int)(at - runs[0].canonical), runs[0].canonical,
                 at + 32);
        assert_ok(method_params_for_head(runs, 0, 0, 1000, &p, err), err);
        opt_value_text(opt_find(runs->method->params.table, name), p, &b);
        snprintf(value, 64, "%s", buf_str(&b));
        opt_free(runs->method->params.table, p);
        free(p);
    }
    buf_free(&b);
    method_runs_free(runs, n);
}

static void assert_applied(const char *method, const char *given, const char *file,
                           const char *name, const char *want_value, const char *want_canonical)
{
    char canonical[200], value[64];
    struct err err = {0};
    applied(method, given, file, name, canonical, value, &err);
    ck_assert_msg(!err.code, "%s:%s: %s", method, given, err.msg);
    ck_assert_msg(!strcmp(value, want_value) && !strcmp(canonical, want_canonical),
                  "%s:%s: %s=%s and '%s', wanted %s and '%s'", method, given, name, value,
                  canonical, want_value, want_canonical);
}

/* The settings of a run as calibrate_write writes them. */
static char *settings_json(const char *method)
{
    OWN(run_free) struct method_run *run = run_of(method);
    struct buf b = {0};
    struct jw w;
    jw_init(&w, &b, 0);
    jw_obj(&w);
    opt_json(run->method->params.table, run->params, &w);
    jw_obj_end(&w);
    return b.data;
}

/* Per method a parameter that calibration sets, a value of it, and one that is given beside it: the
 * default where there is one. */
static const struct {
    const char *method, *name, *found, *given;
} searched[] = {
    {"spargeattn", "tau", "0.5", "0.98"},          {"sale", "tau", "0.002", "0.004"},
    {"sampleattention", "alpha_c", "0.8", "0.95"}, {"minference", "v", "500", "1000"},
    {"xattention", "tau", "0.5", "0.9"},           {"ds", "channels", "3", "5"},
    {"skip-softmax", "scale_factor", "300", "20"},
};

/* Heads of a layer, or of the model, are samples of one search and get one result each. */
TEST(a_layer_or_the_model_shares_parameters)
{
    const char *path = test_path("per.h5");
    struct call_select sel = {"0,1", "all", "all", ""};
    write_video(path, "m");
    for (int per = CALIBRATE_LAYER; per <= CALIBRATE_MODEL; per++) {
        OWN(session_close) struct session s;
        session_open(&s, "spargeattn:search=grid:l1=0.3:l2=0.35", 1, &path);
        s.c.per = (enum calibrate_per)per;
        MUST(calibrate_plan(&s.c, &sel, NULL, ERR));
        int64_t heads = trace_meta(s.traces[0])->heads, calls = 0;
        for (int64_t i = 0; i < trace_calls(s.traces[0]); i++)
            calls += trace_call(s.traces[0], i)->layer <= 1;
        ck_assert_int_eq(s.c.n_jobs, per == CALIBRATE_LAYER ? 2 : 1);
        ck_assert_int_eq(s.c.jobs[0].n * s.c.n_jobs, heads * calls);
        MUST(calibrate_execute(&s.c, NULL, 1, ERR));
        OWN(free_at) char *text = written(&s.c);
        json_t *doc = json_loads(text, 0, NULL), *list = json_object_get(doc, "heads");
        ck_assert_str_eq(json_string_value(json_object_get(doc, "per")),
                         per == CALIBRATE_LAYER ? "layer" : "model");
        ck_assert_int_eq(json_array_size(list), 2 * heads);
        for (int64_t h = 1; h < heads; h++) /* of layer 0 */
            ck_assert(json_equal(json_object_get(json_array_get(list, 0), "tau"),
                                 json_object_get(json_array_get(list, (size_t)h), "tau")));
        json_decref(doc);
    }
}

/* Calibrate layer 0 with this journal, as far as it does not have it. */
static int continue_with(const char *method, const char *trace, const char *journal,
                         struct err *err)
{
    OWN(session_close) struct session s;
    struct call_select sel = {"0", "all", "all", ""};
    session_open(&s, method, 1, &trace);
    MUST(calibrate_plan(&s.c, &sel, NULL, ERR));
    PASS_ON(calibrate_execute(&s.c, journal, 1, err));
    for (int64_t i = 0; i < s.c.n_jobs; i++)
        ck_assert_ptr_nonnull(s.c.jobs[i].text);
    return 0;
}

/* What the journal has is not searched again; a journal of something else is refused. */
TEST(a_stopped_calibration_goes_on)
{
    static const char *const method = "spargeattn:search=grid:l1=0.3:l2=0.35";
    const char *path = test_path("stopped.h5"), *part = test_path("stopped.json.journal");
    OWN(buf_free) struct buf b = {0};
    write_video(path, "m");
    MUST(continue_with(method, path, part, ERR));
    /* As if it had been killed while it wrote the second head, after a first one that no search
     * would give. */
    MUST(buf_read_file(&b, part, 1 << 20, ERR));
    char *line = strchr(b.data, '\n') + 1, *torn = strchr(line, '\n') + 1;
    b.len = (size_t)(torn - b.data);
    buf_puts(&b, "{\"job\":1,\"fou");
    MUST(file_write_atomic(part, b.data, b.len, ERR));
    MUST(continue_with(method, path, part, ERR));
    buf_reset(&b);
    MUST(buf_read_file(&b, part, 1 << 20, ERR));
    int64_t lines = 0;
    for (size_t i = 0; i < b.len; i++)
        lines += b.data[i] == '\n';
    ck_assert_int_eq(lines, 1 + 2); /* the identity and two heads, none twice */
    FAILS(continue_with("spargeattn:search=grid:l1=0.31:l2=0.35", path, part, ERR), ERR_USAGE,
          "other settings");
}

TEST(published_bounds_have_names)
{
    static const struct {
        const char *text, *name;
        double value;
        const char *bad;
    } cases[] = {{"spargeattn:bounds=llama3.1", "l1", 0.08, "spargeattn:bounds=flux:l1=0.05"},
                 {"sale:bounds=qwen2.5", "theta", 2.0, "sale:bounds=qwen2.5:theta=1"}};
    for (int i = 0; i < 2; i++) {
        OWN(run_free) struct method_run *run = run_of(cases[i].text);
        const struct opt *o = opt_find(run->method->params.table, cases[i].name);
        struct method_run *none = NULL;
        int64_t n = 0;
        ck_assert_double_eq(*(double *)((char *)run->params + o->offset), cases[i].value);
        FAILS(method_runs_parse(sim_methods, cases[i].bad, &none, &n, ERR), ERR_USAGE, "leave");
    }
}

TEST(given_parameters_win_in_every_method)
{
    size_t n = sizeof searched / sizeof *searched;
    for (const struct method *const *m = sim_methods; *m; m++) {
        size_t i = 0;
        while (i < n && strcmp(searched[i].method, (*m)->name) != 0)
            i++;
        ck_assert_msg(i < n || !(*m)->search.calibrate, "%s is calibrated and not tested",
                      (*m)->name);
    }
    for (size_t i = 0; i < n; i++) {
        char entry[64], given[64], want[80];
        const char *method = searched[i].method, *name = searched[i].name;
        OWN(free_at) char *settings = settings_json(method);
        snprintf(entry, sizeof entry, "\"%s\":%s", name, searched[i].found);
        snprintf(given, sizeof given, "%s=%s", name, searched[i].given);
        snprintf(want, sizeof want, "calib=#:%s", given);
        const char *file = calib_file(method, settings, entry);
        assert_applied(method, "", file, name, searched[i].found, "calib=#");
        assert_applied(method, given, file, name, searched[i].given, want);
    }
}

TEST(a_calibration_is_replayed_under_its_settings)
{
    char *settings = settings_json("sale:bits=16:profile=paper:theta=2");
    const char *file = calib_file("sale", settings, "\"tau\":0.002"), *made = "profile=paper:";
    char both[40];
    snprintf(both, sizeof both, "%sbits=16:calib=#", made);
    assert_applied("sale", "", file, "bits", "16", both);
    assert_applied("sale", "bits=16", file, "bits", "16", both);
    assert_applied("sale", "bits=4", file, "bits", "4", "profile=paper:calib=#:bits=4");
    assert_applied("sale", "theta=2", file, "tau", "0.002", both); /* as in the file */
    free(settings);
    settings = settings_json("spargeattn:permute=hilbert");
    file = calib_file("spargeattn", settings, "\"tau\":0.25");
    assert_applied("spargeattn", "", file, "permute", "hilbert", "permute=hilbert:calib=#");
    free(settings);
}

TEST(aliases_and_switches_win_too)
{
    const char *file =
        calib_file("spargeattn", "{}", "\"theta\":0.5,\"tau\":0.5,\"pv\":20,\"dense\":false");
    assert_applied("spargeattn", "lambda=-10", file, "pv", "14.426950408889635",
                   "calib=#:lambda=-10");
    assert_applied("spargeattn", "pv=off", file, "pv", "off", "calib=#:pv=off");
    assert_applied("spargeattn", "pv=off", file, "tau", "0.5", "calib=#:pv=off");
    assert_applied("spargeattn", "judge=0", file, "theta", "0.5", "calib=#:judge=0");
    assert_applied("spargeattn", "arith=sage1", file, "arith", "sage1", "calib=#:arith=sage1");
}

/* Options of the search and presets would count nowhere. */
TEST(what_would_change_nothing_is_refused)
{
    static const struct {
        const char *method, *params, *entry, *given, *message;
    } cases[] = {
        {"sale", "{\"theta\":2}", "\"tau\":0.002", "theta=0.4", "made with theta=2"},
        {"spargeattn", "{\"l1\":0.05,\"l2\":0.06}", "\"tau\":0.5", "l2=0.09", "made with l2=0.06"},
        {"sampleattention", "{}", "\"alpha_c\":0.8", "preset=glm4-acc", "made with preset=none"},
        {"minference", "{}", "\"v\":500", "preset=light", "made with preset=profile"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char canonical[200], value[64];
        struct err err = {0};
        const char *file = calib_file(cases[i].method, cases[i].params, cases[i].entry);
        applied(cases[i].method, cases[i].given, file, "profile", canonical, value, &err);
        ck_assert_msg(err.code == ERR_USAGE && strstr(err.msg, cases[i].message) &&
                          strstr(err.msg, cases[i].given),
                      "%s:%s: %s", cases[i].method, cases[i].given, err.msg);
    }
}

/* The method's own token order counts as the order of the replay. */
TEST(a_calibration_in_the_methods_own_order_fits)
{
    const char *file = test_path("ordered.json");
    static const char text[] = "{\"method\":\"spargeattn\",\"permute\":\"hilbert\",\"params\":"
                               "{\"permute\":\"hilbert\"},\"heads\":[]}";
    char run[700];
    MUST(file_write_atomic(file, text, strlen(text), ERR));
    snprintf(run, sizeof run, "spargeattn:calib=%s", file);
    OWN(run_free) struct method_run *own = run_of(run);
    snprintf(run, sizeof run, "spargeattn:permute=none:calib=%s", file);
    OWN(run_free) struct method_run *none = run_of(run);
    MUST(method_calib_fits(own, "any", "none", ERR));
    MUST(method_calib_fits(none, "any", "hilbert", ERR));
    FAILS(method_calib_fits(none, "any", "none", ERR), ERR_INPUT, "hilbert");
}

/* A method that skips head 1 and fails on layer 1. */
static int fake_calibrate(struct method_ctx *ctx, const void *params, const struct head_in *samples,
                          int n, struct jw *w, struct err *err)
{
    if (samples->head == 1)
        return method_skip(ctx, "odd head");
    if (samples->layer == 1)
        return err_set(err, ERR_RUN, "no layer 1");
    jw_kint(w, "found", n);
    return 0;
}

TEST(skips_and_failures)
{
    static const struct opt none[] = {{0}};
    static const struct method fake = {
        .name = "fake", .params = {.table = none}, .search = {.calibrate = fake_calibrate}};
    struct method_run run = {.method = &fake};
    const char *path = test_path("a.h5");
    OWN(session_close) struct session s;
    struct call_select one = {"0", "all", "0", ""}, both = {"all", "all", "0", ""};
    write_video(path, "m");
    session_open(&s, "spargeattn", 1, &path);
    s.c.run = &run;
    MUST(calibrate_plan(&s.c, &one, NULL, ERR));
    MUST(calibrate_execute(&s.c, NULL, 1, ERR));
    ck_assert_int_eq(calibrate_skipped(&s.c), 1);
    ck_assert_str_eq(s.c.jobs[1].skip, "odd head");
    char *text = written(&s.c);
    ck_assert_ptr_nonnull(strstr(text, "\"found\": 1"));
    ck_assert_ptr_null(strstr(text, "\"head\": 1"));
    free(text);
    calibrate_free(&s.c);
    MUST(calibrate_plan(&s.c, &both, NULL, ERR));
    FAILS(calibrate_execute(&s.c, NULL, 1, ERR), ERR_RUN, "layer 1 head 0: no layer 1");
}

static int command(struct err *err, int argc, const char *const *argv)
{
    struct app app = {.methods = sim_methods};
    char *copy[16];
    for (int i = 0; i < argc; i++)
        copy[i] = strdup(argv[i]);
    int rc = cmd_run(&cmd_calibrate, &app, argc, copy, err);
    for (int i = 0; i < argc; i++)
        free(copy[i]);
    return rc;
}

#define COMMAND_(err, ...)                                                                         \
    command(err, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),                    \
            (const char *[]){__VA_ARGS__})

TEST(command_refuses)
{
    const char *path = test_path("a.h5"), *out = test_path("out.json");
    write_video(path, "m");
    FAILS(COMMAND_(ERR, "-q"), ERR_USAGE, "no method");
    FAILS(COMMAND_(ERR, "-q", "spargeattn"), ERR_USAGE, "-o FILE");
    FAILS(COMMAND_(ERR, "-q", "spargeattn", "-o", out), ERR_USAGE, "no trace");
    FAILS(COMMAND_(ERR, "-q", "dense", path, "-o", out), ERR_USAGE, "spargeattn");
    FAILS(COMMAND_(ERR, "-q", "spargeattn:tau=0.1,0.2", path, "-o", out), ERR_USAGE, "sweep of 2");
    FAILS(COMMAND_(ERR, "-q", "spargeattn:permute=time", path, "-o", out, "--permute", "row"),
          ERR_USAGE, "give one");
    FAILS(COMMAND_(ERR, "-q", "spargeattn", path, "-o", out, "--layers", "9"), ERR_USAGE,
          "--layers");
    FAILS(COMMAND_(ERR, "-q", "spargeattn", path, "-o", path), ERR_USAGE, "is what is read");
    FAILS(COMMAND_(ERR, "-q", "spargeattn:select=topk", path, "-o", out, "--progress", "none"),
          ERR_USAGE, "select=cdf");
    const char *other = test_path("there.json");
    MUST(file_write_atomic(other, "{}", 2, ERR));
    FAILS(COMMAND_(ERR, "-q", "spargeattn", path, "-o", other), ERR_USAGE, "--force");
    FILE *f = fopen(out, "r");
    ck_assert_ptr_null(f); /* nothing was written */
}

TEST(command_writes_the_file)
{
    const char *path = test_path("a.h5"), *out = test_path("out.json");
    json_t *doc = NULL;
    write_video(path, "m");
    MUST(COMMAND_(ERR, "-q", "spargeattn:search=grid:permute=hilbert", path, "-o", out, "--layers",
                  "1", "--heads", "0", "--steps", "3", "--progress", "none"));
    MUST(json_read_file(out, 1 << 20, &doc, ERR));
    ck_assert_str_eq(json_string_value(json_object_get(doc, "permute")), "hilbert");
    const json_t *e = json_array_get(json_object_get(doc, "heads"), 0);
    ck_assert_int_eq(json_array_size(json_object_get(doc, "heads")), 1);
    ck_assert_int_eq(json_integer_value(json_object_get(e, "layer")), 1);
    json_decref(doc);
    remove(out);
}
