/*
 * gp_text.c - words of a gnuplot script and of a command line, quoted.
 */
#include "plots/gp.h"

#include "core/text.h"

#include <ctype.h>
#include <string.h>

/* Two quotes within single quotes are one for the manual, but gnuplot 5.4 ends the string at those
 * that begin it and at two such pairs in a row. Double quotes have escapes for all bytes. */
static void in_double_quotes(struct buf *b, const char *text)
{
    buf_puts(b, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (isalnum(c) || c >= 0x80 || strchr(" ./:;,=+-_()[]<>", c))
            buf_put(b, text, 1);
        else
            buf_printf(b, "\\%03o", c);
    }
    buf_puts(b, "\"");
}

void gp_path(struct buf *b, const char *path)
{
    if (strchr(path, '\'')) {
        in_double_quotes(b, path);
        return;
    }
    buf_puts(b, "'");
    buf_puts(b, path);
    buf_puts(b, "'");
}

void gp_text(struct buf *b, const char *text)
{
    struct buf plain = {0};
    text_escape(&plain, text, "\n\t");
    for (char *p = plain.data; p && *p; p++)
        *p = iscntrl((unsigned char)*p) ? ' ' : *p;
    gp_path(b, buf_str(&plain));
    b->failed |= plain.failed;
    buf_free(&plain);
}

void gp_tic(struct buf *b, const char *text)
{
    struct buf doubled = {0};
    for (; *text; text++) {
        buf_puts(&doubled, *text == '%' ? "%" : "");
        buf_put(&doubled, text, 1);
    }
    gp_text(b, buf_str(&doubled));
    b->failed |= doubled.failed;
    buf_free(&doubled);
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
