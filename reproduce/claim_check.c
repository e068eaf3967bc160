/*
 * claim_check.c - what a recipe's claims and conditions ask for: a misspelt member, key or bound
 * would make a sentence of no number.
 */
#include "reproduce/claims.h"

#include "core/metricdef.h"
#include "reproduce/expr.h"

#include <string.h>

struct claim_check {
    const struct recipe *r;
    const struct app *app;
    const char *id;
    const json_t *test;
};

static int fail(const struct claim_check *c, const char *what, const char *word, struct err *err)
{
    return err_set(err, ERR_INPUT, "%s: claim '%s': %s '%s'", buf_str(&c->r->path), c->id, what,
                   word);
}

/* ---- conditions on records -------------------------------------------------------------------
 */

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
        json_array_foreach(json_object_get(block, axis), i, o) if (json_object_get(o, field))
    {
        return true;
    }
    json_array_foreach(r->extra, i, o) if (json_object_get(o, field)) return true;
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

/* ---- claims ----------------------------------------------------------------------------------
 */

/* The one test of a claim; `within` and `above` are bounds of others. */
static int kind_of(const struct claim_check *c, const char **kind, struct err *err)
{
    static const char *const qualifiers[] = {"labels",     "at_largest", "at_equal", "of",
                                             "metric",     "metrics",    "job",      "where",
                                             "difference", NULL};
    const char *key;
    json_t *v;
    *kind = claim_kind(c->test);
    if (!*kind)
        return fail(c, "no test in", c->id, err);
    json_object_foreach((json_t *)c->test, key, v)
    {
        bool known = strcmp(key, *kind) == 0 ||
                     (strcmp(key, "within") == 0 &&
                      (strcmp(*kind, "ratio") == 0 || strcmp(*kind, "step") == 0)) ||
                     (strcmp(key, "above") == 0 && strcmp(*kind, "spread") == 0);
        (void)v;
        for (int i = 0; qualifiers[i]; i++)
            known = known || strcmp(qualifiers[i], key) == 0;
        if (!known)
            return fail(c, "one test was expected, found another,", key, err);
    }
    return 0;
}

static int check_names(const struct claim_check *c, const json_t *list, size_t least, size_t most,
                       struct err *err)
{
    size_t i;
    json_t *v;
    if (!json_is_array(list) || json_array_size(list) < least || json_array_size(list) > most)
        return fail(c, "a list was expected, of two where two are compared, in",
                    claim_kind(c->test), err);
    json_array_foreach(list, i, v)
    {
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        if (!json_object_get(c->r->cases, name) && !metric_def_find(name))
            return fail(c, "neither a case nor a metric:", name, err);
    }
    return 0;
}

static bool has_value(const json_t *values, const char *value)
{
    size_t i;
    json_t *v;
    if (json_is_string(values) && strcmp(json_string_value(values), value) == 0)
        return true;
    json_array_foreach(values, i, v) if (json_is_string(v) &&
                                         strcmp(json_string_value(v), value) == 0) return true;
    return false;
}

/* S: a variable, "cases", a key of records, or a list; x NULL, or one of its members. */
static int check_set(const struct claim_check *c, const json_t *set, const char *x, struct err *err)
{
    static const char *const keys[] = {"step", "layer", "head", "trace", NULL};
    const char *name = json_is_string(set) ? json_string_value(set) : "";
    const json_t *values[2] = {recipe_variable(c->r, false, name),
                               recipe_variable(c->r, true, name)};
    bool cases = strcmp(name, "cases") == 0 && c->r->cases, key = false;
    if (json_is_array(set)) {
        int rc = check_names(c, set, 2, 64, err);
        return rc || !x || has_value(set, x) ? rc : fail(c, "no such member:", x, err);
    }
    for (int i = 0; keys[i]; i++)
        key = key || strcmp(keys[i], name) == 0;
    if (!cases && !key && !values[0] && !values[1])
        return fail(c, "no variable, cases or key of records:", name, err);
    if (x && !key && !has_value(values[0], x) && !has_value(values[1], x) &&
        !(cases && json_object_get(c->r->cases, x)))
        return fail(c, "no such member:", x, err);
    return 0;
}

static int check_range(const struct claim_check *c, const json_t *v, struct err *err)
{
    const json_t *l = json_array_get(v, 0), *h = json_array_get(v, 1);
    return json_array_size(v) == 2 && json_is_number(l) && json_is_number(h) &&
                   json_number_value(l) <= json_number_value(h)
               ? 0
               : fail(c, "two numbers, the lower first, were expected in", "within", err);
}

static int check_operands(const struct claim_check *c, const char *kind, struct err *err)
{
    const json_t *what = json_object_get(c->test, kind), *of = json_object_get(c->test, "of");
    const json_t *two = json_object_get(c->test, "difference");
    const char *x = json_is_string(what) ? json_string_value(what) : NULL;
    bool bound = strcmp(kind, "below") == 0 || strcmp(kind, "above") == 0;
    int rc = 0;

    if (strcmp(kind, "most") == 0 || strcmp(kind, "least") == 0 || strcmp(kind, "front") == 0)
        return x ? check_set(c, of, x, err) : fail(c, "a member was expected in", kind, err);
    if (strcmp(kind, "more") == 0 && json_array_size(what) == 4)
        TRY(check_names(c, what, 4, 4, err));
    else if (strcmp(kind, "more") == 0 || strcmp(kind, "ratio") == 0)
        TRY(check_names(c, what, 2, 2, err));
    else if (strcmp(kind, "within") != 0 && !bound)
        TRY(check_set(c, what, NULL, err));
    if (strcmp(kind, "within") == 0 || strcmp(kind, "ratio") == 0 || strcmp(kind, "step") == 0)
        TRY(check_range(c, json_object_get(c->test, "within"), err));
    if ((bound && !json_is_number(what)) ||
        (strcmp(kind, "spread") == 0 && !json_is_number(json_object_get(c->test, "above"))))
        rc = fail(c, "a number was expected as the bound of", kind, err);
    if (!rc && two)
        rc = check_names(c, two, 2, 2, err);
    if (!rc && of)
        rc = check_set(c, of, NULL, err);
out:
    return rc;
}

/* Is one of the layout's "rows" or "columns" of a single label, which `field` holds, named so? Of
 * rows the name is a pattern. */
static bool is_label(const struct claim_check *c, const char *axis, const char *field,
                     const char *name)
{
    bool rows = strcmp(axis, "rows") == 0;
    char part[96];
    size_t b, k;
    json_t *block, *o;
    json_array_foreach(json_object_get(c->r->item, "blocks"), b, block)
        json_array_foreach(json_object_get(block, axis), k, o)
    {
        const json_t *label = json_object_get(o, field);
        const char *text = json_string_value(json_array_get(label, 0));
        if (json_array_size(label) == 1 && text &&
            (rows ? label_part(name, text, true, part, sizeof part) : strcmp(text, name) == 0))
            return true;
    }
    return false;
}

/* `labels: "row"`: a difference of rows by two patterns, within bounds. */
static int check_row_pairs(const struct claim_check *c, const char *kind, struct err *err)
{
    const json_t *two = json_object_get(c->test, "difference");
    size_t i;
    json_t *v;
    if (strcmp(kind, "within") != 0 || json_array_size(two) != 2)
        return fail(c, "over rows a difference of two within bounds was expected in", kind, err);
    json_array_foreach(two, i, v)
    {
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        if (!strchr(name, '*') || !is_label(c, "rows", "label", name))
            return fail(c, "the layout has no row", name, err);
    }
    return check_range(c, json_object_get(c->test, "within"), err);
}

/* `labels: "column"`: rises or falls over labels of the layout's columns. */
static int check_labels(const struct claim_check *c, const char *kind, struct err *err)
{
    const json_t *list = json_object_get(c->test, kind);
    size_t i;
    json_t *v;
    if (claim_of_rows(c->test))
        return check_row_pairs(c, kind, err);
    if (strcmp(json_str_or(c->test, "labels", ""), "column") != 0)
        return fail(c, "labels are of a row or column, found", json_str_or(c->test, "labels", ""),
                    err);
    if ((strcmp(kind, "rises") != 0 && strcmp(kind, "falls") != 0) || json_array_size(list) < 2)
        return fail(c, "over labels a list that rises or falls was expected in", kind, err);
    json_array_foreach(list, i, v)
    {
        const char *name = json_is_string(v) ? json_string_value(v) : "";
        if (!is_label(c, "columns", "head", name))
            return fail(c, "the layout has no column", name, err);
    }
    return 0;
}

static int check_claim(struct claim_check *c, const json_t *claim, struct err *err)
{
    const char *needs = json_str_or(claim, "needs", ""), *job = json_str_or(c->test, "job", NULL);
    const char *at = json_str_or(c->test, "at_largest", NULL);
    const char *equal = json_str_or(c->test, "at_equal", NULL);
    const char *kind;
    char what[200];
    int rc = 0;

    if (needs[0] && strcmp(needs, "K") != 0 && strcmp(needs, "M") != 0)
        return fail(c, "needs is K or M, found", needs, err);
    if (job && recipe_job_find(c->r, job) < 0)
        return fail(c, "no job", job, err);
    if (claim_of_setting(c->test))
        return setting_claim_check(c->r, c->test) == 0
                   ? 0
                   : fail(c, "at_most a number or two jobs of a setting in `ours` were expected of",
                          json_str_or(c->test, "setting", ""), err);
    TRY(kind_of(c, &kind, err));
    if (equal && (strcmp(kind, "more") != 0 || !metric_def_find(equal) ||
                  json_array_size(json_object_get(c->test, kind)) != 2))
        return fail(c, "at_equal takes a metric, for `more` of two cases, found", equal, err);
    if (at && !recipe_variable(c->r, false, at) && !recipe_variable(c->r, true, at))
        return fail(c, "at_largest: no variable", at, err);
    TRY(claim_of_labels(c->test) ? check_labels(c, kind, err) : check_operands(c, kind, err));
    snprintf(what, sizeof what, "claim '%.150s': where", c->id);
    TRY(recipe_check_where(c->r, c->app, json_object_get(c->test, "where"), what, err));
out:
    return rc;
}

int recipe_check_claims(const struct recipe *r, const struct app *app, struct err *err)
{
    size_t i, k;
    json_t *o, *before;
    int rc = 0;
    json_array_foreach(r->claims, i, o)
    {
        struct claim_check c = {r, app, json_str_or(o, "id", ""), json_object_get(o, "test")};
        json_array_foreach(r->claims, k,
                           before) if (k < i && strcmp(json_str_or(before, "id", ""), c.id) == 0)
        {
            rc = fail(&c, "two claims have the id", c.id, err);
        }
        if (rc)
            return rc;
        TRY(check_claim(&c, o, err));
    }
out:
    return rc;
}
