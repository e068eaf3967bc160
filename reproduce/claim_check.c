/*
 * claim_check.c - what a recipe's claims name: a misspelt member or key would make a row of no
 * number.
 */
#include "reproduce/claims.h"

#include "core/metricdef.h"

#include <string.h>

/* Is one of the layout's rows or columns of a single label named so? Of rows the name is a pattern.
 */
static bool is_label(const struct recipe *r, bool rows, const char *name)
{
    char part[96];
    size_t b, k;
    json_t *block, *o;
    json_array_foreach(json_object_get(r->item, "blocks"), b, block)
        json_array_foreach(json_object_get(block, rows ? "rows" : "columns"), k, o)
    {
        const json_t *label = json_object_get(o, rows ? "label" : "head");
        const char *text = json_string_value(json_array_get(label, 0));
        if (json_array_size(label) == 1 && text &&
            (rows ? label_part(name, text, true, part, sizeof part) : strcmp(text, name) == 0))
            return true;
    }
    return false;
}

/* A name in a list of members. */
static bool is_member(const struct recipe *r, const struct claim *c, const char *name)
{
    if (c->labels)
        return is_label(r, c->labels[0] == 'r', name);
    if (c->setting)
        return json_has_text(setting_jobs(r, c->setting), name);
    return json_object_get(r->cases, name) || metric_def_find(name);
}

/* The set of members: a list, a key of records, the cases or a variable; with X, that is in it. */
static int check_set(const struct recipe *r, const struct claim *c, struct err *err)
{
    const char *name = json_string_value(c->set);
    size_t i;
    json_t *v;
    if (c->kind == CLAIM_MORE && json_array_size(c->set) != 2 && json_array_size(c->set) != 4)
        return err_set(err, ERR_INPUT, "more: two or four members were expected");
    if (c->stat == STAT_DIFFERENCE && json_array_size(c->set) != 2)
        return err_set(err, ERR_INPUT, "difference: two members were expected");
    json_array_foreach((json_t *)c->set, i, v)
    {
        const char *member = json_is_string(v) ? json_string_value(v) : "";
        if (!is_member(r, c, member))
            return err_set(err, ERR_INPUT, "no such member: '%s'", member);
    }
    if (json_is_array(c->set))
        return !c->x || json_has_text(c->set, c->x)
                   ? 0
                   : err_set(err, ERR_INPUT, "no such member: '%s'", c->x);
    if (name && claim_record_key(name))
        return 0;
    bool cases = name && strcmp(name, "cases") == 0;
    const json_t *full = name ? recipe_variable(r, false, name) : NULL;
    const json_t *quick = name ? recipe_variable(r, true, name) : NULL;
    if (!name || (!cases && !full && !quick))
        return err_set(err, ERR_INPUT, "no variable, cases or key of records: '%s'",
                       name ? name : "");
    if (c->x && !json_has_text(full, c->x) && !json_has_text(quick, c->x) &&
        !(cases && json_object_get(r->cases, c->x)))
        return err_set(err, ERR_INPUT, "no such member: '%s'", c->x);
    return 0;
}

static int check_claim(const struct recipe *r, const struct app *app, const json_t *test,
                       const char *what, struct err *err)
{
    const char *job = json_str_or(test, "job", NULL), *at = json_str_or(test, "at_equal", NULL);
    struct claim c;
    size_t i;
    json_t *v;
    int rc = 0;
    TRY(claim_read(test, &c, err));
    if (job && recipe_job_find(r, job) < 0)
        FAIL(err, ERR_INPUT, "no job '%s'", job);
    if (at && (c.kind != CLAIM_MORE || json_array_size(c.set) != 2 || !metric_def_find(at)))
        FAIL(err, ERR_INPUT, "at_equal takes a metric, for `more` of two cases, found '%s'", at);
    if (c.setting && !setting_rule(r, c.setting))
        FAIL(err, ERR_INPUT, "setting: no rule of `ours` shows '%s'", c.setting);
    if (c.kind == CLAIM_FRONT && json_array_size(json_object_get(test, "metrics")) != 2)
        FAIL(err, ERR_INPUT, "metrics: two were expected");
    if (c.set || c.kind != CLAIM_WITHIN || c.stat != STAT_MEAN)
        TRY(check_set(r, &c, err));
    TRY(recipe_check_metric(r, json_object_get(test, "metric"), err));
    json_array_foreach(json_object_get(test, "metrics"), i, v) TRY(recipe_check_metric(r, v, err));
    TRY(recipe_check_where(r, app, json_object_get(test, "where"), what, err));
out:
    return rc;
}

int claims_check(const struct recipe *r, const struct app *app, struct err *err)
{
    size_t i, k;
    json_t *o, *before;
    json_array_foreach(r->claims, i, o)
    {
        const char *id = json_str_or(o, "id", ""), *path = buf_str(&r->path);
        char what[200];
        json_array_foreach(r->claims, k, before)
        {
            if (k < i && strcmp(json_str_or(before, "id", ""), id) == 0)
                return err_set(err, ERR_INPUT, "%s: two claims have the id '%s'", path, id);
        }
        snprintf(what, sizeof what, "claim '%.150s': where", id);
        int rc = check_claim(r, app, json_object_get(o, "test"), what, err);
        if (rc && !strstr(err->msg, path))
            err_prefix(err, "%s: claim '%s'", path, id);
        if (rc)
            return rc;
    }
    return 0;
}
