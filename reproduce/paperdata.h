/*
 * paperdata.h - what the papers print and how: datasets/paper/layouts.json (rows, columns and
 * labels of tables; of figures and of the text, whose numbers stand in no table, a list with a row
 * for each is made of the csv), models.json (shapes of the papers' models) and the
 * numbers of PAPER.csv; tasks.json, files of benchmarks that a user may have.
 */
#pragma once

#include "analyze/csv.h"
#include "core/buf.h"
#include "core/json.h"

#define PAPERS 4
#define PAPER_FIELDS 6
extern const char *const paper_ids[PAPERS + 1]; /* "spargeattn", ...; NULL behind the last */

struct paper_data {
    struct buf dir;  /* of the files */
    json_t *layouts; /* owned */
    json_t *models;  /* owned: the array */
    json_t *tasks;   /* owned: the array of tasks.json */
    struct csv csv[PAPERS];
    int64_t at[PAPERS][PAPER_FIELDS]; /* columns of struct paper_number's fields in csv */
};

/* One printed number; borrowed. */
struct paper_number {
    const char *table, *row, *column, *value, *unit, *note;
};

/* Read all files of datasets/paper. Free `d` (zeroed before) also after a failure. */
int paper_data_load(struct paper_data *d, struct err *err);
void paper_data_free(struct paper_data *d);

/* Number i of the tables and then the figures of layouts.json; NULL behind the last. */
const json_t *paper_item_at(const struct paper_data *d, size_t i);

/* The object of this id in a list, such as the tables of layouts.json; NULL: there is none. */
const json_t *json_with_id(const json_t *all, const char *id);

/* Number i that the paper prints in a table or figure; false behind the last. */
bool paper_number_at(const struct paper_data *d, const json_t *item, int64_t i,
                     struct paper_number *out);

/* The number at (row, column) of a table or figure of layouts.json; false: the paper prints
 * nothing. */
bool paper_number_find(const struct paper_data *d, const json_t *item, const char *row,
                       const char *column, struct paper_number *out);

/* A member of an object as text (numbers as num_text writes them) into `text`; false: absent. */
bool json_text(const json_t *o, const char *key, char *text, size_t size);
bool json_has_text(const json_t *texts, const char *text); /* is it, or a list that has it */
const char *json_str_or(const json_t *o, const char *key, const char *otherwise);

/* The printed numbers of a figure on its axes, as `plot --marks` takes them: "printed
 * (LABEL)=X:Y,..." of the rows that `row` matches, whose '*' stands for X, in `column`. Each has
 * the unit of the axis, or is in %, where the axis counts shares. None, another unit, an X or a
 * value that is no number: ERR_INPUT. */
int paper_marks(const struct paper_data *d, const json_t *item, const json_t *marks,
                struct buf *out, struct err *err);

/* "8K" = 8192, "16k", "1M", "4096"; NAN for anything else. */
double size_value(const char *text);

/* The part of a label that stands for the '*' of a pattern, any_case: letters of either case are
 * the same. false: the label is not of the pattern, or `part` has no room. */
bool label_part(const char *pattern, const char *label, bool any_case, char *part, size_t size);
