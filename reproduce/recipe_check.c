/*
 * recipe_check.c - what a recipe asks of the program: options, methods, metrics, labels. All
 * recipes are checked by a test without running them.
 */
#include "reproduce/claims.h"

#include "analyze/query.h"
#include "core/method_run.h"
#include "core/metricdef.h"

#include <fnmatch.h>
#include <string.h>

struct value_text {
    const struct recipe *r;
    struct buf out;
};

/* The first value of every variable; "x" where a job's output will stand. */
static int put_value(void *ctx, const char *literal, size_t len, const char *word, struct err *err)
{
    struct value_text *v = ctx;
    char name[64];
    (void)err;
    buf_put(&v->out, literal, len);
    if (!word)
        return 0;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "."), word);
    const json_t *value = recipe_variable(v->r, true, name);
    if (json_is_array(value))
        value = json_array_get(value, 0);
    const char *text = json_is_string(value) ? json_string_value(value) : "x";
    buf_put(&v->out, text, strchr(word, '.') ? strcspn(text, "/") : strlen(text));
    return 0;
}

/* Long options of the command with their values; alone stand a prompt's task and what a drawing
 * reads. Where a result goes is no choice of a recipe. */
static int check_words(const struct command *c, const struct recipe_job *j, const char *who,
                       const struct str_list *words, struct err *err)
{
    int64_t alone = 0;
    for (int64_t i = 0; i < words->n; i++) {
        const char *w = words->items[i];
        if (strncmp(w, "--", 2) == 0) {
            const struct opt *o = opt_find_or_fail(c->options, who, "--", w + 2, err);
            if (!o)
                return err->code;
            if (strcmp(o->name, "output") == 0)
                return err_set(err, ERR_INPUT, "%s: --output is not a recipe's", who);
            i += o->type != OPT_BOOL;
        } else if (w[0] == '-' || (j->kind != DO_DRAW && (j->kind != DO_PROMPT || alone++ > 0))) {
            return err_set(err, ERR_INPUT, "%s: args: '%s' is no option", who, w);
        }
    }
    return 0;
}

static int check_options(const struct recipe *r, const struct recipe_job *j, const struct app *app,
                         struct err *err)
{
    const struct command *c = app_command(app, job_do_commands[j->kind], err);
    struct value_text text = {r, {0}};
    struct str_list words = {0};
    struct buf who = {0};
    int rc = 0;
    if (!c)
        return err->code;
    buf_printf(&who, "%s: job '%s'", buf_str(&r->path), j->name);
    TRY(template_each(j->args, r->id, put_value, &text, err));
    if (text.out.len)
        TRY(words_split(buf_str(&text.out), &words, err));
    TRY(check_words(c, j, buf_str(&who), &words, err));
out:
    if (rc == ERR_USAGE)
        rc = err->code = ERR_INPUT;
    str_list_free(&words);
    buf_free(&text.out);
    buf_free(&who);
    return rc;
}

/* Without its calibration, which is not there yet. */
static void cut_calib(struct buf *b)
{
    char *at = b->data ? strstr(b->data, ":calib=") : NULL;
    if (!at)
        return;
    size_t n = 1 + strcspn(at + 1, ":@");
    memmove(at, at + n, strlen(at + n) + 1);
    b->len = strlen(b->data);
}

static int check_methods(const struct recipe *r, const struct recipe_job *j, const struct app *app,
                         struct err *err)
{
    size_t i;
    json_t *m;
    int rc = 0;
    json_array_foreach(j->methods, i, m)
    {
        struct value_text text = {r, {0}};
        struct method_run *runs = NULL;
        int64_t n = 0;
        rc = template_each(json_string_value(m), r->id, put_value, &text, err);
        cut_calib(&text.out);
        if (!rc)
            rc = method_runs_parse(app->methods, buf_str(&text.out), &runs, &n, err);
        method_runs_free(runs, n);
        buf_free(&text.out);
        if (rc) {
            err_prefix(err, "%s: job '%s'", buf_str(&r->path), j->name);
            err->code = ERR_INPUT;
            return ERR_INPUT;
        }
    }
    return 0;
}

int recipe_check_metric(const struct recipe *r, const json_t *v, struct err *err)
{
    const char *text = json_string_value(v), *path = buf_str(&r->path);
    struct expr e = expr_parse(text ? text : "");
    if (text && e.n == 0)
        return err_set(err, ERR_INPUT, "%s: '%s' is no expression over metrics", path, text);
    for (int i = 0; i < e.n; i++)
        if (!metric_def_find(e.name[i]))
            return err_set(err, ERR_INPUT, "%s: unknown metric '%s'", path, e.name[i]);
    return 0;
}

/* Does the pattern meet a label, levels joined with '/'? */
static bool label_fits(const json_t *label, const char *pattern)
{
    struct buf path = {0};
    size_t k;
    json_t *part;
    if (json_is_string(label))
        buf_puts(&path, json_string_value(label));
    json_array_foreach(label, k, part)
        buf_printf(&path, "%s%s", k ? "/" : "", json_string_value(part));
    bool hit = fnmatch(pattern, buf_str(&path), 0) == 0;
    buf_free(&path);
    return hit;
}

/* Does the pattern meet a label of the layout, at any level or as a whole? */
static bool label_known(const struct recipe *r, const char *axis, const char *label,
                        const char *pattern)
{
    size_t b, i;
    json_t *block, *o;
    if (strcmp(pattern, "*") == 0)
        return true;
    json_array_foreach(json_object_get(r->item, "blocks"), b, block)
        json_array_foreach(json_object_get(block, axis), i, o)
    {
        if (label_fits(json_object_get(o, label), pattern))
            return true;
    }
    json_array_foreach(r->extra, i, o)
    {
        if (label_fits(json_object_get(o, "label"), pattern))
            return true;
    }
    return false;
}

/* ---- conditions on records ---- */

static bool is_parameter(const struct app *app, const char *key)
{
    for (int i = 0; app->methods[i]; i++)
        if (app->methods[i]->params.table && opt_find(app->methods[i]->params.table, key))
            return true;
    return false;
}

static bool is_key(const struct recipe *r, const struct app *app, const char *key)
{
    static const char *const keys[] = {"case",   "method", "params",  "permute", "trace",
                                       "branch", "task",   "setting", "layer",   "head",
                                       "step",   "n_q",    "model",   NULL};
    for (int i = 0; keys[i]; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return recipe_variable(r, false, key) || recipe_variable(r, true, key) ||
           json_object_get(r->cuda, key) || is_parameter(app, key);
}

/* Does a row or column of the layout, or one that the recipe adds, have the field? */
static bool has_field(const struct recipe *r, const char *axis, const char *field)
{
    size_t b, i;
    json_t *block, *o;
    if (strcmp(field, "length") == 0)
        return true;
    json_array_foreach(json_object_get(r->item, "blocks"), b, block)
        json_array_foreach(json_object_get(block, axis), i, o)
    {
        if (json_object_get(o, field))
            return true;
    }
    json_array_foreach(r->extra, i, o)
    {
        if (json_object_get(o, field))
            return true;
    }
    return false;
}

int recipe_check_where(const struct recipe *r, const struct app *app, const json_t *where,
                       const char *what, struct err *err)
{
    const char *key, *path = buf_str(&r->path);
    char field[64];
    json_t *v;
    json_object_foreach((json_t *)where, key, v)
    {
        const char *text = json_is_string(v) ? json_string_value(v) : "", *dot = strchr(text, '.');
        bool row = strncmp(text, "{row.", 5) == 0, column = strncmp(text, "{column.", 8) == 0;
        if (!is_key(r, app, key))
            return err_set(err, ERR_INPUT, "%s: %s: records have no '%s'", path, what, key);
        if (strcmp(key, "case") == 0 && !row && !column && !json_object_get(r->cases, text))
            return err_set(err, ERR_INPUT, "%s: %s: no case '%s'", path, what, text);
        if (!row && !column)
            continue;
        snprintf(field, sizeof field, "%.*s", (int)strcspn(dot + 1, "}"), dot + 1);
        if (!has_field(r, row ? "rows" : "columns", field))
            return err_set(err, ERR_INPUT, "%s: %s: no %s has a field '%s'", path, what,
                           row ? "row" : "column", field);
    }
    return 0;
}

/* ---- labels, metrics ---- */

/* The rule that chooses the head of an added row or column. */
static int check_pick(const struct recipe *r, const struct app *app, const json_t *pick, size_t i,
                      struct err *err)
{
    const char *path = buf_str(&r->path);
    char what[40];
    int rc = 0;
    if (recipe_job_find(r, json_str_or(pick, "job", "")) < 0)
        FAIL(err, ERR_INPUT, "%s: extra entry %zu: pick: no job '%s'", path, i,
             json_str_or(pick, "job", ""));
    TRY(recipe_check_metric(r, json_object_get(pick, "by"), err));
    snprintf(what, sizeof what, "extra entry %zu: pick", i);
    TRY(recipe_check_where(r, app, json_object_get(pick, "where"), what, err));
out:
    return rc;
}

static int check_extra(const struct recipe *r, const struct app *app, struct err *err)
{
    size_t i;
    json_t *o;
    int rc = 0;
    json_array_foreach(r->extra, i, o)
    {
        TRY(recipe_check_metric(r, json_object_get(o, "ours"), err));
        if (json_object_get(o, "pick"))
            TRY(check_pick(r, app, json_object_get(o, "pick"), i + 1, err));
    }
out:
    return rc;
}

static int check_cases(const struct recipe *r, const struct app *app, struct err *err)
{
    const char *name;
    char what[200];
    json_t *o;
    int rc = 0;
    json_object_foreach((json_t *)r->cases, name, o)
    {
        snprintf(what, sizeof what, "case '%.150s'", name);
        TRY(recipe_check_where(r, app, o, what, err));
    }
out:
    return rc;
}

static int check_ours(const struct recipe *r, const struct app *app, struct err *err)
{
    size_t i, k;
    json_t *o, *v;
    char what[40];
    int rc = 0;
    json_array_foreach(r->ours, i, o)
    {
        snprintf(what, sizeof what, "ours entry %zu: where", i + 1);
        TRY(recipe_check_where(r, app, json_object_get(o, "where"), what, err));
        const char *row = json_str_or(o, "row", "*"), *column = json_str_or(o, "column", "*");
        const json_t *metric = json_object_get(o, "metric");
        TRY(recipe_check_metric(r, metric, err));
        json_array_foreach(metric, k, v) TRY(recipe_check_metric(r, v, err));
        if (!r->figure &&
            (!label_known(r, "rows", "label", row) || !label_known(r, "columns", "head", column)))
            FAIL(err, ERR_INPUT, "%s: ours entry %zu: no label of %s is like row '%s', column '%s'",
                 buf_str(&r->path), i + 1, r->layout, row, column);
    }
    const char *pattern;
    json_object_foreach((json_t *)r->absent, pattern, o)
    {
        bool known = r->figure || label_known(r, "rows", "label", pattern) ||
                     label_known(r, "columns", "head", pattern);
        if (!known || !json_is_string(o))
            FAIL(err, ERR_INPUT, "%s: absent: no label of %s is like '%s'", buf_str(&r->path),
                 r->layout, pattern);
    }
out:
    return rc;
}

int recipe_check(const struct recipe *r, const struct app *app, struct err *err)
{
    int rc = 0;
    for (int i = 0; i < r->n_jobs; i++) {
        TRY(check_options(r, &r->jobs[i], app, err));
        TRY(check_methods(r, &r->jobs[i], app, err));
    }
    TRY(check_ours(r, app, err));
    TRY(check_extra(r, app, err));
    TRY(check_cases(r, app, err));
    TRY(claims_check(r, app, err));
out:
    return rc;
}
