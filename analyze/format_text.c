/*
 * format_text.c - sheets as aligned text for a terminal, and as Markdown.
 */
#include "analyze/format_impl.h"

#include "core/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GAP 2 /* characters between two columns of text */

static void put_padded(const char *text, int width, bool right, struct buf *b)
{
    int pad = width - utf8_count(text);
    buf_printf(b, "%*s", right && pad > 0 ? pad : 0, "");
    buf_puts(b, text);
    buf_printf(b, "%*s", !right && pad > 0 ? pad : 0, "");
}

/* Without the spaces that pad the last column. */
static void end_line(struct buf *b)
{
    while (b->len && b->data[b->len - 1] == ' ')
        b->data[--b->len] = '\0';
    buf_puts(b, "\n");
}

/* ---- text ----------------------------------------------------------------------------------- */

/* A star stands right of the number; every number of such a column leaves room for it. */
static bool has_best(const struct sheet *s, int64_t col)
{
    for (int64_t r = 0; r < s->n_rows; r++)
        if (sheet_cell(s, r, col)->best)
            return true;
    return false;
}

static double text_measure(const char *text, bool best)
{
    return utf8_count(text);
}

static int text_width(const struct sheet *s, int64_t col)
{
    return (int)sheet_column_width(s, col, text_measure) + (has_best(s, col) ? 1 : 0);
}

static void text_cell(const struct sheet *s, int64_t row, int64_t col, struct buf *b)
{
    struct buf text = {0};
    bool star = has_best(s, col);
    buf_puts(&text, sheet_cell(s, row, col)->text);
    buf_puts(&text, !star ? "" : sheet_cell(s, row, col)->best ? "*" : " ");
    put_padded(buf_str(&text), text_width(s, col), s->cols[col].right, b);
    b->failed |= text.failed;
    buf_free(&text);
}

enum line { LINE_HEAD = -2, LINE_UNIT = -1 }; /* rows from 0 on */

/* The keys and the columns of a part. */
static bool in_part(const struct sheet *s, int64_t c, const int64_t *from, int part)
{
    return s->cols[c].key || (c >= from[part] && c < from[part + 1]);
}

static void text_line(const struct sheet *s, int64_t row, const int64_t *from, int part,
                      struct buf *b)
{
    bool first = true;
    for (int64_t c = 0; c < s->n_cols; c++) {
        if (!in_part(s, c, from, part))
            continue;
        const struct sheet_column *col = &s->cols[c];
        buf_printf(b, "%*s", first ? 0 : GAP, "");
        if (row >= 0) {
            text_cell(s, row, c, b);
        } else {
            struct buf head = {0};
            buf_printf(&head, "%s%s", row == LINE_HEAD ? col->head : col->unit,
                       has_best(s, c) ? " " : "");
            put_padded(buf_str(&head), text_width(s, c), col->right, b);
            b->failed |= head.failed;
            buf_free(&head);
        }
        first = false;
    }
    end_line(b);
}

static bool has_units(const struct sheet *s)
{
    for (int64_t c = 0; c < s->n_cols; c++)
        if (s->cols[c].unit[0])
            return true;
    return false;
}

static void text_notes(const struct sheet *s, const struct str_list *notes, int64_t from,
                       int64_t to, struct buf *b)
{
    for (int64_t i = from; i < to; i++)
        text_wrap(b, notes->items[i], 0, 2, s->width);
}

static void text_tail(const struct sheet *s, struct buf *b)
{
    if (s->notes.n + s->hints.n)
        buf_puts(b, "\n");
    text_notes(s, &s->notes, 0, s->n_own, b);
    text_notes(s, &s->hints, 0, s->hints.n, b);
    text_notes(s, &s->notes, s->n_own, s->notes.n, b);
    if (s->sentences.n)
        buf_puts(b, "\n");
    for (int64_t i = 0; i < s->sentences.n; i++) {
        int indent = (int)strspn(s->sentences.items[i], " ");
        buf_printf(b, "%*s", indent, "");
        text_wrap(b, s->sentences.items[i] + indent, indent, indent + 2, s->width);
    }
}

void text_show(const struct sheet *s, struct buf *b)
{
    int64_t *from = calloc((size_t)s->n_cols + 2, sizeof *from);
    if (!from) {
        b->failed = true;
        return;
    }
    text_wrap(b, s->title, 0, 0, s->width);
    if (s->caption[0])
        text_wrap(b, s->caption, 0, 0, s->width);
    int n = s->n_rows ? sheet_parts(s, sheet_characters, GAP, s->width, from) : 0;
    for (int p = 0; p < n; p++) {
        buf_puts(b, "\n");
        text_line(s, LINE_HEAD, from, p, b);
        if (has_units(s))
            text_line(s, LINE_UNIT, from, p, b);
        for (int64_t r = 0; r < s->n_rows; r++)
            text_line(s, r, from, p, b);
    }
    text_tail(s, b);
    free(from);
}

/* ---- Markdown ------------------------------------------------------------------------------- */

#define MD_GAP 3

static void md_head(const struct sheet *s, int64_t c, struct buf *b)
{
    md_escape(s->cols[c].head, b);
    if (s->cols[c].unit[0]) {
        buf_puts(b, " [");
        md_escape(s->cols[c].unit, b);
        buf_puts(b, "]");
    }
}

static void md_cell_text(const struct sheet *s, int64_t row, int64_t c, struct buf *b)
{
    buf_reset(b);
    if (row < 0) {
        md_head(s, c, b);
        return;
    }
    const char *star = sheet_cell(s, row, c)->best ? "**" : "";
    buf_puts(b, star);
    md_escape(sheet_cell(s, row, c)->text, b);
    buf_puts(b, star);
}

static void md_line(const struct sheet *s, int64_t row, const int *width, const int64_t *from,
                    int part, struct buf *b)
{
    struct buf text = {0};
    buf_puts(b, "|");
    for (int64_t c = 0; c < s->n_cols; c++) {
        if (!in_part(s, c, from, part))
            continue;
        md_cell_text(s, row, c, &text);
        buf_puts(b, " ");
        put_padded(buf_str(&text), width[c], s->cols[c].right, b);
        buf_puts(b, " |");
    }
    buf_puts(b, "\n");
    b->failed |= text.failed;
    buf_free(&text);
}

static void md_rule(const struct sheet *s, const int *width, const int64_t *from, int part,
                    struct buf *b)
{
    buf_puts(b, "|");
    for (int64_t c = 0; c < s->n_cols; c++) {
        if (!in_part(s, c, from, part))
            continue;
        buf_puts(b, s->cols[c].right ? " " : " :");
        for (int i = 1; i < width[c]; i++)
            buf_puts(b, "-");
        buf_puts(b, s->cols[c].right ? ": |" : " |");
    }
    buf_puts(b, "\n");
}

static int md_width(const struct sheet *s, int64_t c)
{
    struct buf text = {0};
    int w = 2; /* the rule below the head is at least "-:" */
    for (int64_t r = -1; r < s->n_rows; r++) {
        md_cell_text(s, r, c, &text);
        int own = utf8_count(buf_str(&text));
        w = own > w ? own : w;
    }
    buf_free(&text);
    return w;
}

static void md_list(const struct sheet *s, const struct str_list *items, int64_t from, int64_t to,
                    struct buf *b)
{
    struct buf text = {0};
    for (int64_t i = from; i < to; i++) {
        int indent = (int)strspn(items->items[i], " ");
        buf_reset(&text);
        md_escape(items->items[i] + indent, &text);
        buf_printf(b, "%*s- ", indent, "");
        text_wrap(b, buf_str(&text), indent + 2, indent + 2, s->width);
    }
    b->failed |= text.failed;
    buf_free(&text);
}

static void md_tail(const struct sheet *s, struct buf *b)
{
    buf_puts(b, s->notes.n + s->hints.n ? "\n" : "");
    md_list(s, &s->notes, 0, s->n_own, b);
    md_list(s, &s->hints, 0, s->hints.n, b);
    md_list(s, &s->notes, s->n_own, s->notes.n, b);
    buf_puts(b, s->sentences.n ? "\n" : "");
    md_list(s, &s->sentences, 0, s->sentences.n, b);
}

/* Heads with their unit are wider than sheet_parts measures, so the limit leaves room for one. */
void md_show(const struct sheet *s, struct buf *b)
{
    int *width = calloc((size_t)s->n_cols + 1, sizeof *width);
    int64_t *from = calloc((size_t)s->n_cols + 2, sizeof *from);
    b->failed |= !width || !from;
    buf_printf(b, "**%s**\n", s->title);
    if (s->caption[0]) {
        buf_puts(b, "\n");
        text_wrap(b, s->caption, 0, 0, s->width);
    }
    for (int64_t c = 0; width && c < s->n_cols; c++)
        width[c] = md_width(s, c);
    int n = from && s->n_rows ? sheet_parts(s, sheet_characters, MD_GAP, s->width - 12, from) : 0;
    for (int p = 0; width && p < n; p++) {
        buf_puts(b, "\n");
        md_line(s, -1, width, from, p, b);
        md_rule(s, width, from, p, b);
        for (int64_t r = 0; r < s->n_rows; r++)
            md_line(s, r, width, from, p, b);
    }
    md_tail(s, b);
    free(from);
    free(width);
}
