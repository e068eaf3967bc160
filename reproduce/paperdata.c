/*
 * paperdata.c - the files of datasets/paper, read once and checked for what the rest relies on.
 */
#include "reproduce/paperdata.h"

#include "core/environment.h"
#include "core/mem.h"
#include "core/text.h"

#include <math.h>
#include <string.h>
#include <strings.h>

const char *const paper_ids[PAPERS + 1] = {"spargeattn", "sampleattention", "sale", "fg-attn",
                                           NULL};

#define FILE_MAX ((size_t)8 << 20)

static const char *const fields[PAPER_FIELDS] = {"table", "row", "column", "value", "unit", "note"};

static int read_json(struct paper_data *d, const char *name, json_t **out, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    buf_printf(&path, "%s/%s", buf_str(&d->dir), name);
    PASS_ON(buf_check(&path, name, err));
    return json_read_file(buf_str(&path), FILE_MAX, out, err);
}

/* Every table and figure has an id, PAPER:ITEM, and names one of the csv files. */
static int check_items(const struct paper_data *d, const char *key, struct err *err)
{
    const json_t *all = json_object_get(d->layouts, key);
    size_t i;
    json_t *item;
    if (!json_is_array(all))
        return err_set(err, ERR_INPUT, "%s/layouts.json: no list '%s'", buf_str(&d->dir), key);
    json_array_foreach(all, i, item)
    {
        if (!strchr(json_str_or(item, "id", ""), ':') || !json_str_or(item, "csv", NULL))
            return err_set(err, ERR_INPUT, "%s/layouts.json: %s: entry %zu has no id or csv",
                           buf_str(&d->dir), key, i + 1);
    }
    return 0;
}

static int read_csv(struct paper_data *d, int p, struct err *err)
{
    OWN(buf_free) struct buf path = {0};
    buf_printf(&path, "%s/%s.csv", buf_str(&d->dir), paper_ids[p]);
    PASS_ON(buf_check(&path, "path", err));
    PASS_ON(csv_read(buf_str(&path), &d->csv[p], err));
    for (int i = 0; i < PAPER_FIELDS; i++)
        PASS_ON(csv_column(&d->csv[p], fields[i], buf_str(&path), &d->at[p][i], err));
    return 0;
}

/* ---- numbers that stand in no table ---------------------------------------------------------- */

/* A row of a list: its label, of the text with what the csv notes on it; `at`, the place of its
 * number; `number`, the first one in its label; how it is printed. */
static json_t *list_row(const struct paper_number *x, int64_t at, bool text)
{
    bool plain = strcmp(x->unit, "fraction") == 0 || strcmp(x->unit, "1") == 0;
    const char *digits = x->row + strcspn(x->row, "0123456789");
    json_t *row = json_pack("{s:[s,s],s:I,s:s+,s:s%}", "label", x->row, x->column, "at",
                            (json_int_t)at, "suffix", plain ? "" : " ", plain ? "" : x->unit,
                            "number", digits, strspn(digits, "0123456789"));
    if (text)
        json_array_append_new(json_object_get(row, "label"), json_string(x->note));
    if (strcmp(x->unit, "%") == 0)
        json_object_set_new(row, "scale", json_integer(100));
    return row;
}

/* A figure whose numbers the csv has gets them as a block of one column. */
static int add_list(const struct paper_data *d, json_t *item, struct err *err)
{
    bool text = strcmp(json_str_or(item, "table", ""), "text") == 0;
    struct paper_number x;
    json_t *rows, *stub;
    if (!paper_number_at(d, item, 0, &x))
        return 0;
    json_t *block = json_pack("{s:[s,s],s:[{}],s:[{s:[s]}],s:[]}", "stub", "row", "column", "cell",
                              "columns", "head", "Printed", "rows");
    rows = json_object_get(block, "rows");
    stub = json_object_get(block, "stub");
    if (text)
        json_array_append_new(stub, json_string("note"));
    for (int64_t i = 0; paper_number_at(d, item, i, &x); i++)
        json_array_append_new(rows, list_row(&x, i, text));
    if (!block || json_object_set_new(item, "blocks", json_pack("[o]", block)))
        return err_set(err, ERR_NOMEM, "layouts.json: out of memory");
    return 0;
}

static int add_lists(struct paper_data *d, struct err *err)
{
    size_t i;
    json_t *item;
    int rc = 0;
    json_array_foreach(json_object_get(d->layouts, "figures"), i, item) rc =
        rc ? rc : add_list(d, item, err);
    return rc;
}

int paper_data_load(struct paper_data *d, struct err *err)
{
    OWN(json_decrefp) json_t *models = NULL, *tasks = NULL;
    PASS_ON(datadir_find("paper", &d->dir, err));
    PASS_ON(read_json(d, "layouts.json", &d->layouts, err));
    PASS_ON(check_items(d, "tables", err));
    PASS_ON(check_items(d, "figures", err));
    PASS_ON(read_json(d, "models.json", &models, err));
    d->models = json_incref(json_object_get(models, "models"));
    if (!json_is_array(d->models))
        return err_set(err, ERR_INPUT, "%s/models.json: no list 'models'", buf_str(&d->dir));
    PASS_ON(read_json(d, "tasks.json", &tasks, err));
    d->tasks = json_incref(json_object_get(tasks, "tasks"));
    if (!json_is_array(d->tasks))
        return err_set(err, ERR_INPUT, "%s/tasks.json: no list 'tasks'", buf_str(&d->dir));
    for (int p = 0; p < PAPERS; p++)
        PASS_ON(read_csv(d, p, err));
    return add_lists(d, err);
}

void paper_data_free(struct paper_data *d)
{
    buf_free(&d->dir);
    json_decref(d->layouts);
    json_decref(d->models);
    json_decref(d->tasks);
    for (int p = 0; p < PAPERS; p++)
        csv_free(&d->csv[p]);
    memset(d, 0, sizeof *d);
}

const json_t *json_with_id(const json_t *all, const char *id)
{
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)all, i, item)
    {
        if (strcmp(json_str_or(item, "id", ""), id) == 0)
            return item;
    }
    return NULL;
}

const json_t *paper_item_at(const struct paper_data *d, size_t i)
{
    const json_t *tables = json_object_get(d->layouts, "tables");
    size_t n = json_array_size(tables);
    return i < n ? json_array_get(tables, i)
                 : json_array_get(json_object_get(d->layouts, "figures"), i - n);
}

/* The index of "sale.csv" in paper_ids, -1: none. */
static int csv_index(const char *csv)
{
    for (int p = 0; p < PAPERS; p++) {
        size_t len = strlen(paper_ids[p]);
        if (strncmp(csv, paper_ids[p], len) == 0 && strcmp(csv + len, ".csv") == 0)
            return p;
    }
    return -1;
}

static struct paper_number number_of(const struct paper_data *d, int p, int64_t row)
{
    char *const *f = d->csv[p].row[row];
    const int64_t *at = d->at[p];
    return (struct paper_number){f[at[0]], f[at[1]], f[at[2]], f[at[3]], f[at[4]], f[at[5]]};
}

bool paper_number_at(const struct paper_data *d, const json_t *item, int64_t i,
                     struct paper_number *out)
{
    const char *table = json_str_or(item, "table", "");
    int p = csv_index(json_str_or(item, "csv", ""));
    for (int64_t k = 1; p >= 0 && k < d->csv[p].n; k++) {
        *out = number_of(d, p, k);
        if (strcmp(out->table, table) == 0 && i-- == 0)
            return true;
    }
    return false;
}

bool paper_number_find(const struct paper_data *d, const json_t *item, const char *row,
                       const char *column, struct paper_number *out)
{
    for (int64_t i = 0; paper_number_at(d, item, i, out); i++)
        if (strcmp(out->row, row) == 0 && strcmp(out->column, column) == 0)
            return true;
    return false;
}

bool json_text(const json_t *o, const char *key, char *text, size_t size)
{
    const json_t *v = json_object_get(o, key);
    char number[32];
    if (json_is_string(v))
        return (size_t)snprintf(text, size, "%s", json_string_value(v)) < size;
    if (!json_is_number(v))
        return false;
    num_text(json_number_value(v), number);
    return (size_t)snprintf(text, size, "%s", number) < size;
}

const char *json_str_or(const json_t *o, const char *key, const char *otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_string(v) ? json_string_value(v) : otherwise;
}

bool json_has_text(const json_t *texts, const char *text)
{
    size_t i;
    json_t *v;
    if (json_is_string(texts))
        return strcmp(json_string_value(texts), text) == 0;
    json_array_foreach((json_t *)texts, i, v)
    {
        if (json_is_string(v) && strcmp(json_string_value(v), text) == 0)
            return true;
    }
    return false;
}

double size_value(const char *text)
{
    const char *end;
    double x;
    if (!num_read(text, &x, &end))
        return NAN;
    if ((*end == 'K' || *end == 'k') && !end[1])
        return 1024 * x;
    if (*end == 'M' && !end[1])
        return 1024 * 1024 * x;
    return *end ? NAN : x;
}

bool label_part(const char *pattern, const char *label, bool any_case, char *part, size_t size)
{
    int (*differ)(const char *, const char *, size_t) = any_case ? strncasecmp : strncmp;
    size_t before = strcspn(pattern, "*"), n = strlen(label);
    const char *behind = pattern + before + (pattern[before] == '*');
    size_t after = strlen(behind);
    return n > before + after && differ(pattern, label, before) == 0 &&
           differ(label + n - after, behind, after) == 0 &&
           (size_t)snprintf(part, size, "%.*s", (int)(n - before - after), label + before) < size;
}

int paper_marks(const struct paper_data *d, const json_t *item, const json_t *marks,
                struct buf *out, struct err *err)
{
    const char *id = json_str_or(item, "id", ""), *unit = json_str_or(marks, "unit", "");
    const char *pattern = json_str_or(marks, "row", ""), *column = json_str_or(marks, "column", "");
    struct paper_number x;
    char text[32];
    double y;
    int n = 0;
    buf_printf(out, "printed (%s)=", json_str_or(marks, "label", ""));
    for (int64_t i = 0; paper_number_at(d, item, i, &x); i++) {
        if (strcmp(x.column, column) != 0 ||
            !label_part(pattern, x.row, false, text, sizeof text) || !isfinite(size_value(text)))
            continue; /* such as the mean of all */
        if (!num_fills(x.value, &y) || strcmp(x.unit, unit) != 0)
            return err_set(err, ERR_INPUT, "%s: marks: '%s' prints '%s' %s, not a number in %s", id,
                           x.row, x.value, x.unit, unit);
        if (strcmp(unit, "%") == 0) /* axes count shares */
            buf_printf(out, "%s%.10g:%.10g", n++ ? "," : "", size_value(text), y / 100);
        else
            buf_printf(out, "%s%.10g:%s", n++ ? "," : "", size_value(text), x.value);
    }
    return n ? buf_check(out, "marks", err)
             : err_set(err, ERR_INPUT, "%s: marks: no printed number has row '%s', column '%s'", id,
                       pattern, column);
}
