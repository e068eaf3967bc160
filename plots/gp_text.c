/*
 * gp_text.c - words of a gnuplot script and of a command line, quoted.
 */
#include "plots/gp.h"

#include <ctype.h>
#include <string.h>

void gp_text(struct buf *b, const char *text)
{
    buf_puts(b, "'");
    for (const char *p = text; *p; p++) {
        if (*p == '\'')
            buf_puts(b, "''");
        else
            buf_put(b, iscntrl((unsigned char)*p) ? " " : p, 1);
    }
    buf_puts(b, "'");
}

void shell_word(const char *word, struct buf *b)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_./:=,@%+-";
    if (word[0] && strspn(word, plain) == strlen(word)) {
        buf_puts(b, word);
        return;
    }
    buf_puts(b, "'");
    for (; *word; word++) {
        if (*word == '\'')
            buf_puts(b, "'\\''");
        else
            buf_put(b, word, 1);
    }
    buf_puts(b, "'");
}
