/*
 * schema.c - one walk over a JSON document and the tables of its fields.
 */
#include "reproduce/schema.h"

#include "core/buf.h"
#include "core/text.h"

#include <string.h>

static int check_object(const json_t *o, const struct field *fields, const char *place,
                        struct err *err);

static int fail(const char *place, const char *expected, struct err *err)
{
    return err_set(err, ERR_INPUT, "%s: %s was expected", place, expected);
}

static int check_text(const json_t *v, const struct field *f, const char *place, struct err *err)
{
    const char *text = json_string_value(v);
    char hint[HINT_MAX];
    if (!text)
        return fail(place, "a text", err);
    for (int i = 0; f->values && f->values[i]; i++)
        if (strcmp(f->values[i], text) == 0)
            return 0;
    return f->values ? err_set(err, ERR_INPUT, "%s: unknown value '%s'%s", place, text,
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

static int check_items(const json_t *v, const struct field *f, const char *place, struct err *err)
{
    const char *name;
    struct buf at = {0};
    size_t i;
    json_t *item;
    int rc = 0;
    if (f->type == FIELD_MAP ? !json_is_object(v) : !json_is_array(v))
        return fail(place, f->type == FIELD_MAP ? "an object" : "a list", err);
    json_array_foreach((json_t *)v, i, item)
    {
        buf_reset(&at);
        buf_printf(&at, "%s entry %zu", place, i + 1);
        TRY(f->type == FIELD_TEXTS ? check_text(item, f, buf_str(&at), err)
                                   : check_object(item, f->in, buf_str(&at), err));
    }
    json_object_foreach((json_t *)v, name, item)
    {
        buf_reset(&at);
        buf_printf(&at, "%s '%s'", place, name);
        TRY(f->in ? check_object(item, f->in, buf_str(&at), err) : 0);
    }
out:
    buf_free(&at);
    return rc;
}

static int check_value(const json_t *v, const struct field *f, const char *place, struct err *err)
{
    switch (f->type) {
    case FIELD_TEXT:
        return check_text(v, f, place, err);
    case FIELD_NUMBER:
        return json_is_number(v) ? 0 : fail(place, "a number", err);
    case FIELD_COUNT:
        return json_is_integer(v) && json_integer_value(v) > 0
                   ? 0
                   : fail(place, "an integer from 1 on", err);
    case FIELD_FLAG:
        return json_is_boolean(v) ? 0 : fail(place, "true or false", err);
    case FIELD_RANGE:
        return is_range(v) ? 0 : fail(place, "a range [lower, upper] of numbers", err);
    case FIELD_OBJECT:
        return check_object(v, f->in, place, err);
    case FIELD_TEXTS:
    case FIELD_OBJECTS:
    case FIELD_MAP:
        return check_items(v, f, place, err);
    default:
        return 0;
    }
}

static int check_object(const json_t *o, const struct field *fields, const char *place,
                        struct err *err)
{
    struct names known = {0};
    struct buf at = {0};
    char hint[HINT_MAX];
    const char *key;
    json_t *v;
    int rc = 0;
    if (!json_is_object(o))
        return fail(place, "an object", err);
    for (const struct field *f = fields; f->name; f++) {
        names_add(&known, f->name);
        if (f->required && !json_object_get(o, f->name))
            FAIL(err, ERR_INPUT, "%s: the field '%s' is missing", place, f->name);
    }
    json_object_foreach((json_t *)o, key, v)
    {
        const struct field *f = fields;
        while (f->name && strcmp(f->name, key) != 0)
            f++;
        if (!f->name)
            FAIL(err, ERR_INPUT, "%s: unknown field '%s'%s", place, key,
                 did_you_mean(key, known.items, hint));
        buf_reset(&at);
        buf_printf(&at, "%s: %s", place, key);
        TRY(check_value(v, f, buf_str(&at), err));
    }
out:
    buf_free(&at);
    return rc;
}

int schema_check(const json_t *o, const struct field *fields, const char *file, struct err *err)
{
    return check_object(o, fields, file, err);
}
