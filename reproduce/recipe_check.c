/*
 * recipe_check.c - the form of a recipe and the names in it, by tables of fields. What a table does
 * not know is an error, because a misspelt field would silently change what a page says. Options
 * and methods are checked by the commands that a job runs.
 */
#include "reproduce/claims.h"
#include "core/mem.h"

#include "analyze/params.h"
#include "analyze/query.h"
#include "core/metricdef.h"

#include <fnmatch.h>
#include <string.h>

enum field_type {
    FIELD_ANY,
    FIELD_TEXT,
    FIELD_NUMBER,
    FIELD_COUNT, /* an integer from 1 on */
    FIELD_FLAG,
    FIELD_TEXTS,   /* a list of texts */
    FIELD_RANGE,   /* two numbers, the lower first; null: no bound */
    FIELD_OBJECT,  /* of the fields `in` */
    FIELD_OBJECTS, /* a list of them */
    FIELD_MAP,     /* names -> objects of the fields `in`; in NULL: any values */

    /* names of something that the recipe, its layout or the program has */
    FIELD_JOB, /* or a list */
    FIELD_METRIC,
    FIELD_WHERE, /* conditions on records */
    FIELD_WHERES,
    FIELD_ROW, /* a pattern of labels */
    FIELD_COLUMN,
    FIELD_LABELS, /* patterns of labels -> texts */
};

struct field {
    const char *name; /* NULL behind the last of a table */
    enum field_type type;
    bool required;
    const struct field *in;
    const char *const *values; /* the texts that are possible, NULL-terminated; NULL: any */
};

/* A walk over a recipe: of its form alone, or of names as well. */
struct walk {
    const struct recipe *r; /* NULL: not yet read */
    struct err *err;
};

/* ---- form ------------------------------------------------------------------------------------ */

#define FIELD(NAME, TYPE, ...)                                                                     \
    {                                                                                              \
        .name = #NAME, .type = FIELD_##TYPE, ##__VA_ARGS__                                         \
    }
#define MUST(NAME, TYPE, ...) FIELD(NAME, TYPE, .required = true, ##__VA_ARGS__)
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define STATS                                                                                      \
    WORDS("mean", "calls", "sum-over-layers", "mean-over-tasks", "sum-over-tasks", "largest")

/* clang-format off */
static const struct field marks_fields[] = {
    MUST(row, TEXT), MUST(column, TEXT), MUST(unit, TEXT),
    MUST(label, TEXT), {0}};

static const struct field job_fields[] = {
    MUST(do, TEXT, .values = job_do_names), FIELD(model, TEXT), FIELD(each, TEXTS),
    FIELD(from, TEXTS), FIELD(methods, TEXTS), FIELD(args, TEXT),
    FIELD(figure, TEXT), FIELD(needs, TEXT, .values = WORDS("K", "M")),
    FIELD(series, WHERES), FIELD(marks, OBJECT, .in = marks_fields), FIELD(tasks, TEXT), {0}};

static const struct field calibration_fields[] = {
    FIELD(l1, NUMBER), FIELD(l2, NUMBER), FIELD(theta, NUMBER),
    FIELD(per, TEXT, .values = WORDS("head", "layer", "model")), FIELD(inputs, COUNT), {0}};

static const struct field match_fields[] = {
    FIELD(length, ANY), FIELD(prompt, ANY), FIELD(settings, ANY), FIELD(arith, TEXT),
    FIELD(gpu, TEXT), FIELD(calibration, OBJECT, .in = calibration_fields),
    FIELD(stands_in, TEXTS), {0}};

static const struct field setting_fields[] = {MUST(name, TEXT), MUST(jobs, JOB), {0}};

static const struct field ours_fields[] = {
    FIELD(column, COLUMN), FIELD(row, ROW), MUST(job, JOB), FIELD(where, WHERE),
    FIELD(stat, TEXT, .values = STATS), FIELD(metric, METRIC), FIELD(pairs, MAP),
    FIELD(needs, TEXT), FIELD(setting, OBJECT, .in = setting_fields), {0}};

static const struct field pick_fields[] = {
    MUST(by, METRIC), MUST(job, JOB), FIELD(where, WHERE),
    MUST(rank, TEXT, .values = WORDS("least", "median", "largest")), {0}};

static const struct field extra_fields[] = {
    MUST(axis, TEXT, .values = WORDS("row", "column")), MUST(label, ANY),
    FIELD(ours, METRIC), FIELD(block, COUNT), FIELD(arrow, TEXT),
    FIELD(pick, OBJECT, .in = pick_fields), FIELD(scale, NUMBER),
    FIELD(stat, TEXT, .values = STATS), FIELD(digits, NUMBER), FIELD(n, ANY),
    FIELD(suffix, TEXT), FIELD(needs, TEXT), FIELD(stands_in, TEXTS), {0}};

static const struct field test_fields[] = {
    FIELD(more, TEXTS), FIELD(rises, ANY), FIELD(falls, ANY), FIELD(most, TEXT),
    FIELD(least, TEXT), FIELD(within, RANGE), FIELD(front, TEXT),
    FIELD(difference, TEXTS), FIELD(ratio, ANY), FIELD(spread, TEXT), FIELD(rank, TEXT),
    FIELD(of, ANY), FIELD(last, FLAG), FIELD(metric, METRIC), FIELD(metrics, METRIC),
    FIELD(job, JOB), FIELD(where, WHERE), FIELD(at_equal, METRIC), FIELD(weight, METRIC), FIELD(setting, TEXT),
    FIELD(labels, TEXT, .values = WORDS("row", "column")), {0}};

static const struct field claim_fields[] = {
    MUST(id, TEXT), MUST(text, TEXT),
    MUST(test, OBJECT, .in = test_fields),
    FIELD(cause, TEXT), FIELD(needs, TEXT, .values = WORDS("K", "M")), {0}};

static const struct field role_fields[] = {
    MUST(default, TEXT), FIELD(fills, MAP), FIELD(beside_all, ANY), {0}};

static const struct field recipe_fields[] = {
    MUST(recipe, COUNT), MUST(id, TEXT),
    FIELD(needs, TEXTS, .values = WORDS("T", "K", "M")),
    FIELD(roles, MAP, .in = role_fields),
    FIELD(full, MAP), FIELD(quick, MAP), FIELD(cuda, MAP), FIELD(paper, MAP), FIELD(each, MAP),
    FIELD(jobs, MAP, .in = job_fields), FIELD(ours, OBJECTS, .in = ours_fields),
    FIELD(match, OBJECT, .in = match_fields), FIELD(claims, OBJECTS, .in = claim_fields),
    FIELD(absent, LABELS), FIELD(cases, WHERES), FIELD(extra, OBJECTS, .in = extra_fields),
    FIELD(notes, TEXTS), {0}};
/* clang-format on */

/* ---- names ----------------------------------------------------------------------------------- */

static int fail(const struct walk *w, const char *place, const char *expected)
{
    return err_set(w->err, ERR_INPUT, "%s: %s was expected", place, expected);
}

static int check_job(const struct walk *w, const json_t *v, const char *place)
{
    const char *name = json_string_value(v);
    return name && recipe_job_find(w->r, name) >= 0
               ? 0
               : err_set(w->err, ERR_INPUT, "%s: no job '%s'", place, name ? name : "");
}

static int check_metric(const struct walk *w, const json_t *v, const char *place)
{
    const char *text = json_string_value(v);
    struct expr e = expr_parse(text ? text : "");
    if (!text || strncmp(text, "eval:", 5) == 0) /* none, or of a task */
        return 0;
    if (e.n == 0)
        return err_set(w->err, ERR_INPUT, "%s: '%s' is no expression over metrics", place, text);
    for (int i = 0; i < e.n; i++)
        if (!metric_def_find(e.name[i]))
            return err_set(w->err, ERR_INPUT, "%s: unknown metric '%s'", place, e.name[i]);
    return 0;
}

/* Number `at` of the rows or columns of the layout and of all that the recipe adds; NULL behind the
 * last. */
static const json_t *entry_at(const struct recipe *r, bool rows, size_t at)
{
    size_t b;
    json_t *block;
    json_array_foreach(json_object_get(r->item, "blocks"), b, block)
    {
        const json_t *all = json_object_get(block, rows ? "rows" : "columns");
        if (at < json_array_size(all))
            return json_array_get(all, at);
        at -= json_array_size(all);
    }
    return json_array_get(r->extra, at);
}

/* Does the pattern meet a row's or a column's label, levels joined with '/'? */
static bool label_known(const struct recipe *r, bool rows, const char *pattern)
{
    bool hit = strcmp(pattern, "*") == 0;
    const json_t *o;
    for (size_t at = 0; !hit && (o = entry_at(r, rows, at)); at++) {
        const json_t *head = json_object_get(o, "head");
        const json_t *label = head ? head : json_object_get(o, "label");
        OWN(buf_free) struct buf path = {0};
        size_t k;
        json_t *part;
        if (json_is_string(label))
            buf_puts(&path, json_string_value(label));
        json_array_foreach((json_t *)label, k, part)
            buf_printf(&path, "%s%s", k ? "/" : "", json_string_value(part));
        hit = fnmatch(pattern, buf_str(&path), 0) == 0;
    }
    return hit;
}

static int check_label(const struct walk *w, const char *pattern, bool row, bool column,
                       const char *place)
{
    if ((row && label_known(w->r, true, pattern)) || (column && label_known(w->r, false, pattern)))
        return 0;
    return err_set(w->err, ERR_INPUT, "%s: no label of %s is like '%s'", place, w->r->id, pattern);
}

static bool has_field(const struct recipe *r, bool rows, const char *field)
{
    const json_t *o;
    for (size_t at = 0; (o = entry_at(r, rows, at)); at++)
        if (json_object_get(o, field))
            return true;
    return strcmp(field, "length") == 0;
}

static bool is_key(const struct walk *w, const char *key)
{
    for (enum group_key k = 0; k < KEY_COUNT; k++)
        if (strcmp(key_name(k), key) == 0)
            return true;
    return params_known(key) || strcmp(key, "case") == 0 || strcmp(key, "calib") == 0 ||
           recipe_variable(w->r, false, key) || recipe_variable(w->r, true, key) ||
           json_object_get(w->r->cuda, key);
}

static int check_where(const struct walk *w, const json_t *where, const char *place)
{
    const char *key;
    char field[64];
    json_t *v;
    json_object_foreach((json_t *)where, key, v)
    {
        const char *text = json_is_string(v) ? json_string_value(v) : "", *dot = strchr(text, '.');
        bool row = strncmp(text, "{row.", 5) == 0, column = strncmp(text, "{column.", 8) == 0;
        if (!is_key(w, key))
            return err_set(w->err, ERR_INPUT, "%s: records have no '%s'", place, key);
        if (strcmp(key, "case") == 0 && !row && !column && !json_object_get(w->r->cases, text))
            return err_set(w->err, ERR_INPUT, "%s: no case '%s'", place, text);
        snprintf(field, sizeof field, "%.*s", dot ? (int)strcspn(dot + 1, "}") : 0,
                 dot ? dot + 1 : "");
        if ((row || column) && !has_field(w->r, row, field))
            return err_set(w->err, ERR_INPUT, "%s: no %s has a field '%s'", place,
                           row ? "row" : "column", field);
    }
    return 0;
}

static int check_name(const struct walk *w, const json_t *v, enum field_type type,
                      const char *place)
{
    const char *key, *text = json_string_value(v);
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)v, i, item)
        PASS_ON(type == FIELD_JOB ? check_job(w, item, place) : check_metric(w, item, place));
    if (type == FIELD_WHERE)
        return check_where(w, v, place);
    json_object_foreach((json_t *)v, key, item)
        PASS_ON(type == FIELD_WHERES ? check_where(w, item, place)
                                     : check_label(w, key, true, true, place));
    if (text && (type == FIELD_ROW || type == FIELD_COLUMN))
        return check_label(w, text, type == FIELD_ROW, type == FIELD_COLUMN, place);
    if (text)
        return type == FIELD_JOB ? check_job(w, v, place) : check_metric(w, v, place);
    return 0;
}

/* ---- the walk -------------------------------------------------------------------------------- */

static int check_object(const struct walk *w, const json_t *o, const struct field *fields,
                        const char *place);

static int check_text(const struct walk *w, const json_t *v, const struct field *f,
                      const char *place)
{
    const char *text = json_string_value(v);
    char hint[HINT_MAX];
    if (!text)
        return fail(w, place, "a text");
    for (int i = 0; f->values && f->values[i]; i++)
        if (strcmp(f->values[i], text) == 0)
            return 0;
    return f->values ? err_set(w->err, ERR_INPUT, "%s: unknown value '%s'%s", place, text,
                               did_you_mean(text, f->values, hint))
                     : 0;
}

static bool is_range(const json_t *v)
{
    const json_t *l = json_array_get(v, 0), *h = json_array_get(v, 1);
    if (json_array_size(v) != 2 || (json_is_null(l) && json_is_null(h)))
        return false;
    if (json_is_null(l) || json_is_null(h))
        return json_is_number(json_is_null(l) ? h : l);
    return json_is_number(l) && json_is_number(h) && json_number_value(l) <= json_number_value(h);
}

static int check_items(const struct walk *w, const json_t *v, const struct field *f,
                       const char *place)
{
    const char *name;
    OWN(buf_free) struct buf at = {0};
    size_t i;
    json_t *item;
    if (f->type == FIELD_MAP ? !json_is_object(v) : !json_is_array(v))
        return fail(w, place, f->type == FIELD_MAP ? "an object" : "a list");
    json_array_foreach((json_t *)v, i, item)
    {
        buf_reset(&at);
        buf_printf(&at, "%s entry %zu", place, i + 1);
        PASS_ON(f->type == FIELD_TEXTS ? check_text(w, item, f, buf_str(&at))
                                       : check_object(w, item, f->in, buf_str(&at)));
    }
    json_object_foreach((json_t *)v, name, item)
    {
        buf_reset(&at);
        buf_printf(&at, "%s '%s'", place, name);
        PASS_ON(f->in ? check_object(w, item, f->in, buf_str(&at)) : 0);
    }
    return 0;
}

static int check_value(const struct walk *w, const json_t *v, const struct field *f,
                       const char *place)
{
    switch (f->type) {
    case FIELD_ANY:
        return 0;
    case FIELD_TEXT:
        return check_text(w, v, f, place);
    case FIELD_NUMBER:
        return json_is_number(v) ? 0 : fail(w, place, "a number");
    case FIELD_COUNT:
        return json_is_integer(v) && json_integer_value(v) > 0
                   ? 0
                   : fail(w, place, "an integer from 1 on");
    case FIELD_FLAG:
        return json_is_boolean(v) ? 0 : fail(w, place, "true or false");
    case FIELD_RANGE:
        return is_range(v) ? 0 : fail(w, place, "a range [lower, upper] of numbers");
    case FIELD_OBJECT:
        return check_object(w, v, f->in, place);
    case FIELD_TEXTS:
    case FIELD_OBJECTS:
    case FIELD_MAP:
        return check_items(w, v, f, place);
    default:
        if ((f->type >= FIELD_WHERE && f->type <= FIELD_WHERES) || f->type == FIELD_LABELS)
            return !json_is_object(v) ? fail(w, place, "an object")
                   : w->r             ? check_name(w, v, f->type, place)
                                      : 0;
        if (!json_is_string(v) && !json_is_array(v) && !json_is_null(v))
            return fail(w, place, "a text");
        return w->r ? check_name(w, v, f->type, place) : 0;
    }
}

static int check_object(const struct walk *w, const json_t *o, const struct field *fields,
                        const char *place)
{
    struct names known = {0};
    OWN(buf_free) struct buf at = {0};
    char hint[HINT_MAX];
    const char *key;
    json_t *v;
    if (!json_is_object(o))
        return fail(w, place, "an object");
    for (const struct field *f = fields; f->name; f++) {
        names_add(&known, f->name);
        if (f->required && !json_object_get(o, f->name))
            return err_set(w->err, ERR_INPUT, "%s: the field '%s' is missing", place, f->name);
    }
    json_object_foreach((json_t *)o, key, v)
    {
        const struct field *f = fields;
        while (f->name && strcmp(f->name, key) != 0)
            f++;
        if (!f->name)
            return err_set(w->err, ERR_INPUT, "%s: unknown field '%s'%s", place, key,
                           did_you_mean(key, known.items, hint));
        buf_reset(&at);
        buf_printf(&at, "%s: %s", place, key);
        PASS_ON(check_value(w, v, f, buf_str(&at)));
    }
    return 0;
}

int recipe_check_form(const json_t *doc, const char *path, struct err *err)
{
    return check_object(&(struct walk){.err = err}, doc, recipe_fields, path);
}

/* ---- claims ---------------------------------------------------------------------------------- */

/* A name in a list of members. */
static bool is_member(const struct recipe *r, const struct claim *c, const char *name)
{
    if (c->setting)
        return json_has_text(setting_jobs(r, c->setting), name);
    return c->labels || json_object_get(r->cases, name) || metric_def_find(name);
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
    bool ordered = c->kind == CLAIM_ORDER || c->stat == STAT_RANK;
    if (name && ((strcmp(name, "head") == 0 && !c->heads) ||
                 (strcmp(name, "trace") == 0 && (ordered || c->x))))
        return err_set(err, ERR_INPUT,
                       "%s: the number of a %s means nothing, so that only `spread` is for it",
                       name, name);
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

static int check_claim(const struct recipe *r, const json_t *test, struct err *err)
{
    const json_t *at = json_object_get(test, "at_equal"), *both = json_object_get(test, "metrics");
    struct claim c;
    PASS_ON(claim_read(test, &c, err));
    if (at && (c.kind != CLAIM_MORE || json_array_size(c.set) != 2))
        return err_set(err, ERR_INPUT, "at_equal is for `more` of two cases");
    if (c.setting && !setting_rule(r, c.setting))
        return err_set(err, ERR_INPUT, "setting: no rule of `ours` shows '%s'", c.setting);
    if (c.kind == CLAIM_FRONT && json_array_size(both) != 2)
        return err_set(err, ERR_INPUT, "metrics: two were expected");
    if (at && c.metric && strcmp(json_string_value(at), c.metric) == 0)
        return err_set(err, ERR_INPUT, "at_equal: %s is equal by construction", c.metric);
    if (c.set || c.kind != CLAIM_WITHIN || c.stat != STAT_MEAN)
        return check_set(r, &c, err);
    return 0;
}

static int check_claims(const struct recipe *r, struct err *err)
{
    OWN(str_list_free) struct str_list ids = {0};
    size_t i;
    json_t *o;
    json_array_foreach(r->claims, i, o)
    {
        const char *id = json_str_or(o, "id", "");
        if (str_list_has(&ids, id))
            return err_set(err, ERR_INPUT, "%s: two claims have the id '%s'", buf_str(&r->path),
                           id);
        str_list_add(&ids, id);
        if (check_claim(r, json_object_get(o, "test"), err) != 0)
            return err_prefix(err, "%s: claim '%s'", buf_str(&r->path), id);
    }
    return 0;
}

int recipe_check(const struct recipe *r, struct err *err)
{
    const struct walk w = {r, err};
    PASS_ON(check_claims(r, err));
    return check_object(&w, r->doc, recipe_fields, buf_str(&r->path));
}
