/*
 * format.c - the registry of table formats, and CSV (RFC 4180). CSV and JSON carry every
 * digit, and of a group mean, standard deviation, n, minimum, median and maximum in columns of
 * their own; what people see is rounded (format_number.c).
 */
#include "analyze/format.h"

#include "core/json.h"
#include "core/text.h"

#include "analyze/format_impl.h"
#include "analyze/metricfacts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void csv_write(const struct table *t, struct buf *b);

static const struct table_format formats[] = {
    {"text", ".txt", "aligned columns", NULL, text_show},
    {"md", ".md", "Markdown, aligned", NULL, md_show},
    {"csv", ".csv", "RFC 4180, full precision", csv_write, NULL},
    {"tex", ".tex", "LaTeX with booktabs", NULL, tex_show},
    {"json", ".json", "JSON, full precision", json_write, NULL},
    {"html", ".html", "one HTML page", html_write, NULL},
};

const struct table_format *const table_formats[] = {
    &formats[0], &formats[1], &formats[2], &formats[3], &formats[4], &formats[5], NULL,
};

void format_table(const struct table_format *f, const struct table *t, const struct sheet_opts *o,
                  struct buf *b)
{
    struct sheet s;
    if (f->write) {
        f->write(t, b);
        return;
    }
    sheet_make(t, o, &s);
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
