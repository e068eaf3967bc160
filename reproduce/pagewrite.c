/*
 * pagewrite.c - a page in Markdown, HTML and LaTeX. Tables are analyze's; around them stand the
 * title, the drawing, the letters and the notes.
 */
#include "reproduce/pagetext.h"

#include "analyze/format.h"
#include "core/mem.h"
#include "reproduce/pagetables.h"

#include <string.h>

/* "CAPTION Ours: video-dit, 1,536 tokens (quick)." */
static void lead_text(const struct page *p, struct buf *b)
{
    buf_puts(b, page_caption(p));
    if (p->ours.len)
        buf_printf(b, "%sOurs: %s%s.", b->len ? " " : "", buf_str(&p->ours),
                   p->quick ? " (quick)" : "");
}

static void legend_text(const struct page *p, struct buf *b)
{
    for (const char *l = p->letters; *l; l++)
        buf_printf(b, "%s%c %s", l == p->letters ? "" : ", ", *l, letter_text(*l));
}

/* ---- Markdown and HTML -----------------------------------------------------------------------
 */

enum part { TITLE, PARAGRAPH, NOTE, COMMAND, PARTS };

/* What stands before and behind a text. */
static const char *const marks[2][PARTS][2] = {
    {{"## ", "\n\n"}, {"", "\n\n"}, {"- ", "\n"}, {"- Made by: `", "`\n"}},
    {{"<h1>", "</h1>\n"},
     {"<p>", "</p>\n"},
     {"<li>", "</li>\n"},
     {"<li>Made by: <code>", "</code></li>\n"}}};

/* An empty text leaves no part. */
static void put_part(bool html, enum part part, struct buf *text, struct buf *b)
{
    if (text->len) {
        buf_puts(b, marks[html][part][0]);
        if (html)
            html_text(buf_str(text), b);
        else
            buf_puts(b, buf_str(text));
        buf_puts(b, marks[html][part][1]);
    }
    b->failed |= text->failed;
    buf_reset(text);
}

static int put_tables(const struct page *p, bool html, struct buf *b, struct err *err)
{
    const struct table_format *f = format_find("md", err);
    const struct sheet_opts all = {.wide = true};
    struct page_tables t = {0};
    int rc = page_tables_make(p, &t, err);
    for (int i = 0; i < t.n && !rc; i++) {
        if (html)
            html_table(&t.t[i], &all, b);
        else
            format_table(f, &t.t[i], &all, b);
        buf_puts(b, "\n");
    }
    page_tables_free(&t);
    return rc;
}

static int put_page(const struct page *p, bool html, struct buf *b, struct err *err)
{
    struct buf text = {0};
    int rc = 0;
    buf_puts(&text, buf_str(&p->title));
    put_part(html, TITLE, &text, b);
    lead_text(p, &text);
    put_part(html, PARAGRAPH, &text, b);
    if (page_has_figure(p)) {
        page_file(p->recipe->id, &text);
        buf_printf(b,
                   html ? "<p><img src=\"../figures/%s.png\" alt=\"\"></p>\n"
                        : "![](../figures/%s.png)\n\n",
                   buf_str(&text));
        buf_reset(&text);
    }
    TRY(put_tables(p, html, b, err));
    legend_text(p, &text);
    put_part(html, PARAGRAPH, &text, b);
    buf_puts(b, html ? "<ul>\n" : "");
    for (int64_t i = 0; i < p->notes.n; i++) {
        size_t n = strlen(p->notes.items[i]);
        buf_printf(&text, "%s%s", p->notes.items[i],
                   n && p->notes.items[i][n - 1] == '.' ? "" : ".");
        put_part(html, NOTE, &text, b);
    }
    page_agreement(p, &text);
    put_part(html, NOTE, &text, b);
    page_command(p, &text);
    put_part(html, COMMAND, &text, b);
    buf_puts(b, html ? "</ul>\n" : "");
    rc = buf_check(b, "page", err);
out:
    buf_free(&text);
    return rc;
}

int page_md(const struct page *p, struct buf *b, struct err *err)
{
    return put_page(p, false, b, err);
}

int page_html(const struct page *p, struct buf *b, struct err *err)
{
    buf_puts(b, "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>");
    html_text(buf_str(&p->title), b);
    buf_printf(b, "</title>\n<style>%s</style>\n", html_style);
    return put_page(p, true, b, err);
}

/* ---- LaTeX -----------------------------------------------------------------------------------
 */

/* Signs that fonts without Unicode lack. */
static void put_signs(const char *s, struct buf *b)
{
    static const char *const signs[][2] = {
        {"\u00d7", "$\\times$"}, {"\u2191", "$\\uparrow$"}, {"\u2193", "$\\downarrow$"}};
    while (*s) {
        size_t k = 0, n = sizeof signs / sizeof *signs;
        while (k < n && strncmp(s, signs[k][0], strlen(signs[k][0])) != 0)
            k++;
        if (k == n)
            buf_put(b, s++, 1);
        else {
            buf_puts(b, signs[k][1]);
            s += strlen(signs[k][0]);
        }
    }
}

/* A block as a sheet whose first columns, of the labels, are repeated where it is parted. */
static int make_sheet(const struct page *p, int block, const struct table *t, struct sheet *s,
                      struct err *err)
{
    size_t stubs = json_array_size(json_object_get(p->blocks[block].j, "stub"));
    struct buf note = {0};
    int rc = 0;
    *s = (struct sheet){.title = strdup(buf_str(&p->title)), .caption = strdup("")};
    snprintf(s->name, sizeof s->name, "%.27s-%hhu", p->recipe->id, (unsigned char)(block + 1));
    TRY(mem_zalloc(&s->cols, t->n_cols, sizeof *s->cols, "columns", err));
    TRY(mem_zalloc(&s->cells, t->n_rows * t->n_cols, sizeof *s->cells, "cells", err));
    for (; s->n_cols < t->n_cols; s->n_cols++) {
        bool key = s->n_cols < (int64_t)stubs;
        s->cols[s->n_cols] = (struct sheet_column){strdup(t->cols[s->n_cols].title), strdup(""),
                                                   .right = !key, .key = key};
    }
    s->n_rows = t->n_rows;
    for (int64_t i = 0; i < t->n_rows * t->n_cols; i++)
        s->cells[i].text = strdup(t->cells[i].text);
    lead_text(p, &note);
    buf_puts(&note, p->letters[0] ? " Letters: " : "");
    legend_text(p, &note);
    str_list_add(&s->notes, buf_str(&note));
out:
    buf_free(&note);
    return rc;
}

/* The blocks as floats. */
static int put_floats(const struct page *p, struct buf *b, struct err *err)
{
    const struct table_format *f = format_find("tex", err);
    struct page_tables t = {0};
    struct buf text = {0};
    int rc = 0;
    TRY(page_tables_make(p, &t, err));
    for (int i = 0; i < t.n_blocks && !rc; i++) {
        struct sheet s;
        rc = make_sheet(p, i, &t.t[i], &s, err);
        if (!rc)
            f->show(&s, &text);
        sheet_free(&s);
    }
    put_signs(buf_str(&text), b);
    b->failed |= text.failed;
out:
    page_tables_free(&t);
    buf_free(&text);
    return rc;
}

int page_tex(const struct page *p, struct buf *b, struct err *err)
{
    struct buf text = {0}, file = {0};
    int rc = 0;
    page_file(p->recipe->id, &file);
    buf_printf(b, "%% %s\n", buf_str(&p->title));
    TRY(put_floats(p, b, err));
    if (page_has_figure(p)) {
        lead_text(p, &text);
        buf_printf(b,
                   "%% graphicx, and where the drawings lie: \\graphicspath{{figures/}}\n"
                   "\\begin{figure}[t]\\centering\n\\includegraphics[width=\\linewidth]{%s.pdf}\n"
                   "\\caption{",
                   buf_str(&file));
        tex_text(buf_str(&p->title), b);
        buf_puts(b, ". ");
        tex_text(buf_str(&text), b);
        buf_puts(b, "}\n\\end{figure}\n");
    }
    rc = buf_check(b, "page", err);
out:
    buf_free(&text);
    buf_free(&file);
    return rc;
}
