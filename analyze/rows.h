/*
 * rows.h - rows of a table in the order that the user asks for, and the first of them.
 */
#ifndef LACUNA_ROWS_H
#define LACUNA_ROWS_H

#include "analyze/table.h"

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

#endif
