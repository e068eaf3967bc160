/*
 * format.c - the registry of table formats, Markdown and CSV (RFC 4180). CSV and JSON carry every
 * digit, and of a group mean, standard deviation, n, minimum, median and maximum in columns of
 * their own; what people see is rounded (format_number.c).
 */
#include "analyze/format.h"

#include "core/json.h"
#include "core/text.h"

#include "analyze/format_impl.h"
#include "analyze/metricfacts.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void md_write(const struct table *t, struct buf *b);
static void csv_write(const struct table *t, struct buf *b);

static const struct table_format format_text = {.name = "text",
                                                .suffix = ".txt",
                                                .summary = "aligned columns",
                                                .show = text_show,
                                                .space = {2, 1, 0, 16}};
static const struct table_format format_md = {.name = "md",
                                              .suffix = ".md",
                                              .summary = "Markdown, aligned",
                                              .write = md_write,
                                              .show = md_show,
                                              .space = {3, 4, 0, 16}};
static const struct table_format format_csv = {
    .name = "csv", .suffix = ".csv", .summary = "RFC 4180, full precision", .write = csv_write};
static const struct table_format format_tex = {.name = "tex",
                                               .suffix = ".tex",
                                               .summary = "LaTeX with booktabs",
                                               .show = tex_show,
                                               .space = {1, 1, 52, 8}};
static const struct table_format format_json = {
    .name = "json", .suffix = ".json", .summary = "JSON, full precision", .write = json_write};
static const struct table_format format_html = {
    .name = "html", .suffix = ".html", .summary = "one HTML page", .write = html_write};

const struct table_format *const table_formats[] = {
    &format_text, &format_md, &format_csv, &format_tex, &format_json, &format_html, NULL,
};

/* Markdown has no width: --wide is the whole table. */
void format_table(const struct table_format *f, const struct table *t, const struct sheet_opts *o,
                  struct buf *b)
{
    struct sheet s;
    if (!f->show || (o->wide && f->write)) {
        f->write(t, b);
        return;
    }
    struct sheet_opts own = *o;
    own.space = f->space;
    sheet_make(t, &own, &s);
    /* A sheet that failed lacks texts. */
    if (!s.failed)
        f->show(&s, b);
    b->failed |= s.failed;
    sheet_free(&s);
}

const struct table_format *format_find(const char *name, struct err *err)
{
    struct buf all = {0};
    for (int i = 0; table_formats[i]; i++) {
        if (strcmp(table_formats[i]->name, name) == 0) {
            buf_free(&all);
            return table_formats[i];
        }
        buf_printf(&all, "%s%s", i ? ", " : "", table_formats[i]->name);
    }
    err_set(err, ERR_USAGE, "unknown table format '%s': the formats are %s", name, buf_str(&all));
    buf_free(&all);
    return NULL;
}

/* ---- Markdown ------------------------------------------------------------------------------ */

/* Would s[0] begin HTML, a character reference or an escape, or end the text of a link? A sign
 * between blanks does not, and stays as people write it. */
static bool md_special(const char *s)
{
    bool letter = isalpha((unsigned char)s[1]);
    switch (*s) {
    case '|':
        return true;
    case '<':
        return letter || (s[1] && strchr("/!?", s[1]));
    case '&':
        return letter || s[1] == '#';
    case '\\':
        return ispunct((unsigned char)s[1]);
    case ']':
        return s[1] == '(';
    default:
        return false;
    }
}

void md_escape(const char *s, struct buf *b)
{
    for (; *s; s++) {
        buf_puts(b, md_special(s) ? "\\" : "");
        buf_put(b, *s == '\n' || *s == '\r' ? " " : s, 1);
    }
}

static void md_padded(const char *text, int width, bool right, struct buf *b)
{
    int pad = width - utf8_count(text);
    buf_printf(b, " %*s", right && pad > 0 ? pad : 0, "");
    buf_puts(b, text);
    buf_printf(b, "%*s |", !right && pad > 0 ? pad : 0, "");
}

/* Text of the header (row -1) or of a cell, escaped. */
static void md_text(const struct table *t, int64_t row, int64_t col, struct digits d, struct buf *b)
{
    struct buf raw = {0};
    if (row < 0)
        format_header(&t->cols[col], d, &raw);
    else
        format_cell(t, row, col, d, " \u00b1 ", &raw);
    buf_reset(b);
    md_escape(buf_str(&raw), b);
    b->failed |= raw.failed;
    buf_free(&raw);
}

static void md_rule(const struct table *t, int64_t col, int width, struct buf *b)
{
    bool right = t->cols[col].type != COL_TEXT;
    buf_puts(b, right ? " " : " :");
    for (int i = 1; i < width; i++)
        buf_puts(b, "-");
    buf_puts(b, right ? ": |" : " |");
}

static void md_row(const struct table *t, int64_t row, const int *width, const struct digits *d,
                   struct buf *text, struct buf *b)
{
    buf_puts(b, "|");
    for (int64_t c = 0; c < t->n_cols; c++) {
        md_text(t, row, c, d[c], text);
        md_padded(buf_str(text), width[c], t->cols[c].type != COL_TEXT, b);
    }
    buf_puts(b, "\n");
}

static void md_rows(const struct table *t, int *width, const struct digits *d, struct buf *b)
{
    struct buf text = {0};
    for (int64_t c = 0; c < t->n_cols; c++)
        for (int64_t r = -1; r < t->n_rows; r++) {
            width[c] = width[c] < 2 ? 2 : width[c]; /* the rule below the header is at least "-:" */
            md_text(t, r, c, d[c], &text);
            int w = utf8_count(buf_str(&text));
            width[c] = w > width[c] ? w : width[c];
        }
    md_row(t, -1, width, d, &text, b);
    buf_puts(b, "|");
    for (int64_t c = 0; c < t->n_cols; c++)
        md_rule(t, c, width[c], b);
    buf_puts(b, "\n");
    for (int64_t r = 0; r < t->n_rows; r++)
        md_row(t, r, width, d, &text, b);
    b->failed |= text.failed;
    buf_free(&text);
}

static void md_write(const struct table *t, struct buf *b)
{
    int *width = calloc((size_t)t->n_cols + 1, sizeof *width);
    struct digits *d = format_all_digits(t, 4, b);
    b->failed |= !width;
    buf_puts(b, "**");
    md_escape(t->title, b);
    buf_puts(b, "**\n\n");
    if (width && d && t->n_rows)
        md_rows(t, width, d, b);
    buf_puts(b, t->notes.n && t->n_rows ? "\n" : "");
    for (int64_t i = 0; i < t->notes.n; i++) {
        buf_puts(b, "- ");
        md_escape(t->notes.items[i], b);
        buf_puts(b, "\n");
    }
    free(d);
    free(width);
}

/* ---- CSV ----------------------------------------------------------------------------------- */

/* Would a spreadsheet compute this text? Numbers may begin with a sign. */
static bool is_formula(const char *s)
{
    char *end;
    if (!*s || !strchr("=+-@\t\r", *s) || !s[1])
        return false;
    strtod(s, &end);
    return end == s || *end || strpbrk(s, "xX(");
}

/* One field by RFC 4180: quoted when it holds a comma, a quote or a line break. A text that a
 * spreadsheet would take for a formula gets an apostrophe in front, which keeps it a text there. */
static void csv_field(const char *s, struct buf *b)
{
    bool formula = is_formula(s);
    if (!formula && !strpbrk(s, ",\"\r\n")) {
        buf_puts(b, s);
        return;
    }
    buf_puts(b, formula ? "\"'" : "\"");
    for (; *s; s++) {
        if (*s == '"')
            buf_puts(b, "\"");
        buf_put(b, s, 1);
    }
    buf_puts(b, "\"");
}

static void csv_number(double x, struct buf *b)
{
    char text[32];
    if (isnan(x))
        return; /* no value: an empty field */
    if (isinf(x)) {
        buf_puts(b, x < 0 ? "-inf" : "inf");
        return;
    }
    num_text(x, text);
    buf_puts(b, text);
}

/* What a column of statistics has in CSV, and how many of these parts. */
static const char *const stats_parts[] = {"",        "_sd",  "_n",   "_min",
                                          "_median", "_max", "_low", "_high"};

static int csv_parts(const struct column *c)
{
    return metric_yes_no(c->name) ? 8 : 6;
}

static void csv_stats(const struct column *c, const struct cell *cell, struct buf *b)
{
    const struct stats *s = &cell->stats;
    double x[8] = {s->mean, s->sd, NAN, s->min, s->median, s->max, NAN, NAN};
    if (s->zero_one)
        stats_wilson(s, x + 6, x + 7);
    for (int i = 0; i < csv_parts(c); i++) {
        buf_puts(b, i ? "," : "");
        if (cell->set && i == 2)
            buf_printf(b, "%lld", (long long)s->n);
        else if (cell->set)
            csv_number(x[i], b);
    }
}

static void csv_header(const struct table *t, struct buf *b)
{
    struct buf name = {0};
    for (int64_t c = 0; c < t->n_cols; c++) {
        int n = t->cols[c].type == COL_STATS ? csv_parts(t->cols + c) : 1;
        for (int i = 0; i < n; i++) {
            buf_reset(&name);
            buf_printf(&name, "%s%s", t->cols[c].name, stats_parts[i]);
            buf_puts(b, c || i ? "," : "");
            csv_field(buf_str(&name), b);
        }
    }
    buf_puts(b, "\r\n");
    buf_free(&name);
}

static void csv_write(const struct table *t, struct buf *b)
{
    csv_header(t, b);
    for (int64_t r = 0; r < t->n_rows; r++) {
        for (int64_t c = 0; c < t->n_cols; c++) {
            const struct cell *cell = table_cell(t, r, c);
            buf_puts(b, c ? "," : "");
            if (t->cols[c].type == COL_STATS)
                csv_stats(t->cols + c, cell, b);
            else if (cell->set && t->cols[c].type == COL_TEXT)
                csv_field(cell->text, b);
            else if (cell->set)
                csv_number(cell->num, b);
        }
        buf_puts(b, "\r\n");
    }
}
