/*
 * recipe.c - reading recipes. Whatever the reader does not know is an error: a misspelt field would
 * silently change what a page says.
 */
#include "reproduce/recipe.h"

#include "core/fileio.h"
#include "core/hash.h"
#include "core/mem.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

const char *const job_do_names[DO_COUNT + 1] = {"prompt", "capture", "calibrate", "replay",
                                                "eval",   "draw",    NULL};
const char *const job_do_commands[DO_COUNT] = {"prompt", "capture", "calibrate",
                                               "replay", "eval",    "plot"};

/* ---- fields ---------------------------------------------------------------------------------- */

static int check_fields(const json_t *o, const char *path, const char *where,
                        const char *const *known, struct err *err)
{
    const char *key;
    json_t *v;
    char hint[HINT_MAX];
    if (!json_is_object(o))
        return err_set(err, ERR_INPUT, "%s: %s is no object", path, where);
    json_object_foreach((json_t *)o, key, v)
    {
        int i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i])
            return err_set(err, ERR_INPUT, "%s: %s: unknown field '%s'%s", path, where, key,
                           did_you_mean(key, known, hint));
    }
    return 0;
}

/* A list of texts, or nothing. */
static int take_names(const json_t *o, const char *key, const char *path, const char *where,
                      const json_t **out, struct err *err)
{
    size_t i;
    json_t *v;
    *out = json_object_get(o, key);
    if (!*out)
        return 0;
    if (!json_is_array(*out))
        return err_set(err, ERR_INPUT, "%s: %s.%s is no list", path, where, key);
    json_array_foreach(*out, i, v) if (!json_is_string(v)) return err_set(
        err, ERR_INPUT, "%s: %s.%s: entry %zu is no text", path, where, key, i + 1);
    return 0;
}

static int take_object(const json_t *o, const char *key, const char *path, const json_t **out,
                       struct err *err)
{
    *out = json_object_get(o, key);
    return *out && !json_is_object(*out) ? err_set(err, ERR_INPUT, "%s: %s is no object", path, key)
                                         : 0;
}

static int take_objects(const json_t *o, const char *key, const char *path,
                        const char *const *known, const json_t **out, struct err *err)
{
    char where[64];
    size_t i;
    json_t *v;
    int rc = 0;
    *out = json_object_get(o, key);
    if (*out && !json_is_array(*out))
        return err_set(err, ERR_INPUT, "%s: %s is no list", path, key);
    json_array_foreach(*out, i, v)
    {
        snprintf(where, sizeof where, "%s entry %zu", key, i + 1);
        TRY(check_fields(v, path, where, known, err));
    }
out:
    return rc;
}

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
    size_t i;
    json_t *v;
    json_array_foreach(j->each, i, v) if (strcmp(json_string_value(v), variable) == 0) return true;
    return false;
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

static int take_job(struct recipe *r, const char *name, const json_t *o, struct err *err)
{
    static const char *const known[] = {"do",      "model", "each",  "from",   "method",
                                        "methods", "args",  "drop",  "figure", "needs",
                                        "series",  "marks", "tasks", NULL};
    struct recipe_job *j = &r->jobs[r->n_jobs];
    const char *path = buf_str(&r->path), *kind = json_str_or(o, "do", "");
    char where[96], hint[HINT_MAX];
    int rc = 0, k = 0;

    snprintf(where, sizeof where, "job '%s'", name);
    TRY(check_fields(o, path, where, known, err));
    while (job_do_names[k] && strcmp(job_do_names[k], kind) != 0)
        k++;
    if (k == DO_COUNT)
        FAIL(err, ERR_INPUT, "%s: %s: do: unknown kind '%s'%s", path, where, kind,
             did_you_mean(kind, job_do_names, hint));
    *j = (struct recipe_job){.name = name,
                             .kind = (enum job_do)k,
                             .role = json_str_or(o, "model", NULL),
                             .args = json_str_or(o, "args", ""),
                             .figure = json_str_or(o, "figure", ""),
                             .tasks = json_str_or(o, "tasks", NULL),
                             .needs = json_str_or(o, "needs", "")[0],
                             .drop = json_is_true(json_object_get(o, "drop"))};
    if (j->needs && strcmp(json_str_or(o, "needs", ""), "K") != 0 &&
        strcmp(json_str_or(o, "needs", ""), "M") != 0)
        FAIL(err, ERR_INPUT, "%s: %s: needs: K or M", path, where);
    j->series = json_object_get(o, "series");
    if (j->series && (!json_is_object(j->series) || j->kind != DO_DRAW))
        FAIL(err, ERR_INPUT, "%s: %s: series: an object, of a drawing", path, where);
    if (json_object_get(o, "marks") && j->kind != DO_DRAW)
        FAIL(err, ERR_INPUT, "%s: %s: marks: of a drawing only", path, where);
    TRY(take_names(o, "each", path, where, &j->each, err));
    TRY(take_names(o, "from", path, where, &j->from, err));
    TRY(take_names(o, "methods", path, where, &j->methods, err));
    if (json_object_get(o, "method")) {
        if (j->methods || json_object_set_new((json_t *)o, "methods",
                                              json_pack("[O]", json_object_get(o, "method"))) != 0)
            FAIL(err, ERR_INPUT, "%s: %s: method and methods: give one", path, where);
        TRY(take_names(o, "methods", path, where, &j->methods, err));
    }
    r->n_jobs++;
out:
    return rc;
}

static int take_jobs(struct recipe *r, const struct paper_data *d, struct err *err)
{
    const json_t *all;
    const char *name;
    json_t *o;
    int rc = 0;
    TRY(take_object(r->doc, "jobs", buf_str(&r->path), &all, err));
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
    static const char *const known[] = {"row", "column", "unit", "label", NULL};
    int rc = 0;
    for (int i = 0; i < r->n_jobs; i++) {
        struct recipe_job *j = &r->jobs[i];
        const json_t *o =
            json_object_get(json_object_get(json_object_get(r->doc, "jobs"), j->name), "marks");
        if (!o)
            continue;
        TRY(check_fields(o, buf_str(&r->path), "marks", known, err));
        for (int k = 0; known[k]; k++)
            if (!json_is_string(json_object_get(o, known[k])))
                FAIL(err, ERR_INPUT, "%s: job '%s': marks: a text was expected as %s",
                     buf_str(&r->path), j->name, known[k]);
        TRY(paper_marks(d, r->item, o, &j->marks, err));
    }
out:
    return rc;
}

/* ---- the rest -------------------------------------------------------------------------------- */

static int take_needs(struct recipe *r, struct err *err)
{
    const json_t *list;
    size_t i, n = 0;
    json_t *v;
    int rc = 0;
    TRY(take_names(r->doc, "needs", buf_str(&r->path), "recipe", &list, err));
    json_array_foreach(list, i, v)
    {
        const char *s = json_string_value(v);
        if (strlen(s) != 1 || !strchr("TKM", s[0]) || n + 2 > sizeof r->needs)
            FAIL(err, ERR_INPUT, "%s: needs: '%s' is none of T, K, M", buf_str(&r->path), s);
        r->needs[n++] = s[0];
    }
out:
    return rc;
}

static int take_roles(struct recipe *r, const struct paper_data *d, struct err *err)
{
    static const char *const known[] = {"default", "fills", "beside_all", NULL};
    const char *path = buf_str(&r->path), *name, *model;
    json_t *o, *v;
    int rc = 0;
    TRY(take_object(r->doc, "roles", path, &r->roles, err));
    json_object_foreach((json_t *)r->roles, name, o)
    {
        TRY(check_fields(o, path, "roles", known, err));
        if (!json_is_string(json_object_get(o, "default")))
            FAIL(err, ERR_INPUT, "%s: roles.%s has no default model", path, name);
        json_object_foreach(json_object_get(o, "fills"), model, v)
        {
            if (!paper_model(d, model))
                FAIL(err, ERR_INPUT, "%s: roles.%s.fills: no model '%s' in models.json", path, name,
                     model);
        }
    }
out:
    return rc;
}

/* What a published calibration states: bounds are numbers, `per` a granularity of `calibrate`. */
static int check_calibration(const json_t *match, const char *path, struct err *err)
{
    static const char *const known[] = {"l1", "l2", "theta", "per", "inputs", NULL};
    static const char *const pers[] = {"head", "layer", "model", NULL};
    const json_t *o = json_object_get(match, "calibration");
    const char *key;
    json_t *v;
    int rc = o ? check_fields(o, path, "match: calibration", known, err) : 0;
    if (rc)
        return rc;
    json_object_foreach((json_t *)o, key, v)
    {
        const char *text = json_is_string(v) ? json_string_value(v) : "";
        int k = 0;
        while (pers[k] && strcmp(pers[k], text) != 0)
            k++;
        if (strcmp(key, "per") == 0 && !pers[k])
            return err_set(err, ERR_INPUT, "%s: match: calibration: per: head, layer or model",
                           path);
        if (strcmp(key, "inputs") == 0 && (!json_is_integer(v) || json_integer_value(v) < 1))
            return err_set(err, ERR_INPUT, "%s: match: calibration: inputs: a number from 1 on",
                           path);
        if (strcmp(key, "per") != 0 && !json_is_number(v))
            return err_set(err, ERR_INPUT, "%s: match: calibration: %s: a number was expected",
                           path, key);
    }
    return 0;
}

static int take_lists(struct recipe *r, const struct paper_data *d, struct err *err)
{
    static const char *const ours[] = {"column", "row",   "job",   "where",   "stat",
                                       "metric", "pairs", "needs", "setting", NULL};
    static const char *const claims[] = {"id", "text", "test", "needs", NULL};
    static const char *const extra[] = {"axis",   "label", "ours", "block",  "arrow",
                                        "pick",   "scale", "stat", "digits", "n",
                                        "suffix", "needs", NULL};
    static const char *const match[] = {"length",      "prompt", "settings",  "arith",
                                        "calibration", "gpu",    "stands_in", NULL};
    const char *path = buf_str(&r->path);
    size_t i;
    json_t *o;
    int rc = 0;

    TRY(take_object(r->doc, "full", path, &r->full, err));
    TRY(take_object(r->doc, "quick", path, &r->quick, err));
    TRY(take_object(r->doc, "cuda", path, &r->cuda, err));
    TRY(take_object(r->doc, "each", path, &r->each, err));
    TRY(take_object(r->doc, "absent", path, &r->absent, err));
    TRY(take_object(r->doc, "cases", path, &r->cases, err));
    TRY(take_object(r->doc, "match", path, &r->match, err));
    if (r->match)
        TRY(check_fields(r->match, path, "match", match, err));
    TRY(check_calibration(r->match, path, err));
    TRY(take_objects(r->doc, "ours", path, ours, &r->ours, err));
    TRY(take_objects(r->doc, "claims", path, claims, &r->claims, err));
    TRY(take_objects(r->doc, "extra", path, extra, &r->extra, err));
    TRY(take_names(r->doc, "notes", path, "recipe", &r->notes, err));
    TRY(take_jobs(r, d, err));
    json_array_foreach(r->ours, i, o) if (recipe_job_find(r, json_str_or(o, "job", "")) < 0) FAIL(
        err, ERR_INPUT, "%s: ours entry %zu: no job '%s'", path, i + 1, json_str_or(o, "job", ""));
    json_array_foreach(r->claims, i, o) if (!json_is_string(json_object_get(o, "id")) ||
                                            !json_is_string(json_object_get(o, "text")) ||
                                            !json_is_object(json_object_get(o, "test")))
        FAIL(err, ERR_INPUT, "%s: claims entry %zu needs id, text and test", path, i + 1);
out:
    return rc;
}

int recipe_read(const char *path, const struct paper_data *d, struct recipe *r, struct err *err)
{
    static const char *const known[] = {"recipe", "id",     "layout", "needs", "roles", "full",
                                        "quick",  "cuda",   "each",   "jobs",  "ours",  "match",
                                        "claims", "absent", "cases",  "extra", "notes", NULL};
    int64_t version;
    int rc = 0;

    buf_puts(&r->path, path);
    TRY(json_read_file(path, (size_t)1 << 20, &r->doc, err));
    TRY(check_fields(r->doc, path, "recipe", known, err));
    TRY(jget_int(r->doc, "recipe", path, &version, err));
    if (version != 1)
        FAIL(err, ERR_INPUT, "%s: recipe version %lld; this program reads 1", path,
             (long long)version);
    TRY(jget_str(r->doc, "id", path, &r->id, err));
    TRY(jget_str(r->doc, "layout", path, &r->layout, err));
    r->item = paper_table(d, r->layout);
    r->figure = !r->item;
    if (r->figure)
        r->item = paper_figure(d, r->layout);
    if (!r->item)
        FAIL(err, ERR_INPUT, "%s: layout: layouts.json has no '%s'", path, r->layout);
    struct buf text = {0};
    rc = buf_read_file(&text, path, (size_t)1 << 20, err);
    hash_text(hash_bytes(text.data, text.len), r->content);
    buf_free(&text);
    if (rc)
        goto out;
    TRY(take_needs(r, err));
    TRY(take_roles(r, d, err));
    TRY(take_lists(r, d, err));
    TRY(take_marks(r, d, err));
out:
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
