/*
 * format.h - writing a table: text, Markdown, CSV, LaTeX, JSON, HTML.
 */
#pragma once

#include "analyze/sheet.h"
#include "core/buf.h"

struct table_format {
    const char *name, *suffix; /* "md", ".md" */
    const char *summary;
    void (*write)(const struct table *t, struct buf *b); /* the whole table; or NULL */
    void (*show)(const struct sheet *s, struct buf *b);  /* what people see; or NULL */
};

/* Write the table: as a sheet where the format has one, else whole. */
void format_table(const struct table_format *f, const struct table *t, const struct sheet_opts *o,
                  struct buf *b);

extern const struct table_format table_formats[]; /* ends with name = NULL */

/* ERR_USAGE with the names that exist. */
const struct table_format *format_find(const char *name, struct err *err);

/* ---- parts that the report shares ----------------------------------------------------------- */

/* How the numbers of a column are written, so that they align: with so many decimals or, all of
 * them, with an exponent. A number too small for the decimals has four digits of its own. */
struct digits {
    bool mixed; /* four significant digits each */
    bool scientific;
    int decimals;
    bool quartiles; /* median and quartiles in place of mean and deviation */
};

/* A number; one that is too small for the decimals of d has `digits` significant ones. */
void format_number(double x, struct digits d, int digits, struct buf *b);

/* " [0.30, 0.95]", Wilson's interval, of a metric that is 0 or 1 of each prompt; else nothing. */
void format_interval(const struct column *c, const struct stats *s, struct buf *b);

/* The digits of every column, malloc'd, for so many significant digits; NULL and b->failed when
 * there is no memory. */
struct digits *format_all_digits(const struct table *t, int digits, struct buf *b);

/* People's text of a cell: "0.1687 +- 0.0213" with `pm` between; a missing cell is "-". A group
 * whose n differs from the row's "n" column says so. */
void format_cell(const struct table *t, int64_t row, int64_t col, struct digits d, const char *pm,
                 struct buf *b);

/* The sheet as a table element with its notes; returns its columns. Text with <, >, &, quotes
 * escaped. */
int64_t html_table(const struct table *t, const struct sheet_opts *o, struct buf *b);
void html_text(const char *s, struct buf *b);
extern const char html_style[]; /* CSS of tables */

/* Text as a part of a line of Markdown, without HTML, links and escapes. */
void md_text(const char *s, struct buf *b);

/* Text with LaTeX's special characters escaped. */
void tex_text(const char *s, struct buf *b);
