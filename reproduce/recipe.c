/*
 * recipe.c - reading recipes.
 */
#include "reproduce/recipe.h"

#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const job_do_names[DO_COUNT + 1] = {"prompt", "capture", "calibrate", "replay",
                                                "eval",   "draw",    NULL};
const char *const job_do_commands[DO_COUNT] = {"prompt", "capture", "calibrate",
                                               "replay", "eval",    "plot"};

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
    const json_t *v = json_object_get(r->lengths, name);
    if (!v && r->on_gpu)
        v = json_object_get(r->cuda, name);
    if (!v && quick)
        v = json_object_get(r->quick, name);
    if (!v)
        v = json_object_get(r->full, name);
    return v ? v : json_object_get(r->each, name);
}

/* ---- lengths --------------------------------------------------------------------------------- */

/* The length nearest to the paper's, by their ratio. */
static const char *nearest(const struct str_list *lengths, const char *paper)
{
    int64_t best = 0;
    double d = INFINITY;
    for (int64_t i = 0; i < lengths->n; i++) {
        double far = fabs(log(size_value(lengths->items[i]) / size_value(paper)));
        best = far < d ? i : best;
        d = fmin(d, far);
    }
    return lengths->items[best];
}

/* In the place of a variable of `paper`; `text`: all lengths, with commas. */
static json_t *lengths_value(const json_t *paper, const struct str_list *lengths, const char *text)
{
    json_t *list = json_array();
    const char *one = json_string_value(paper);
    if (one) {
        json_decref(list);
        return json_string(strchr(one, ',') ? text : nearest(lengths, one));
    }
    if (json_array_size(paper) == 1)
        json_array_append_new(
            list, json_string(nearest(lengths, json_string_value(json_array_get(paper, 0)))));
    for (int64_t i = 0; i < lengths->n && json_array_size(paper) > 1; i++)
        json_array_append_new(list, json_string(lengths->items[i]));
    return list;
}

int recipe_set_lengths(struct recipe *r, const char *lengths, struct err *err)
{
    OWN(str_list_free) struct str_list all = {0};
    OWN(free_at) char *text = strdup(lengths);
    char *rest = NULL;
    const char *name;
    json_t *v;
    r->lengths = json_object();
    if (!text || !r->lengths)
        return err_set(err, ERR_NOMEM, "lengths: out of memory");
    for (char *n = strtok_r(text, ",", &rest); n; n = strtok_r(NULL, ",", &rest)) {
        if (strcmp(lengths, "paper") != 0 && !(size_value(n) >= 1))
            return err_set(err, ERR_USAGE,
                           "reproduce: --lengths: '%s' is no length such as 48K, nor `paper`", n);
        str_list_add(&all, n);
    }
    if (!all.n)
        return err_set(err, ERR_USAGE,
                       "reproduce: --lengths: a length such as 48K was expected, or `paper`");
    json_object_foreach((json_t *)r->paper, name, v)
    {
        v = strcmp(lengths, "paper") == 0 ? json_incref(v) : lengths_value(v, &all, lengths);
        json_object_set_new(r->lengths, name, v);
    }
    if (all.failed || json_object_size(r->lengths) < json_object_size(r->paper))
        return err_set(err, ERR_NOMEM, "lengths: out of memory");
    return 0;
}

bool template_next(const char **text, struct template_word *w)
{
    const char *p = *text, *open = p ? strchr(p, '{') : NULL, *dot;
    const char *close = open ? strchr(open, '}') : NULL;
    if (!p)
        return false;
    *w = (struct template_word){.literal = p, .len = strlen(p), .part = -1};
    *text = NULL;
    if (!close || (size_t)(close - open) > sizeof w->name)
        return true;
    w->len = (size_t)(open - p);
    snprintf(w->name, sizeof w->name, "%.*s", (int)(close - open - 1), open + 1);
    dot = strchr(w->name, '.');
    if (dot) {
        w->part = atoi(dot + 1);
        w->name[dot - w->name] = '\0';
    }
    *text = close + 1;
    return true;
}

void value_part(const char *value, int part, struct buf *b)
{
    for (int i = 0; i < part && (value = strchr(value, '/')); i++)
        value++;
    if (value)
        buf_put(b, value, part < 0 ? strlen(value) : strcspn(value, "/"));
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* Part `.i` of every value of the variable that {variable.i} names is a dataset. */
static int check_tasks(const struct recipe *r, const struct paper_data *d,
                       const struct recipe_job *j, struct err *err)
{
    const json_t *sets[] = {r->full, r->quick, r->cuda, r->each};
    const char *text = j->tasks;
    struct template_word w = {0};
    template_next(&text, &w);
    if (j->kind != DO_EVAL || !json_has_text(j->each, w.name))
        return err_set(err, ERR_INPUT,
                       "tasks: of an eval, a {variable} that it repeats over, found '%s'",
                       j->tasks);
    for (int k = 0; k < 4 && !err->code; k++) {
        size_t i;
        json_t *v;
        json_array_foreach(json_object_get(sets[k], w.name), i, v)
        {
            OWN(buf_free) struct buf id = {0};
            value_part(json_is_string(v) ? json_string_value(v) : "", w.part, &id);
            if (!json_with_id(d->tasks, buf_str(&id)))
                err_set(err, ERR_INPUT, "tasks: tasks.json has no dataset '%s'", buf_str(&id));
        }
    }
    return err->code;
}

static int check_job(const struct recipe *r, const struct paper_data *d, int at, struct err *err)
{
    const struct recipe_job *j = &r->jobs[at];
    size_t i;
    json_t *v;
    int rc = j->tasks ? check_tasks(r, d, j, err) : 0;
    json_array_foreach(j->each, i, v)
    {
        if (!recipe_variable(r, false, json_string_value(v)))
            FAIL(err, ERR_INPUT, "each: no variable '%s'", json_string_value(v));
    }
    json_array_foreach(j->from, i, v)
    {
        int from = recipe_job_find(r, json_string_value(v));
        if (from < 0 || from >= at)
            FAIL(err, ERR_INPUT, "from: no job '%s' stands above it", json_string_value(v));
    }
    if (j->role && !json_object_get(r->roles, j->role))
        FAIL(err, ERR_INPUT, "model: the recipe's models have no role '%s'", j->role);
out:
    return rc;
}

static int take_job(struct recipe *r, const struct paper_data *d, const char *name, json_t *o,
                    struct err *err)
{
    struct recipe_job *j = &r->jobs[r->n_jobs++];
    const char *kind = json_str_or(o, "do", "");
    int k = 0;
    while (strcmp(job_do_names[k], kind) != 0)
        k++;
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
        return err_set(err, ERR_INPUT, "series and marks are of drawings");
    return json_object_get(o, "marks")
               ? paper_marks(d, r->item, json_object_get(o, "marks"), &j->marks, err)
               : 0;
}

static int take_jobs(struct recipe *r, const struct paper_data *d, struct err *err)
{
    const json_t *all = json_object_get(r->doc, "jobs");
    const char *name;
    json_t *o;
    int rc = mem_zalloc(&r->jobs, (int64_t)json_object_size(all) + 1, sizeof *r->jobs, "jobs", err);
    json_object_foreach((json_t *)all, name, o)
    {
        rc = rc ? rc : take_job(r, d, name, o, err);
        rc = rc ? rc : check_job(r, d, r->n_jobs - 1, err);
        if (rc) {
            err_prefix(err, "%s: job '%s'", buf_str(&r->path), name);
            break;
        }
    }
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
            if (!json_with_id(d->models, model))
                return err_set(err, ERR_INPUT,
                               "%s: roles '%s': fills: no model '%s' in models.json",
                               buf_str(&r->path), name, model);
        }
    }
    return 0;
}

/* Lengths, of variables that `full` has in the same form: one, or a list. */
static int check_paper(const struct recipe *r, struct err *err)
{
    const char *name;
    json_t *v, *item;
    size_t i;
    json_object_foreach((json_t *)r->paper, name, v)
    {
        const json_t *full = json_object_get(r->full, name);
        bool fits = full && json_typeof(v) == json_typeof(full) &&
                    (json_array_size(v) || json_is_string(v));
        json_array_foreach(v, i, item) fits =
            fits && json_is_string(item) && isfinite(size_value(json_string_value(item)));
        if (!fits)
            return err_set(err, ERR_INPUT,
                           "%s: paper: '%s' was expected to be lengths in the form of `full`",
                           buf_str(&r->path), name);
    }
    return 0;
}

static void take_lists(struct recipe *r)
{
    const json_t **const lists[] = {&r->roles, &r->full,  &r->quick, &r->cuda,   &r->paper,
                                    &r->each,  &r->ours,  &r->match, &r->claims, &r->absent,
                                    &r->cases, &r->extra, &r->notes};
    static const char *const names[] = {"roles", "full",  "quick", "cuda",   "paper",
                                        "each",  "ours",  "match", "claims", "absent",
                                        "cases", "extra", "notes"};
    const json_t *needs = json_object_get(r->doc, "needs");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        *lists[i] = json_object_get(r->doc, names[i]);
    for (size_t i = 0; i < json_array_size(needs) && i + 1 < sizeof r->needs; i++)
        r->needs[i] = json_string_value(json_array_get(needs, i))[0];
}

int recipe_read(const char *path, const struct paper_data *d, struct recipe *r, struct err *err)
{
    buf_puts(&r->path, path);
    PASS_ON(json_read_file(path, (size_t)1 << 20, &r->doc, err));
    PASS_ON(recipe_check_form(r->doc, path, err));
    if (json_integer_value(json_object_get(r->doc, "recipe")) != 1)
        return err_set(err, ERR_INPUT, "%s: this program reads recipes of version 1", path);
    r->id = json_str_or(r->doc, "id", "");
    take_lists(r);
    r->item = json_with_id(json_object_get(d->layouts, "tables"), r->id);
    r->figure = !r->item;
    if (r->figure)
        r->item = json_with_id(json_object_get(d->layouts, "figures"), r->id);
    if (!r->item)
        return err_set(err, ERR_INPUT, "%s: id: layouts.json has no '%s'", path, r->id);
    PASS_ON(take_roles(r, d, err));
    PASS_ON(check_paper(r, err));
    return take_jobs(r, d, err);
}

void recipe_free(struct recipe *r)
{
    for (int i = 0; i < r->n_jobs; i++)
        buf_free(&r->jobs[i].marks);
    free(r->jobs);
    json_decref(r->lengths);
    json_decref(r->doc);
    buf_free(&r->path);
    memset(r, 0, sizeof *r);
}

void item_file(const char *id, struct buf *b)
{
    for (const char *c = id; *c; c++)
        buf_put(b, *c == ':' ? "-" : c, 1);
}

int recipe_path(const struct paper_data *d, const char *id, struct buf *path, struct err *err)
{
    buf_printf(path, "%s/recipes/", buf_str(&d->dir));
    item_file(id, path);
    buf_puts(path, ".json");
    return buf_check(path, "path of a recipe", err);
}
