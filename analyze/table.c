/*
 * table.c - storage of tables.
 */
#include "analyze/table.h"

#include "analyze/keys.h"
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
    OWN(buf_free) struct buf b = {0};
    text_escape(&b, text, "");
    utf8_copy(to, size, buf_str(&b));
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
    PASS_ON(mem_grow(&t->cols, &t->cap_cols, t->n_cols + 1, sizeof *t->cols, "columns", err));
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
    PASS_ON(mem_grow(&t->cells, &t->cap_cells, from + t->n_cols, sizeof *t->cells, "rows", err));
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
    OWN(buf_free) struct buf b = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text_escape(&b, text, "");
    t->notes.failed |= b.failed;
    str_list_add(&t->notes, buf_str(&b));
}

int table_keep_rows(struct table *t, const int64_t *rows, int64_t n, struct err *err)
{
    struct cell *kept = NULL;
    PASS_ON(mem_zalloc(&kept, n * t->n_cols + 1, sizeof *kept, "rows", err));
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

/* ---- rows in the order that the user asks for ----------------------------------------------- */

struct order {
    const struct table *t;
    int64_t col;
    int sign;
};

static int find_column(const struct table *t, const char *name, const char *option, int64_t *col,
                       struct err *err)
{
    struct names all = {0};
    *col = table_find(t, name);
    if (*col >= 0)
        return 0;
    for (int64_t c = 0; c < t->n_cols; c++)
        names_add(&all, t->cols[c].name);
    names_unknown(&all, "column", name, err);
    return err_prefix(err, "%s", option);
}

static bool has_value(const struct column *c, const struct cell *cell)
{
    return cell->set && (c->type != COL_STATS || cell->stats.n > 0);
}

/* What people see: medians, of numbers of a model means. */
static double number_shown(const struct column *c, const struct stats *s)
{
    return metric_of_model(c->name) ? s->mean : s->median;
}

static int compare_cells(const struct order *o, int64_t a, int64_t b)
{
    const struct column *c = &o->t->cols[o->col];
    const struct cell *x = table_cell(o->t, a, o->col), *y = table_cell(o->t, b, o->col);
    bool has_x = has_value(c, x), has_y = has_value(c, y);
    if (!has_x || !has_y)
        return has_y - has_x; /* whatever the sign */
    if (c->type == COL_TEXT)
        return o->sign * natural_compare(x->text, y->text);
    double p = c->type == COL_STATS ? number_shown(c, &x->stats) : x->num;
    double q = c->type == COL_STATS ? number_shown(c, &y->stats) : y->num;
    return o->sign * ((p > q) - (p < q));
}

/* Equal rows stay in their order. */
static int by_cell(const void *a, const void *b, void *order)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    int d = compare_cells(order, x, y);
    return d ? d : (x > y) - (x < y);
}

static int sort_by(const struct table *t, const char *name, int64_t *rows, struct err *err)
{
    bool reverse = name[0] == '-';
    struct order o = {.t = t, .sign = reverse ? -1 : 1};
    PASS_ON(find_column(t, name + reverse, "--sort", &o.col, err));
    if (t->cols[o.col].type == COL_STATS && metric_better(t->cols[o.col].name) == BETTER_HIGHER)
        o.sign = -o.sign;
    qsort_r(rows, (size_t)t->n_rows, sizeof *rows, by_cell, &o);
    return 0;
}

/* The first row of each value of the column; returns how many. */
static int64_t first_of_each(const struct table *t, int64_t col, int64_t *rows)
{
    struct order o = {t, col, 1};
    int64_t n = 0;
    for (int64_t i = 0; i < t->n_rows; i++) {
        bool seen = false;
        for (int64_t k = 0; k < n && !seen; k++)
            seen = compare_cells(&o, rows[k], rows[i]) == 0;
        if (!seen)
            rows[n++] = rows[i];
    }
    return n;
}

int table_choose_rows(struct table *t, const struct row_opts *o, struct err *err)
{
    OWN(free_at) int64_t *rows = NULL;
    int64_t n = t->n_rows, all = n, col;
    if (!o->sort && !o->best && !o->top)
        return 0;
    if (o->best && !o->sort)
        return err_set(err, ERR_USAGE, "--best %s: add --sort METRIC, which says what is best",
                       o->best);
    PASS_ON(mem_alloc(&rows, n + 1, sizeof *rows, "rows", err));
    for (int64_t i = 0; i < n; i++)
        rows[i] = i;
    if (o->sort)
        PASS_ON(sort_by(t, o->sort, rows, err));
    if (o->best) {
        PASS_ON(find_column(t, o->best, "--best", &col, err));
        n = first_of_each(t, col, rows);
    }
    if (o->top && o->top < n)
        n = o->top;
    PASS_ON(table_keep_rows(t, rows, n, err));
    t->sorted = o->sort != NULL;
    if (n < all)
        table_note(t, "%lld of %lld rows%s%s%s%s", (long long)n, (long long)all,
                   o->sort ? ", sorted by " : "", o->sort ? o->sort : "",
                   o->best ? ", the first of each " : "", o->best ? o->best : "");
    return 0;
}
