/*
 * sheet.c - a table as people read it: the parts of the choice (sheet_choice.c, sheet_fit.c,
 * sheet_notes.c) put together, tables of few rows set upright, and widths for the writers.
 */
#include "analyze/sheet_choice.h"

#include "analyze/metricfacts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *sheet_copy(struct sheet *s, const char *text)
{
    char *p = strdup(text);
    s->failed |= !p;
    return p;
}

const char *sheet_text_or_empty(const char *text)
{
    return text ? text : "";
}

void sheet_free_grid(struct sheet *s)
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
    cols[0] = (struct sheet_column){sheet_copy(s, "metric"), sheet_copy(s, ""), false, true};
    cols[1] = (struct sheet_column){sheet_copy(s, "of"), sheet_copy(s, ""), false, true};
    for (int64_t r = 0; r < s->n_rows; r++) {
        buf_reset(&b);
        for (int64_t c = 0; c < s->n_cols; c++)
            if (s->cols[c].key && ch->n_rows > 1)
                buf_printf(&b, "%s%s", b.len ? " " : "", sheet_cell(s, r, c)->text);
        if (ch->n_rows == 1)
            choice_put_row_name(ch, ch->rows[r], &b);
        cols[r + 2] = (struct sheet_column){sheet_copy(s, b.len ? buf_str(&b) : "value"),
                                            sheet_copy(s, ""), true, false};
    }
    for (int64_t c = 0; c < s->n_cols; c++) {
        const struct column *col = &ch->t->cols[ch->cols[c]];
        if (s->cols[c].key || choice_is_zero_count(ch, ch->cols[c]))
            continue;
        cells[n_rows * n_cols].text = sheet_copy(s, col->title);
        cells[n_rows * n_cols + 1].text = sheet_copy(s, col->unit);
        for (int64_t r = 0; r < s->n_rows; r++)
            cells[n_rows * n_cols + 2 + r].text =
                sheet_copy(s, sheet_text_or_empty(sheet_cell(s, r, c)->text));
        n_rows++;
    }
    buf_free(&b);
    sheet_free_grid(s);
    s->cols = cols;
    s->cells = cells;
    s->n_cols = n_cols;
    s->n_rows = n_rows;
}

static bool many_metrics(const struct choice *ch)
{
    int64_t n = 0;
    for (int64_t i = 0; i < ch->n_cols; i++)
        n += !choice_is_key(&ch->t->cols[ch->cols[i]]);
    return ch->n_rows <= FEW_ROWS && n > SHEET_COLUMNS && !ch->t->verdict;
}

/* ---- make ----------------------------------------------------------------------------------- */

static void put_head(const struct table *t, struct sheet *s)
{
    snprintf(s->name, sizeof s->name, "%s", t->name);
    s->title = sheet_copy(s, t->title);
    s->caption = sheet_copy(s, t->caption);
}

static void build(struct choice *ch, struct sheet *s)
{
    struct str_list folded = {0};
    bool turned = false;
    choice_rows(ch, s);
    if (ch->n_rows) {
        choice_columns(ch);
        turned = many_metrics(ch);
        struct sheet_opts all = *ch->o;
        all.all |= turned;
        ch->o = &all;
        choice_fit(ch, s, &folded);
        if (turned)
            transpose(ch, s);
        else if (!s->failed) {
            bool best = sheet_mark_best(ch->t, ch->cols, ch->rows, s);
            sheet_note_heads(ch, s);
            if (best)
                str_list_add(
                    &s->notes,
                    "*: best of its column in mean and median, by more than two standard "
                    "errors; dense attention, what keeps everything and bounds do not compete.");
        }
        sheet_note_omitted(ch, s);
        sheet_note_folded(s, &folded);
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
    sheet_free_grid(s);
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
    double w = fmax(measure(sheet_text_or_empty(s->cols[col].head), false),
                    measure(sheet_text_or_empty(s->cols[col].unit), false));
    for (int64_t r = 0; r < s->n_rows; r++)
        w = fmax(w, measure(sheet_text_or_empty(sheet_cell(s, r, col)->text),
                            sheet_cell(s, r, col)->best));
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
