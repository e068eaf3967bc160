/* Recipes, layouts, expressions and the tests behind claims. Numbers of the claims are worked out
 * by hand. */
#include "tests/harness/suite.h"

#include "analyze/stats.h"
#include "core/cmd.h"
#include "core/fileio.h"
#include "core/metricdef.h"
#include "reproduce/claims.h"
#include "reproduce/claimtest.h"
#include "reproduce/expr.h"
#include "reproduce/page.h"
#include "sim/registry.h"
#include "tests/harness/records_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND(id) extern const struct command cmd_##id;
#include "commands.def"
#undef COMMAND

static const struct command *const commands[] = {
#define COMMAND(id) &cmd_##id,
#include "commands.def"
#undef COMMAND
    NULL,
};

static struct err e;

static void begin(void)
{
    memset(&e, 0, sizeof e);
    metric_def_methods(sim_methods);
}

/* ---- claims ------------------------------------------------------------------------------------
 */

static const double low[8] = {.10, .11, .12, .13, .14, .15, .16, .17};
static const double high[8] = {.20, .22, .21, .24, .23, .26, .25, .28};

/* A statistic of `high` and of `low` values, n units of each. */
static struct claim_estimate estimate(const double *x, const double *y, int64_t n,
                                      enum claim_stat stat, int tests)
{
    struct claim_sample s = {.members = y ? 2 : 1, .n = {n, n}, .paired = true};
    struct claim_estimate out;
    double values[2][8];
    memcpy(values[0], x, (size_t)n * sizeof *x);
    memcpy(values[1], y ? y : x, (size_t)n * sizeof *x);
    s.x[0] = values[0];
    s.x[1] = values[1];
    assert_ok(claim_estimate(&s, stat, tests, &out, &e), &e);
    return out;
}

static enum claim_state more(const double *x, const double *y, int64_t n, int tests)
{
    struct claim_estimate c = estimate(x, y, n, STAT_DIFFERENCE, tests);
    return claim_above(&c, 0.0005);
}

START_TEST(more_needs_an_interval_above_zero)
{
    struct claim_estimate c = estimate(high, low, 8, STAT_DIFFERENCE, 1);
    ck_assert_int_eq(claim_above(&c, 0.0005), CLAIM_HOLDS);
    ck_assert_double_eq_tol(c.value, 0.10125, 1e-12);
    ck_assert(c.lo > 0.09 && c.lo < c.value && c.hi > c.value && c.hi < 0.12);
    ck_assert_int_eq(more(low, high, 8, 1), CLAIM_HOLDS_NOT);
    ck_assert_int_eq(more(low, high, 8, 4), CLAIM_HOLDS_NOT);
    c = estimate(low, high, 8, STAT_DIFFERENCE, 4);
    ck_assert(c.wide_hi >= c.hi);
}
END_TEST

START_TEST(equal_values_do_not_hold)
{
    ck_assert_int_eq(more(low, low, 8, 1), CLAIM_HOLDS_NOT);
}
END_TEST

START_TEST(five_heads_and_scatter_are_open)
{
    const double mixed[8] = {.30, .01, .32, .02, .31, .03, .29, .02};
    struct claim_estimate c = estimate(mixed, low, 8, STAT_DIFFERENCE, 1);
    ck_assert_int_eq(more(high, low, 5, 1), CLAIM_OPEN);
    ck_assert_int_eq(claim_above(&c, 0.0005), CLAIM_OPEN);
    ck_assert(c.lo < 0 && c.hi > 0);
}
END_TEST

START_TEST(ranges_hold_by_their_whole_interval)
{
    struct claim_estimate c = estimate(low, NULL, 8, STAT_MEAN, 1);
    ck_assert_int_eq(claim_inside(&c, -INFINITY, 0.2, 6), CLAIM_HOLDS);
    ck_assert_double_eq_tol(c.value, 0.135, 1e-12);
    ck_assert_int_eq(claim_inside(&c, -INFINITY, 0.1, 6), CLAIM_HOLDS_NOT);
    ck_assert_int_eq(claim_inside(&c, -INFINITY, 0.135, 6), CLAIM_OPEN);
    c = estimate(high, low, 8, STAT_RATIO, 1);
    ck_assert_int_eq(claim_inside(&c, 1.5, 2.5, 6), CLAIM_HOLDS);
    ck_assert_double_eq_tol(c.value, 1.89 / 1.08, 1e-12);
    c = estimate(high, low, 8, STAT_DIFFERENCE, 1);
    ck_assert_int_eq(claim_inside(&c, 0.2, 0.3, 6), CLAIM_HOLDS_NOT);
}
END_TEST

/* ---- expressions -------------------------------------------------------------------------------
 */

static double value(const void *ctx, const char *metric)
{
    (void)ctx;
    return strcmp(metric, "a") == 0 ? 6 : strcmp(metric, "b_2@0.5") == 0 ? 2 : NAN;
}

START_TEST(expressions_bind_as_usual)
{
    ck_assert_double_eq(expr_eval("100*(a+b_2@0.5)/b_2@0.5", value, NULL), 400);
    ck_assert_double_eq(expr_eval("1-a/b_2@0.5-1", value, NULL), -3);
    ck_assert(isnan(expr_eval("a+c", value, NULL)));
    ck_assert(isnan(expr_eval("(a", value, NULL)));
    ck_assert(isnan(expr_eval("a of b", value, NULL)));
}
END_TEST

/* ---- recipes -----------------------------------------------------------------------------------
 */

static struct paper_data data;
static const struct app app = {.commands = commands, .methods = sim_methods};

static void check_all(const char *key, int *n)
{
    size_t i;
    json_t *o;
    json_array_foreach(json_object_get(data.layouts, key), i, o)
    {
        struct recipe r = {0};
        struct buf path = {0};
        const char *id = json_str_or(o, "id", "");
        assert_ok(recipe_path(&data, id, &path, &e), &e);
        assert_ok(recipe_read(buf_str(&path), &data, &r, &e), &e);
        assert_ok(recipe_check(&r, &app, &e), &e);
        ck_assert_str_eq(r.id, id);
        ck_assert_msg(r.n_jobs > 0 || json_object_get(r.absent, "*"), "%s: no job, no reason", id);
        ++*n;
        recipe_free(&r);
        buf_free(&path);
    }
}

START_TEST(every_table_and_figure_has_a_recipe)
{
    int n = 0;
    assert_ok(paper_data_load(&data, &e), &e);
    check_all("tables", &n);
    check_all("figures", &n);
    ck_assert_int_eq(n, 22 + 49);
    paper_data_free(&data);
}
END_TEST

/* Numbers that the layouts place, each once; the csv files hold 841 in numbered tables. */
START_TEST(layouts_place_every_printed_number)
{
    int n = 0;
    size_t i;
    json_t *o;
    assert_ok(paper_data_load(&data, &e), &e);
    json_array_foreach(json_object_get(data.layouts, "tables"), i, o)
    {
        struct recipe r = {.id = json_str_or(o, "id", ""), .item = o};
        struct model_set models = {0};
        struct plan plan = {.models = &models};
        struct page page = {.plan = &plan, .data = &data, .recipe = &r};
        struct paper_number x;
        assert_ok(grid_make(&page, &e), &e);
        for (int k = 0; k < page.n_blocks; k++) {
            struct page_block *b = &page.blocks[k];
            for (int row = 0; row < b->rows.n; row++) {
                const json_t *label = json_object_get(b->rows.e[row].j, "label_cell");
                n += label &&
                     paper_number_find(&data, json_str_or(o, "csv", ""),
                                       json_str_or(o, "table", ""), json_str_or(label, "row", ""),
                                       json_str_or(label, "column", ""), &x);
                for (int c = 0; c < b->columns.n; c++)
                    for (int part = 0; part < CELL_PARTS; part++)
                        n += page_printed(&page, b, &b->rows.e[row], &b->columns.e[c], part, &x);
            }
        }
        grid_free(&page);
    }
    ck_assert_int_eq(n, 841);
    paper_data_free(&data);
}
END_TEST

/* A recipe with the default models, its plan and its page without evidence. */
struct opened {
    struct recipe recipe;
    struct model_set models;
    struct plan plan;
    struct page page;
};

static void open_recipe(const char *id, bool cuda, struct opened *o)
{
    struct str_list none = {0};
    struct buf path = {0};
    memset(o, 0, sizeof *o);
    assert_ok(paper_data_load(&data, &e), &e);
    assert_ok(recipe_path(&data, id, &path, &e), &e);
    assert_ok(recipe_read(buf_str(&path), &data, &o->recipe, &e), &e);
    assert_ok(model_set_make(&none, &none, &o->recipe, 1, &data, &o->models, &e), &e);
    o->plan = (struct plan){.recipes = &o->recipe,
                            .n_recipes = 1,
                            .models = &o->models,
                            .style = "paper",
                            .cuda = cuda};
    assert_ok(plan_expand(&o->plan, &e), &e);
    o->page = (struct page){.plan = &o->plan, .data = &data, .recipe = &o->recipe};
    o->page.evidence = (struct evidence){.plan = &o->plan};
    buf_free(&path);
}

static void close_recipe(struct opened *o)
{
    grid_free(&o->page);
    plan_free(&o->plan);
    model_set_free(&o->models);
    recipe_free(&o->recipe);
    paper_data_free(&data);
}

/* Rows of sampleattention:5 show the head of a rank: of four heads the second is the median. */
START_TEST(a_row_picks_its_head_by_a_rule)
{
    static const double recall[4] = {0.7, 0.9, 0.6, 0.8};
    struct fixture_records f = {0};
    struct recset set = {0};
    struct proof v[4];
    struct opened o;
    int seen = 0, run = -1;
    open_recipe("sampleattention:5", false, &o);
    for (int i = 0; i < o.plan.n; i++)
        run = step_job(&o.plan, &o.plan.s[i])->kind == DO_REPLAY ? i : run;
    o.page.evidence = (struct evidence){.plan = &o.plan, .v = v, .n = 4};
    for (int i = 0; i < 4; i++) {
        struct record *r = fixture_record(&f, "oracle", "k=10%", i / 2, i % 2);
        fixture_metric(r, "cra_mean", recall[i]);
    }
    fixture_set(&f, &set);
    for (int i = 0; i < 4; i++)
        v[i] = (struct proof){&set.r[i], run};
    assert_ok(grid_make(&o.page, &e), &e);
    for (int k = 0; k < o.page.blocks[0].rows.n; k++) {
        const struct grid_entry *row = &o.page.blocks[0].rows.e[k];
        static const char *const want[] = {"ours, least head (layer 1, head 0)",
                                           "ours, median head (layer 0, head 0)",
                                           "ours, largest head (layer 0, head 1)"};
        if (!row->picked)
            continue;
        ck_assert_int_lt(seen, 3);
        ck_assert_str_eq(row->path, want[seen]);
        json_t *where =
            page_where(page_rule(&o.page, row, &o.page.blocks[0].columns.e[0]), row, NULL);
        ck_assert_int_eq(json_integer_value(json_object_get(where, "layer")), row->layer);
        ck_assert_int_eq(json_integer_value(json_object_get(where, "head")), row->head);
        ck_assert_str_eq(json_str_or(where, "k", ""), "2.5%");
        json_decref(where);
        seen++;
    }
    ck_assert_int_eq(seen, 3);
    recset_free(&set);
    close_recipe(&o);
}
END_TEST

/* Rows that a recipe adds are of the model that the job of their numbers runs on, and not of the
 * first that the recipe names. */
START_TEST(rows_of_ours_are_of_their_jobs_model)
{
    struct opened o;
    int seen = 0;
    open_recipe("spargeattn:2", true, &o);
    assert_ok(grid_make(&o.page, &e), &e);
    assert_ok(page_fill(&o.page, &e), &e);
    for (int k = 0; k < o.page.blocks[0].rows.n; k++) {
        const struct grid_entry *row = &o.page.blocks[0].rows.e[k];
        if (!row->extra)
            continue;
        const struct page_cell *c =
            page_cell_at(&o.page.blocks[0], k, o.page.blocks[0].columns.n - 1);
        const char *want = strncmp(row->path, "code-lm", 7) == 0 ? "code-lm" : "video-dit";
        ck_assert_int_ge(c->model, 0);
        ck_assert_str_eq(o.models.m[c->model].name, want);
        seen++;
    }
    ck_assert_int_eq(seen, 2);
    close_recipe(&o);
}
END_TEST

/* A recipe with one word changed is refused, and the message names what is wrong. */
static void refuse(const char *from, const char *to, const char *message)
{
    char path[300];
    struct buf source = {0}, text = {0}, changed = {0};
    struct recipe r = {0};
    assert_ok(recipe_path(&data, "spargeattn:9", &source, &e), &e);
    assert_ok(buf_read_file(&text, buf_str(&source), 1 << 20, &e), &e);
    const char *at = strstr(buf_str(&text), from);
    ck_assert_msg(at != NULL, "the recipe has no %s", from);
    buf_put(&changed, text.data, (size_t)(at - text.data));
    buf_puts(&changed, to);
    buf_puts(&changed, at + strlen(from));
    snprintf(path, sizeof path, "%s/recipe.json", test_tmpdir());
    assert_ok(file_write_atomic(path, changed.data, changed.len, &e), &e);
    int rc = recipe_read(path, &data, &r, &e);
    if (!rc)
        rc = recipe_check(&r, &app, &e);
    ck_assert_msg(rc == ERR_INPUT && strstr(e.msg, message) && strstr(e.msg, "recipe.json"),
                  "%s -> %s: %d '%s'", from, to, rc, e.msg);
    recipe_free(&r);
    buf_free(&source);
    buf_free(&text);
    buf_free(&changed);
    memset(&e, 0, sizeof e);
}

/* The records as what one step of one job gave. */
struct one_step {
    struct recipe recipe;
    struct step step;
    struct plan plan;
    struct proof v[4];
    struct evidence evidence;
    struct recset set; /* freed by the test */
};

static void give(struct fixture_records *f, struct one_step *o)
{
    memset(o, 0, sizeof *o);
    fixture_set(f, &o->set);
    ck_assert_int_le(o->set.n, 4);
    o->plan = (struct plan){.recipes = &o->recipe, .n_recipes = 1, .s = &o->step, .n = 1};
    for (int64_t i = 0; i < o->set.n; i++)
        o->v[i] = (struct proof){&o->set.r[i], 0};
    o->evidence = (struct evidence){.plan = &o->plan, .v = o->v, .n = o->set.n};
}

/* Three prompts of one task and one of another: grades have different names, and each task counts
 * the same. */
START_TEST(every_task_counts_the_same)
{
    static const struct {
        const char *task, *metric;
        double grade;
    } asked[4] = {{"needle:domain=c:tokens=1024:sample=0", "needle_acc", 1},
                  {"needle:domain=c:tokens=1024:sample=1", "needle_acc", 0},
                  {"needle:domain=c:tokens=1024:sample=2", "needle_acc", 0},
                  {"file:file=qasper.jsonl:metric=f1:line=1", "score@f1", 0.8}};
    struct fixture_records f = {0};
    struct one_step o;
    struct choice all = {0, 0, NULL, NULL};
    struct sample_stats s;
    for (int i = 0; i < 4; i++) {
        struct record *r = fixture_record(&f, "dense", "", 0, 0);
        record_of_model(r);
        r->task = strdup(asked[i].task);
        fixture_metric(r, asked[i].metric, asked[i].grade);
    }
    give(&f, &o);
    assert_ok(evidence_stat(&o.evidence, &all, "100*score", "mean", &s, &e), &e);
    ck_assert_double_eq_tol(s.value, 45, 1e-9);
    assert_ok(evidence_stat(&o.evidence, &all, "100*score", "mean-over-tasks", &s, &e), &e);
    ck_assert_double_eq_tol(s.value, (100 / 3.0 + 80) / 2, 1e-9);
    ck_assert_int_eq(s.units, 4);
    ck_assert(s.lo < s.value && s.value < s.hi);
    assert_ok(evidence_stat(&o.evidence, &all, "100*score", "sum-over-tasks", &s, &e), &e);
    ck_assert_double_eq_tol(s.value, 100 / 3.0 + 80, 1e-9);
    recset_free(&o.set);
}
END_TEST

/* A choice that makes its own operands has no phase of quantisation: no time, and not no number. A
 * record without times has none. */
START_TEST(a_phase_that_is_not_there_takes_no_time)
{
    struct fixture_records f = {0};
    struct one_step o;
    struct choice all = {0, 0, NULL, NULL};
    struct sample_stats s;
    const char *overhead = "100*(time_quant_ns+time_select_ns)/time_dense_ns";
    for (int layer = 0; layer < 2; layer++) {
        struct record *r = fixture_record(&f, "sale", "", layer, 0);
        if (layer == 0)
            fixture_metric(r, "time_total_ns", 90);
        fixture_metric(r, "time_select_ns", 30);
        fixture_metric(r, "time_dense_ns", 120);
    }
    give(&f, &o);
    assert_ok(evidence_stat(&o.evidence, &all, overhead, "mean", &s, &e), &e);
    ck_assert_double_eq_tol(s.value, 25, 1e-9);
    ck_assert_int_eq(s.units, 1);
    ck_assert(evidence_reads(overhead, o.v[0].r));
    ck_assert(!evidence_reads(overhead, o.v[1].r));
    ck_assert(evidence_reads("time_select_ns", o.v[1].r));
    recset_free(&o.set);
}
END_TEST

/* The ID of a recipe's first job of this name. */
static const char *job_of(const struct plan *p, int recipe, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (p->s[i].recipe == recipe && strcmp(step_job(p, &p->s[i])->name, name) == 0)
            return p->s[i].id;
    return "";
}

/* On a GPU without any file: generated prompts are asked, datasets are left out, each with the name
 * of its file, and what the tables of SALE time is one job with the figure. */
START_TEST(without_files_generated_prompts_are_asked)
{
    static const char *const ids[] = {
        "sampleattention:2",  "sale:1", "sale:2", "sale:speedup", "sampleattention:6",
        "sampleattention:f10"};
    enum { N = sizeof ids / sizeof *ids };
    struct recipe recipes[N] = {{0}};
    struct model_set models = {0};
    struct task_set tasks = {0};
    struct str_list none = {0};
    struct plan plan = {.app = &app,
                        .recipes = recipes,
                        .n_recipes = N,
                        .models = &models,
                        .tasks = &tasks,
                        .style = "paper",
                        .cuda = true};
    int made = 0, files = 0;
    assert_ok(paper_data_load(&data, &e), &e);
    for (int i = 0; i < N; i++) {
        struct buf path = {0};
        assert_ok(recipe_path(&data, ids[i], &path, &e), &e);
        assert_ok(recipe_read(buf_str(&path), &data, &recipes[i], &e), &e);
        recipes[i].on_gpu = true;
        buf_free(&path);
    }
    assert_ok(model_set_make(&none, &none, recipes, N, &data, &models, &e), &e);
    assert_ok(task_set_make(&data, &none, &tasks, &e), &e);
    assert_ok(plan_expand(&plan, &e), &e);
    for (int i = 0; i < plan.n; i++) {
        const struct step *s = &plan.s[i];
        const char *name = step_job(&plan, s)->name;
        ck_assert_int_eq(s->left_out, step_lacks_file(s));
        made += strcmp(name, "made") == 0;
        if (!s->task)
            continue;
        files++;
        ck_assert_msg(strstr(s->reason, s->task->file) && strstr(s->reason, "--tasks DIR"), "%s",
                      s->reason);
    }
    ck_assert_int_eq(made, 4);
    ck_assert_int_eq(files, 27 + 14 + 5);
    /* The tables of SALE ask the same: captures are one job, and so are replays with times. */
    ck_assert_str_eq(job_of(&plan, 1, "text"), job_of(&plan, 2, "text"));
    ck_assert_str_ne(job_of(&plan, 1, "text"), job_of(&plan, 1, "texts"));
    ck_assert_str_eq(job_of(&plan, 1, "run"), job_of(&plan, 2, "run"));
    plan_free(&plan);
    task_set_free(&tasks);
    model_set_free(&models);
    for (int i = 0; i < N; i++)
        recipe_free(&recipes[i]);
    paper_data_free(&data);
}
END_TEST

START_TEST(what_a_recipe_misspells_is_named)
{
    assert_ok(paper_data_load(&data, &e), &e);
    refuse("\"claims\"", "\"claim\"", "unknown field 'claim'");
    refuse("\"do\": \"replay\"", "\"do\": \"reply\"", "did you mean 'replay'");
    refuse("{steps}", "{stesp}", "{stesp}");
    refuse("\"from\": [\"clip\"]", "\"from\": [\"clap\"]", "no job 'clap'");
    refuse("--per {per}", "--pre {per}", "'--pre'");
    refuse("calib={tuned}", "calib={tuned}:lamda=1", "lamda");
    refuse("\"metric\": \"sim_q\"", "\"metric\": \"sim_x\"", "unknown metric 'sim_x'");
    refuse("\"column\": \"Sim-*\"", "\"column\": \"Simm-*\"", "Simm-*");
    refuse("\"l1\": 0.05", "\"l1\": \"x\"", "match: calibration: l1: a number was expected");
    refuse("\"l1\": 0.05", "\"l3\": 0.05", "unknown field 'l3'");
    refuse("\"per\": \"layer\", \"inputs\"", "\"per\": \"token\", \"inputs\"",
           "per: unknown value 'token'");
    refuse("\"inputs\": 5", "\"inputs\": 0.5", "inputs: an integer from 1 on");
    refuse("mochi-1", "mochi-9", "no model 'mochi-9'");
    refuse("\"most\": \"hilbert\"", "\"mots\": \"hilbert\"", "unknown field 'mots'");
    refuse("\"most\": \"hilbert\"", "\"most\": \"hilbrt\"", "no such member: 'hilbrt'");
    refuse("\"of\": \"order\"", "\"of\": \"ordr\"", "'ordr'");
    refuse("\"most\": \"hilbert\"", "\"least\": \"row\", \"most\": \"hilbert\"",
           "one test was expected, found 'most' and 'least'");
    refuse("[null, 0.06]", "0.06", "within: a range");
    refuse("[null, 0.06]", "[0.06]", "within: a range");
    refuse("[null, 0.06]", "[0.06, 0.01]", "within: a range");
    refuse("\"within\": [null, 0.06]", "\"more\": [\"sim_q\"]", "more: two or four members");
    refuse("\"within\": [null, 0.06], \"of\": \"order\"",
           "\"within\": [null, 1], \"setting\": \"l1\"", "no rule of `ours` shows 'l1'");
    refuse("\"id\": \"sim-k\"", "\"id\": \"sim-q\"", "two claims");
    refuse("\"id\": \"sim-k\"", "\"id\": \"sim-k\", \"needs\": \"Q\"", "needs: unknown value 'Q'");
    refuse("\"metric\": \"sim_q\"", "\"metric\": \"sim_q\", \"where\": {\"case\": \"x\"}",
           "no case 'x'");
    refuse("\"stat\": \"mean\"", "\"stat\": \"average\"", "stat: unknown value 'average'");
    refuse("\"do\": \"replay\"", "\"tasks\": \"{order}\", \"do\": \"eval\"",
           "tasks.json has no dataset 'random'");
    refuse("\"do\": \"replay\"", "\"tasks\": \"{order}\", \"do\": \"replay\"",
           "tasks: of an eval, a {variable} that it repeats over");
    refuse("{row.permute}", "{row.colour}", "no row has a field 'colour'");
    refuse("\"where\": {\"order\"", "\"where\": {\"odrer\"", "records have no 'odrer'");
    refuse("--precision f32 --", "--precision f32 -o elsewhere --", "'-o' is no option");
    refuse("--precision f32 --", "--output elsewhere --precision f32 --", "--output");
    refuse("--precision f32 --", "--precision f32 rm --", "'rm' is no option");
    refuse("\"claims\"",
           "\"extra\": [{\"axis\": \"row\", \"label\": \"x\", \"pick\": {\"by\": \"sim_q\", "
           "\"job\": \"run\", \"rank\": \"middle\"}}], \"claims\"",
           "rank: unknown value 'middle'");
    refuse("\"claims\"", "\"extra\": [{\"axis\": \"rows\", \"label\": \"x\"}], \"claims\"",
           "axis: unknown value 'rows'");
    paper_data_free(&data);
}
END_TEST

/* Marks of figure 11b of SampleAttention: row, unit of the axis and what comes of it. */
static void check_marks(const char *row, const char *unit, int want, const char *text)
{
    struct buf b = {0};
    json_t *marks = json_pack("{s:s,s:s,s:s,s:s}", "row", row, "column", "TTFT speedup", "unit",
                              unit, "label", "GLM4-9B");
    memset(&e, 0, sizeof e);
    int rc = paper_marks(&data, paper_figure(&data, "sampleattention:f11b"), marks, &b, &e);
    ck_assert_int_eq(rc, want);
    ck_assert_msg(strstr(rc ? e.msg : buf_str(&b), text) != NULL, "%s, %s", buf_str(&b), e.msg);
    json_decref(marks);
    buf_free(&b);
}

START_TEST(printed_numbers_are_marks_where_the_axes_are_theirs)
{
    assert_ok(paper_data_load(&data, &e), &e);
    check_marks("GLM4-9B, N = *", "x", 0,
                "printed (GLM4-9B)=32768:1.15,65536:1.60,131072:1.95,262144:2.86,524288:3.94,"
                "1048576:5.29");
    check_marks("GLM4-9B, N = *", "ms", ERR_INPUT, "not a number in ms");
    check_marks("GLM4-9B, M = *", "x", ERR_INPUT, "no printed number has row 'GLM4-9B, M = *'");
    check_marks("GLM4-9B, *", "x", ERR_INPUT, "no printed number"); /* "N = 32K" is no x */
    memset(&e, 0, sizeof e);
    paper_data_free(&data);
}
END_TEST

/* ---- verdicts ----------------------------------------------------------------------------------
 */

START_TEST(a_curve_is_read_between_its_points)
{
    struct curve_point p[] = {{0.4, 0.16}, {0.1, 0.01}, {0.2, 0.04}};
    ck_assert_double_eq_tol(curve_at(p, 3, 0.3), 0.09,
                            1e-12); /* y = x^2 is straight in logarithms */
    ck_assert_double_eq(curve_at(p, 3, 0.2), 0.04);
    ck_assert_double_nan(curve_at(p, 3, 0.05));
    ck_assert_double_nan(curve_at(p, 3, 0.41));
    struct curve_point zero[] = {{0, 0}, {1, 2}};
    ck_assert_double_eq(curve_at(zero, 2, 0.25), 0.5); /* which 0 has none of */
}
END_TEST

/* Eight heads with tau 1, 2, 3 and a calibration: at sparsity 0.1 tau the error is 0.01 tau; head i
 * of the calibration has the sparsity 0.15, or beyond the curve 0.35, and this error. */
static void add_taus(struct record *rec, struct proof *proof, double calibrated)
{
    for (int i = 0; i < 32; i++) {
        int tau = i / 8 + 1, head = i % 8;
        bool own = tau == 4;
        record_init(&rec[i]);
        rec[i].layer = 0;
        rec[i].head = rec[i].kv_head = head;
        rec[i].params = strdup(own        ? "calib=77"
                               : tau == 1 ? "tau=1"
                               : tau == 2 ? "tau=2"
                                          : "tau=3");
        snprintf(rec[i].method, sizeof rec[i].method, "sale");
        double sparsity = own ? head == 7 ? 0.35 : 0.15 : 0.1 * tau;
        assert_ok(record_metric(&rec[i], "sparsity_total", sparsity, &e), &e);
        assert_ok(record_metric(&rec[i], "err_l1_rel", own ? calibrated : 0.01 * tau, &e), &e);
        proof[i] = (struct proof){&rec[i], 0};
    }
}

START_TEST(errors_are_compared_at_equal_sparsity)
{
    static const double errors[] = {0.005, 0.02};
    struct recipe r = {0};
    struct buf path = {0};
    assert_ok(paper_data_load(&data, &e), &e);
    assert_ok(recipe_path(&data, "sale:calib", &path, &e), &e);
    assert_ok(recipe_read(buf_str(&path), &data, &r, &e), &e);
    struct claim c;
    assert_ok(claim_read(json_object_get(json_array_get(r.claims, 0), "test"), &c, &e), &e);
    struct model_use m = {.role = "lm"};
    struct model_set set = {&m, 1, 1};
    struct step step = {.job = recipe_job_find(&r, "run"), .model = 0, .done = true};
    struct plan plan = {.recipes = &r, .n_recipes = 1, .models = &set, .s = &step, .n = 1};
    for (int k = 0; k < 2; k++) {
        struct page page = {.plan = &plan, .data = &data, .recipe = &r};
        struct record rec[32];
        struct proof proof[32];
        struct members *all = calloc(1, sizeof *all);
        struct claim_row row = {.id = ""};
        ck_assert_ptr_nonnull(all);
        add_taus(rec, proof, errors[k]);
        page.evidence = (struct evidence){.plan = &plan, .v = proof, .n = 32};
        assert_ok(claim_members(&page, &c, 0, all, &e), &e);
        ck_assert_int_eq(all->m[0].units.n, 7); /* without the head beyond the ends */
        ck_assert_double_eq_tol(all->m[0].units.u[0].sum, 0.015, 1e-12);
        ck_assert_str_eq(all->m[0].label, "one tau at equal sparsity_total");
        assert_ok(claim_test(&c, all, 0.0005, &row, &e), &e);
        ck_assert_int_eq(row.state, k ? CLAIM_HOLDS_NOT : CLAIM_HOLDS);
        ck_assert_int_eq(row.value.n, 7);
        members_free(all);
        free(all);
        for (int i = 0; i < 32; i++)
            record_free(&rec[i]);
    }
    recipe_free(&r);
    buf_free(&path);
    paper_data_free(&data);
}
END_TEST

static const char tiny_recipe[] =
    "{\"recipe\": 1, \"id\": \"fg-attn:2\", \"layout\": \"fg-attn:2\", \"needs\": [\"T\"],"
    " \"roles\": {\"lm\": {\"default\": \"code-lm\", \"fills\": {\"tiny\": \"Sparsity\"}}},"
    " \"jobs\": {\"ask\": {\"do\": \"prompt\", \"model\": \"lm\", \"args\": \"needle\"},"
    "  \"text\": {\"do\": \"capture\", \"model\": \"lm\", \"args\": \"--prompt {ask}\"},"
    "  \"run\": {\"do\": \"replay\", \"from\": [\"text\"], \"methods\": [\"dense\"]}},"
    " \"ours\": [{\"job\": \"run\", \"where\": {\"method\": \"spargeattn\"}}],"
    " \"match\": {\"length\": \"model\", \"prompt\": \"needle\", \"arith\": \"sage1\","
    "  \"settings\": \"spargeattn:profile=paper\","
    "  \"calibration\": {\"l1\": 0.05, \"per\": \"layer\", \"inputs\": 5}}}";

/* What may be another than the paper's. */
struct situation {
    const char *name; /* of the model; NULL: the paper's */
    bool no_weights, given, quick, other_shape;
    int64_t n;
    int heads; /* of the 8 that the model has */
    const char *params, *own;
    double value;
    const char *letters;
    enum cell_state state;
};

static const char *const published = "profile=paper:arith=sage1:calib=0";

static void judge(const struct situation *t, struct recipe *r)
{
    struct model_use m = {.role = "lm",
                          .has_weights = !t->no_weights,
                          .causal = true,
                          .shape = {"Tiny", 2, 4, 4, t->other_shape ? 16 : 8}};
    struct model_set set = {&m, 1, 1};
    struct step step = {.job = 2, .model = 0, .done = true};
    struct plan plan = {.recipes = r, .n_recipes = 1, .models = &set, .s = &step, .n = 1};
    struct page page = {.plan = &plan, .data = &data, .recipe = r, .quick = t->quick};
    struct record rec[8];
    struct proof proof[8];
    snprintf(m.name, sizeof m.name, "%s", t->name ? t->name : "tiny");
    m.trace = t->given ? (char[]){"t.h5"} : NULL;
    m.paper = m.has_weights ? shape_paper_model(&data, &m.shape) : NULL;
    for (int i = 0; i < t->heads; i++) {
        record_init(&rec[i]);
        rec[i].layer = i / 4;
        rec[i].head = rec[i].kv_head = i % 4;
        rec[i].n_q = t->n;
        rec[i].params = strdup(t->params);
        snprintf(rec[i].method, sizeof rec[i].method, "spargeattn");
        assert_ok(record_metric(&rec[i], "below_b64", t->value + 1e-4 * i, &e), &e);
        record_note(&rec[i], "calib_search=l1=0.05:l2=0.06;calib_per=layer;calib_inputs=5");
        record_note(&rec[i], "calib_own=%s", t->own);
        proof[i] = (struct proof){&rec[i], 0};
    }
    page.evidence = (struct evidence){.plan = &plan, .v = proof, .n = t->heads};
    assert_ok(grid_make(&page, &e), &e);
    assert_ok(page_fill(&page, &e), &e);
    struct page_block *b = &page.blocks[0];
    bool own = t->no_weights || t->other_shape; /* none of the papers' models */
    const struct page_cell *c = page_cell_at(b, 1, own ? 1 : 0);
    ck_assert_msg(c->ours != NULL, "no value: %s", c->reason ? c->reason : "");
    ck_assert_str_eq(c->letters, t->letters);
    ck_assert_str_eq(cell_state_names[c->state], cell_state_names[t->state]);
    ck_assert_int_eq(b->columns.n, own ? 2 : 1);
    grid_free(&page);
    for (int i = 0; i < t->heads; i++)
        record_free(&rec[i]);
}

START_TEST(agreement_needs_every_condition)
{
    const struct situation cases[] = {
        {.value = .228, .letters = "", .state = CELL_AGREES},
        {.value = .300, .letters = "", .state = CELL_DIFFERS},
        {.no_weights = true, .value = .228, .letters = "ab", .state = CELL_OURS},
        {.n = 65, .value = .228, .letters = "b", .state = CELL_BESIDE},
        /* The name of a paper's model changes nothing: shape, length and settings do. */
        {.name = "CogVideoX-2b", .value = .228, .letters = "", .state = CELL_AGREES},
        {.name = "tiny", .other_shape = true, .value = .228, .letters = "ab", .state = CELL_OURS},
        {.name = "CogVideoX-2b",
         .no_weights = true,
         .given = true,
         .n = 1536,
         .params = "",
         .value = .228,
         .letters = "abcde",
         .state = CELL_OURS},
        {.name = "CogVideoX-2b",
         .n = 1536,
         .params = "",
         .value = .228,
         .letters = "bde",
         .state = CELL_BESIDE},
        {.given = true, .value = .228, .letters = "c", .state = CELL_BESIDE},
        {.params = "profile=paper:calib=0", .value = .228, .letters = "d", .state = CELL_BESIDE},
        {.params = "profile=paper:arith=sage1:sink=1:calib=0",
         .value = .228,
         .letters = "d",
         .state = CELL_BESIDE},
        {.own = "1", .value = .228, .letters = "e", .state = CELL_BESIDE},
        {.params = "profile=paper:arith=sage1",
         .value = .228,
         .letters = "e",
         .state = CELL_BESIDE},
        {.heads = 7, .value = .228, .letters = "h", .state = CELL_BESIDE},
        {.quick = true, .value = .228, .letters = "q", .state = CELL_BESIDE},
    };
    struct recipe r = {0};
    char path[300];
    assert_ok(paper_data_load(&data, &e), &e);
    ck_assert_int_eq(
        json_array_append_new(data.models, json_pack("{s:s s:s s:i s:i s:i s:i s:i}", "id", "tiny",
                                                     "architecture", "Tiny", "layers", 2, "heads",
                                                     4, "kv_heads", 4, "head_dim", 8, "n", 64)),
        0);
    snprintf(path, sizeof path, "%s/tiny.json", test_tmpdir());
    assert_ok(file_write_atomic(path, tiny_recipe, sizeof tiny_recipe - 1, &e), &e);
    assert_ok(recipe_read(path, &data, &r, &e), &e);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct situation t = cases[i];
        t.n = t.n ? t.n : 64;
        t.heads = t.heads ? t.heads : 8;
        t.params = t.params ? t.params : published;
        t.own = t.own ? t.own : "0";
        judge(&t, &r);
    }
    recipe_free(&r);
    paper_data_free(&data);
}
END_TEST

Suite *make_suite(void)
{
    Suite *s = suite_create("reproduce");
    TCase *t = tcase_create("reproduce");
    tcase_add_checked_fixture(t, begin, NULL);
    tcase_add_test(t, more_needs_an_interval_above_zero);
    tcase_add_test(t, equal_values_do_not_hold);
    tcase_add_test(t, five_heads_and_scatter_are_open);
    tcase_add_test(t, ranges_hold_by_their_whole_interval);
    tcase_add_test(t, expressions_bind_as_usual);
    tcase_add_test(t, every_table_and_figure_has_a_recipe);
    tcase_add_test(t, layouts_place_every_printed_number);
    tcase_add_test(t, a_row_picks_its_head_by_a_rule);
    tcase_add_test(t, printed_numbers_are_marks_where_the_axes_are_theirs);
    tcase_add_test(t, a_curve_is_read_between_its_points);
    tcase_add_test(t, errors_are_compared_at_equal_sparsity);
    tcase_add_test(t, rows_of_ours_are_of_their_jobs_model);
    tcase_add_test(t, every_task_counts_the_same);
    tcase_add_test(t, a_phase_that_is_not_there_takes_no_time);
    tcase_add_test(t, without_files_generated_prompts_are_asked);
    tcase_add_test(t, what_a_recipe_misspells_is_named);
    tcase_add_test(t, agreement_needs_every_condition);
    suite_add_tcase(s, t);
    return s;
}
