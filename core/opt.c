/*
 * opt.c - option tables: defaults, parsing, ranges, copies, values as text and JSON. The command
 * line and the help text are in optline.c.
 */
#include "core/opt.h"
#include "core/mem.h"

#include "core/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One field of any type, to hold a default for comparison. */
union opt_value {
    bool b;
    int64_t i;
    double x;
    int e;
    char *s;
    struct share share;
    struct str_list list;
};

static void *opt_field(const struct opt *o, void *obj)
{
    return (char *)obj + o->offset;
}

static const void *opt_cfield(const struct opt *o, const void *obj)
{
    return (const char *)obj + o->offset;
}

static bool opt_has_range(const struct opt *o)
{
    return o->min != 0 || o->max != 0;
}

/* ---- text to numbers ------------------------------------------------------------------------ */

static bool whole_number(const char *s, int64_t *out)
{
    char *end;
    if (!isdigit((unsigned char)s[s[0] == '-' || s[0] == '+']))
        return false;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (*end || errno)
        return false;
    *out = v;
    return true;
}

static bool is_tokens(const struct opt *o)
{
    return o->unit && strcmp(o->unit, "tokens") == 0;
}

/* An integer of an option; one in tokens may end with K or M, as in 8K = 8192. INT64_MIN stands for
 * "not given". */
static bool parse_int(const struct opt *o, const char *s, int64_t *out)
{
    size_t n = strlen(s);
    char last = n && is_tokens(o) ? s[n - 1] : '\0';
    int64_t scale = last == 'K' ? 1 << 10 : last == 'M' ? 1 << 20 : 1;
    char digits[32];
    if (scale == 1)
        return whole_number(s, out) && *out != INT64_MIN;
    snprintf(digits, sizeof digits, "%.*s", (int)(n - 1), s);
    return n <= sizeof digits && whole_number(digits, out) &&
           !__builtin_mul_overflow(*out, scale, out);
}

static bool share_value(const char *s, struct share *out)
{
    const char *end;
    double x;
    if (num_read(s, &x, &end) && strcmp(end, "%") == 0) {
        if (x < 0 || x > 100)
            return false;
        *out = (struct share){x / 100, true};
        return true;
    }
    int64_t count;
    if (!whole_number(s, &count))
        return false;
    *out = (struct share){(double)count, false};
    return true;
}

int64_t share_resolve(struct share s, int64_t of)
{
    if (!s.is_share)
        return (int64_t)s.value;
    /* 7 % of 100 is 7.000000000000001 in doubles and must still be 7. */
    double x = s.value * (double)of, near = nearbyint(x);
    return (int64_t)(fabs(x - near) <= 1e-9 * fmax(1, near) ? near : ceil(x));
}

/* ---- ranges and what was expected ----------------------------------------------------------- */

static bool in_range(const struct opt *o, double x)
{
    if (!opt_has_range(o))
        return true;
    bool low = o->flags & OPT_MIN_OPEN ? x > o->min : x >= o->min;
    bool high = o->flags & OPT_MAX_OPEN ? x < o->max : x <= o->max;
    return low && high;
}

/* A count obeys the range. A share may be 0 only where a count may. */
static bool share_in_range(const struct opt *o, struct share s)
{
    if (!s.is_share)
        return s.value >= 0 && in_range(o, s.value);
    bool positive = opt_has_range(o) && (o->min > 0 || (o->min == 0 && (o->flags & OPT_MIN_OPEN)));
    return s.value > 0 || !positive;
}

void opt_range_text(const struct opt *o, struct buf *b)
{
    const double huge = 8e15; /* bounds beyond it say only that the type has an end */
    char low[32], high[32];
    if (!opt_has_range(o) || (o->max > huge && o->min < -huge) || o->type == OPT_BOOL ||
        o->type == OPT_ENUM || o->type == OPT_STR || o->type == OPT_LIST)
        return;
    num_text(o->min, low);
    num_text(o->max, high);
    if (o->max > huge)
        buf_printf(b, "%s %s", o->flags & OPT_MIN_OPEN ? ">" : ">=", low);
    else if (o->min < -huge)
        buf_printf(b, "%s %s", o->flags & OPT_MAX_OPEN ? "<" : "<=", high);
    else
        buf_printf(b, "in %s%s, %s%s", o->flags & OPT_MIN_OPEN ? "(" : "[", low, high,
                   o->flags & OPT_MAX_OPEN ? ")" : "]");
}

static void expected_text(const struct opt *o, struct buf *b)
{
    static const char *const nouns[] = {
        [OPT_BOOL] = "0 or 1 (no, yes, off, on, false, true)",
        [OPT_INT] = "an integer",
        [OPT_NUM] = "a number",
        [OPT_SHARE] = "a count or a percentage such as 8%",
        [OPT_STR] = "text",
        [OPT_LIST] = "text",
    };
    if (o->type == OPT_ENUM) {
        buf_puts(b, "one of ");
        for (int i = 0; o->values[i]; i++)
            buf_printf(b, "%s%s", i ? ", " : "", o->values[i]);
        return;
    }
    buf_puts(b,
             o->type == OPT_INT && is_tokens(o) ? "an integer or 8K (K = 1024)" : nouns[o->type]);
    if (opt_has_range(o) && o->type != OPT_BOOL && o->type != OPT_STR && o->type != OPT_LIST) {
        buf_puts(b, " ");
        opt_range_text(o, b);
    }
    if (o->flags & OPT_OFF)
        buf_puts(b, " or off");
}

/* ---- one field ------------------------------------------------------------------------------ */

/* What memcpy moves of a field; nothing of a list, which owns more than itself. */
static const size_t sizes[] = {[OPT_BOOL] = sizeof(bool),
                               [OPT_INT] = sizeof(int64_t),
                               [OPT_NUM] = sizeof(double),
                               [OPT_ENUM] = sizeof(int),
                               [OPT_STR] = sizeof(char *),
                               [OPT_SHARE] = sizeof(struct share),
                               [OPT_LIST] = 0};

static void set_unset(const struct opt *o, void *p)
{
    static const union opt_value unset[] = {[OPT_INT].i = INT64_MIN,
                                            [OPT_NUM].x = NAN,
                                            [OPT_ENUM].e = -1,
                                            [OPT_SHARE].share = {NAN, false},
                                            [OPT_LIST] = {0}};
    memcpy(p, &unset[o->type], sizes[o->type]);
}

bool opt_is_unset(const struct opt *o, const void *obj)
{
    const void *p = opt_cfield(o, obj);
    switch (o->type) {
    case OPT_NUM:
        return isnan(*(const double *)p);
    case OPT_INT:
        return *(const int64_t *)p == INT64_MIN;
    case OPT_SHARE:
        return isnan(((const struct share *)p)->value);
    case OPT_ENUM:
        return *(const int *)p == -1;
    case OPT_STR:
        return *(char *const *)p == NULL;
    case OPT_LIST:
        return ((const struct str_list *)p)->n == 0;
    case OPT_BOOL:
    case OPT_END:
        break;
    }
    return false;
}

static void free_field(const struct opt *o, void *p)
{
    if (o->type == OPT_STR) {
        free(*(char **)p);
        *(char **)p = NULL;
    } else if (o->type == OPT_LIST) {
        str_list_free(p);
    }
}

static bool parse_bool(const char *s, bool *out)
{
    static const char *const no[] = {"0", "no", "off", "false"}, *const yes[] = {"1", "yes", "on",
                                                                                 "true"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(s, no[i]) == 0 || strcmp(s, yes[i]) == 0) {
            *out = strcmp(s, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

static bool parse_num(const struct opt *o, const char *s, double *out)
{
    if (o->flags & OPT_OFF && strcmp(s, "off") == 0) {
        *out = INFINITY;
        return true;
    }
    if (strcmp(s, "inf") == 0 && isinf(o->max) && o->max > 0) {
        *out = INFINITY;
        return true;
    }
    return num_fills(s, out) && in_range(o, *out);
}

static bool parse_enum(const struct opt *o, const char *s, int *out)
{
    for (int i = 0; o->values[i]; i++) {
        if (strcmp(s, o->values[i]) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

/* Parse into the field at p; false when the text is not a value of the option. p is untouched
 * then. */
static bool parse_plain(const struct opt *o, const char *s, void *p)
{
    union opt_value v = {0};
    bool ok = o->type == OPT_BOOL    ? parse_bool(s, &v.b)
              : o->type == OPT_INT   ? parse_int(o, s, &v.i) && in_range(o, (double)v.i)
              : o->type == OPT_NUM   ? parse_num(o, s, &v.x)
              : o->type == OPT_ENUM  ? parse_enum(o, s, &v.e)
              : o->type == OPT_SHARE ? share_value(s, &v.share) && share_in_range(o, v.share)
                                     : false;
    if (ok)
        memcpy(p, &v, sizes[o->type]);
    return ok;
}

int opt_set_field(const struct opt *o, void *obj, const char *label, const char *value, bool append,
                  struct err *err)
{
    void *p = opt_field(o, obj);
    if (!o->def && !(o->flags & OPT_REQUIRED) &&
        strcmp(value, o->type == OPT_STR ? "" : "unset") == 0) {
        free_field(o, p);
        set_unset(o, p);
        return 0;
    }
    if (o->type == OPT_STR) {
        char *copy = strdup(value);
        if (!copy)
            return err_set(err, ERR_NOMEM, "%s: out of memory", label);
        free(*(char **)p);
        *(char **)p = copy;
        return 0;
    }
    if (o->type == OPT_LIST) {
        struct str_list *l = p;
        if (!append)
            str_list_free(l);
        if (append || value[0])
            str_list_add(l, value);
        return l->failed ? err_set(err, ERR_NOMEM, "%s: out of memory", label) : 0;
    }
    if (parse_plain(o, value, p))
        return 0;

    OWN(buf_free) struct buf want = {0};
    char hint[HINT_MAX] = "";
    expected_text(o, &want);
    return err_set(err, ERR_USAGE, "%s: '%s' is not valid: expected %s%s", label, value,
                   buf_str(&want),
                   o->type == OPT_ENUM ? did_you_mean(value, o->values, hint) : hint);
}

/* ---- whole objects -------------------------------------------------------------------------- */

/* What the memory held before is not ours to free, also if the object is filled in part only. */
static void forget_pointers(const struct opt *table, void *obj)
{
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        if (o->type == OPT_LIST)
            *(struct str_list *)opt_field(o, obj) = (struct str_list){0};
        else if (o->type == OPT_STR)
            *(char **)opt_field(o, obj) = NULL;
    }
}

int opt_defaults(const struct opt *table, void *obj, struct err *err)
{
    forget_pointers(table, obj);
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        if (!o->def) {
            set_unset(o, opt_field(o, obj));
            continue;
        }
        char label[128];
        snprintf(label, sizeof label, "default of %s", o->name);
        PASS_ON(opt_set_field(o, obj, label, o->def, false, err));
    }
    return 0;
}

void opt_free(const struct opt *table, void *obj)
{
    for (const struct opt *o = table; o && obj && o->type != OPT_END; o++)
        free_field(o, opt_field(o, obj));
}

static int copy_field(const struct opt *o, const void *src, void *dst, struct err *err)
{
    const void *s = opt_cfield(o, src);
    void *d = opt_field(o, dst);
    if (o->type == OPT_STR) {
        const char *text = *(char *const *)s;
        *(char **)d = text ? strdup(text) : NULL;
        if (text && !*(char **)d)
            return err_set(err, ERR_NOMEM, "option %s: out of memory", o->name);
    } else if (o->type == OPT_LIST) {
        const struct str_list *from = s;
        struct str_list *to = d;
        memset(to, 0, sizeof *to);
        for (int64_t i = 0; i < from->n; i++)
            str_list_add(to, from->items[i]);
        if (to->failed)
            return err_set(err, ERR_NOMEM, "option %s: out of memory", o->name);
    } else {
        memcpy(d, s, sizes[o->type]);
    }
    return 0;
}

int opt_copy(const struct opt *table, const void *src, void *dst, struct err *err)
{
    forget_pointers(table, dst);
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        int rc = copy_field(o, src, dst, err);
        if (rc) {
            opt_free(table, dst);
            return rc;
        }
    }
    return 0;
}

const struct opt *opt_find(const struct opt *table, const char *name)
{
    for (const struct opt *o = table; o && o->type != OPT_END; o++)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

const struct opt *opt_find_or_fail(const struct opt *table, const char *who, const char *prefix,
                                   const char *name, struct err *err)
{
    struct names all = {0};
    const struct opt *o = opt_find(table, name);
    if (o)
        return o;
    for (o = table; o && o->type != OPT_END; o++)
        names_add(&all, o->name);
    const char *near = nearest_name(name, all.items);
    const char *kind = prefix[0] ? "option" : "parameter";
    if (near)
        err_set(err, ERR_USAGE, "%s: unknown %s '%s%s'; did you mean '%s%s'?", who, kind, prefix,
                name, prefix, near);
    else if (all.n == 0)
        err_set(err, ERR_USAGE, "%s: unknown %s '%s%s'; it has none", who, kind, prefix, name);
    else if (prefix[0])
        err_set(err, ERR_USAGE, "%s: unknown %s '%s%s'; --help lists them", who, kind, prefix,
                name);
    else {
        OWN(buf_free) struct buf text = {0};
        names_text(&all, &text);
        err_set(err, ERR_USAGE, "%s: unknown %s '%s' (there are %s)", who, kind, name,
                buf_str(&text));
    }
    return NULL;
}

int opt_set(const struct opt *table, void *obj, const char *who, const char *key, const char *value,
            struct err *err)
{
    char label[256];
    const struct opt *o = opt_find_or_fail(table, who, "", key, err);
    if (!o)
        return ERR_USAGE;
    snprintf(label, sizeof label, "%s: %s", who, key);
    return opt_set_field(o, obj, label, value, false, err);
}

int opt_check_required(const struct opt *table, const void *obj, const char *who,
                       const char *prefix, struct err *err)
{
    for (const struct opt *o = table; o && o->type != OPT_END; o++)
        if (o->flags & OPT_REQUIRED && opt_is_unset(o, obj))
            return err_set(err, ERR_USAGE, "%s: %s%s is required: %s", who, prefix, o->name,
                           o->help ? o->help : "");
    return 0;
}

/* ---- values as text and JSON ---------------------------------------------------------------- */

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

int64_t opt_count(const struct opt *table)
{
    int64_t n = 0;
    while (table[n].type != OPT_END)
        n++;
    return n;
}

/* Have fields o of a and p of b, which are of one kind, the same text? */
static int same_text(const struct opt *o, const void *a, const struct opt *p, const void *b,
                     bool *same, struct err *err)
{
    OWN(buf_free) struct buf x = {0}, y = {0};
    opt_value_text(o, a, &x);
    opt_value_text(p, b, &y);
    int rc = buf_check(x.failed ? &x : &y, o->name, err);
    *same = strcmp(buf_str(&x), buf_str(&y)) == 0;
    return rc;
}

int opt_same(const struct opt *o, const void *a, const void *b, bool *same, struct err *err)
{
    return same_text(o, a, o, b, same, err);
}

int opt_is_default(const struct opt *o, const void *obj, bool *out, struct err *err)
{
    struct opt alone[2] = {*o, {.type = OPT_END}};
    union opt_value v = {0};
    alone[0].offset = 0;
    int rc = opt_defaults(alone, &v, err);
    if (rc == 0)
        rc = same_text(o, obj, &alone[0], &v, out, err);
    opt_free(alone, &v);
    return rc;
}

int opt_canonical(const struct opt *table, const void *obj, struct buf *b, struct err *err)
{
    size_t start = b->len;
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        bool is_default;
        if (o->flags & OPT_IDENTITY_NOT)
            continue;
        PASS_ON(opt_is_default(o, obj, &is_default, err));
        if (is_default)
            continue;
        buf_printf(b, "%s%s=", b->len > start ? ":" : "", o->name);
        opt_value_text(o, obj, b);
    }
    return buf_check(b, "canonical parameters", err);
}

/* Write one field's value. */
static void opt_field_json(const struct opt *o, const void *obj, struct jw *w)
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
    } else if (o->type == OPT_INT) {
        jw_int(w, *(const int64_t *)p);
    } else if (o->type == OPT_NUM && isfinite(*(const double *)p)) {
        jw_num(w, *(const double *)p);
    } else if (o->type == OPT_SHARE && !((const struct share *)p)->is_share) {
        jw_int(w, (int64_t)((const struct share *)p)->value);
    } else {
        OWN(buf_free) struct buf text = {0};
        opt_value_text(o, obj, &text);
        jw_str(w, buf_str(&text));
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
        [OPT_STR] = "string", [OPT_SHARE] = "share", [OPT_LIST] = "list",
    };
    jw_arr(w);
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        jw_obj(w);
        jw_members(w, JW_STR("name", o->name), JW_STR("type", types[o->type]));
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
            jw_karr(w, "values");
            for (int i = 0; o->values[i]; i++)
                jw_str(w, o->values[i]);
            jw_arr_end(w);
        }
        jw_members(w, JW_BOOL("required", (o->flags & OPT_REQUIRED) != 0),
                   JW_STR("unit", o->unit ? o->unit : ""), JW_STR("help", o->help ? o->help : ""));
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

/* ---- options that nothing reads -------------------------------------------------------------- */

static bool has_word(const char *list, const char *word)
{
    size_t n = 0;
    for (const char *p = list; *p; p += n + strspn(p + n, ", ")) {
        n = strcspn(p, ",");
        if (strlen(word) == n && strncmp(p, word, n) == 0)
            return true;
    }
    return false;
}

int opt_check_uses(const struct opt *table, const void *obj, const char *who,
                   const char *const *uses, struct err *err)
{
    for (const struct opt *o = table; o && o->type != OPT_END; o++) {
        bool read = !o->only, is_default;
        for (const char *const *u = uses; !read && *u; u++)
            read = has_word(o->only, *u);
        PASS_ON(opt_is_default(o, obj, &is_default, err));
        if (!read && !is_default)
            return err_set(err, ERR_USAGE, "%s: --%s changes nothing here; it is for %s", who,
                           o->name, o->only);
    }
    return 0;
}
