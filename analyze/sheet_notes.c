/* sheet_notes.c - what stands below a sheet: definitions, what is constant or left out. */
#include "analyze/sheet_choice.h"

#include "analyze/metricfacts.h"

#include <string.h>

/* Units that are too long for a head, of columns that are no metrics themselves (pivots, blocks):
 * "c=1: share of units", those of neighbours once. */
static void note_denominators(const struct choice *ch, struct buf *b)
{
    const char *before = "";
    for (int64_t i = 0; i < ch->n_cols; i++) {
        const struct column *c = &ch->t->cols[ch->cols[i]];
        if (c->type != COL_STATS || metric_def_find(c->name) || !c->unit[0] ||
            choice_unit(ch, ch->cols[i])[0] || strcmp(before, c->unit) == 0)
            continue;
        buf_printf(b, "%s%s: %s.", b->len ? " " : "", choice_head(ch, ch->cols[i]), c->unit);
        before = c->unit;
    }
}

/* "kept: density_elem, kept/allowed pairs." for each metric with a head of its own. */
void sheet_note_heads(const struct choice *ch, struct sheet *s)
{
    struct buf b = {0};
    for (int64_t i = 0; i < ch->n_cols; i++) {
        const struct column *c = &ch->t->cols[ch->cols[i]];
        const char *head = choice_head(ch, ch->cols[i]);
        const struct metric_def *def = c->type == COL_STATS ? metric_def_find(c->name) : NULL;
        bool share = def && def->denominator, renamed = strcmp(head, c->title) != 0;
        if (!def || (!share && !renamed && !(c->unit[0] && !choice_unit(ch, ch->cols[i])[0])))
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

void sheet_note_omitted(struct choice *ch, struct sheet *s)
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

void sheet_note_folded(struct sheet *s, const struct str_list *folded)
{
    for (int64_t i = 0; i < folded->n; i++) {
        struct buf b = {0};
        buf_printf(&b, "[%lld] %s", (long long)i + 1, folded->items[i]);
        str_list_add(&s->notes, buf_str(&b));
        s->failed |= b.failed;
        buf_free(&b);
    }
}
