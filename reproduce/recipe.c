/*
 * recipe.c - reading recipes. Whatever the reader does not know is an error: a misspelt field would
 * silently change what a page says.
 */
#include "reproduce/recipe.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"
#include "reproduce/schema.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

const char *const job_do_names[DO_COUNT + 1] = {"prompt", "capture", "calibrate", "replay",
                                                "eval",   "draw",    NULL};
const char *const job_do_commands[DO_COUNT] = {"prompt", "capture", "calibrate",
                                               "replay", "eval",    "plot"};

/* ---- form ------------------------------------------------------------------------------------
 */

#define FIELD(NAME, TYPE, ...)                                                                     \
    {                                                                                              \
        .name = #NAME, .type = FIELD_##TYPE, ##__VA_ARGS__                                         \
    }
#define MUST(NAME, TYPE, ...) FIELD(NAME, TYPE, .required = true, ##__VA_ARGS__)
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define STATS                                                                                      \
    WORDS("mean", "calls", "min", "max", "sum-over-layers", "mean-over-tasks", "sum-over-tasks")

/* clang-format off */
static const struct field marks_fields[] = {
    MUST(row, TEXT), MUST(column, TEXT), MUST(unit, TEXT),
    MUST(label, TEXT), {0}};

static const struct field job_fields[] = {
    MUST(do, TEXT, .values = job_do_names), FIELD(model, TEXT), FIELD(each, TEXTS),
    FIELD(from, TEXTS), FIELD(method, TEXT), FIELD(methods, TEXTS), FIELD(args, TEXT),
    FIELD(figure, TEXT), FIELD(needs, TEXT, .values = WORDS("K", "M")),
    FIELD(series, MAP), FIELD(marks, OBJECT, .in = marks_fields), FIELD(tasks, TEXT), {0}};

static const struct field calibration_fields[] = {
    FIELD(l1, NUMBER), FIELD(l2, NUMBER), FIELD(theta, NUMBER),
    FIELD(per, TEXT, .values = WORDS("head", "layer", "model")), FIELD(inputs, COUNT), {0}};

static const struct field match_fields[] = {
    FIELD(length, ANY), FIELD(prompt, TEXT), FIELD(settings, TEXT), FIELD(arith, TEXT),
    FIELD(calibration, OBJECT, .in = calibration_fields), FIELD(gpu, ANY),
    FIELD(stands_in, TEXTS), {0}};

static const struct field setting_fields[] = {MUST(name, TEXT), MUST(jobs, TEXTS), {0}};

static const struct field ours_fields[] = {
    FIELD(column, TEXT), FIELD(row, TEXT), MUST(job, TEXT), FIELD(where, MAP),
    FIELD(stat, TEXT, .values = STATS), FIELD(metric, ANY), FIELD(pairs, MAP),
    FIELD(needs, TEXT), FIELD(setting, OBJECT, .in = setting_fields), {0}};

static const struct field pick_fields[] = {
    MUST(by, TEXT), MUST(job, TEXT), FIELD(where, MAP),
    MUST(rank, TEXT, .values = WORDS("least", "median", "largest")), {0}};

static const struct field extra_fields[] = {
    MUST(axis, TEXT, .values = WORDS("row", "column")), MUST(label, ANY),
    FIELD(ours, TEXT), FIELD(block, COUNT), FIELD(arrow, TEXT),
    FIELD(pick, OBJECT, .in = pick_fields), FIELD(scale, NUMBER),
    FIELD(stat, TEXT, .values = STATS), FIELD(digits, NUMBER), FIELD(n, ANY),
    FIELD(suffix, TEXT), FIELD(needs, TEXT), {0}};

static const struct field test_fields[] = {
    FIELD(more, TEXTS), FIELD(rises, ANY), FIELD(falls, ANY), FIELD(most, TEXT),
    FIELD(least, TEXT), FIELD(within, RANGE), FIELD(front, TEXT),
    FIELD(difference, TEXTS), FIELD(ratio, ANY), FIELD(spread, TEXT), FIELD(rank, TEXT),
    FIELD(of, ANY), FIELD(last, FLAG), FIELD(metric, TEXT), FIELD(metrics, TEXTS),
    FIELD(job, TEXT), FIELD(where, MAP), FIELD(at_equal, TEXT), FIELD(setting, TEXT),
    FIELD(labels, TEXT, .values = WORDS("row", "column")), {0}};

static const struct field claim_fields[] = {
    MUST(id, TEXT), MUST(text, TEXT),
    MUST(test, OBJECT, .in = test_fields),
    FIELD(needs, TEXT, .values = WORDS("K", "M")), {0}};

static const struct field role_fields[] = {
    MUST(default, TEXT), FIELD(fills, MAP), FIELD(beside_all, ANY), {0}};

static const struct field recipe_fields[] = {
    MUST(recipe, COUNT), MUST(id, TEXT), MUST(layout, TEXT),
    FIELD(needs, TEXTS, .values = WORDS("T", "K", "M")),
    FIELD(roles, MAP, .in = role_fields),
    FIELD(full, MAP), FIELD(quick, MAP), FIELD(cuda, MAP), FIELD(each, MAP),
    FIELD(jobs, MAP, .in = job_fields), FIELD(ours, OBJECTS, .in = ours_fields),
    FIELD(match, OBJECT, .in = match_fields), FIELD(claims, OBJECTS, .in = claim_fields),
    FIELD(absent, MAP), FIELD(cases, MAP), FIELD(extra, OBJECTS, .in = extra_fields),
    FIELD(notes, TEXTS), {0}};
/* clang-format on */

/* ---- parts ---------------------------------------------------------------------------------- */

int recipe_job_find(const struct recipe *r, const char *name)
{
    for (int i = 0; i < r->n_jobs; i++)
        if (strcmp(r->jobs[i].name, name) == 0)
            return i;
    return -1;
}

const json_t *recipe_variable(const struct recipe *r, bool quick, const char *name)
{
    const json_t *v = r->on_gpu ? json_object_get(r->cuda, name) : NULL;
    if (!v && quick)
        v = json_object_get(r->quick, name);
    if (!v)
        v = json_object_get(r->full, name);
    return v ? v : json_object_get(r->each, name);
}

bool recipe_repeats(const struct recipe_job *j, const char *variable)
{
    return json_has_text(j->each, variable);
}

int template_each(const char *text, const char *where, template_fn *fn, void *ctx, struct err *err)
{
    char word[64];
    int rc = 0;
    for (const char *p = text;;) {
        const char *open = strchr(p, '{'), *close = open ? strchr(open, '}') : NULL;
        if (!open)
            return fn(ctx, p, strlen(p), NULL, err);
        if (!close || (size_t)(close - open) > sizeof word)
            FAIL(err, ERR_INPUT, "%s: '{' without '}' in '%s'", where, text);
        snprintf(word, sizeof word, "%.*s", (int)(close - open - 1), open + 1);
        TRY(fn(ctx, p, (size_t)(open - p), word, err));
        p = close + 1;
    }
out:
    return rc;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* The known jobs and variables that a {word} may name. */
struct word_check {
    const struct recipe *r;
    int before; /* jobs that stand above */
    const char *where;
};

static int check_word(void *ctx, const char *literal, size_t len, const char *word, struct err *err)
{
    const struct word_check *c = ctx;
    char name[64];
    (void)literal;
    (void)len;
    if (!word || strcmp(word, "out") == 0)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "."), word);
    int job = recipe_job_find(c->r, name);
    if (job >= c->before)
        return err_set(err, ERR_INPUT, "%s: {%s} is a job that stands below", c->where, word);
    if (job >= 0 && strchr(word, '.'))
        return err_set(err, ERR_INPUT, "%s: {%s}: the job '%s' has no parts", c->where, word, name);
    if (job < 0 && !recipe_variable(c->r, false, name) && !recipe_variable(c->r, true, name))
        return err_set(err, ERR_INPUT, "%s: {%s} is neither a variable nor a job", c->where, word);
    return 0;
}

/* Part `.i` of every value of the variable that {variable.i} names is a dataset. */
static int check_tasks(const struct recipe *r, const struct paper_data *d,
                       const struct recipe_job *j, const char *where, struct err *err)
{
    const json_t *sets[] = {r->full, r->quick, r->cuda, r->each};
    char name[64], id[64];
    int part = 0, got = sscanf(j->tasks, "{%60[^.}].%d", name, &part);
    if (j->kind != DO_EVAL || got < 1 || !recipe_repeats(j, name))
        return err_set(err, ERR_INPUT,
                       "%s: tasks: of an eval, a {variable} that it repeats over, found '%s'",
                       where, j->tasks);
    for (int k = 0; k < 4; k++) {
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(sets[k], name), i, v)
        {
            const char *text = json_is_string(v) ? json_string_value(v) : "";
            for (int n = 0; got == 2 && n < part; n++)
                text = strchr(text, '/') ? strchr(text, '/') + 1 : "";
            snprintf(id, sizeof id, "%.*s", (int)(got == 2 ? strcspn(text, "/") : strlen(text)),
                     text);
            if (!paper_task(d, id))
                return err_set(err, ERR_INPUT, "%s: tasks: tasks.json has no dataset '%s'", where,
                               id);
        }
    }
    return 0;
}

static int check_job_words(const struct recipe *r, const struct paper_data *d, int at,
                           struct err *err)
{
    const struct recipe_job *j = &r->jobs[at];
    struct buf where = {0};
    size_t i;
    json_t *v;
    int rc = 0, k;

    buf_printf(&where, "%s: job '%s'", buf_str(&r->path), j->name);
    TRY(buf_check(&where, "recipe", err));
    struct word_check c = {r, at, buf_str(&where)};
    TRY(template_each(j->args, c.where, check_word, &c, err));
    if (j->tasks)
        TRY(check_tasks(r, d, j, c.where, err));
    json_array_foreach(j->methods, i, v)
        TRY(template_each(json_string_value(v), c.where, check_word, &c, err));
    json_array_foreach(j->each, i, v) if (!recipe_variable(r, false, json_string_value(v)))
        FAIL(err, ERR_INPUT, "%s: each: no variable '%s'", c.where, json_string_value(v));
    json_array_foreach(j->from, i,
                       v) if ((k = recipe_job_find(r, json_string_value(v))) < 0 || k >= at)
        FAIL(err, ERR_INPUT, "%s: from: no job '%s' above it", c.where, json_string_value(v));
    if (j->role && !json_object_get(r->roles, j->role))
        FAIL(err, ERR_INPUT, "%s: model: no role '%s'", c.where, j->role);
out:
    buf_free(&where);
    return rc;
}

static int take_job(struct recipe *r, const char *name, json_t *o, struct err *err)
{
    struct recipe_job *j = &r->jobs[r->n_jobs++];
    const char *kind = json_str_or(o, "do", ""), *path = buf_str(&r->path);
    const json_t *one = json_object_get(o, "method");
    int k = 0;
    while (strcmp(job_do_names[k], kind) != 0)
        k++;
    if (one && (json_object_get(o, "methods") ||
                json_object_set_new(o, "methods", json_pack("[O]", one)) != 0))
        return err_set(err, ERR_INPUT, "%s: job '%s': method and methods: give one", path, name);
    *j = (struct recipe_job){.name = name,
                             .kind = (enum job_do)k,
                             .role = json_str_or(o, "model", NULL),
                             .each = json_object_get(o, "each"),
                             .from = json_object_get(o, "from"),
                             .methods = json_object_get(o, "methods"),
                             .series = json_object_get(o, "series"),
                             .args = json_str_or(o, "args", ""),
                             .figure = json_str_or(o, "figure", ""),
                             .tasks = json_str_or(o, "tasks", NULL),
                             .needs = json_str_or(o, "needs", "")[0]};
    if ((j->series || json_object_get(o, "marks")) && j->kind != DO_DRAW)
        return err_set(err, ERR_INPUT, "%s: job '%s': series and marks are of drawings", path,
                       name);
    return 0;
}

static int take_jobs(struct recipe *r, const struct paper_data *d, struct err *err)
{
    const json_t *all = json_object_get(r->doc, "jobs");
    const char *name;
    json_t *o;
    int rc = 0;
    TRY(mem_zalloc(&r->jobs, (int64_t)json_object_size(all) + 1, sizeof *r->jobs, "jobs", err));
    json_object_foreach((json_t *)all, name, o) TRY(take_job(r, name, o, err));
    for (int i = 0; i < r->n_jobs; i++)
        TRY(check_job_words(r, d, i, err));
out:
    return rc;
}

/* Printed numbers that a drawing shows on its axes. */
static int take_marks(struct recipe *r, const struct paper_data *d, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < r->n_jobs; i++) {
        struct recipe_job *j = &r->jobs[i];
        const json_t *o =
            json_object_get(json_object_get(json_object_get(r->doc, "jobs"), j->name), "marks");
        if (o)
            TRY(paper_marks(d, r->item, o, &j->marks, err));
    }
out:
    return rc;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int take_roles(struct recipe *r, const struct paper_data *d, struct err *err)
{
    const char *name, *model;
    json_t *o, *v;
    json_object_foreach((json_t *)r->roles, name, o)
    {
        json_object_foreach(json_object_get(o, "fills"), model, v)
        {
            if (!paper_model(d, model))
                return err_set(err, ERR_INPUT,
                               "%s: roles '%s': fills: no model '%s' in models.json",
                               buf_str(&r->path), name, model);
        }
    }
    return 0;
}

static void take_lists(struct recipe *r)
{
    const json_t **const lists[] = {&r->roles,  &r->full,  &r->quick, &r->cuda,
                                    &r->each,   &r->ours,  &r->match, &r->claims,
                                    &r->absent, &r->cases, &r->extra, &r->notes};
    static const char *const names[] = {"roles", "full",   "quick",  "cuda",  "each",  "ours",
                                        "match", "claims", "absent", "cases", "extra", "notes"};
    const json_t *needs = json_object_get(r->doc, "needs");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        *lists[i] = json_object_get(r->doc, names[i]);
    for (size_t i = 0; i < json_array_size(needs) && i + 1 < sizeof r->needs; i++)
        r->needs[i] = json_string_value(json_array_get(needs, i))[0];
}

int recipe_read(const char *path, const struct paper_data *d, struct recipe *r, struct err *err)
{
    struct buf text = {0};
    size_t i;
    json_t *o;
    int rc = 0;

    buf_puts(&r->path, path);
    TRY(json_read_file(path, (size_t)1 << 20, &r->doc, err));
    TRY(schema_check(r->doc, recipe_fields, path, err));
    if (json_integer_value(json_object_get(r->doc, "recipe")) != 1)
        FAIL(err, ERR_INPUT, "%s: this program reads recipes of version 1", path);
    r->id = json_str_or(r->doc, "id", "");
    r->layout = json_str_or(r->doc, "layout", "");
    take_lists(r);
    r->item = paper_table(d, r->layout);
    r->figure = !r->item;
    if (r->figure)
        r->item = paper_figure(d, r->layout);
    if (!r->item)
        FAIL(err, ERR_INPUT, "%s: layout: layouts.json has no '%s'", path, r->layout);
    TRY(buf_read_file(&text, path, (size_t)1 << 20, err));
    hash_text(hash_bytes(text.data, text.len), r->content);
    TRY(take_roles(r, d, err));
    TRY(take_jobs(r, d, err));
    TRY(take_marks(r, d, err));
    json_array_foreach(r->ours, i, o)
    {
        if (recipe_job_find(r, json_str_or(o, "job", "")) < 0)
            FAIL(err, ERR_INPUT, "%s: ours entry %zu: no job '%s'", path, i + 1,
                 json_str_or(o, "job", ""));
    }
out:
    buf_free(&text);
    return rc;
}

void recipe_free(struct recipe *r)
{
    for (int i = 0; i < r->n_jobs; i++)
        buf_free(&r->jobs[i].marks);
    free(r->jobs);
    json_decref(r->doc);
    buf_free(&r->path);
    memset(r, 0, sizeof *r);
}

int recipe_path(const struct paper_data *d, const char *id, struct buf *path, struct err *err)
{
    buf_printf(path, "%s/recipes/", buf_str(&d->dir));
    for (const char *p = id; *p; p++)
        buf_put(path, *p == ':' ? "-" : p, 1);
    buf_puts(path, ".json");
    return buf_check(path, "path of a recipe", err);
}
