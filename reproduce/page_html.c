/*
 * page_html.c - a page in HTML, with spread and reasons in the titles of cells; no network needed.
 */
#include "reproduce/pagetext.h"

#include "analyze/format.h"

#include <math.h>
#include <string.h>

static void put_title(const struct page_cell *c, struct buf *b)
{
    struct buf t = {0};
    if (c->ours && isfinite(c->stats.lo))
        buf_printf(&t, "%s: %.6g [%.6g, %.6g], %lld %s, %lld records; %s", c->metric, c->value[0],
                   c->stats.lo, c->stats.hi, (long long)c->stats.units, c->stats.of,
                   (long long)c->stats.calls, cell_state_names[c->state]);
    else if (c->reason)
        buf_printf(&t, "%s", c->reason);
    for (const char *l = c->letters; *l; l++)
        buf_printf(&t, "%s%s", l == c->letters ? "; " : ", ", letter_text(*l));
    html_text(buf_str(&t), b);
    buf_free(&t);
}

/* Do two columns stand under the same labels down to this level? */
static bool same_labels(const struct grid_entry *a, const struct grid_entry *b, int level)
{
    if (a->levels != b->levels)
        return false;
    for (int k = 0; k <= level; k++)
        if (strcmp(a->level[k], b->level[k]) != 0)
            return false;
    return true;
}

static void put_letters(const char *letters, struct buf *out)
{
    if (letters[0])
        buf_printf(out, "<sup>%s</sup>", letters);
}

/* Heading of a column, or of `span` columns that share this label. */
static void put_head_cell(const struct page *p, const struct page_block *b, int c, int level,
                          int span, int rows, struct buf *out)
{
    const struct grid_entry *e = &b->columns.e[c];
    char letters[16] = "";
    struct buf t = {0};
    if (span > 1)
        buf_printf(out, "<th colspan=\"%d\">", span);
    else
        buf_printf(out, "<th class=\"n\" rowspan=\"%d\">", rows);
    label_text(p, b, e, level, &t);
    html_text(buf_str(&t), out);
    buf_puts(out, level == 0 ? arrow_text(e, " \u2191", " \u2193") : "");
    if (level == e->levels - 1)
        column_letters(b, c, letters);
    put_letters(letters, out);
    buf_free(&t);
}

/* Neighbours under the same labels stand under one heading; a column with fewer labels than others
 * has its last one over all lines that are left. */
static void put_head(const struct page *p, const struct page_block *b, struct buf *out)
{
    const json_t *stub = json_object_get(b->j, "stub");
    int levels = 1;
    for (int c = 0; c < b->columns.n; c++)
        levels = b->columns.e[c].levels > levels ? b->columns.e[c].levels : levels;
    buf_puts(out, "<table>\n<tr>");
    for (size_t i = 0; i < json_array_size(stub); i++) {
        buf_printf(out, "<th rowspan=\"%d\">", levels);
        html_text(json_string_value(json_array_get(stub, i)), out);
    }
    for (int k = 0; k < levels; k++) {
        buf_puts(out, k ? "<tr>" : "");
        for (int c = 0, span; c < b->columns.n; c += span) {
            const struct grid_entry *e = &b->columns.e[c];
            bool last = k == e->levels - 1;
            span = 1;
            while (k < e->levels - 1 && c + span < b->columns.n && same_labels(e, e + span, k))
                span++;
            if (k < e->levels)
                put_head_cell(p, b, c, k, span, last ? levels - k : 1, out);
        }
        buf_puts(out, "</tr>\n");
    }
}

static void put_row(const struct page *p, const struct page_block *b, int r, struct buf *out)
{
    size_t stubs = json_array_size(json_object_get(b->j, "stub"));
    char shared[16];
    buf_puts(out, "<tr>");
    row_letters(b, r, shared);
    for (size_t k = 0; k < stubs; k++) {
        struct buf t = {0};
        buf_puts(out, "<td>");
        label_text(p, b, &b->rows.e[r], (int)k, &t);
        html_text(buf_str(&t), out);
        put_letters(k ? "" : shared, out);
        buf_free(&t);
    }
    for (int c = 0; c < b->columns.n; c++) {
        struct buf t = {0};
        buf_puts(out, "<td class=\"n\" title=\"");
        put_title(page_cell_at(b, r, c), out);
        buf_puts(out, "\">");
        cell_text(page_cell_at(b, r, c), &t);
        html_text(buf_str(&t), out);
        put_letters(cell_letters(b, r, c), out);
        buf_free(&t);
    }
    buf_puts(out, "</tr>\n");
}

static void put_block(const struct page *p, const struct page_block *b, struct buf *out)
{
    put_head(p, b, out);
    for (int r = 0; r < b->rows.n; r++)
        put_row(p, b, r, out);
    buf_puts(out, "</table>\n");
}

static void put_list(const char *tag, const struct str_list *l, struct buf *b)
{
    for (int64_t i = 0; i < l->n; i++) {
        size_t n = strlen(l->items[i]);
        buf_printf(b, "<%s>", tag);
        html_text(l->items[i], b);
        buf_puts(b, n && l->items[i][n - 1] == '.' ? "\n" : ".\n");
    }
}

void page_html(const struct page *p, struct buf *b)
{
    struct buf file = {0}, command = {0}, agree = {0};
    struct paper_number x;
    page_file(p->recipe, &file);
    page_command(p, &command);
    page_agreement(p, &agree);
    buf_puts(b, "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n<title>");
    html_text(buf_str(&p->title), b);
    buf_printf(b, "</title>\n<style>%s</style>\n<p><b>", html_style);
    html_text(buf_str(&p->title), b);
    buf_puts(b, ".</b> ");
    html_text(page_caption(p), b);
    if (p->ours.len) {
        buf_puts(b, " Ours: ");
        html_text(buf_str(&p->ours), b);
        buf_puts(b, p->quick ? " (quick).\n" : ".\n");
    }
    for (int i = 0; i < p->n_blocks; i++)
        put_block(p, &p->blocks[i], b);
    if (page_has_figure(p))
        buf_printf(b, "<p><img src=\"../figures/%s.png\" alt=\"\">\n", buf_str(&file));
    if (figure_number(p, 0, &x)) {
        buf_puts(b, "<table>\n<tr><th>row<th>column<th>printed<th>unit</tr>\n");
        for (int64_t i = 0; figure_number(p, i, &x); i++) {
            const char *cells[4] = {x.row, x.column, x.value, x.unit};
            buf_puts(b, "<tr>");
            for (int k = 0; k < 4; k++) {
                buf_puts(b, "<td>");
                html_text(cells[k], b);
            }
            buf_puts(b, "</tr>\n");
        }
        buf_puts(b, "</table>\n");
    }
    buf_puts(b, "<p>");
    for (const char *l = p->letters; *l; l++)
        buf_printf(b, "%s%c %s", l == p->letters ? "" : ", ", *l, letter_text(*l));
    buf_puts(b, "\n<ul>\n");
    put_list("li", &p->sentences, b);
    put_list("li", &p->notes, b);
    buf_puts(b, "<li>");
    html_text(buf_str(&agree), b);
    buf_puts(b, " Made by: <code>");
    html_text(buf_str(&command), b);
    buf_puts(b, "</code>\n</ul>\n");
    buf_free(&file);
    buf_free(&command);
    buf_free(&agree);
}
