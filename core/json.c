/*
 * json.c - strict reading through jansson and a streaming writer.
 */
#include "core/json.h"

#include "core/fileio.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- in ----------------------------------------------------------------------------------- */

/* jansson 2.14 goes on with a text that it could not store, and then meets an assertion of its own.
 * So what it asks for after a failure comes from here, until the caller sees mem_check_short. */
#define SPARE 65536
static char spare[SPARE] __attribute__((aligned(16)));
static _Atomic size_t spare_used;

static void *json_malloc(size_t n)
{
    void *p = malloc(n);
    if (p)
        return p;
    mem_note_short();
    size_t at = n <= SPARE ? atomic_fetch_add(&spare_used, (n + 15) / 16 * 16) : SPARE;
    return n <= SPARE && at <= SPARE - n ? spare + at : NULL;
}

static void json_free(void *p)
{
    if ((char *)p < spare || (char *)p >= spare + SPARE)
        free(p);
}

void json_watch_memory(void)
{
    json_set_alloc_funcs(json_malloc, json_free);
}

#define BOM "\xEF\xBB\xBF"

int json_read_text(const char *text, size_t len, const char *name, json_t **out, struct err *err)
{
    json_error_t e;
    if (len >= 3 && memcmp(text, BOM, 3) == 0)
        return err_set(err, ERR_INPUT,
                       "%s begins with a byte order mark: save it as UTF-8 without one", name);
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &e);
    if (mem_check_short(NULL) != 0 || (!doc && json_error_code(&e) == json_error_out_of_memory)) {
        json_decref(doc); /* it may lack something */
        return err_set(err, ERR_NOMEM, "%s: out of memory", name);
    }
    if (!doc && !memchr(text, '\n', len ? len - 1 : 0)) /* a line; `name` may have its number */
        return err_set(err, ERR_INPUT, "%s: column %d: not valid JSON: %s", name, e.column, e.text);
    if (!doc)
        return err_set(err, ERR_INPUT, "%s: line %d column %d: not valid JSON: %s", name, e.line,
                       e.column, e.text);
    *out = doc;
    return 0;
}

int json_file_by(json_parser *parse, const char *path, size_t max_bytes, json_t **out,
                 struct err *err)
{
    OWN(buf_free) struct buf b = {0};
    PASS_ON(buf_read_file(&b, path, max_bytes, err));
    return parse(buf_str(&b), b.len, path, out, err);
}

int json_read_file(const char *path, size_t max_bytes, json_t **out, struct err *err)
{
    return json_file_by(json_read_text, path, max_bytes, out, err);
}

/* What stands for something that jansson cannot hold: U+FFFF U+FFFE, two code points that are no
 * characters. In a string it takes the place of an escape, and is as long as that. */
#define FOREIGN "\xEF\xBF\xBF\xEF\xBF\xBE"

bool json_foreign(const char *key)
{
    return strstr(key, FOREIGN) != NULL;
}

const char *jtext(const json_t *v)
{
    return json_is_string(v) && !json_foreign(json_string_value(v)) ? json_string_value(v) : NULL;
}

/* The code unit of an escape \uXXXX at s, -1 if there is none. */
static int escaped_unit(const char *s, const char *end)
{
    static const char digits[] = "0123456789abcdef";
    int unit = 0;
    if (end - s < 6 || s[0] != '\\' || s[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        const char *d = s[i] ? strchr(digits, tolower((unsigned char)s[i])) : NULL;
        if (!d)
            return -1;
        unit = 16 * unit + (int)(d - digits);
    }
    return unit;
}

/* Copy the string that begins behind a quote at s, with that at its end; returns what follows. */
static const char *copy_string(struct buf *b, const char *s, const char *end)
{
    const char *run = s;
    while (s < end && *s != '"') {
        int unit = escaped_unit(s, end);
        int low = unit >= 0xD800 && unit < 0xDC00 ? escaped_unit(s + 6, end) : -1;
        if (low >= 0xDC00 && low < 0xE000) {
            s += 12;
        } else if (unit == 0 || (unit >= 0xD800 && unit < 0xE000)) {
            buf_put(b, run, (size_t)(s - run));
            buf_puts(b, FOREIGN);
            run = s += 6;
        } else {
            s += *s == '\\' && s + 1 < end ? 2 : 1;
        }
    }
    s += s < end;
    buf_put(b, run, (size_t)(s - run));
    return s;
}

/* A word or number outside of strings. */
static void copy_word(struct buf *b, const char *s, size_t n)
{
    char *word = strndup(s, n), *end;
    if (!word) {
        b->failed = true;
        return;
    }
    bool number = strspn(word, "+-.0123456789eE") == n;
    double x = number ? strtod(word, &end) : 0;
    bool whole = number && !strpbrk(word, ".eE");
    errno = 0;
    if (whole)
        (void)strtoll(word, &end, 10);
    if (!strcmp(word, "NaN") || !strcmp(word, "Infinity") || !strcmp(word, "-Infinity") ||
        (number && isinf(x)))
        buf_printf(b, "\"" FOREIGN "%.60s\"", word);
    else
        buf_printf(b, "%s%s", word, whole && errno == ERANGE ? ".0" : "");
    free(word);
}

int json_read_foreign_text(const char *text, size_t len, const char *name, json_t **out,
                           struct err *err)
{
    const char *end = text + len, *s = text;
    OWN(buf_free) struct buf b = {0};
    if (len >= 3 && memcmp(s, BOM, 3) == 0)
        s += 3;
    while (s < end) {
        size_t n = 0;
        while (s + n < end && (isalnum((unsigned char)s[n]) || (s[n] && strchr("+-.", s[n]))))
            n++;
        if (n > 0)
            copy_word(&b, s, n);
        else
            buf_put(&b, s, n = 1);
        s += n;
        if (s[-1] == '"')
            s = copy_string(&b, s, end);
    }
    PASS_ON(buf_check(&b, name, err));
    return json_read_text(buf_str(&b), b.len, name, out, err);
}

int json_read_foreign(const char *path, size_t max_bytes, json_t **out, struct err *err)
{
    return json_file_by(json_read_foreign_text, path, max_bytes, out, err);
}

/* What a string holds that json_foreign knows: the word of a number, or an escape. */
static const char *foreign_text(const char *s)
{
    const char *word = strncmp(s, FOREIGN, strlen(FOREIGN)) == 0 ? s + strlen(FOREIGN) : "";
    return *word && strchr("-+0123456789IN", *word)
               ? word
               : "a string with \\u0000 or half of a surrogate pair";
}

static const char *type_text(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return jtext(v) ? "a string" : foreign_text(json_string_value(v));
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return fabs(json_real_value(v)) < 0x1p63 ? "a number with a fraction"
                                                 : "a number beyond 64 bits";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        return "null";
    }
    return "something else";
}

enum kind { INTEGER, NUMBER, STRING, BOOLEAN };

/* The value of a key, of that type; NULL with rc 0 when it is absent (or null) and optional. */
static int look_up(const json_t *o, const char *key, const char *where, bool optional,
                   enum kind kind, const json_t **out, struct err *err)
{
    static const char *const want[] = {"an integer", "a number", "a string", "a boolean"};
    const json_t *v = json_object_get(o, key);
    *out = NULL;
    if (!json_is_object(o))
        return err_set(err, ERR_INPUT, "%s: an object with key \"%s\" was expected, found %s",
                       where, key, o ? type_text(o) : "nothing");
    if (optional && (!v || json_is_null(v)))
        return 0;
    if (!v)
        return err_set(err, ERR_INPUT, "%s: key \"%s\" is missing", where, key);
    if (!(kind == INTEGER  ? json_is_integer(v)
          : kind == NUMBER ? json_is_number(v)
          : kind == STRING ? jtext(v) != NULL
                           : json_is_boolean(v)))
        return err_set(err, ERR_INPUT, "%s: \"%s\": %s was expected, found %s", where, key,
                       want[kind], type_text(v));
    *out = v;
    return 0;
}

#define GETTER(name, type, optional, kind, value)                                                  \
    int name(const json_t *o, const char *key, const char *where, type *out, struct err *err)      \
    {                                                                                              \
        const json_t *v;                                                                           \
        int rc = look_up(o, key, where, optional, kind, &v, err);                                  \
        if (v)                                                                                     \
            *out = value(v);                                                                       \
        return rc;                                                                                 \
    }
GETTER(jget_int, int64_t, false, INTEGER, json_integer_value)
GETTER(jget_int_opt, int64_t, true, INTEGER, json_integer_value)
GETTER(jget_num, double, false, NUMBER, json_number_value)
GETTER(jget_num_opt, double, true, NUMBER, json_number_value)
GETTER(jget_str, const char *, false, STRING, json_string_value)
GETTER(jget_str_opt, const char *, true, STRING, json_string_value)
GETTER(jget_bool_opt, bool, true, BOOLEAN, json_is_true)

int jget_size(const json_t *o, const char *key, const char *where, int64_t max, int64_t *out,
              struct err *err)
{
    PASS_ON(jget_int(o, key, where, out, err));
    if (*out < 1 || *out > max)
        return err_set(err, ERR_INPUT, "%s: %s is %lld, expected 1..%lld", where, key,
                       (long long)*out, (long long)max);
    return 0;
}

int jget_size_opt(const json_t *o, const char *key, const char *where, int64_t max, int64_t *out,
                  struct err *err)
{
    const json_t *v = json_object_get(o, key);
    return !v || json_is_null(v) ? 0 : jget_size(o, key, where, max, out, err);
}

/* ---- out ---------------------------------------------------------------------------------- */

void jw_init(struct jw *w, struct buf *b, int indent)
{
    *w = (struct jw){.b = b, .indent = indent};
}

static void new_line(struct jw *w)
{
    if (w->indent <= 0)
        return;
    buf_put(w->b, "\n", 1);
    for (int i = 0; i < w->depth * w->indent; i++)
        buf_put(w->b, " ", 1);
}

/* What stands between the previous value and the next one. */
static void separate(struct jw *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->depth == 0)
        return;
    if (w->comma)
        buf_put(w->b, ",", 1);
    new_line(w);
}

static void open_with(struct jw *w, const char *bracket)
{
    separate(w);
    buf_put(w->b, bracket, 1);
    w->depth++;
    w->comma = false;
}

static void close_with(struct jw *w, const char *bracket)
{
    bool empty = !w->comma;
    w->depth--;
    if (!empty)
        new_line(w);
    buf_put(w->b, bracket, 1);
    w->comma = true;
}

void jw_obj(struct jw *w)
{
    open_with(w, "{");
}

void jw_obj_end(struct jw *w)
{
    close_with(w, "}");
}

void jw_arr(struct jw *w)
{
    open_with(w, "[");
}

void jw_arr_end(struct jw *w)
{
    close_with(w, "]");
}

static void escape(struct buf *b, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = strchr(from, c);
    if (at && c)
        buf_printf(b, "\\%c", to[at - from]);
    else
        buf_printf(b, "\\u%04x", c);
}

static void put_string(struct buf *b, const char *s)
{
    buf_put(b, "\"", 1);
    for (const unsigned char *p = (const unsigned char *)s; *p;) {
        int n = utf8_length(p);
        if (n == 0) {
            buf_puts(b, "\xEF\xBF\xBD");
            n = 1;
        } else if (n > 1 && utf8_unsafe(p)) {
            buf_printf(b, "\\u%04x", utf8_code_point(p)); /* all are below U+10000 */
        } else if (n == 1 && (*p < 0x20 || *p == '"' || *p == '\\' || *p == 0x7F)) {
            escape(b, *p);
        } else {
            buf_put(b, p, (size_t)n);
        }
        p += n;
    }
    buf_put(b, "\"", 1);
}

void jw_key(struct jw *w, const char *key)
{
    separate(w);
    put_string(w->b, key);
    buf_puts(w->b, w->indent > 0 ? ": " : ":");
    w->after_key = true;
}

void jw_str(struct jw *w, const char *s)
{
    if (!s) {
        jw_null(w);
        return;
    }
    separate(w);
    put_string(w->b, s);
    w->comma = true;
}

void num_text(double x, char text[32])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            return;
    }
}

void jw_num(struct jw *w, double x)
{
    char text[32];
    if (!isfinite(x)) {
        jw_null(w);
        return;
    }
    num_text(x, text);
    separate(w);
    buf_puts(w->b, text);
    w->comma = true;
}

void jw_int(struct jw *w, int64_t x)
{
    separate(w);
    buf_printf(w->b, "%lld", (long long)x);
    w->comma = true;
}

void jw_bool(struct jw *w, bool x)
{
    separate(w);
    buf_puts(w->b, x ? "true" : "false");
    w->comma = true;
}

void jw_null(struct jw *w)
{
    separate(w);
    buf_puts(w->b, "null");
    w->comma = true;
}

/* A real stays a real: "1.0", not "1". */
static void put_real(struct jw *w, double x)
{
    size_t before = w->b->len;
    jw_num(w, x);
    if (!w->b->failed && !strpbrk(w->b->data + before, ".en"))
        buf_puts(w->b, ".0");
}

void jw_value(struct jw *w, const json_t *v)
{
    const char *key;
    json_t *child;
    size_t i;
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        jw_obj(w);
        json_object_foreach((json_t *)(uintptr_t)v, key, child)
        {
            jw_key(w, key);
            jw_value(w, child);
        }
        jw_obj_end(w);
        break;
    case JSON_ARRAY:
        jw_arr(w);
        json_array_foreach(v, i, child) jw_value(w, child);
        jw_arr_end(w);
        break;
    case JSON_STRING:
        jw_str(w, json_string_value(v));
        break;
    case JSON_INTEGER:
        jw_int(w, json_integer_value(v));
        break;
    case JSON_REAL:
        put_real(w, json_real_value(v));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        jw_bool(w, json_is_true(v));
        break;
    case JSON_NULL:
        jw_null(w);
        break;
    }
}

void jw_kobj(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_obj(w);
}

void jw_karr(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_arr(w);
}

void jw_put(struct jw *w, bool row, const struct jw_member *m)
{
    if (row)
        jw_obj(w);
    for (; m->key; m++) {
        jw_key(w, m->key);
        if (m->type == 's')
            jw_str(w, m->text);
        else if (m->type == 'n')
            jw_num(w, m->number);
        else if (m->type == 'i')
            jw_int(w, m->whole);
        else
            jw_bool(w, m->whole);
    }
    if (row)
        jw_obj_end(w);
}
