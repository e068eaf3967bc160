/*
 * text_words.c - the words of a command (text.h).
 */
#include "core/text.h"

#include "core/buf.h"

#include <string.h>

/* One word at p, without its quotes, appended to b. Returns what follows it; NULL: an open quote.
 */
static const char *word(const char *p, struct buf *b)
{
    char quote = 0;

    for (; *p && (quote || !strchr(" \t\n", *p)); p++) {
        if (!quote && (*p == '\'' || *p == '"')) {
            quote = *p;
        } else if (*p == quote) {
            quote = 0;
        } else if (*p == '\\' && quote != '\'' && p[1] && (!quote || strchr("\\\"$`", p[1]))) {
            buf_put(b, ++p, 1);
        } else {
            buf_put(b, p, 1);
        }
    }
    return quote ? NULL : p;
}

int words_split(const char *text, struct str_list *out, struct err *err)
{
    struct buf b = {0};
    int rc = 0;

    for (const char *p = text + strspn(text, " \t\n"); *p; p += strspn(p, " \t\n")) {
        buf_reset(&b);
        p = word(p, &b);
        if (!p)
            FAIL(err, ERR_USAGE, "'%s': a quote is not closed", text);
        str_list_add(out, buf_str(&b));
        TRY(buf_check(&b, "words of a command", err));
    }
    if (out->failed)
        FAIL(err, ERR_NOMEM, "'%s': out of memory", text);
    if (out->n == 0)
        rc = err_set(err, ERR_USAGE, "'%s' is no command", text);
out:
    buf_free(&b);
    return rc;
}
