/*
 * page_md.c - a page in Markdown.
 */
#include "reproduce/pagetext.h"

#include <string.h>

/* '|' would end a cell. */
static void put(struct buf *b, const char *s)
{
    for (; *s; s++)
        buf_printf(b, *s == '|' ? "\\|" : "%c", *s);
}

static void put_letters(struct buf *b, const char *letters)
{
    if (letters[0])
        buf_printf(b, "<sup>%s</sup>", letters);
}

/* A group's name stands before its first column. */
static void put_head(const struct page *p, const struct page_block *b, int column, bool letters,
                     struct buf *out)
{
    const struct grid_entry *e = &b->columns.e[column], *before = column ? e - 1 : NULL;
    char shared[16];
    int from = 0;
    while (before && from < e->levels - 1 && from < before->levels - 1 &&
           strcmp(before->level[from], e->level[from]) == 0)
        from++;
    for (int k = from; k < e->levels; k++) {
        if (k > from)
            buf_puts(out, " ");
        struct buf t = {0};
        label_text(p, b, e, k, &t);
        put(out, buf_str(&t));
        buf_free(&t);
        if (k == 0 && arrow_text(e, "x", "x")[0])
            buf_printf(out, " %s", arrow_text(e, "\u2191", "\u2193"));
    }
    column_letters(b, column, shared);
    if (letters)
        put_letters(out, shared);
}

static void put_block(const struct page *p, const struct page_block *b, struct buf *out)
{
    const json_t *stub = json_object_get(b->j, "stub");
    size_t stubs = json_array_size(stub);
    for (size_t i = 0; i < stubs; i++) {
        buf_puts(out, "| ");
        put(out, json_string_value(json_array_get(stub, i)));
        buf_puts(out, " ");
    }
    for (int c = 0; c < b->columns.n; c++) {
        buf_puts(out, "| ");
        put_head(p, b, c, true, out);
        buf_puts(out, " ");
    }
    buf_puts(out, "|\n");
    for (size_t i = 0; i < stubs; i++)
        buf_puts(out, "|:---");
    for (int c = 0; c < b->columns.n; c++)
        buf_puts(out, "|---:");
    buf_puts(out, "|\n");
    for (int r = 0; r < b->rows.n; r++) {
        const struct grid_entry *e = &b->rows.e[r];
        char shared[16];
        for (size_t k = 0; k < stubs; k++) {
            struct buf t = {0};
            buf_puts(out, "| ");
            label_text(p, b, e, (int)k, &t);
            put(out, buf_str(&t));
            row_letters(b, r, shared);
            if (k == 0)
                put_letters(out, shared);
            buf_puts(out, " ");
            buf_free(&t);
        }
        for (int c = 0; c < b->columns.n; c++) {
            const struct page_cell *cell = page_cell_at(b, r, c);
            struct buf t = {0};
            buf_puts(out, "| ");
            cell_text(cell, &t);
            put(out, buf_str(&t));
            put_letters(out, cell_letters(b, r, c));
            buf_puts(out, " ");
            buf_free(&t);
        }
        buf_puts(out, "|\n");
    }
    buf_puts(out, "\n");
}

static void put_numbers(const struct page *p, struct buf *b)
{
    struct paper_number x;
    if (!figure_number(p, 0, &x))
        return;
    buf_puts(b, "Printed numbers:\n\n| row | column | printed | unit |\n|:---|:---|---:|:---|\n");
    for (int64_t i = 0; figure_number(p, i, &x); i++) {
        buf_puts(b, "| ");
        put(b, x.row);
        buf_puts(b, " | ");
        put(b, x.column);
        buf_printf(b, " | %s | %s |\n", x.value, x.unit);
    }
    buf_puts(b, "\n");
}

static void put_legend(const struct page *p, struct buf *b)
{
    for (const char *l = p->letters; *l; l++)
        buf_printf(b, "%s%c %s", l == p->letters ? "" : ", ", *l, letter_text(*l));
    if (p->letters[0])
        buf_puts(b, "\n\n");
}

void page_md(const struct page *p, struct buf *b)
{
    struct buf file = {0};
    page_file(p->recipe, &file);
    buf_printf(b, "**%s.**%s%s", buf_str(&p->title), page_caption(p)[0] ? " " : "",
               page_caption(p));
    if (p->ours.len)
        buf_printf(b, " Ours: %s%s.", buf_str(&p->ours), p->quick ? " (quick)" : "");
    buf_puts(b, "\n\n");
    for (int i = 0; i < p->n_blocks; i++)
        put_block(p, &p->blocks[i], b);
    if (page_has_figure(p))
        buf_printf(b, "![%s](../figures/%s.png)\n\n", buf_str(&p->title), buf_str(&file));
    put_numbers(p, b);
    put_legend(p, b);
    for (int64_t i = 0; i < p->sentences.n; i++)
        buf_printf(b, "- %s\n", p->sentences.items[i]);
    for (int64_t i = 0; i < p->notes.n; i++) {
        size_t n = strlen(p->notes.items[i]);
        buf_printf(b, "- %s%s\n", p->notes.items[i],
                   n && p->notes.items[i][n - 1] == '.' ? "" : ".");
    }
    buf_puts(b, "- ");
    size_t before = b->len;
    page_agreement(p, b);
    buf_puts(b, b->len > before ? " Made by: `" : "Made by: `");
    page_command(p, b);
    buf_puts(b, "`\n");
    buf_free(&file);
}
