/*
 * sheet.h - a table as people read it: few columns with short heads, texts of cells, notes, and
 * what the numbers say.
 *
 * CSV and JSON write the table itself. A sheet shows the keys and the columns of table.brief,
 * or every column. Columns that say the same in every row, and what is left out, stand in its
 * notes. Sheets never fail: a lack of memory sets `failed`, which the writers hand on to their
 * buffer.
 */
#pragma once

#include "analyze/table.h"

#define SHEET_WIDTH 100 /* characters of a line of text */

struct sheet_opts {
    bool wide; /* every column, means with their deviations */
    int width; /* characters of a line, 0 = SHEET_WIDTH */
};

struct sheet_column {
    char *head, *unit;      /* owned; unit "" = none */
    bool right;             /* numbers */
    bool key;               /* says what a row is */
    const char *definition; /* of its metric; NULL: none */
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

/* "sale (tau=0)". */
void put_setting_name(const char *method, const char *params, struct buf *b);

/* Why a setting of this name keeps everything, of table.full; NULL: it does not say. */
const char *find_reason(const struct str_list *full, const char *name);
