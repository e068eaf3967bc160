/*
 * callname.c - see callname.h.
 */
#include "core/callname.h"

#include <ctype.h>
#include <string.h>

/* "step-012" with word "step" -> 12. */
static bool numbered(const char *s, size_t len, const char *word, int *out)
{
    size_t n = strlen(word), i = n;
    long x = 0;

    if (len <= n || strncmp(s, word, n) != 0)
        return false;
    i += s[i] == '-';
    if (i == len)
        return false;
    for (; i < len; i++) {
        if (!isdigit((unsigned char)s[i]) || x > 1000000)
            return false;
        x = 10 * x + (s[i] - '0');
    }
    *out = (int)x;
    return true;
}

const char *call_name_parse(const char *text, size_t len, struct call_name *c, int *head,
                            size_t *word_len)
{
    bool has_branch = false;

    for (size_t at = 0; at < len;) {
        const char *word = text + at;
        size_t n = 0;
        while (at + n < len && word[n] != '.')
            n++;
        at += n + 1;
        if (numbered(word, n, "step", &c->step) || numbered(word, n, "layer", &c->layer) ||
            (head && numbered(word, n, "head", head)))
            continue;
        if (has_branch || n == 0 || n >= sizeof c->branch) {
            *word_len = n;
            return word;
        }
        memcpy(c->branch, word, n);
        c->branch[n] = '\0';
        has_branch = true;
    }
    return NULL;
}
