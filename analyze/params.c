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
    *len = strcspn(word, ":");
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

void params_without(const char *params, const char *name, struct buf *b)
{
    const char *p = params ? params : "";
    bool first = true;
    size_t len;
    for (const char *word; (word = params_next(&p, &len));)
        if (!is_named(word, len, name)) {
            buf_puts(b, first ? "" : ":");
            buf_put(b, word, len);
            first = false;
        }
}
