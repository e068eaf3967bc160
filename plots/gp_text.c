/*
 * gp_text.c - words of a gnuplot script and of a command line, quoted.
 */
#include "plots/gp.h"

#include "analyze/format.h"
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

/* Characters of LaTeX escaped, and Greek and signs that it has as mathematics. */
static void for_latex(struct buf *text)
{
    static const char *const math[][2] = {{"\u00b5", "$\\mu$"}, {"\u00d7", "$\\times$"}};
    struct buf plain = {0}, escaped = {0};
    const char *p = buf_str(text);
    while (*p) {
        size_t i = 0, n = sizeof math / sizeof *math;
        while (i < n && strncmp(p, math[i][0], strlen(math[i][0])) != 0)
            i++;
        if (i == n) {
            buf_put(&plain, p++, 1);
            continue;
        }
        tex_text(buf_str(&plain), &escaped);
        buf_reset(&plain);
        buf_puts(&escaped, math[i][1]);
        p += strlen(math[i][0]);
    }
    tex_text(buf_str(&plain), &escaped);
    escaped.failed |= plain.failed || text->failed;
    buf_free(&plain);
    buf_free(text);
    *text = escaped;
}

/* The text without control characters, in the characters of the terminal. */
static void plain_text(const struct gp *g, const char *text, struct buf *plain)
{
    text_escape(plain, text, "\n\t");
    for (char *p = plain->data; p && *p; p++)
        *p = iscntrl((unsigned char)*p) ? ' ' : *p;
    if (g && g->type == GP_TEX)
        for_latex(plain);
}

void gp_text(const struct gp *g, struct buf *b, const char *text)
{
    struct buf plain = {0};
    plain_text(g, text, &plain);
    gp_path(b, buf_str(&plain));
    b->failed |= plain.failed;
    buf_free(&plain);
}

void gp_tic(const struct gp *g, struct buf *b, const char *text)
{
    struct buf plain = {0}, doubled = {0};
    plain_text(g, text, &plain);
    for (const char *p = buf_str(&plain); *p; p++) {
        buf_puts(&doubled, *p == '%' ? "%" : "");
        buf_put(&doubled, p, 1);
    }
    gp_path(b, buf_str(&doubled));
    b->failed |= plain.failed || doubled.failed;
    buf_free(&plain);
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
