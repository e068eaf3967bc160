/*
 * method_scope.c - parameters that only count beside another one (method_run.h).
 */
#include "core/method_run.h"

#include "core/buf.h"

#include <stdio.h>
#include <string.h>

/* The name that an OPT_ENUM holds; NULL where it is not given. */
static const char *enum_name(const struct opt *o, const void *params)
{
    int i = *(const int *)((const char *)params + o->offset);
    return i < 0 ? NULL : o->values[i];
}

/* Is `name` one of the words of a list, separated by `by`? */
static bool in_words(const char *list, const char *by, const char *name, size_t len)
{
    for (const char *p = list; *p; p += *p != '\0') {
        size_t n = strcspn(p, by);
        if (n == len && strncmp(p, name, n) == 0)
            return true;
        p += n;
    }
    return false;
}

static int refuse(const struct opt *o, const struct param_scope *s, const struct opt *key,
                  const char *has, const void *params, struct err *err)
{
    struct buf value = {0};
    opt_value_text(o, params, &value);
    int rc = err_set(err, ERR_USAGE, "%s=%s counts with %s only, not with %s=%s: leave it out",
                     o->name, buf_str(&value), s->only, key->name, has);
    buf_free(&value);
    return rc;
}

int param_scopes_check(const struct method *m, const void *params, struct err *err)
{
    int rc = 0;
    for (const struct param_scope *s = m->params.scopes; s && s->params; s++) {
        char name[32];
        size_t len = strcspn(s->only, "=");
        snprintf(name, sizeof name, "%.*s", (int)len, s->only);
        const struct opt *key = opt_find(m->params.table, name);
        const char *has = enum_name(key, params);
        if (!has || in_words(s->only + len + 1, "|", has, strlen(has)))
            continue;
        for (const struct opt *o = m->params.table; o->type != OPT_END; o++) {
            bool is_default;
            if (!in_words(s->params, " ", o->name, strlen(o->name)))
                continue;
            TRY(opt_is_default(o, params, &is_default, err));
            if (!is_default)
                TRY(refuse(o, s, key, has, params, err));
        }
    }
out:
    return rc;
}
