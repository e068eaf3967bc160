/*
 * sheet_fit.c - heads and cells of the chosen columns, as many as fit: first long texts become
 * numbered notes, then columns are dropped from the right.
 */
#include "analyze/sheet_choice.h"

#include "analyze/metricfacts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *choice_head(const struct choice *ch, int64_t col)
{
    const struct column *c = &ch->t->cols[col];
    if (ch->o->wide)
        return c->title;
    if (c->type == COL_STATS && strcmp(c->title, c->name) == 0)
        return metric_head(c->name);
    if (table_has_params(ch->t, col))
        return "setting";
    if (strcmp(c->name, "setting") == 0 && table_find(ch->t, "params") >= 0)
        return "in the model"; /* evals: dense_layers, decode and the like, beside the parameters */
    return c->type == COL_STATS && metric_head(c->name) != c->name ? metric_head(c->name)
                                                                   : c->title;
}

/* Units that are no denominators stand below the head. */
const char *choice_unit(const struct choice *ch, int64_t col)
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

/* Of a table without n or statistics the first columns alone: its rows are things of their own,
 * such as printed numbers, and its other texts are said of them. */
static bool is_repeated(const struct choice *ch, int64_t col)
{
    bool stats = false;
    for (int64_t c = 0; c < ch->t->n_cols; c++)
        stats |= ch->t->cols[c].type == COL_STATS;
    return choice_is_key(&ch->t->cols[col]) && ((stats && table_find(ch->t, "n") >= 0) || col < 4);
}

static void put_columns(const struct choice *ch, struct sheet *s)
{
    s->n_cols = ch->n_cols;
    for (int64_t c = 0; c < ch->n_cols; c++) {
        const struct column *col = &ch->t->cols[ch->cols[c]];
        s->cols[c] = (struct sheet_column){.head = sheet_copy(s, choice_head(ch, ch->cols[c])),
                                           .unit = sheet_copy(s, choice_unit(ch, ch->cols[c])),
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
            choice_put_cell(ch, ch->rows[r], ch->cols[c], &text);
            if (ch->t->cols[ch->cols[c]].type == COL_TEXT)
                fold_text(s, &text, ch->limits[ch->cols[c]], folded);
            sheet_cell(s, r, c)->text = sheet_copy(s, buf_str(&text));
        }
    buf_free(&text);
}

static void fill(const struct choice *ch, struct sheet *s, struct str_list *folded)
{
    sheet_free_grid(s);
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

static double own_width(const struct choice *ch, const struct sheet *s, int64_t c)
{
    const struct sheet_space *space = &ch->o->space;
    double head = utf8_count(s->cols[c].head);
    if (s->cols[c].unit[0] && space->gap > 2) /* Markdown has it in the head */
        head += utf8_count(s->cols[c].unit) + 3;
    bool marks = ch->t->verdict && ch->t->cols[ch->cols[c]].type == COL_STATS;
    double own = sheet_column_width(s, c, sheet_characters) + (marks ? space->mark : 0);
    return fmax(head, own) + space->gap;
}

static double total_width(const struct choice *ch, const struct sheet *s)
{
    double w = ch->o->space.gap > 2 ? 1 : -ch->o->space.gap;
    for (int64_t c = 0; c < s->n_cols; c++)
        w += own_width(ch, s, c);
    return w;
}

/* Keys and the widest other column: the narrowest part that a sheet can be cut into. */
static double part_width(const struct choice *ch, const struct sheet *s)
{
    double keys = 1, widest = 0;
    for (int64_t c = 0; c < s->n_cols; c++) {
        double own = own_width(ch, s, c);
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
    double most = ch->o->space.least;
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
void choice_fit(struct choice *ch, struct sheet *s, struct str_list *folded)
{
    bool may_drop = !ch->o->wide && !ch->o->all;
    for (int64_t c = 0; c < ch->t->n_cols; c++)
        ch->limits[c] = SHEET_TEXT;
    while (may_drop && ch->n_cols > SHEET_COLUMNS && ch->n_cols > ch->n_chosen)
        choice_put_column_name(&ch->t->cols[ch->cols[--ch->n_cols]], &ch->dropped);
    for (;;) {
        fill(ch, s, folded);
        if (s->failed)
            return;
        double limit = ch->o->space.part ? ch->o->space.part : s->width;
        bool fits = part_width(ch, s) <= limit && (!may_drop || total_width(ch, s) <= s->width);
        if (fits)
            return;
        bool folds = fold_widest(ch, s);
        if (!folds && may_drop && ch->n_cols > ch->n_chosen)
            choice_put_column_name(&ch->t->cols[ch->cols[--ch->n_cols]], &ch->dropped);
        else if (!folds)
            return;
    }
}
