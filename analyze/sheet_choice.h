/*
 * sheet_choice.h - for the sources of sheets alone: which rows and columns of a table are shown.
 */
#ifndef LACUNA_SHEET_CHOICE_H
#define LACUNA_SHEET_CHOICE_H

#include "analyze/format.h"
#include "analyze/sheet.h"
#include "core/buf.h"

/* What of the table is shown: indices of rows and columns. */
struct choice {
    const struct table *t;
    const struct sheet_opts *o;
    int64_t *rows, *cols;
    int *limits; /* [t->n_cols] longest text of a cell */
    int64_t n_rows, n_cols;
    int64_t n_chosen;   /* the first columns are keys and the first metric: never dropped */
    struct buf dropped; /* names of columns that did not fit or are not in brief */
    struct buf same;    /* "name value" of constant columns */
    struct digits *digits;
};

/* What a column is: n, skip, error or cells; what says what a row is; a count that is 0 in every
 * shown row. */
bool choice_is_count(const struct column *c);
bool choice_is_key(const struct column *c);
bool choice_is_zero_count(const struct choice *ch, int64_t col);

/* Means in place of medians: beside printed means, and of numbers of a model. */
bool choice_shows_mean(const struct column *c);

/* Append a cell's text; the keys of a row; a column's name to a list. */
void choice_put_cell(const struct choice *ch, int64_t row, int64_t col, struct buf *b);
void choice_put_row_name(const struct choice *ch, int64_t row, struct buf *b);
void choice_put_column_name(const struct column *c, struct buf *b);

/* Fill ch->rows and ch->cols (sheet_choice.c). */
void choice_rows(struct choice *ch, struct sheet *s);
void choice_columns(struct choice *ch);

/* Head of a column, and the unit below it; "" for what is a denominator (sheet_fit.c). */
const char *choice_head(const struct choice *ch, int64_t col);
const char *choice_unit(const struct choice *ch, int64_t col);

/* Fill the grid of s, with as many columns as fit; long texts of cells go to `folded`. */
void choice_fit(struct choice *ch, struct sheet *s, struct str_list *folded);

/* sheet_notes.c */
void sheet_note_heads(const struct choice *ch, struct sheet *s);
void sheet_note_omitted(struct choice *ch, struct sheet *s);
void sheet_note_folded(struct sheet *s, const struct str_list *folded);

/* sheet.c: free columns and cells alone; a copy that sets s->failed when there is no memory. */
void sheet_free_grid(struct sheet *s);
char *sheet_copy(struct sheet *s, const char *text);
const char *sheet_text_or_empty(const char *text);

#endif
