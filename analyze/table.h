/*
 * table.h - a table in memory: typed columns, rows of cells, notes. tables.c and compare.c build
 * it, format.c writes it.
 */
#pragma once

#include "analyze/stats.h"
#include "core/metricdef.h"
#include "core/text.h"

#include <stdbool.h>

enum column_type {
    COL_TEXT,
    COL_INT,   /* a count */
    COL_REAL,  /* one number */
    COL_STATS, /* mean +- standard deviation over a group */
};

struct column {
    char name[64];   /* machine name: CSV header, JSON key */
    char title[128]; /* people's header without the unit */
    char unit[64];   /* "" = none; of a density: its denominator */
    enum column_type type;
    double scale;          /* people see value * scale (ns -> ms); CSV and JSON the value */
    bool mixed;            /* rows have different units: each number is rounded on its own */
    enum metric_axis axis; /* AXIS_SHARE: within [0, 1]; AXIS_LOG: never negative */
};

struct cell {
    bool set;
    char *text;         /* COL_TEXT, owned */
    double num;         /* COL_INT, COL_REAL */
    struct stats stats; /* COL_STATS */
};

struct table {
    char name[32], title[160];
    struct column *cols; /* owned [n_cols] */
    struct cell *cells;  /* owned [n_rows][n_cols] */
    int64_t n_cols, cap_cols, n_rows, cap_cells;
    int64_t left_out; /* rows beyond what the request takes */
    struct str_list notes;

    /* For the narrow form (sheet.h) alone. */
    char caption[256];       /* what the records are of: model, length, heads; "" = unknown */
    const char *brief;       /* patterns of the columns that it shows; NULL: all that fit */
    struct str_list methods; /* in the order in which the user gave them, bounds last */
    struct str_list full;    /* settings that keep every pair and say why: name, reason, ... */
    bool sorted;             /* rows stand as the user asked */
    bool verdict;            /* one row per setting: sentences may compare the rows */
};

void table_init(struct table *t, const char *name, const char *title);
void table_free(struct table *t);

/* Does the column hold parameters, with or without a target? */
bool table_has_params(const struct table *t, int64_t col);

/* Columns come before rows. Returns a negative code or 0. */
int table_column(struct table *t, const char *name, const char *title, const char *unit,
                 enum column_type type, double scale, struct err *err);

/* Start a row of empty cells; the setters write into the last row. */
int table_row(struct table *t, struct err *err);
int table_text(struct table *t, int64_t col, const char *text, struct err *err);
void table_num(struct table *t, int64_t col, double value);
void table_stats(struct table *t, int64_t col, const struct stats *s);
void table_note(struct table *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
struct cell *table_cell(const struct table *t, int64_t row, int64_t col);

/* Keep the n rows with these indices (each once), in this order. */
int table_keep_rows(struct table *t, const int64_t *rows, int64_t n, struct err *err);

/* Index of the column `name`, -1 if there is none. */
int64_t table_find(const struct table *t, const char *name);

/* --sort, --best, --top; NULL and 0 = not asked for. */
struct row_opts {
    const char *sort; /* column, "-" in front turns the order round */
    const char *best; /* column: of the rows that agree in it, the first one stays */
    int64_t top;      /* rows that stay */
};

/* Sort (metrics by their median, the better first; others upwards; rows without a value last), then
 * keep the best row per value of `best`, then `top` rows. A note says what was cut. ERR_USAGE: an
 * unknown column, with the nearest name; `best` without `sort`. */
int table_choose_rows(struct table *t, const struct row_opts *o, struct err *err);
