/*
 * format_tex.c - sheets as LaTeX tables (booktabs): a float that is no wider than the text, or a
 * long table. Notes are part of the caption.
 */
#include "analyze/format.h"

#include "analyze/format_impl.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Longer tables do not fit into a float. */
#define TEX_FLOAT_ROWS 40

void tex_text(const char *s, struct buf *b)
{
    for (; *s; s++) {
        if (*s == '\\')
            buf_puts(b, "\\textbackslash{}");
        else if (*s == '~' || *s == '^')
            buf_puts(b, *s == '~' ? "\\textasciitilde{}" : "\\textasciicircum{}");
        else if (*s == '<' || *s == '>')
            buf_puts(b, *s == '<' ? "\\textless{}" : "\\textgreater{}");
        else if (*s == '|' || *s == '[') /* a bracket after the end of a row would be its option */
            buf_puts(b, *s == '|' ? "\\textbar{}" : "{[}");
        else if (strchr("{}$&#_%", *s))
            buf_printf(b, "\\%c", *s);
        else if (s[0] == '-' && s[1] == '-')
            buf_puts(b, "-{}");
        else if (strncmp(s, "\u00b1", 2) == 0) {
            buf_puts(b, "$\\pm$");
            s++;
        } else
            buf_put(b, *s == '\n' || *s == '\r' ? " " : s, 1);
    }
}

/* "1.5e-07 +- ..." with a product in place of the exponent, a thin space before %. */
static void tex_number(const char *s, struct buf *b)
{
    for (; *s; s++) {
        if (*s == 'e' && (s[1] == '-' || s[1] == '+')) {
            char *end;
            buf_printf(b, "$\\times10^{%ld}$", strtol(s + 1, &end, 10));
            s = end - 1;
        } else if (strncmp(s, " %", 2) == 0) {
            buf_puts(b, "\\,\\%");
            s++;
        } else if (strncmp(s, " \u00b1 ", 4) == 0) {
            buf_puts(b, "$\\pm$");
            s += 3;
        } else {
            const char one[2] = {*s, '\0'};
            tex_text(one, b);
        }
    }
}

/* ---- rows ----------------------------------------------------------------------------------- */

static void tex_cell(const struct sheet *s, int64_t row, int64_t c, struct buf *b)
{
    const struct sheet_cell *cell = sheet_cell(s, row, c);
    buf_puts(b, cell->best ? "\\textbf{" : "");
    if (s->cols[c].right)
        tex_number(cell->text, b);
    else
        tex_text(cell->text, b);
    buf_puts(b, cell->best ? "}" : "");
}

enum line { LINE_HEAD = -2, LINE_UNIT = -1 }; /* rows from 0 on */

static void tex_line(const struct sheet *s, int64_t row, struct buf *b)
{
    for (int64_t c = 0; c < s->n_cols; c++) {
        buf_puts(b, c ? " & " : "");
        if (row >= 0)
            tex_cell(s, row, c, b);
        else
            tex_text(row == LINE_HEAD ? s->cols[c].head : s->cols[c].unit, b);
    }
    buf_puts(b, " \\\\\n");
}

static void tex_head(const struct sheet *s, struct buf *b)
{
    bool units = false;
    for (int64_t c = 0; c < s->n_cols; c++)
        units |= s->cols[c].unit[0] != '\0';
    buf_puts(b, "\\toprule\n");
    tex_line(s, LINE_HEAD, b);
    if (units)
        tex_line(s, LINE_UNIT, b);
    buf_puts(b, "\\midrule\n");
}

/* No space outside of the outer columns. */
static void tex_columns(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "{@{}");
    for (int64_t c = 0; c < s->n_cols; c++)
        buf_puts(b, s->cols[c].right ? "r" : "l");
    buf_puts(b, "@{}}\n");
}

/* Text of a paragraph: names and settings may break behind their signs. */
static void tex_paragraph(const char *s, struct buf *b)
{
    for (; *s; s++) {
        size_t n = strcspn(s, ",:/=_+");
        char part[256];
        n += s[n] != '\0';
        n = n < sizeof part ? n : sizeof part - 1;
        snprintf(part, sizeof part, "%.*s", (int)n, s);
        tex_text(part, b);
        s += n - 1;
        if (s[1] && s[1] != ' ' && strchr(",:/=_+", *s))
            buf_puts(b, "\\allowbreak{}");
    }
}

static void tex_notes(const struct sheet *s, const char *before, struct buf *b)
{
    for (int64_t i = 0; i < s->notes.n; i++) {
        const char *note = s->notes.items[i];
        bool stop = note[0] && strchr(".:", note[strlen(note) - 1]);
        buf_puts(b, before);
        if (strncmp(note, "*: ", 3) == 0) {
            buf_puts(b, "Bold: ");
            note += 3;
        }
        tex_paragraph(note, b);
        buf_puts(b, stop ? "" : ".");
    }
}

/* Of a float with the notes, which have no better place; a long table has them behind it. */
static void tex_caption(const struct sheet *s, bool notes, const char *end, struct buf *b)
{
    buf_printf(b, "\\caption[");
    tex_text(s->title, b);
    buf_puts(b, "]{\\sloppy ");
    tex_text(s->title, b);
    buf_puts(b, ".");
    if (s->caption[0]) {
        buf_puts(b, " ");
        tex_paragraph(s->caption, b);
        buf_puts(b, ".");
    }
    if (notes)
        tex_notes(s, "\n", b);
    buf_printf(b, "}\\label{tab:%s}%s\n", s->name, end);
}

static void tex_rows(const struct sheet *s, struct buf *b)
{
    for (int64_t r = 0; r < s->n_rows; r++)
        tex_line(s, r, b);
    buf_puts(b, "\\bottomrule\n");
}

/* Scaled down to the width of the text where it is wider. */
static void tex_float(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "% needs \\usepackage{booktabs,graphicx}\n\\begin{table}\n\\centering\n");
    tex_caption(s, true, "", b);
    buf_puts(b, "\\setlength{\\tabcolsep}{3pt}\\footnotesize\n");
    if (s->n_rows) {
        buf_puts(b, "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%\n"
                    "\\begin{tabular}");
        tex_columns(s, b);
        tex_head(s, b);
        tex_rows(s, b);
        buf_puts(b, "\\end{tabular}}\n");
    }
    buf_puts(b, "\\end{table}\n");
}

static void tex_long(const struct sheet *s, struct buf *b)
{
    buf_puts(b, "% needs \\usepackage{booktabs,longtable} and a page of one column\n"
                "{\\sloppy\\scriptsize\n\\setlength{\\tabcolsep}{3pt}\n\\begin{longtable}");
    tex_columns(s, b);
    tex_caption(s, false, "\\\\", b);
    tex_head(s, b);
    buf_puts(b, "\\endhead\n");
    tex_rows(s, b);
    buf_puts(b, "\\end{longtable}\n");
    tex_notes(s, "\\par\n", b);
    buf_puts(b, "\\par}\n");
}

static void tex_comments(const struct str_list *items, struct buf *b)
{
    for (int64_t i = 0; i < items->n; i++)
        buf_printf(b, "%% %s\n", items->items[i]);
}

void tex_show(const struct sheet *s, struct buf *b)
{
    if (s->n_rows > TEX_FLOAT_ROWS)
        tex_long(s, b);
    else
        tex_float(s, b);
    tex_comments(&s->hints, b);
    tex_comments(&s->sentences, b);
}
