/*
 * sheet.c - which columns and rows of a table people see, and the text of its cells.
 *
 * Left out, and named in a note: rows without any number, columns that say the same in every row,
 * columns that the table's `brief` does not list, and then columns from the right until the rest
 * fits. Statistics are medians; --wide shows means with deviations.
 */
#include "analyze/sheet.h"

#include "analyze/format.h"
#include "analyze/group.h"
#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_LEAST 8 /* characters of a column that is never folded further */

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

static bool is_count(const struct column *c)
{
    static const char *const names[] = {"n", "skip", "error", "cells"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (c->type == COL_INT && strcmp(c->name, names[i]) == 0)
            return true;
    return false;
}

static bool is_key(const struct column *c)
{
    return c->type == COL_TEXT || (c->type != COL_STATS && !is_count(c));
}

static void add_name(struct buf *b, const char *name)
{
    buf_printf(b, "%s%s", b->len ? ", " : "", name);
}

static char *copy(struct sheet *s, const char *text)
{
    char *p = strdup(text);
    s->failed |= !p;
    return p;
}

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
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

static void put_stats(const struct table *t, int64_t row, int64_t col, struct digits d,
                      struct buf *b)
{
    const struct stats *s = &table_cell(t, row, col)->stats;
    const struct column *c = &t->cols[col];
    int64_t n_col = table_find(t, "n");
    if (s->n == 0)
        buf_puts(b, "not finite");
    else
        put_median(c, c->mixed ? s->mean : s->median, d, b);
    if (s->n && n_col >= 0 && table_cell(t, row, n_col)->num != (double)s->n)
        buf_printf(b, " (n=%lld)", (long long)s->n);
}

/* Dense attention has no setting, a bound says so. */
static void put_text(const struct table *t, int64_t row, int64_t col, struct buf *b)
{
    const char *name = t->cols[col].name, *text = table_cell(t, row, col)->text;
    int64_t m = table_find(t, "method");
    const char *method = m < 0 ? "" : text_or_empty(table_cell(t, row, m)->text);
    if (strcmp(name, "params") == 0 && !text[0])
        buf_puts(b, strcmp(method, "dense") == 0 ? "" : "defaults");
    else
        buf_puts(b, text);
    if (col == m && sheet_is_bound(t, method))
        buf_puts(b, " (bound)");
}

static void put_cell(const struct choice *ch, int64_t row, int64_t col, struct buf *b)
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
        if (strcmp(text_or_empty(x->text), text_or_empty(y->text)) != 0 || x->num != y->num)
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

static void name_row(const struct choice *ch, int64_t row, struct buf *b)
{
    for (int64_t c = 0, n = 0; c < ch->t->n_cols; c++) {
        const struct cell *cell = table_cell(ch->t, row, c);
        if (is_key(&ch->t->cols[c]) && cell->set && !(cell->text && !cell->text[0])) {
            buf_puts(b, n++ ? " " : "");
            format_cell(ch->t, row, c, ch->digits[c], "", b);
        }
    }
}

/* Rows without any number say one thing together. */
static void choose_rows(struct choice *ch, struct sheet *s)
{
    struct buf without = {0};
    bool any_stats = false;
    int64_t n_without = 0;
    for (int64_t r = 0; r < ch->t->n_rows; r++)
        if (row_has_number(ch->t, r, &any_stats) || !any_stats || table_find(ch->t, "n") < 0)
            ch->rows[ch->n_rows++] = r;
        else if (n_without++ < 8) {
            buf_puts(&without, without.len ? "; " : "");
            name_row(ch, r, &without);
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
    put_cell(ch, ch->rows[0], col, b);
    for (int64_t i = 1; i < ch->n_rows && same; i++) {
        buf_reset(&other);
        put_cell(ch, ch->rows[i], col, &other);
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
        if (is_key(&t->cols[c]) && place_in(t->brief, t->cols[c].name) >= 0)
            return true;
    return false;
}

/* Metrics of the table that its list names; a list that finds one or none is of no use. */
static bool brief_applies(const struct table *t)
{
    int n = 0;
    for (int64_t c = 0; c < t->n_cols; c++)
        n += !is_count(&t->cols[c]) && place_in(t->brief, t->cols[c].name) >= 0;
    return n > 1;
}

static bool is_wanted(const struct choice *ch, int64_t col)
{
    const struct column *c = &ch->t->cols[col];
    if (ch->o->wide || ch->o->all || !brief_applies(ch->t))
        return true;
    if (is_count(c) || (is_key(c) && !brief_names_keys(ch->t)))
        return true;
    return place_in(ch->t->brief, c->name) >= 0;
}

static void column_name(const struct column *c, struct buf *b)
{
    add_name(b, c->type == COL_STATS ? c->name : c->title);
}

static bool is_zero_count(const struct choice *ch, int64_t col)
{
    bool zero = is_count(&ch->t->cols[col]);
    for (int64_t i = 0; i < ch->n_rows; i++)
        zero &= table_cell(ch->t, ch->rows[i], col)->num == 0;
    return zero;
}

/* Keys first, then metrics, then counts that vary; constants go to ch->same. */
static void choose_columns(struct choice *ch)
{
    const struct table *t = ch->t;
    struct buf text = {0};
    for (int pass = 0; pass < 3; pass++)
        for (int64_t c = 0; c < t->n_cols; c++) {
            const struct column *col = &t->cols[c];
            if ((is_key(col) ? 0 : is_count(col) ? 2 : 1) != pass)
                continue;
            bool constant = is_constant(ch, c, &text);
            if (!is_wanted(ch, c)) {
                if (!constant)
                    column_name(col, &ch->dropped);
            } else if (constant && !ch->o->wide && !ch->o->all) {
                if (is_zero_count(ch, c) || strcmp(col->name, "n") == 0)
                    continue;
                column_name(col, &ch->same);
                buf_printf(&ch->same, " %s",
                           strcmp(buf_str(&text), "-") == 0 ? "(empty)"
                           : buf_str(&text)[0]              ? buf_str(&text)
                                                            : "(none)");
            } else {
                ch->cols[ch->n_cols++] = c;
                ch->n_chosen += pass == 0;
            }
        }
    ch->n_chosen++;
    buf_free(&text);
}

/* ---- the sheet ------------------------------------------------------------------------------ */

static const char *head_of(const struct choice *ch, int64_t col)
{
    const struct column *c = &ch->t->cols[col];
    if (ch->o->wide)
        return c->title;
    if (c->type == COL_STATS && strcmp(c->title, c->name) == 0)
        return metric_head(c->name);
    if (strcmp(c->name, "params") == 0)
        return "setting";
    return c->type == COL_STATS && metric_head(c->name) != c->name ? metric_head(c->name)
                                                                   : c->title;
}

/* Units that are no denominators stand below the head. */
static const char *unit_of(const struct choice *ch, int64_t col)
{
    const struct column *c = &ch->t->cols[col];
    const struct metric_def *def = c->type == COL_STATS ? metric_def_find(c->name) : NULL;
    return !ch->o->wide && ((def && def->denominator) || strlen(c->unit) > 10) ? "" : c->unit;
}

/* A text that is too long for a cell stands in a numbered note; equal texts share one. */
static void fold_text(struct sheet *s, struct buf *text, int limit, struct str_list *folded)
{
    int64_t i = 0;
    if (utf8_count(buf_str(text)) <= limit)
        return;
    while (i < folded->n && strcmp(folded->items[i], buf_str(text)) != 0)
        i++;
    if (i == folded->n)
        str_list_add(folded, buf_str(text));
    s->failed |= folded->failed || text->failed;
    buf_reset(text);
    buf_printf(text, "[%lld]", (long long)i + 1);
}

/* Of a table without n the first columns alone: its rows are things of their own, such as printed
 * numbers, and its other texts are said of them. */
static bool is_repeated(const struct choice *ch, int64_t col)
{
    return is_key(&ch->t->cols[col]) && (table_find(ch->t, "n") >= 0 || col < 4);
}

static void put_columns(const struct choice *ch, struct sheet *s)
{
    s->n_cols = ch->n_cols;
    for (int64_t c = 0; c < ch->n_cols; c++) {
        const struct column *col = &ch->t->cols[ch->cols[c]];
        s->cols[c] = (struct sheet_column){.head = copy(s, head_of(ch, ch->cols[c])),
                                           .unit = copy(s, unit_of(ch, ch->cols[c])),
                                           .right = col->type != COL_TEXT,
                                           .key = is_repeated(ch, ch->cols[c])};
    }
}

static void put_cells(const struct choice *ch, struct sheet *s, struct str_list *folded)
{
    struct buf text = {0};
    s->n_rows = ch->n_rows;
    for (int64_t r = 0; r < ch->n_rows; r++)
        for (int64_t c = 0; c < ch->n_cols; c++) {
            buf_reset(&text);
            put_cell(ch, ch->rows[r], ch->cols[c], &text);
            if (ch->t->cols[ch->cols[c]].type == COL_TEXT)
                fold_text(s, &text, ch->limits[ch->cols[c]], folded);
            sheet_cell(s, r, c)->text = copy(s, buf_str(&text));
        }
    buf_free(&text);
}

static void free_grid(struct sheet *s)
{
    for (int64_t i = 0; i < s->n_rows * s->n_cols; i++)
        free(s->cells[i].text);
    for (int64_t c = 0; c < s->n_cols; c++) {
        free(s->cols[c].head);
        free(s->cols[c].unit);
    }
    free(s->cells);
    free(s->cols);
    s->cells = NULL;
    s->cols = NULL;
    s->n_rows = s->n_cols = 0;
}

static void fill(const struct choice *ch, struct sheet *s, struct str_list *folded)
{
    free_grid(s);
    str_list_free(folded);
    *folded = (struct str_list){0};
    s->cols = calloc((size_t)ch->n_cols + 1, sizeof *s->cols);
    s->cells = calloc((size_t)(ch->n_rows * ch->n_cols) + 1, sizeof *s->cells);
    if (!s->cols || !s->cells) {
        s->failed = true;
        return;
    }
    put_columns(ch, s);
    put_cells(ch, s, folded);
}

/* Width in Markdown, which needs more than text: bars, and four stars around a best number. */
static double total_width(const struct sheet *s, bool marks)
{
    double w = 1;
    for (int64_t c = 0; c < s->n_cols; c++) {
        double head = utf8_count(s->cols[c].head) +
                      (s->cols[c].unit[0] ? utf8_count(s->cols[c].unit) + 3 : 0);
        double own = sheet_column_width(s, c, sheet_characters);
        w += fmax(head, own + (marks && s->cols[c].right ? 4 : 0)) + 3;
    }
    return w;
}

/* Keys and the widest other column: the narrowest part that a sheet can be cut into. */
static double part_width(const struct sheet *s)
{
    double keys = 1, widest = 0;
    for (int64_t c = 0; c < s->n_cols; c++) {
        double own = sheet_column_width(s, c, sheet_characters) + 3;
        if (s->cols[c].key)
            keys += own;
        else
            widest = fmax(widest, own);
    }
    return keys + widest;
}

/* Let the widest column of texts have a third less; false when none is wide. */
static bool fold_widest(struct choice *ch, const struct sheet *s)
{
    int64_t widest = -1;
    double most = TEXT_LEAST;
    for (int64_t c = 0; c < s->n_cols; c++) {
        double head = fmax(utf8_count(s->cols[c].head), utf8_count(s->cols[c].unit));
        double own = sheet_column_width(s, c, sheet_characters);
        if (ch->t->cols[ch->cols[c]].type == COL_TEXT && own > most && own > head) {
            most = own;
            widest = ch->cols[c];
        }
    }
    if (widest >= 0)
        ch->limits[widest] = (int)(most * 2 / 3);
    return widest >= 0;
}

/* Fold longer texts, then drop columns from the right, until the sheet fits; a sheet of all columns
 * until its parts do. */
static void fit(struct choice *ch, struct sheet *s, struct str_list *folded)
{
    bool may_drop = !ch->o->wide && !ch->o->all;
    for (int64_t c = 0; c < ch->t->n_cols; c++)
        ch->limits[c] = SHEET_TEXT;
    while (may_drop && ch->n_cols > SHEET_COLUMNS && ch->n_cols > ch->n_chosen)
        column_name(&ch->t->cols[ch->cols[--ch->n_cols]], &ch->dropped);
    for (;;) {
        fill(ch, s, folded);
        double limit = ch->o->part ? ch->o->part : s->width;
        bool fits =
            part_width(s) <= limit && (!may_drop || total_width(s, ch->t->verdict) <= s->width);
        if (s->failed || fits)
            return;
        bool folds = fold_widest(ch, s);
        if (!folds && may_drop && ch->n_cols > ch->n_chosen)
            column_name(&ch->t->cols[ch->cols[--ch->n_cols]], &ch->dropped);
        else if (!folds)
            return;
    }
}

/* ---- notes ---------------------------------------------------------------------------------- */

/* Units that are too long for a head, of columns that are no metrics themselves (pivots, blocks):
 * "c=1: share of units", those of neighbours once. */
static void note_denominators(const struct choice *ch, struct buf *b)
{
    const char *before = "";
    for (int64_t i = 0; i < ch->n_cols; i++) {
        const struct column *c = &ch->t->cols[ch->cols[i]];
        if (c->type != COL_STATS || metric_def_find(c->name) || !c->unit[0] ||
            unit_of(ch, ch->cols[i])[0] || strcmp(before, c->unit) == 0)
            continue;
        buf_printf(b, "%s%s: %s.", b->len ? " " : "", head_of(ch, ch->cols[i]), c->unit);
        before = c->unit;
    }
}

/* "kept: density_elem, kept/allowed pairs." for each metric with a head of its own. */
static void note_heads(const struct choice *ch, struct sheet *s)
{
    struct buf b = {0};
    for (int64_t i = 0; i < ch->n_cols; i++) {
        const struct column *c = &ch->t->cols[ch->cols[i]];
        const char *head = head_of(ch, ch->cols[i]);
        const struct metric_def *def = c->type == COL_STATS ? metric_def_find(c->name) : NULL;
        bool share = def && def->denominator, renamed = strcmp(head, c->title) != 0;
        if (!def || (!share && !renamed && !(c->unit[0] && !unit_of(ch, ch->cols[i])[0])))
            continue;
        buf_printf(&b, "%s%s:", b.len ? " " : "", head);
        if (renamed)
            buf_printf(&b, " %s", c->name);
        if (share)
            buf_printf(&b, "%s %s", renamed ? "," : "", metric_unit(c->name));
        buf_puts(&b, ".");
    }
    note_denominators(ch, &b);
    if (b.len)
        str_list_add(&s->notes, buf_str(&b));
    s->failed |= b.failed;
    buf_free(&b);
}

/* n of every row, -1 where they differ or where the table has none. */
static int64_t common_n(const struct choice *ch)
{
    int64_t col = table_find(ch->t, "n"), n = -1;
    for (int64_t i = 0; col >= 0 && i < ch->n_rows; i++) {
        int64_t x = (int64_t)table_cell(ch->t, ch->rows[i], col)->num;
        if (i && x != n)
            return -1;
        n = x;
    }
    return n;
}

/* A column of mixed rows stands beside printed means and shows means itself. */
static bool shows_medians(const struct choice *ch)
{
    for (int64_t i = 0; i < ch->n_cols && !ch->o->wide; i++)
        if (ch->t->cols[ch->cols[i]].type == COL_STATS && !ch->t->cols[ch->cols[i]].mixed)
            return true;
    return false;
}

static void note_omitted(struct choice *ch, struct sheet *s)
{
    struct buf b = {0};
    int64_t n = common_n(ch);
    bool medians = shows_medians(ch) && n != 1;
    if (medians && n > 1)
        buf_printf(&b, "Medians over n = %lld cells.", (long long)n);
    else if (medians)
        buf_puts(&b, table_find(ch->t, "n") < 0 ? "Medians." : "Medians over n cells.");
    if (ch->same.len)
        buf_printf(&b, "%sThe same in every row: %s.", b.len ? " " : "", buf_str(&ch->same));
    if (b.len)
        str_list_add(&s->notes, buf_str(&b));
    buf_reset(&b);
    if (medians || ch->dropped.len)
        buf_printf(&b, "With --wide: %s%s%s.", medians ? "means and deviations" : "",
                   medians && ch->dropped.len ? "; " : "", buf_str(&ch->dropped));
    if (b.len)
        str_list_add(&s->hints, buf_str(&b));
    s->failed |= b.failed || ch->same.failed || ch->dropped.failed;
    buf_free(&b);
}

static void note_folded(struct sheet *s, const struct str_list *folded)
{
    for (int64_t i = 0; i < folded->n; i++) {
        struct buf b = {0};
        buf_printf(&b, "[%lld] %s", (long long)i + 1, folded->items[i]);
        str_list_add(&s->notes, buf_str(&b));
        s->failed |= b.failed;
        buf_free(&b);
    }
}

/* ---- few rows with many columns ------------------------------------------------------------- */

#define FEW_ROWS 3

/* Column c of a sheet becomes a row: name, unit, a value per row of before. */
static void transpose(const struct choice *ch, struct sheet *s)
{
    struct sheet_column *cols = calloc((size_t)s->n_rows + 2, sizeof *cols);
    struct sheet_cell *cells = calloc((size_t)(s->n_cols * (s->n_rows + 2)) + 1, sizeof *cells);
    int64_t n_rows = 0, n_cols = s->n_rows + 2;
    struct buf b = {0};
    if (!cols || !cells) {
        s->failed = true;
        free(cols);
        free(cells);
        return;
    }
    cols[0] = (struct sheet_column){copy(s, "metric"), copy(s, ""), false, true};
    cols[1] = (struct sheet_column){copy(s, "of"), copy(s, ""), false, true};
    for (int64_t r = 0; r < s->n_rows; r++) {
        buf_reset(&b);
        name_row(ch, ch->rows[r], &b);
        cols[r + 2] =
            (struct sheet_column){copy(s, b.len ? buf_str(&b) : "value"), copy(s, ""), true, false};
    }
    for (int64_t c = 0; c < s->n_cols; c++) {
        const struct column *col = &ch->t->cols[ch->cols[c]];
        if (s->cols[c].key || is_zero_count(ch, ch->cols[c]))
            continue;
        cells[n_rows * n_cols].text = copy(s, col->title);
        cells[n_rows * n_cols + 1].text = copy(s, col->unit);
        for (int64_t r = 0; r < s->n_rows; r++)
            cells[n_rows * n_cols + 2 + r].text = copy(s, text_or_empty(sheet_cell(s, r, c)->text));
        n_rows++;
    }
    buf_free(&b);
    free_grid(s);
    s->cols = cols;
    s->cells = cells;
    s->n_cols = n_cols;
    s->n_rows = n_rows;
}

static bool many_metrics(const struct choice *ch)
{
    int64_t n = 0;
    for (int64_t i = 0; i < ch->n_cols; i++)
        n += !is_key(&ch->t->cols[ch->cols[i]]);
    return ch->n_rows <= FEW_ROWS && n > SHEET_COLUMNS && !ch->t->verdict;
}

/* ---- make ----------------------------------------------------------------------------------- */

static void put_head(const struct table *t, struct sheet *s)
{
    snprintf(s->name, sizeof s->name, "%s", t->name);
    s->title = copy(s, t->title);
    s->caption = copy(s, t->caption);
}

static void build(struct choice *ch, struct sheet *s)
{
    struct str_list folded = {0};
    bool turned = false;
    choose_rows(ch, s);
    if (ch->n_rows) {
        choose_columns(ch);
        turned = many_metrics(ch);
        struct sheet_opts all = *ch->o;
        all.all |= turned;
        ch->o = &all;
        fit(ch, s, &folded);
        if (turned)
            transpose(ch, s);
        else if (!s->failed) {
            bool best = sheet_mark_best(ch->t, ch->cols, ch->rows, s);
            note_heads(ch, s);
            if (best)
                str_list_add(
                    &s->notes,
                    "*: best of its column in mean and median, by more than two standard "
                    "errors; dense attention, what keeps everything and bounds do not compete.");
        }
        note_omitted(ch, s);
        note_folded(s, &folded);
    }
    s->n_own = s->notes.n;
    for (int64_t i = 0; i < ch->t->notes.n; i++)
        str_list_add(&s->notes, ch->t->notes.items[i]);
    if (ch->t->verdict)
        sheet_say(ch->t, s);
    str_list_free(&folded);
}

void sheet_make(const struct table *t, const struct sheet_opts *o, struct sheet *out)
{
    struct buf failed = {0};
    struct choice ch = {.t = t, .o = o};
    *out = (struct sheet){.width = o->width ? o->width : SHEET_WIDTH};
    ch.rows = calloc((size_t)t->n_rows + 1, sizeof *ch.rows);
    ch.cols = calloc((size_t)t->n_cols + 1, sizeof *ch.cols);
    ch.limits = calloc((size_t)t->n_cols + 1, sizeof *ch.limits);
    ch.digits = format_all_digits(t, o->wide ? 4 : 3, &failed);
    put_head(t, out);
    if (ch.rows && ch.cols && ch.limits && ch.digits)
        build(&ch, out);
    else
        out->failed = true;
    out->failed |= out->notes.failed || out->hints.failed || out->sentences.failed;
    free(ch.rows);
    free(ch.cols);
    free(ch.limits);
    free(ch.digits);
    buf_free(&ch.same);
    buf_free(&ch.dropped);
}

void sheet_free(struct sheet *s)
{
    free_grid(s);
    free(s->title);
    free(s->caption);
    str_list_free(&s->notes);
    str_list_free(&s->hints);
    str_list_free(&s->sentences);
    *s = (struct sheet){0};
}

struct sheet_cell *sheet_cell(const struct sheet *s, int64_t row, int64_t col)
{
    return &s->cells[row * s->n_cols + col];
}

double sheet_characters(const char *text, bool best)
{
    return utf8_count(text) + (best ? 4 : 0);
}

double sheet_column_width(const struct sheet *s, int64_t col, sheet_measure *measure)
{
    double w = fmax(measure(text_or_empty(s->cols[col].head), false),
                    measure(text_or_empty(s->cols[col].unit), false));
    for (int64_t r = 0; r < s->n_rows; r++)
        w = fmax(w,
                 measure(text_or_empty(sheet_cell(s, r, col)->text), sheet_cell(s, r, col)->best));
    return w;
}

int sheet_parts(const struct sheet *s, sheet_measure *measure, double gap, double limit,
                int64_t *from)
{
    double keys = 0, w;
    int n = 0;
    for (int64_t c = 0; c < s->n_cols; c++)
        if (s->cols[c].key)
            keys += sheet_column_width(s, c, measure) + gap;
    w = keys;
    from[0] = 0;
    for (int64_t c = 0; c < s->n_cols; c++) {
        if (s->cols[c].key)
            continue;
        double own = sheet_column_width(s, c, measure) + gap;
        if (w > keys && w + own - gap > limit) {
            from[++n] = c;
            w = keys;
        }
        w += own;
    }
    from[n + 1] = s->n_cols;
    return n + 1;
}
