/*
 * format_tex.c - sheets as LaTeX tables (booktabs) that fit a column or the page.
 *
 * The width of a text is estimated from the widths of Computer Modern's characters, a little too
 * large. A table that fits a column of a two-column paper is `table`, a wider one `table*`; one
 * that is too wide for the text of the plain article class is cut into parts that repeat the keys.
 * Notes are part of the caption.
 */
#include "analyze/format.h"

#include "analyze/format_impl.h"
#include "core/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COLUMN_PT 229.0 /* of \documentclass[twocolumn]{article}; IEEE's is 252, ICML's 234 */
#define TEXT_PT 345.0   /* of \documentclass{article}: the narrowest text in use */
#define TABCOLSEP_PT 3.0

/* From the size of a table in a paper down to what many keys beside a number need. The smaller a
 * font of Computer Modern, the wider it is for its size: digits of 5 pt have 0.68 em. */
static const struct {
    double pt; /* the size, times the width of its digits in half ems */
    const char *name;
} sizes[] = {{9, "\\small"}, {8.2, "\\footnotesize"}, {7.8, "\\scriptsize"}, {6.6, "\\tiny"}};
#define N_SIZES (int)(sizeof sizes / sizeof *sizes)
#define FOOTNOTE 1

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

/* ---- widths --------------------------------------------------------------------------------- */

/* In ems of Computer Modern Roman, rounded up; bold is wider by a sixth. */
static double char_ems(unsigned char c)
{
    if (strchr(".,:;'|!ijl ", c))
        return 0.31;
    if (strchr("()[]/frst-I*", c))
        return 0.42;
    if (strchr("mwMW%@", c))
        return 0.93;
    if (strchr("+=<>~^", c) || (c >= 'A' && c <= 'Z'))
        return 0.78;
    return 0.56;
}

static double tex_measure(const char *text, bool best)
{
    double w = 0;
    for (const char *s = text; *s; s++) {
        if (*s == 'e' && (s[1] == '-' || s[1] == '+'))
            w += 1.8; /* the sign of the product and the base */
        else if (((unsigned char)*s & 0xc0) != 0x80)
            w += (unsigned char)*s >= 0x80 ? 1.3 : char_ems((unsigned char)*s);
    }
    return best ? w * 1.17 : w;
}

static double full_width(const struct sheet *s, double pt)
{
    double w = 0;
    for (int64_t c = 0; c < s->n_cols; c++)
        w += sheet_column_width(s, c, tex_measure) * pt + (c ? 2 * TABCOLSEP_PT : 0);
    return w;
}

/* Keys and the widest other column: the least that a part can be. */
static double least_width(const struct sheet *s, double pt)
{
    double keys = 0, widest = 0;
    for (int64_t c = 0; c < s->n_cols; c++) {
        double own = sheet_column_width(s, c, tex_measure) * pt + 2 * TABCOLSEP_PT;
        if (s->cols[c].key)
            keys += own;
        else
            widest = own > widest ? own : widest;
    }
    return keys + widest - 2 * TABCOLSEP_PT;
}

/* Whole in one column or the text at \\small or \\footnotesize; else in parts at the largest size
 * at which they fit. */
static int choose_size(const struct sheet *s, bool *narrow)
{
    *narrow = full_width(s, sizes[FOOTNOTE].pt) <= COLUMN_PT;
    double limit = *narrow ? COLUMN_PT : TEXT_PT;
    for (int i = 0; i <= FOOTNOTE; i++)
        if (full_width(s, sizes[i].pt) <= limit)
            return i;
    int i = FOOTNOTE;
    while (i + 1 < N_SIZES && least_width(s, sizes[i].pt) > TEXT_PT)
        i++;
    return i;
}

/* ---- rows ----------------------------------------------------------------------------------- */

struct part {
    const struct sheet *s;
    int64_t from, to; /* columns beside the keys */
};

static bool in_part(const struct part *p, int64_t c)
{
    return p->s->cols[c].key || (c >= p->from && c < p->to);
}

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

static void tex_line(const struct part *p, int64_t row, struct buf *b)
{
    bool first = true;
    for (int64_t c = 0; c < p->s->n_cols; c++) {
        if (!in_part(p, c))
            continue;
        buf_puts(b, first ? "" : " & ");
        if (row >= 0)
            tex_cell(p->s, row, c, b);
        else
            tex_text(row == LINE_HEAD ? p->s->cols[c].head : p->s->cols[c].unit, b);
        first = false;
    }
    buf_puts(b, " \\\\\n");
}

static bool has_units(const struct part *p)
{
    for (int64_t c = 0; c < p->s->n_cols; c++)
        if (in_part(p, c) && p->s->cols[c].unit[0])
            return true;
    return false;
}

static void tex_head(const struct part *p, struct buf *b)
{
    buf_puts(b, "\\toprule\n");
    tex_line(p, LINE_HEAD, b);
    if (has_units(p))
        tex_line(p, LINE_UNIT, b);
    buf_puts(b, "\\midrule\n");
}

/* No space outside of the outer columns. */
static void tex_columns(const struct part *p, struct buf *b)
{
    buf_puts(b, "{@{}");
    for (int64_t c = 0; c < p->s->n_cols; c++)
        if (in_part(p, c))
            buf_puts(b, p->s->cols[c].right ? "r" : "l");
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

static void tex_float_part(const struct part *p, struct buf *b)
{
    buf_puts(b, "\\begin{tabular}");
    tex_columns(p, b);
    tex_head(p, b);
    for (int64_t r = 0; r < p->s->n_rows; r++)
        tex_line(p, r, b);
    buf_puts(b, "\\bottomrule\n\\end{tabular}");
}

static void tex_long_part(const struct part *p, bool first, struct buf *b)
{
    buf_puts(b, "\\begin{longtable}");
    tex_columns(p, b);
    if (first)
        tex_caption(p->s, false, "\\\\", b);
    tex_head(p, b);
    buf_puts(b, "\\endhead\n");
    for (int64_t r = 0; r < p->s->n_rows; r++)
        tex_line(p, r, b);
    buf_puts(b, "\\bottomrule\n\\end{longtable}\n");
}

/* ---- the whole ------------------------------------------------------------------------------ */

static void tex_float(const struct sheet *s, int size, const char *env, const int64_t *from, int n,
                      struct buf *b)
{
    buf_printf(b, "%% needs \\usepackage{booktabs}\n\\begin{%s}\n\\centering\n", env);
    tex_caption(s, true, "", b);
    buf_printf(b, "\\setlength{\\tabcolsep}{%gpt}%s\n", TABCOLSEP_PT, sizes[size].name);
    for (int i = 0; i < n; i++) {
        struct part p = {s, from[i], from[i + 1]};
        tex_float_part(&p, b);
        buf_puts(b, i + 1 < n ? "\\par\\medskip\n" : "\n");
    }
    buf_printf(b, "\\end{%s}\n", env);
}

static void tex_long(const struct sheet *s, int size, const int64_t *from, int n, struct buf *b)
{
    buf_puts(b, "% needs \\usepackage{booktabs,longtable} and a page of one column\n"
                "{\\sloppy");
    buf_printf(b, "%s\n\\setlength{\\tabcolsep}{%gpt}\n", sizes[size].name, TABCOLSEP_PT);
    for (int i = 0; i < n; i++) {
        struct part p = {s, from[i], from[i + 1]};
        tex_long_part(&p, i == 0, b);
    }
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
    int64_t *from = calloc((size_t)s->n_cols + 2, sizeof *from);
    bool narrow;
    int size = choose_size(s, &narrow);
    double pt = sizes[size].pt;
    if (!from) {
        b->failed = true;
        return;
    }
    int n = s->n_rows ? sheet_parts(s, tex_measure, 2 * TABCOLSEP_PT / pt, TEXT_PT / pt, from) : 0;
    if (s->n_rows > TEX_FLOAT_ROWS)
        tex_long(s, size, from, n, b);
    else
        tex_float(s, size, narrow ? "table" : "table*", from, n, b);
    tex_comments(&s->hints, b);
    tex_comments(&s->sentences, b);
    free(from);
}
