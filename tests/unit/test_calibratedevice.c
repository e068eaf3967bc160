/*
 * Calibrations whose settings a back end judges: with one that computes on the CPU, in double,
 * every search finds what it finds without it; what it refuses runs on the CPU and says so; the
 * file and the journal name it.
 */
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/rng.h"
#include "sim/calibrate.h"
#include "sim/devicemap.h"
#include "sim/methods/sale/sale.h"
#include "sim/registry.h"
#include "tests/harness/accelrun.h"
#include "tests/harness/suite.h"
#include "tests/harness/testmethods.h"
#include "tests/harness/trace_fixture.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern const struct command cmd_calibrate;

enum { N = 400, D = 32, HEADS = 2, LAYERS = 2 };

/* ---- a back end ----------------------------------------------------------------------------- */

struct accel_session {
    atomic_int judged, chosen; /* masks; heads chosen for */
    int launches;
    atomic_int inside; /* questions at this moment */
    uint64_t data;     /* of the head that is there */
    int uploads;
    bool together;   /* two at once */
    int in_integers; /* heads whose filter has integers for q and k */
};

static struct accel_session session;

static int open_session(const struct accel_options *o, struct accel_session **out, struct err *err)
{
    (void)err;
    memset(&session, 0, sizeof session);
    (void)o;
    *out = &session;
    return 0;
}

static void close_session(struct accel_session **s)
{
    *s = NULL;
}

static bool supports(const struct accel_session *s, const struct attn_in *x, int64_t *bq,
                     int64_t *bk, char why[160])
{
    (void)s;
    if (x->d != D) {
        snprintf(why, 160, "heads of %d channels are none of mine", x->d);
        return false;
    }
    if (*bq % 64 || *bk % 64)
        *bq = *bk = ACCEL_TILE;
    else
        *bq = *bk = 64;
    return true;
}

/* pv = 50 and nothing sharper: what it leaves out is below 2^-50. */
static bool filters(const struct accel_session *s, const struct accel_head *h, char why[160])
{
    (void)s;
    (void)why;
    return h->filter->pv >= 50;
}

static void enter(struct accel_session *s, uint64_t data)
{
    s->together |= atomic_fetch_add(&s->inside, 1) > 0;
    s->uploads += s->data != data;
    s->data = data;
}

/* Head h of the call as a device that has divided its values by 4. */
static void attend_head(const struct accel_call *c, const struct accel_lists *l, int h,
                        struct err *err)
{
    struct accel_head *r = c->heads + h;
    const int64_t *ptr = accel_rows_of(c, l, h);
    OWN(exact_free) struct exact exact;
    OWN(mask_free) struct mask m = {0};
    OWN(judge_free) struct judging j;
    accel_head_mask(c, l, h, &m, err);
    exact_init(&exact, r->x, PREC_F64);
    judge_begin(&j, &exact, r->mass);
    assert_ok(judge_add(&j, &m, err), err);
    r->sums = (struct accel_sums){.abs_delta = j.sum.abs_delta / 4,
                                  .sq_delta = j.sum.sq_delta / 16,
                                  .sq_ref = j.sum.sq_ref / 16,
                                  .exp = 2};
    session.in_integers += r->filter && r->filter->quant.levels == 127;
    r->tiles_pv = r->filter && ptr ? (double)(ptr[ceil_div(N, l->bq)] - ptr[0]) : 0;
}

static int attend_call(struct accel_session *s, const struct accel_call *c,
                       const struct accel_lists *l, struct accel_result *r, struct err *err)
{
    enter(s, c->data);
    ck_assert(l->first == 0 && l->count == c->n);
    ck_assert_int_eq(c->group, c->n);
    for (int h = 0; h < c->n; h++) {
        ck_assert_ptr_eq(c->heads[h].x->q, c->heads[0].x->q);
        attend_head(c, l, h, err);
    }
    accel_untimed(c, r);
    s->judged += c->n;
    s->launches++;
    atomic_fetch_sub(&s->inside, 1);
    return 0;
}

static int select_call(struct accel_session *s, const struct accel_call *call, struct err *err)
{
    struct accel_head *head = call->heads;
    const struct sale_rule *rule = &head->choice.rule->sale;
    struct sale_config c = {.tau = rule->tau,
                            .scale = rule->scale,
                            .bits = 4,
                            .w = rule->local_blocks,
                            .f16 = true,
                            .strict = rule->strict,
                            .causal_stats = rule->causal_stats};
    struct sale_head h;
    enter(s, call->data);
    ck_assert_str_eq(head->choice.method, "sale");
    sale_head_init(&h, &c, head->x->q, head->x->k, N, D);
    assert_ok(sale_select(&h, 0, N, &head->mask, err), err);
    sale_head_free(&h);
    head->answer = 0;
    s->chosen++;
    atomic_fetch_sub(&s->inside, 1);
    return 0;
}

static const struct accel fake = {.name = "fake",
                                  .open = open_session,
                                  .close = close_session,
                                  .supports = supports,
                                  .can_attend = filters,
                                  .select_call = select_call,
                                  .attend_call = attend_call};

/* ---- calibrations --------------------------------------------------------------------------- */

static const char *make_trace(const char *name, int d)
{
    const char *path = test_path(name);
    struct trace_meta m = fixture_text(DT_BF16, HEADS, HEADS, N);
    m.layers = LAYERS;
    m.head_dim = m.v_dim = d;
    m.scale = 0.2;
    MUST(fixture_write_random(path, &m, name[0] == 't' ? 2.1 : 2, false, ERR)); /* two.h5 */
    return path;
}

/* `lacuna calibrate METHOD TRACES -o FILE` with more words; the file's document. */
static json_t *calibrate(const char *method, const char *words, const char *out)
{
    const struct app app = {.methods = sim_methods, .accel = &fake};
    char copy[1600], *argv[40];
    int argc = 0;
    json_t *doc = NULL;
    snprintf(copy, sizeof copy, "-q --force --precision f64 %s %s -o %s", method, words, out);
    for (char *w = strtok(copy, " "); w; w = strtok(NULL, " "))
        argv[argc++] = w;
    MUST(cmd_run(&cmd_calibrate, &app, argc, argv, ERR));
    MUST(json_read_file(out, 1 << 20, &doc, ERR));
    return doc;
}

/* Numbers within a rounding of each other, the rest the same. */
static void assert_close(const json_t *a, const json_t *b, const char *where)
{
    const char *key;
    json_t *value;
    size_t i;
    ck_assert_msg(json_typeof(a) == json_typeof(b) || (json_is_number(a) && json_is_number(b)),
                  "%s: other types", where);
    if (json_is_number(a)) {
        double x = json_number_value(a), y = json_number_value(b);
        ck_assert_msg(fabs(x - y) <= 1e-6 * fmax(1, fabs(x)), "%s: %.17g and %.17g", where, x, y);
    } else if (json_is_object(a)) {
        ck_assert_msg(json_object_size(a) == json_object_size(b), "%s: other members", where);
        json_object_foreach((json_t *)a, key, value)
        {
            ck_assert_msg(json_object_get(b, key) != NULL, "%s: no %s", where, key);
            assert_close(value, json_object_get(b, key), key);
        }
    } else if (json_is_array(a)) {
        ck_assert_uint_eq(json_array_size(a), json_array_size(b));
        json_array_foreach(a, i, value) assert_close(value, json_array_get(b, i), where);
    } else {
        ck_assert_msg(json_equal(a, b), "%s: other values", where);
    }
}

static const struct {
    const char *method;
    bool grid; /* of numbers that are compared too */
} searched[] = {
    {"sale:dense_below=0:theta=0.1:tau0=0.9", false},
    {"sampleattention:block=64:target_p1=0.6:target_err=0.4", true},
    {"minference:rows_from=0:scale_sizes=1", false},
    {"minference:rows_from=0:scale_sizes=1:search=exact", false},
    {"minference:rows_from=0:scale_sizes=1:profile=paper", false},
    {"spargeattn:tune_pv=0:l1=0.4:l2=0.5", false},
    {"spargeattn:tune_pv=0:l1=0.4:l2=0.5:profile=paper:search=grid", false},
    {"spargeattn:tune_pv=0:l1=0.4:l2=0.5:pv_min=0.01", false},
};

/* Two traces, so that a search has several samples. */
TEST(searches_find_the_same)
{
    char words[1100], here[1200];
    snprintf(words, sizeof words, "%s %s --layers 1", make_trace("one.h5", D),
             make_trace("two.h5", D));
    snprintf(here, sizeof here, "%s --backend cuda --jobs 3", words);
    for (size_t i = 0; i < sizeof searched / sizeof *searched; i++) {
        const char *method = searched[i].method;
        json_t *cpu = calibrate(method, words, test_path("cpu.json"));
        session.judged = 0;
        json_t *gpu = calibrate(method, here, test_path("gpu.json"));
        const char *by = json_string_value(json_object_get(gpu, "backend"));
        ck_assert_msg(session.judged > 2 * HEADS, "%s: %d judged", method, session.judged);
        ck_assert_int_eq(session.chosen > 0, strncmp(method, "sale", 4) == 0);
        ck_assert_msg(!session.together, "%s: two searches at once on the device", method);
        ck_assert(by && strcmp(by, "fake") == 0);
        ck_assert_ptr_null(json_object_get(cpu, "backend"));
        ck_assert_int_eq(json_array_size(json_object_get(gpu, "heads")), HEADS);
        assert_close(json_object_get(cpu, "heads"), json_object_get(gpu, "heads"), method);
        ck_assert_int_eq(json_object_get(gpu, "grids") != NULL, searched[i].grid);
        if (searched[i].grid)
            assert_close(json_object_get(cpu, "grids"), json_object_get(gpu, "grids"), method);
        json_decref(cpu);
        json_decref(gpu);
        unlink(test_path("cpu.json"));
        unlink(test_path("gpu.json"));
    }
}

/* The device judges in the method's arithmetic. */
TEST(arithmetic_is_asked_for)
{
    char words[700];
    snprintf(words, sizeof words, "%s --backend cuda", make_trace("one.h5", D));
    json_decref(calibrate("sale:dense_below=0:theta=0.1:tau0=0.9:arith=sage1", words,
                          test_path("gpu.json")));
    ck_assert_int_gt(session.judged, HEADS * LAYERS);
    ck_assert_int_eq(session.in_integers, session.judged);
    unlink(test_path("gpu.json"));
}

/* A head stays on the device while it is searched. */
TEST(a_head_is_uploaded_once)
{
    char words[700];
    snprintf(words, sizeof words, "%s --backend cuda --jobs 4", make_trace("one.h5", D));
    json_decref(calibrate(searched[1].method, words, test_path("gpu.json")));
    ck_assert_int_eq(session.uploads, HEADS * LAYERS);
    ck_assert_int_eq(session.launches, HEADS * LAYERS * 108 / JUDGE_MANY);
    unlink(test_path("gpu.json"));
}

static const struct {
    const char *method, *why;
    int d;
} refused[] = {
    {"xattention", "has no GPU side", D},
    {"sale:dense_below=0:bits=8", "not bits=8", D},
    {"sampleattention:block=64", "heads of 16 channels are none of mine", 16},
};

/* What a device does not do runs on the CPU, for a reason that is told. */
TEST(what_cannot_run_there_says_so)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct calibrate_sample sample = {0};
        struct calibrate_job job = {.samples = &sample, .n = 1};
        struct calibrate c = {
            .device = {.accel = &fake, .session = &session}, .jobs = &job, .n_jobs = 1};
        OWN(trace_close) struct trace *t = NULL;
        OWN(run_free) struct method_run *run = run_of(refused[i].method);
        char why[160] = "";
        MUST(trace_open(make_trace("one.h5", refused[i].d), &t, ERR));
        c.run = run;
        c.traces = &t;
        c.n_traces = 1;
        ck_assert(!calibrate_on_device(&c, why));
        ck_assert_msg(strstr(why, refused[i].why) != NULL, "%s: %s", refused[i].method, why);
    }
}

TEST(a_refused_search_has_the_file_of_the_cpu)
{
    const char *trace = make_trace("one.h5", D);
    char words[700];
    OWN(buf_free) struct buf cpu = {0}, gpu = {0};
    snprintf(words, sizeof words, "%s --name x --layers 0", trace);
    json_decref(calibrate("xattention", words, test_path("cpu.json")));
    snprintf(words, sizeof words, "%s --name x --layers 0 --backend cuda", trace);
    json_decref(calibrate("xattention", words, test_path("gpu.json")));
    ck_assert_int_eq(session.judged, 0);
    MUST(buf_read_file(&cpu, test_path("cpu.json"), 1 << 20, ERR));
    MUST(buf_read_file(&gpu, test_path("gpu.json"), 1 << 20, ERR));
    ck_assert_str_eq(buf_str(&cpu), buf_str(&gpu));
}

/* A journal of the CPU is not continued on a device, whose numbers are rounded otherwise. */
TEST(journals_name_the_back_end)
{
    const char *part = test_path("x.journal");
    struct calibrate c = {
        .per = CALIBRATE_HEAD, .name = "x", .load = {.precision = PREC_F64, .permute = "none"}};
    struct call_select sel = {"0", "0", NULL, NULL};
    OWN(trace_close) struct trace *t = NULL;
    OWN(run_free) struct method_run *run = run_of(searched[0].method);
    MUST(trace_open(make_trace("one.h5", D), &t, ERR));
    c.run = run;
    c.traces = &t;
    c.n_traces = 1;
    MUST(calibrate_plan(&c, &sel, NULL, ERR));
    MUST(calibrate_execute(&c, part, 1, ERR));
    free(c.jobs[0].text);
    c.jobs[0].text = NULL;
    c.device = (struct sim_device){.accel = &fake, .session = &session, .metrics = true};
    FAILS(calibrate_execute(&c, part, 1, ERR), ERR_USAGE, "other settings");
    calibrate_free(&c);
}
