#include "analyze/params.h"

#include <string.h>

static bool is_named(const char *part, size_t len, const char *name)
{
    size_t n = strlen(name);
    return len > n && part[n] == '=' && strncmp(part, name, n) == 0;
}

const char *params_value(const char *params, const char *name)
{
    for (const char *p = params ? params : ""; *p;) {
        size_t len = strcspn(p, ":");
        if (is_named(p, len, name))
            return p + strlen(name) + 1;
        p += len + (p[len] == ':');
    }
    return NULL;
}

void params_without(const char *params, const char *name, struct buf *b)
{
    bool first = true;
    for (const char *p = params ? params : ""; *p;) {
        size_t len = strcspn(p, ":");
        if (!is_named(p, len, name)) {
            buf_puts(b, first ? "" : ":");
            buf_put(b, p, len);
            first = false;
        }
        p += len + (p[len] == ':');
    }
}
