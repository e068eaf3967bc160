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
    bool shares = false;
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
        shares = shares || def->yes_no;
    }
    note_denominators(ch, &b);
    if (shares)
        buf_puts(&b, " In brackets: Wilson's 95 % interval of a share of prompts.");
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

/* "Medians over n = 48 cells", and which columns are means. False: nothing to say, since every row
 * has one cell or every number its spread beside it. */
static bool note_statistic(const struct choice *ch, struct buf *b)
{
    struct buf means = {0};
    int64_t n = common_n(ch), n_medians = 0, n_means = 0;
    for (int64_t i = 0; i < ch->n_cols && !ch->o->wide && n != 1; i++) {
        const struct column *c = &ch->t->cols[ch->cols[i]];
        if (c->type != COL_STATS || c->mixed)
            continue;
        bool mean = choice_shows_mean(c);
        n_means += mean;
        n_medians += !mean;
        if (mean)
            buf_printf(&means, "%s%s", n_means > 1 ? ", " : "", choice_head(ch, ch->cols[i]));
    }
    if (n_medians + n_means) {
        buf_puts(b, n_medians ? "Medians" : "Means");
        if (n > 1)
            buf_printf(b, " over n = %lld cells", (long long)n);
        else if (table_find(ch->t, "n") >= 0)
            buf_puts(b, " over n cells");
        if (n_medians && n_means)
            buf_printf(b, "; means of %s", buf_str(&means));
        buf_puts(b, ".");
    }
    b->failed |= means.failed;
    buf_free(&means);
    return n_medians + n_means > 0;
}

void sheet_note_omitted(struct choice *ch, struct sheet *s)
{
    struct buf b = {0};
    bool spread = note_statistic(ch, &b);
    if (ch->same.len)
        buf_printf(&b, "%sThe same in every row: %s.", b.len ? " " : "", buf_str(&ch->same));
    if (b.len)
        str_list_add(&s->notes, buf_str(&b));
    buf_reset(&b);
    if (spread || ch->dropped.len)
        buf_printf(&b, "With --wide: %s%s%s.", spread ? "means and deviations" : "",
                   spread && ch->dropped.len ? "; " : "", buf_str(&ch->dropped));
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
