#include "analyze/params.h"

#include <string.h>

static bool is_named(const char *part, size_t len, const char *name)
{
    size_t n = strlen(name);
    return len > n && part[n] == '=' && strncmp(part, name, n) == 0;
}

const char *params_next(const char **p, size_t *len)
{
    const char *word = *p;
    if (!*word)
        return NULL;
    *len = *word == '@' ? strlen(word) : params_value_len(word);
    *p = word + *len + (word[*len] == ':');
    return word;
}

const char *params_value(const char *params, const char *name)
{
    const char *p = params ? params : "";
    size_t len;
    for (const char *word; (word = params_next(&p, &len));)
        if (is_named(word, len, name))
            return word + strlen(name) + 1;
    return NULL;
}

size_t params_value_len(const char *value)
{
    size_t len = strcspn(value, ":");
    const char *target = budget_find(value);
    return target && (size_t)(target - value) < len ? (size_t)(target - value) : len;
}

void params_without(const char *params, const char *name, struct buf *b)
{
    const char *p = params ? params : "";
    bool first = true;
    size_t len;
    for (const char *word; (word = params_next(&p, &len));)
        if (!is_named(word, len, name)) {
            buf_puts(b, first || *word == '@' ? "" : ":");
            buf_put(b, word, len);
            first = false;
        }
}

const char *params_target(const char *params)
{
    const char *at = params ? budget_find(params) : NULL;
    return at ? at + 1 : "";
}

unsigned method_flags(const char *name)
{
    const struct method *m = method_named(name);
    return m ? m->flags : 0;
}

const struct method *method_named(const char *name)
{
    const struct method *const *m = metric_def_known_methods();
    while (m && *m && strcmp((*m)->name, name) != 0)
        m++;
    return m ? *m : NULL;
}

bool record_is_bound(const struct record *r)
{
    return method_flags(r->method) & METHOD_BOUND;
}

static bool append_value(const char *value, struct buf *b)
{
    if (value)
        buf_put(b, value, params_value_len(value));
    return value != NULL;
}

bool record_param(const struct record *r, const char *name, struct buf *b)
{
    char found[256];
    size_t len;
    const char *note = record_note_value(r, "found", &len);
    const struct method *m = method_named(r->method);
    const struct opt *o = m && *name != '@' ? opt_find(m->params.table, name) : NULL;
    if (note) {
        snprintf(found, sizeof found, "%.*s", (int)len, note);
        if (append_value(params_value(found, name), b))
            return true;
    }
    if (append_value(params_value(r->params, name), b))
        return true;
    if (!o)
        return false;
    buf_puts(b, params_value(r->params, "calib") ? "calib" : o->def ? o->def : "unset");
    return true;
}

bool params_known(const char *name)
{
    if (strcmp(name, "a") == 0 || strcmp(name, "b") == 0) /* of lacuna overlap */
        return true;
    for (const struct method *const *m = metric_def_known_methods(); m && *m; m++)
        if (opt_find((*m)->params.table, name))
            return true;
    return false;
}

void params_for_people(const struct record *r, struct buf *b)
{
    size_t len;
    const char *name = record_note_value(r, "calib_name", &len);
    const char *hash = params_value(r->params, "calib");
    if (!name || !hash) {
        buf_puts(b, r->params ? r->params : "");
        return;
    }
    size_t n = params_value_len(hash);
    buf_put(b, r->params, (size_t)(hash - r->params));
    buf_put(b, name, len);
    buf_printf(b, "#%.*s%s", (int)(n < 4 ? n : 4), hash, hash + n);
}
