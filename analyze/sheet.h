/*
 * sheet.h - a table as people read it: few columns with short heads, texts of cells, notes.
 *
 * CSV, JSON and HTML write the table itself. A sheet keeps at most SHEET_COLUMNS columns and
 * SHEET_WIDTH characters of it. What it leaves out it names in its notes. Sheets never fail: a lack
 * of memory sets `failed`, which the writers hand on to their buffer.
 */
#ifndef LACUNA_SHEET_H
#define LACUNA_SHEET_H

#include "analyze/table.h"

#define SHEET_COLUMNS 7
#define SHEET_WIDTH 100
#define SHEET_TEXT 38 /* longer texts of cells become numbered notes */

/* What a format needs beside the texts, in characters. */
struct sheet_space {
    int gap;   /* between two columns */
    int mark;  /* around a best number */
    int part;  /* widest sum of the keys and one other column; 0 = the line */
    int least; /* texts of so many characters are not folded */
};

struct sheet_opts {
    bool wide; /* every column, means with their deviations */
    bool all;  /* the user chose the columns: none is dropped */
    int width; /* characters of a line; 0 = SHEET_WIDTH */
    struct sheet_space space;
};

struct sheet_column {
    char *head, *unit; /* owned; unit "" = none */
    bool right;        /* numbers */
    bool key;          /* says what a row is; repeated where a sheet is split */
};

struct sheet_cell {
    char *text; /* owned, UTF-8 */
    bool best;  /* of its column, beyond noise */
};

struct sheet {
    char name[32];
    char *title, *caption; /* owned; caption "" = none */
    struct sheet_column *cols;
    struct sheet_cell *cells; /* [n_rows][n_cols] */
    int64_t n_cols, n_rows;
    int width;
    struct str_list notes;     /* definitions, what is constant, warnings that begin with "! " */
    int64_t n_own;             /* the first notes, about the sheet; the others are the table's */
    struct str_list hints;     /* of the program to its user: what --wide shows */
    struct str_list sentences; /* what the numbers say */
    bool failed;
};

void sheet_make(const struct table *t, const struct sheet_opts *o, struct sheet *out);
void sheet_free(struct sheet *s);

struct sheet_cell *sheet_cell(const struct sheet *s, int64_t row, int64_t col);

/* Width of the text in the writer's unit. */
typedef double sheet_measure(const char *text, bool best);
sheet_measure sheet_characters; /* of Markdown, where a best number has four stars around it */

/* Widest text of a column, head and unit included, without space around it. */
double sheet_column_width(const struct sheet *s, int64_t col, sheet_measure *measure);

/* Where a sheet that is wider than `limit` is cut: from[i] is the first column of part i that is no
 * key; part i shows the keys and columns from[i] .. from[i + 1] - 1. `gap` is the space between two
 * columns. Returns the number of parts, at least 1; from has room for n_cols + 2. */
int sheet_parts(const struct sheet *s, sheet_measure *measure, double gap, double limit,
                int64_t *from);

/* ---- for sheet.c ---------------------------------------------------------------------------- */

/* Marks the best cell of each metric's column (sheet_best.c). cols[i] is the column of the table
 * that column i of the sheet shows, rows[i] the row. Returns whether any was marked. */
bool sheet_mark_best(const struct table *t, const int64_t *cols, const int64_t *rows,
                     struct sheet *s);

bool sheet_is_bound(const struct table *t, const char *method);
bool sheet_keeps_all(const struct stats *density_elem); /* in every cell */

/* "sale (tau=0)". */
void sheet_setting_name(const char *method, const char *params, struct buf *b);

/* Why a setting of this name keeps everything, of table.full; NULL: it does not say. */
const char *sheet_reason(const struct str_list *full, const char *name);

/* Sentences that compare the rows, and warnings about settings that keep everything. */
void sheet_say(const struct table *t, struct sheet *s);

#endif
