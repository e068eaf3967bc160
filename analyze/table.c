/*
 * table.c - storage of tables.
 */
#include "analyze/table.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"
#include "core/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Text as every format and a terminal may show it; cut between two characters. */
static void shown(const char *text, char *to, size_t size)
{
    struct buf b = {0};
    text_escape(&b, text, "");
    utf8_copy(to, size, buf_str(&b));
    buf_free(&b);
}

void table_init(struct table *t, const char *name, const char *title)
{
    *t = (struct table){0};
    snprintf(t->name, sizeof t->name, "%s", name);
    shown(title, t->title, sizeof t->title);
}

void table_free(struct table *t)
{
    for (int64_t i = 0; i < t->n_rows * t->n_cols; i++)
        free(t->cells[i].text);
    free(t->cells);
    free(t->cols);
    str_list_free(&t->notes);
    str_list_free(&t->methods);
    str_list_free(&t->keep_all);
    str_list_free(&t->full);
    *t = (struct table){0};
}

bool table_has_params(const struct table *t, int64_t col)
{
    const char *name = t->cols[col].name;
    return strcmp(name, "params") == 0 || strcmp(name, "base") == 0;
}

int table_column(struct table *t, const char *name, const char *title, const char *unit,
                 enum column_type type, double scale, struct err *err)
{
    int rc = mem_grow(&t->cols, &t->cap_cols, t->n_cols + 1, sizeof *t->cols, "columns", err);
    if (rc)
        return rc;
    struct column *c = &t->cols[t->n_cols++];
    *c = (struct column){.type = type, .scale = scale, .axis = metric_axis(name)};
    shown(name, c->name, sizeof c->name);
    shown(title, c->title, sizeof c->title);
    shown(unit, c->unit, sizeof c->unit);
    return 0;
}

int table_row(struct table *t, struct err *err)
{
    int64_t from = t->n_rows * t->n_cols;
    int rc = mem_grow(&t->cells, &t->cap_cells, from + t->n_cols, sizeof *t->cells, "rows", err);
    if (rc)
        return rc;
    memset(t->cells + from, 0, (size_t)t->n_cols * sizeof *t->cells);
    t->n_rows++;
    return 0;
}

struct cell *table_cell(const struct table *t, int64_t row, int64_t col)
{
    return &t->cells[row * t->n_cols + col];
}

int table_text(struct table *t, int64_t col, const char *text, struct err *err)
{
    struct buf b = {0};
    text_escape(&b, text, "");
    int rc = buf_check(&b, "table cell", err);
    char *copy = rc ? NULL : b.data ? b.data : strdup("");
    if (!copy) {
        buf_free(&b);
        return err_set(err, ERR_NOMEM, "table cell: out of memory");
    }
    struct cell *c = table_cell(t, t->n_rows - 1, col);
    free(c->text);
    *c = (struct cell){.set = true, .text = copy};
    return 0;
}

void table_num(struct table *t, int64_t col, double value)
{
    *table_cell(t, t->n_rows - 1, col) = (struct cell){.set = true, .num = value};
}

void table_stats(struct table *t, int64_t col, const struct stats *s)
{
    *table_cell(t, t->n_rows - 1, col) = (struct cell){.set = s->n + s->n_bad > 0, .stats = *s};
}

void table_note(struct table *t, const char *fmt, ...)
{
    char text[1024];
    struct buf b = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text_escape(&b, text, "");
    t->notes.failed |= b.failed;
    str_list_add(&t->notes, buf_str(&b));
    buf_free(&b);
}

int table_keep_rows(struct table *t, const int64_t *rows, int64_t n, struct err *err)
{
    struct cell *kept = NULL;
    int rc = mem_zalloc(&kept, n * t->n_cols + 1, sizeof *kept, "rows", err);
    if (rc)
        return rc;
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < t->n_cols; c++) {
            struct cell *from = table_cell(t, rows[i], c);
            kept[i * t->n_cols + c] = *from;
            from->text = NULL;
        }
    for (int64_t i = 0; i < t->n_rows * t->n_cols; i++)
        free(t->cells[i].text);
    free(t->cells);
    t->cells = kept;
    t->cap_cells = n * t->n_cols + 1;
    t->n_rows = n;
    return 0;
}

int64_t table_find(const struct table *t, const char *name)
{
    for (int64_t i = 0; i < t->n_cols; i++)
        if (strcmp(t->cols[i].name, name) == 0)
            return i;
    return -1;
}
