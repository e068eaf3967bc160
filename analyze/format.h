/*
 * format.h - writing a table: Markdown, CSV, LaTeX, JSON, HTML.
 */
#ifndef LACUNA_FORMAT_H
#define LACUNA_FORMAT_H

#include "analyze/table.h"
#include "core/buf.h"

struct table_format {
    const char *name, *suffix; /* "md", ".md" */
    const char *summary;
    void (*write)(const struct table *t, struct buf *b);
};

extern const struct table_format *const table_formats[]; /* NULL-terminated */

/* ERR_USAGE with the names that exist. */
const struct table_format *format_find(const char *name, struct err *err);

/* ---- parts that the report shares ----------------------------------------------------------- */

/* People's header of a column: "density_elem [kept/allowed pairs]". */
void format_header(const struct column *c, struct buf *b);

/* How the numbers of a column are written, so that they align: with so many decimals or, all of
 * them, with an exponent. A number too small for the decimals has four digits of its own. */
struct digits {
    bool mixed; /* four significant digits each */
    bool scientific;
    int decimals;
};

/* Of every column, malloc'd; NULL and b->failed when there is no memory. */
struct digits *format_all_digits(const struct table *t, struct buf *b);

/* People's text of a cell: "0.1687 +- 0.0213" with `pm` between; a missing cell is "-". A group
 * whose n differs from the row's "n" column says so. */
void format_cell(const struct table *t, int64_t row, int64_t col, struct digits d, const char *pm,
                 struct buf *b);

/* The table element alone, and text with <, >, &, quotes escaped. */
void html_table(const struct table *t, struct buf *b);
void html_text(const char *s, struct buf *b);
extern const char html_style[]; /* CSS of tables */

/* Text with LaTeX's special characters escaped. */
void tex_text(const char *s, struct buf *b);

#endif
