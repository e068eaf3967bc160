/* Equal budgets: targets as text, the search on functions with known answers, and that the budget
 * parameter of every method moves its density in the direction that the method states. */
#include "tests/harness/suite.h"
#include "sim/budgetsearch.h"
#include "tests/harness/conform.h"

#include <math.h>
#include <string.h>

/* ---- text ----------------------------------------------------------------------------------- */

static struct err e;
static struct method_run *runs;
static int64_t n_runs;

static void begin(void)
{
    memset(&e, 0, sizeof e);
    runs = NULL;
    n_runs = 0;
}

static void end(void)
{
    method_runs_free(runs, n_runs);
}
FIXTURE(begin, end)

static int parse(const char *text)
{
    return method_runs_parse(test_methods, text, &runs, &n_runs, &e);
}

TEST(a_target_is_part_of_the_parameters)
{
    assert_ok(parse("streaming:sink=2@density_elem=0.1,0.3"), &e);
    ck_assert_int_eq(n_runs, 2);
    ck_assert_str_eq(runs[0].canonical, "sink=2@density_elem=0.1");
    ck_assert_str_eq(runs[1].canonical, "sink=2@density_elem=0.3");
    ck_assert_str_eq(runs[0].target->params, "window");
    assert_ok(parse("xattention@cra_p1>=0.95:per=layer"), &e);
    ck_assert_str_eq(runs[2].canonical, "@cra_p1>=0.95:per=layer");
    ck_assert_int_eq(runs[2].target->kind, TARGET_AT_LEAST);
    ck_assert_int_eq(runs[2].target->per, TARGET_PER_LAYER);
    assert_ok(parse("xattention@density_tile@64x64<=0.5"), &e);
    ck_assert_str_eq(runs[3].target->metric, "density_tile@64x64");
    ck_assert_int_eq(runs[3].target->kind, TARGET_AT_MOST);
    assert_ok(parse("sampleattention:alpha_c=0.9@density_elem=0.2"), &e);
    ck_assert_str_eq(runs[4].target->params, "alpha_s");
    /* A method that demands its budget parameter gets one for the time before the search. */
    assert_ok(parse("oracle:kind=topk@density_elem=0.2"), &e);
    ck_assert_str_eq(runs[5].canonical, "kind=topk@density_elem=0.2");
}

static const struct {
    const char *text, *why;
} refused[] = {
    {"longnet@density_elem=0.3", "longnet has no budget parameter"},
    {"radial:profile=paper@density_elem=0.3", "it has decay with profile=official"},
    {"streaming:window=4@density_elem=0.3", "searches window, which is given as well"},
    {"sampleattention:alpha_c=0.5:alpha_s=0.6@density_elem=0.3", "which is given as well"},
    {"streaming@densty_elem=0.3", "did you mean 'density_elem'"},
    {"streaming@density_elem=0.3x", "'0.3x' is not a number"},
    {"streaming@density_elem=", "a number is missing"},
    {"streaming@density_elem=0.3:per=step", "per=head, per=layer or per=model"},
    {"streaming@density_elem=0.3:window=4", "parameters stand before the '@'"},
    {"streaming@time_attend_ns=3", "differs from run to run"},
    {"streaming@budget_miss=0", "itself the outcome of a search"},
    {"streaming@0.3", "a target was expected"},
};

TEST_EACH(what_cannot_be_searched_is_refused, refused)
{
    assert_fails(parse(refused[_i].text), &e, ERR_USAGE, refused[_i].why);
}

/* ---- search --------------------------------------------------------------------------------- */

/* f(at) of a curve over 1001 settings; a setting costs what it keeps. */
static int calls;

static int straight(void *ctx, int64_t at, double *value, double *cost, struct err *err)
{
    calls++;
    *cost = *value = (double)at / 1000;
    return 0;
}

static int falling(void *ctx, int64_t at, double *value, double *cost, struct err *err)
{
    *cost = (double)at / 1000;
    *value = 1 - *cost;
    return 0;
}

/* Two steps: 0.1 up to setting 499, 0.4 from 500 on. */
static int stairs(void *ctx, int64_t at, double *value, double *cost, struct err *err)
{
    *cost = *value = at < 500 ? 0.1 : 0.4;
    return 0;
}

/* Rises to 1 at 500 and falls again: no budget parameter should. */
static int mountain(void *ctx, int64_t at, double *value, double *cost, struct err *err)
{
    *cost = *value = 1 - fabs((double)at - 500) / 500;
    return 0;
}

static struct budget_answer ask(budget_eval_fn *f, enum target_kind kind, double target, bool whole)
{
    struct budget_question q = {.count = 1001,
                                .start = 100,
                                .whole = whole,
                                .kind = kind,
                                .target = target,
                                .direction = f == falling ? -1 : 1,
                                .eval = f};
    struct budget_answer a;
    calls = 0;
    MUST(budget_search(&q, &a, ERR));
    ck_assert_int_le(a.evals, 2 * BUDGET_EVALS);
    return a;
}

TEST(the_nearest_setting_is_found)
{
    struct budget_answer a = ask(straight, TARGET_HIT, 0.3374, true);
    ck_assert_int_eq(a.at, 337);
    ck_assert_int_eq(a.end, BUDGET_MET);
    ck_assert_int_eq(a.evals, calls);
    ck_assert_int_le(calls, BUDGET_EVALS);
    ck_assert_int_eq(ask(straight, TARGET_HIT, 0.3376, true).at, 338);
    ck_assert_int_eq(ask(falling, TARGET_HIT, 0.3374, true).at, 663);
    ck_assert_double_le(fabs(ask(straight, TARGET_HIT, 0.8, false).value - 0.8), 0.8e-3);
}

TEST(a_bound_is_satisfied_as_cheaply_as_it_can_be)
{
    ck_assert_int_eq(ask(straight, TARGET_AT_LEAST, 0.3374, true).at, 338);
    ck_assert_int_eq(ask(falling, TARGET_AT_MOST, 0.3374, true).at, 663);
    /* Of a limit on what is kept the most that it allows. */
    ck_assert_int_eq(ask(straight, TARGET_AT_MOST, 0.3374, true).at, 337);
    struct budget_answer a = ask(straight, TARGET_AT_LEAST, 0.5, false);
    ck_assert_double_ge(a.value, 0.5);
    ck_assert_double_le(a.value, 0.51);
    /* Nothing satisfies it. */
    a = ask(straight, TARGET_AT_LEAST, 1.5, true);
    ck_assert_int_eq(a.at, 1000);
    ck_assert_int_eq(a.end, BUDGET_RANGE);
}

TEST(granularity_and_range_are_told_apart)
{
    struct budget_answer a = ask(stairs, TARGET_HIT, 0.2, true);
    ck_assert_double_eq(a.value, 0.1);
    ck_assert_int_eq(a.end, BUDGET_COARSE);
    ck_assert_double_eq(a.next, 0.4);
    a = ask(stairs, TARGET_HIT, 0.05, true);
    ck_assert_int_eq(a.end, BUDGET_RANGE);
    ck_assert(isnan(a.next));
    ck_assert_int_eq(a.evals, 2); /* the start and the end below it */
    ck_assert_int_eq(a.at, 100);  /* nothing speaks for another setting than the start */
    ck_assert_int_eq(ask(stairs, TARGET_HIT, 0.398, true).end, BUDGET_MET); /* within 2 % */
}

TEST(a_contradiction_is_searched_point_by_point)
{
    struct budget_answer a = ask(mountain, TARGET_HIT, 0.9, true);
    ck_assert(a.scanned);
    ck_assert_double_le(fabs(a.value - 0.9), 0.05); /* 24 values, 43 settings apart */
    ck_assert(!ask(straight, TARGET_HIT, 0.9, true).scanned);
    /* Without a known direction the ends decide. */
    struct budget_question q = {.count = 1001, .start = 7, .target = 0.25, .eval = falling};
    MUST(budget_search(&q, &a, ERR));
    ck_assert_double_le(fabs(a.value - 0.25), 0.005);
    ck_assert(!a.scanned);
}

/* ---- methods -------------------------------------------------------------------------------- */

/* A setting for every budget parameter of every method, under which it has an effect on 300
 * tokens. */
static const struct {
    const char *text;
    bool causal;
} settings[] = {
    {"streaming", true},
    {"sampleattention:profile=v2", true},
    {"sampleattention:block=64", true},
    {"sale:dense_below=0", true},
    {"oracle", true},
    {"oracle:kind=topk", true},
    {"fg-attn:M=16", false},
    {"fg-attn:mode=pooled:M=16", false},
    {"fg-attn:mode=pooled:M=16:pool=literal", false},
    {"fg-attn:mode=pooled:M=16:pool=topk", false},
    {"spargeattn:judge=0", true},
    {"spargeattn:judge=0:select=topk", true},
    {"flexprefill:min_budget=0", true},
    {"xattention", true},
    {"minference:min_v=1:min_s=1:force_cols=1:force_dists=1:mask=requested", true},
    {"minference:pattern=block", true},
    {"minference:pattern=ashape:init=2", true},
    {"radial:preset=none:block=64:thin=8:sink=0", false},
    {"svg1:profile=plain:trial=emulation:dense_steps=0", false},
    {"svg2:preset=none:qc=5:kc=20:min_kc=0", false},
    {"chipmunk:profile=clean:dense_layers=0:local_voxels=0", false},
    {"longformer", true},
    {"bigbird:block=16", false},
    {"sparse-transformer:pattern=local", true},
    {"hash-sparse", true},
    {"qk-sparse:select=knorm", true},
    {"quest:dense_layers=0:floor=1", true},
    {"ds", true},
    {"twilight:dense_layers=0:profile=exact", true},
    {"hyperattention:min_len=0:block=16", true},
    {"oracle:kind=columns", true},
    {"oracle:kind=strips", true},
    {"oracle:kind=mean", true},
    {"oracle:kind=block:unit=16x16:scope=head", true},
    {"skip-softmax:unit=64x128", true},
    {"nm", true},
    {"vsa", false},
    {"sla", false},
    {"draft", false},
    {"subblock:min_seq=0:skip_first_steps=0", false},
    {"moba:chunk=16:dense_last=0", true},
    {"sol:dense_layers=0:dense_steps=0", false},
    {"nsa:share=head:block=16", true},
    {"dsa", true},
    {"seer:last_dense=0", true},
    {"mean-blocks", true},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static double density(const struct method_run *run, struct sim_head *h, const void *params)
{
    struct carry own = {0}, shared = {0};
    bool steps = run->method->flags & METHOD_NEEDS_STEPS;
    struct record r;
    for (int step = 0; step < (steps ? 3 : 1); step++) {
        struct method_ctx ctx = {.seed = 5, .carry = steps ? &own : NULL};
        ctx.shared = run->method->reuse.shares_branches ? &shared : NULL;
        struct sim_cell cell = {.method = run->method,
                                .params = params,
                                .ctx = &ctx,
                                .in = &h->in,
                                .measure = MEASURE_MASK};
        h->in.step = step;
        if (step)
            record_free(&r);
        record_init(&r);
        MUST(sim_run(&cell, &r, ERR));
        ck_assert_msg(r.status == RECORD_OK, "%s: %s", run->method->name, r.reason);
    }
    double d = record_get(&r, "density_elem");
    record_free(&r);
    carry_end(&own);
    carry_end(&shared);
    return d;
}

/* Bands of frame pairs differ in width from 256 tokens per frame on, patches have 8 x 16 tokens of
 * a frame, blocks are kept eight at a time. A tile that all of its rows skip has few of them. */
static int64_t tokens_of(const char *method)
{
    static const char *const videos[] = {"radial", "draft", "subblock"};
    for (int i = 0; i < 3; i++)
        if (strcmp(method, videos[i]) == 0)
            return 6 * 256;
    return strcmp(method, "skip-softmax") == 0 ? 257 : 300;
}

TEST_N(the_budget_moves_what_is_kept_the_stated_way, SETTINGS)
{
    char text[160];
    OWN(sim_head_free) struct sim_head h;
    struct budget_range r;
    double last = -1, first = 0;
    snprintf(text, sizeof text, "%s@density_elem=0.3", settings[_i].text);
    assert_ok(parse(text), &e);
    const struct method_run *run = runs;
    int64_t n = tokens_of(run->method->name);
    conform_head(NORMAL, n, n, settings[_i].causal, PREC_F64, &h);
    if (n > 300)
        h.in.geom = (struct geometry){.t = 6, .h = 16, .w = 16};
    assert_ok(budget_range(run->target, run->method, n, &r, &e), &e);
    for (int k = 0; k <= 12; k++) {
        double d;
        assert_ok(
            budget_set(&r, run->target, run->method, (r.count - 1) * k / 12, run->params, NULL, &e),
            &e);
        d = density(run, &h, run->params);
        ck_assert_msg(d >= last - 1e-12, "%s: %g after %g", text, d, last);
        first = k ? first : d;
        last = d;
    }
    ck_assert_msg(last > first, "%s: always %g", text, last);
}

TEST(every_budget_is_in_the_table)
{
    for (const struct method *const *m = test_methods; *m; m++)
        for (const struct budget_param *b = (*m)->params.budget; b && b->params; b++) {
            bool seen = false;
            for (int i = 0; i < SETTINGS && !seen; i++) {
                char text[160];
                if (strncmp(settings[i].text, (*m)->name, strlen((*m)->name)) != 0)
                    continue;
                snprintf(text, sizeof text, "%s@density_elem=0.3", settings[i].text);
                begin();
                assert_ok(parse(text), &e);
                seen = runs->target->of == b;
                end();
            }
            ck_assert_msg(seen, "%s: %s has no setting here", (*m)->name, b->params);
        }
    begin();
}

/* A value that is found is written so that it can be set again. */
TEST(found_texts_set_what_was_found)
{
    struct budget_range r;
    OWN(buf_free) struct buf a = {0}, b = {0};
    assert_ok(parse("xattention@density_elem=0.3"), &e);
    assert_ok(budget_range(runs->target, runs->method, 300, &r, &e), &e);
    for (int64_t at = 0; at < r.count; at += (r.count - 1) / 8) {
        buf_reset(&a);
        buf_reset(&b);
        assert_ok(budget_set(&r, runs->target, runs->method, at, runs->params, &a, &e), &e);
        assert_ok(budget_apply(runs->target, runs->method, buf_str(&a), runs->params, &e), &e);
        buf_puts(&b, "tau=");
        opt_value_text(opt_find(runs->method->params.table, "tau"), runs->params, &b);
        ck_assert_str_eq(buf_str(&a), buf_str(&b));
    }
    assert_fails(budget_apply(runs->target, runs->method, "stride=8", runs->params, &e), &e,
                 ERR_USAGE, "does not set tau");
}
