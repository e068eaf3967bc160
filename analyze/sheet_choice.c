/*
 * sheet_choice.c - rows and columns that people see, and the text of a cell.
 *
 * Left out are rows without any number, columns that say the same in every row, and columns that
 * the table's `brief` does not list. Statistics are medians; with --wide means and deviations.
 */
#include "analyze/sheet_choice.h"

#include "analyze/group.h"
#include "analyze/metricfacts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool choice_is_count(const struct column *c)
{
    static const char *const names[] = {"n", "skip", "error", "calls", "cells"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (c->type == COL_INT && strcmp(c->name, names[i]) == 0)
            return true;
    return false;
}

bool choice_is_key(const struct column *c)
{
    return c->type == COL_TEXT || (c->type != COL_STATS && !choice_is_count(c));
}

static void add_name(struct buf *b, const char *name)
{
    buf_printf(b, "%s%s", b->len ? ", " : "", name);
}

/* ---- text of cells -------------------------------------------------------------------------- */

/* What rounds to 0 or to 1 and is neither is written as a bound. A rest of 1e-9 is the rounding of
 * a sum. */
static void put_percent(double share, struct buf *b)
{
    double x = 100 * share, rest = fabs(1 - share);
    if (share == 0 || rest < 1e-9)
        buf_printf(b, "%.0f %%", x);
    else if (fabs(x) < 0.001)
        buf_puts(b, x < 0 ? "> -0.001 %" : "< 0.001 %");
    else if (fabs(x) < 0.05)
        buf_printf(b, "%.2g %%", x);
    else if (rest < 0.0005)
        buf_puts(b, share < 1 ? "> 99.9 %" : "> 100 %");
    else
        buf_printf(b, fabs(x) < 1000 ? "%.1f %%" : "%.0f %%", x);
}

static void put_median(const struct column *c, double x, struct digits d, struct buf *b)
{
    if (metric_percent(c->name))
        put_percent(x, b);
    else if (c->axis == AXIS_SHARE && x > 0.9995 && x < 1 - 1e-9)
        buf_puts(b, "> 0.999");
    else
        format_number(x * c->scale, d, 3, b);
}

bool choice_shows_mean(const struct column *c)
{
    return c->mixed || metric_of_model(c->name);
}

static void put_stats(const struct table *t, int64_t row, int64_t col, struct digits d,
                      struct buf *b)
{
    const struct stats *s = &table_cell(t, row, col)->stats;
    const struct column *c = &t->cols[col];
    int64_t n_col = table_find(t, "n");
    if (s->n == 0)
        buf_puts(b, s->all_inf ? "inf" : "not finite");
    else
        put_median(c, choice_shows_mean(c) ? s->mean : s->median, d, b);
    if (s->n)
        format_interval(c, s, b);
    if (s->n && n_col >= 0 && table_cell(t, row, n_col)->num != (double)s->n)
        buf_printf(b, " (n=%lld)", (long long)s->n);
}

/* Dense attention has no setting, a bound says so. */
static void put_text(const struct table *t, int64_t row, int64_t col, struct buf *b)
{
    const char *text = table_cell(t, row, col)->text;
    int64_t m = table_find(t, "method");
    const char *method = m < 0 ? "" : sheet_text_or_empty(table_cell(t, row, m)->text);
    if (table_has_params(t, col) && !text[0])
        buf_puts(b, strcmp(method, "dense") == 0 ? "" : "defaults");
    else
        buf_puts(b, text);
    if (col == m && sheet_is_bound(t, method))
        buf_puts(b, " (bound)");
}

void choice_put_cell(const struct choice *ch, int64_t row, int64_t col, struct buf *b)
{
    const struct table *t = ch->t;
    const struct cell *cell = table_cell(t, row, col);
    if (ch->o->wide)
        format_cell(t, row, col, ch->digits[col], " \u00b1 ", b);
    else if (!cell->set)
        buf_puts(b, "-");
    else if (t->cols[col].type == COL_STATS)
        put_stats(t, row, col, ch->digits[col], b);
    else if (t->cols[col].type == COL_TEXT)
        put_text(t, row, col, b);
    else
        format_cell(t, row, col, ch->digits[col], "", b);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static bool row_has_number(const struct table *t, int64_t row, bool *any_stats)
{
    bool has = false;
    for (int64_t c = 0; c < t->n_cols; c++) {
        *any_stats |= t->cols[c].type == COL_STATS;
        has |= t->cols[c].type == COL_STATS && table_cell(t, row, c)->set;
    }
    return has;
}

/* Place of the row's method in the order that the user gave; methods of unknown place last. */
static int64_t method_place(const struct table *t, int64_t row, int64_t col)
{
    const struct cell *cell = table_cell(t, row, col);
    int64_t i = 0;
    while (cell->set && i < t->methods.n && strcmp(t->methods.items[i], cell->text) != 0)
        i++;
    return i;
}

/* Do the rows agree in the key columns before `col`? */
static bool same_before(const struct table *t, int64_t a, int64_t b, int64_t col)
{
    for (int64_t c = 0; c < col; c++) {
        const struct cell *x = table_cell(t, a, c), *y = table_cell(t, b, c);
        if (strcmp(sheet_text_or_empty(x->text), sheet_text_or_empty(y->text)) != 0 ||
            x->num != y->num)
            return false;
    }
    return true;
}

/* Stable, by the order of the methods, within rows that agree in the columns before. */
static void order_by_method(struct choice *ch)
{
    int64_t col = table_find(ch->t, "method");
    if (col < 0 || ch->t->methods.n == 0)
        return;
    for (int64_t i = 1; i < ch->n_rows; i++)
        for (int64_t k = i; k > 0; k--) {
            int64_t a = ch->rows[k - 1], b = ch->rows[k];
            if (!same_before(ch->t, a, b, col) ||
                method_place(ch->t, a, col) <= method_place(ch->t, b, col))
                break;
            ch->rows[k - 1] = b;
            ch->rows[k] = a;
        }
}

void choice_put_row_name(const struct choice *ch, int64_t row, struct buf *b)
{
    for (int64_t c = 0, n = 0; c < ch->t->n_cols; c++) {
        const struct cell *cell = table_cell(ch->t, row, c);
        if (choice_is_key(&ch->t->cols[c]) && cell->set && !(cell->text && !cell->text[0])) {
            buf_puts(b, n++ ? " " : "");
            format_cell(ch->t, row, c, ch->digits[c], "", b);
        }
    }
}

/* Rows without any number say one thing together. */
void choice_rows(struct choice *ch, struct sheet *s)
{
    struct buf without = {0};
    bool any_stats = false;
    int64_t n_without = 0;
    for (int64_t r = 0; r < ch->t->n_rows; r++)
        if (row_has_number(ch->t, r, &any_stats) || !any_stats || table_find(ch->t, "n") < 0)
            ch->rows[ch->n_rows++] = r;
        else if (n_without++ < 8) {
            buf_puts(&without, without.len ? "; " : "");
            choice_put_row_name(ch, r, &without);
        }
    if (n_without > 8)
        buf_printf(&without, "; %lld more", (long long)n_without - 8);
    if (ch->n_rows == 0)
        for (int64_t r = 0; r < ch->t->n_rows; r++)
            ch->rows[ch->n_rows++] = r;
    else if (n_without) {
        struct buf note = {0};
        buf_printf(&note, "Without a number: %s (table status has the reasons).",
                   buf_str(&without));
        str_list_add(&s->notes, buf_str(&note));
        buf_free(&note);
    }
    buf_free(&without);
    if (!ch->t->sorted)
        order_by_method(ch);
}

/* ---- columns -------------------------------------------------------------------------------- */

/* Does every shown row have the same text in the column? Its text is left in b. */
static bool is_constant(const struct choice *ch, int64_t col, struct buf *b)
{
    struct buf other = {0};
    bool same = ch->n_rows > 1;
    buf_reset(b);
    choice_put_cell(ch, ch->rows[0], col, b);
    for (int64_t i = 1; i < ch->n_rows && same; i++) {
        buf_reset(&other);
        choice_put_cell(ch, ch->rows[i], col, &other);
        same = strcmp(buf_str(b), buf_str(&other)) == 0;
    }
    buf_free(&other);
    return same;
}

/* Index of the first pattern of the comma-separated list that the name matches, -1 = none. */
static int place_in(const char *patterns, const char *name)
{
    int i = 0;
    for (const char *p = patterns; p && *p; i++) {
        size_t len = strcspn(p, ",");
        char one[64];
        snprintf(one, sizeof one, "%.*s", (int)(len < sizeof one ? len : sizeof one - 1), p);
        if (name_matches(one, name))
            return i;
        p += len + (p[len] == ',');
    }
    return -1;
}

/* A list that names a key names all keys that the sheet shows. */
static bool brief_names_keys(const struct table *t)
{
    for (int64_t c = 0; c < t->n_cols; c++)
        if (choice_is_key(&t->cols[c]) && place_in(t->brief, t->cols[c].name) >= 0)
            return true;
    return false;
}

/* Metrics of the table that its list names; a list that finds one or none is of no use. */
static bool brief_applies(const struct table *t)
{
    int n = 0;
    for (int64_t c = 0; c < t->n_cols; c++)
        n += !choice_is_count(&t->cols[c]) && place_in(t->brief, t->cols[c].name) >= 0;
    return n > 1;
}

static bool is_wanted(const struct choice *ch, int64_t col)
{
    const struct column *c = &ch->t->cols[col];
    if (ch->o->wide || ch->o->all || !brief_applies(ch->t))
        return true;
    if (choice_is_count(c) || (choice_is_key(c) && !brief_names_keys(ch->t)))
        return true;
    return place_in(ch->t->brief, c->name) >= 0;
}

void choice_put_column_name(const struct column *c, struct buf *b)
{
    add_name(b, c->type == COL_STATS ? c->name : c->title);
}

bool choice_is_zero_count(const struct choice *ch, int64_t col)
{
    bool zero = choice_is_count(&ch->t->cols[col]);
    for (int64_t i = 0; i < ch->n_rows; i++)
        zero &= table_cell(ch->t, ch->rows[i], col)->num == 0;
    return zero;
}

/* What a column says in every row; the name has the unit of the records, the text another. */
static void put_same(const struct column *c, const char *text, struct buf *b)
{
    const char *unit = "";
    bool scaled = c->type == COL_STATS && metric_scale(c->name, &unit) != 1;
    choice_put_column_name(c, b);
    buf_printf(b, " %s%s%s",
               strcmp(text, "-") == 0 ? "(empty)"
               : *text                ? text
                                      : "(none)",
               scaled ? " " : "", scaled ? unit : "");
}

/* Keys first, then metrics, then counts that vary; constants go to ch->same. */
void choice_columns(struct choice *ch)
{
    const struct table *t = ch->t;
    struct buf text = {0};
    for (int pass = 0; pass < 3; pass++)
        for (int64_t c = 0; c < t->n_cols; c++) {
            const struct column *col = &t->cols[c];
            if ((choice_is_key(col) ? 0 : choice_is_count(col) ? 2 : 1) != pass)
                continue;
            if (choice_is_zero_count(ch, c) && !ch->o->wide)
                continue;
            bool constant = is_constant(ch, c, &text);
            if (!is_wanted(ch, c)) {
                if (!constant)
                    choice_put_column_name(col, &ch->dropped);
            } else if (constant && !ch->o->wide && !ch->o->all) {
                if (strcmp(col->name, "n") == 0)
                    continue;
                put_same(col, buf_str(&text), &ch->same);
            } else {
                ch->cols[ch->n_cols++] = c;
                ch->n_chosen += pass == 0;
            }
        }
    ch->n_chosen++;
    buf_free(&text);
}
