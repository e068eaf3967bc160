/*
 * optvalue.c - option values as text, canonical form and JSON.
 */
#include "core/opt_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void share_text(struct share s, struct buf *b)
{
    char text[32];
    /* x / 100 * 100 is not always x: take the shortest text that parses to the same share. */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, s.is_share ? s.value * 100 : s.value);
        if (!s.is_share || strtod(text, NULL) / 100 == s.value)
            break;
    }
    if (s.is_share)
        buf_printf(b, "%s%%", text);
    else
        buf_printf(b, "%lld", (long long)s.value);
}

static void num_value_text(const struct opt *o, double x, struct buf *b)
{
    char text[32];
    if (isinf(x)) {
        buf_puts(b, o->flags & OPT_OFF ? "off" : x > 0 ? "inf" : "-inf");
        return;
    }
    num_text(x, text);
    buf_puts(b, text);
}

void opt_value_text(const struct opt *o, const void *obj, struct buf *b)
{
    const void *p = opt_cfield(o, obj);
    if (opt_is_unset(o, obj) && o->type != OPT_LIST) {
        buf_puts(b, o->type == OPT_STR ? "" : "unset");
        return;
    }
    switch (o->type) {
    case OPT_BOOL:
        buf_puts(b, *(const bool *)p ? "1" : "0");
        break;
    case OPT_INT:
    case OPT_BYTES:
        buf_printf(b, "%lld", (long long)*(const int64_t *)p);
        break;
    case OPT_NUM:
        num_value_text(o, *(const double *)p, b);
        break;
    case OPT_ENUM:
        buf_puts(b, o->values[*(const int *)p]);
        break;
    case OPT_STR:
        buf_puts(b, *(char *const *)p);
        break;
    case OPT_SHARE:
        share_text(*(const struct share *)p, b);
        break;
    case OPT_LIST:
        for (int64_t i = 0; i < ((const struct str_list *)p)->n; i++)
            buf_printf(b, "%s%s", i ? "," : "", ((const struct str_list *)p)->items[i]);
        break;
    case OPT_END:
        break;
    }
}

bool opt_same(const struct opt *o, const void *a, const void *b)
{
    struct buf x = {0}, y = {0};
    opt_value_text(o, a, &x);
    opt_value_text(o, b, &y);
    bool same = !x.failed && !y.failed && strcmp(buf_str(&x), buf_str(&y)) == 0;
    buf_free(&x);
    buf_free(&y);
    return same;
}

int opt_is_default(const struct opt *o, const void *obj, bool *out, struct err *err)
{
    struct opt alone[2] = {*o, {.type = OPT_END}};
    union opt_value v = {0};
    struct buf now = {0}, def = {0};

    alone[0].offset = 0;
    int rc = opt_defaults(alone, &v, err);
    if (rc == 0) {
        opt_value_text(o, obj, &now);
        opt_value_text(&alone[0], &v, &def);
        rc = buf_check(now.failed ? &now : &def, o->name, err);
        *out = strcmp(buf_str(&now), buf_str(&def)) == 0;
    }
    opt_free(alone, &v);
    buf_free(&now);
    buf_free(&def);
    return rc;
}

int opt_canonical(const struct opt *table, const void *obj, struct buf *b, struct err *err)
{
    size_t start = b->len;
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        bool is_default;
        if (o->flags & OPT_IDENTITY_NOT)
            continue;
        int rc = opt_is_default(o, obj, &is_default, err);
        if (rc)
            return rc;
        if (is_default)
            continue;
        buf_printf(b, "%s%s=", b->len > start ? ":" : "", o->name);
        opt_value_text(o, obj, b);
    }
    return buf_check(b, "canonical parameters", err);
}

void opt_field_json(const struct opt *o, const void *obj, struct jw *w)
{
    const void *p = opt_cfield(o, obj);
    if (o->type == OPT_LIST) {
        const struct str_list *l = p;
        jw_arr(w);
        for (int64_t i = 0; i < l->n; i++)
            jw_str(w, l->items[i]);
        jw_arr_end(w);
    } else if (opt_is_unset(o, obj)) {
        jw_null(w);
    } else if (o->type == OPT_BOOL) {
        jw_bool(w, *(const bool *)p);
    } else if (o->type == OPT_INT || o->type == OPT_BYTES) {
        jw_int(w, *(const int64_t *)p);
    } else if (o->type == OPT_NUM && isfinite(*(const double *)p)) {
        jw_num(w, *(const double *)p);
    } else if (o->type == OPT_SHARE && !((const struct share *)p)->is_share) {
        jw_int(w, (int64_t)((const struct share *)p)->value);
    } else {
        struct buf text = {0};
        opt_value_text(o, obj, &text);
        jw_str(w, buf_str(&text));
        buf_free(&text);
    }
}

void opt_json(const struct opt *table, const void *obj, struct jw *w)
{
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        jw_key(w, o->name);
        opt_field_json(o, obj, w);
    }
}

/* The default as a typed JSON value. */
static void default_json(const struct opt *o, struct jw *w)
{
    struct opt alone[2] = {*o, {.type = OPT_END}};
    union opt_value v = {0};
    alone[0].offset = 0;
    if (opt_defaults(alone, &v, NULL) == 0)
        opt_field_json(&alone[0], &v, w);
    else
        jw_null(w);
    opt_free(alone, &v);
}

static void bound_json(double x, struct jw *w)
{
    if (isinf(x))
        jw_str(w, x > 0 ? "inf" : "-inf");
    else
        jw_num(w, x);
}

void opt_table_json(const struct opt *table, struct jw *w)
{
    static const char *const types[] = {
        [OPT_BOOL] = "bool",  [OPT_INT] = "int",     [OPT_NUM] = "number", [OPT_ENUM] = "enum",
        [OPT_STR] = "string", [OPT_SHARE] = "share", [OPT_LIST] = "list",  [OPT_BYTES] = "bytes",
    };
    jw_arr(w);
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        jw_obj(w);
        jw_kstr(w, "name", o->name);
        jw_kstr(w, "type", types[o->type]);
        jw_key(w, "default");
        default_json(o, w);
        if (opt_has_range(o) && o->type != OPT_BOOL && o->type != OPT_ENUM && o->type != OPT_STR &&
            o->type != OPT_LIST) {
            jw_key(w, "min");
            bound_json(o->min, w);
            jw_kbool(w, "min_open", (o->flags & OPT_MIN_OPEN) != 0);
            jw_key(w, "max");
            bound_json(o->max, w);
            jw_kbool(w, "max_open", (o->flags & OPT_MAX_OPEN) != 0);
        }
        if (o->type == OPT_ENUM) {
            jw_key(w, "values");
            jw_arr(w);
            for (int i = 0; o->values[i]; i++)
                jw_str(w, o->values[i]);
            jw_arr_end(w);
        }
        jw_kbool(w, "required", (o->flags & OPT_REQUIRED) != 0);
        jw_kstr(w, "unit", o->unit ? o->unit : "");
        jw_kstr(w, "help", o->help ? o->help : "");
        jw_obj_end(w);
    }
    jw_arr_end(w);
}
