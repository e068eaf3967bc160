/*
 * sheet_best.c - the best cell of a column, where it is better by more than the spread over heads
 * explains.
 *
 * A row is the best of a metric when its mean differs from every other row's by more than two
 * standard errors of the difference, sqrt(sd_a^2 / n_a + sd_b^2 / n_b), and its median is better
 * too. Cells of deterministic metrics have no noise of their own, so the spread over heads stands
 * for it: what is marked would be the best on other heads of the same kind as well. Dense
 * attention, settings that keep everything in most cells and bounds do not compete.
 */
#include "analyze/sheet.h"

#include "analyze/metricfacts.h"

#include <string.h>

static bool competes(const struct table *t, int64_t row)
{
    int64_t col = table_find(t, "method"), kept = table_find(t, "density_elem");
    const struct cell *cell = col < 0 ? NULL : table_cell(t, row, col);
    if (!cell || !cell->set || strcmp(cell->text, "dense") == 0)
        return false;
    /* A row that shows 100 % is as good as dense, whatever one head in fifty has dropped. */
    return !sheet_is_bound(t, cell->text) &&
           (kept < 0 || !(table_cell(t, row, kept)->stats.median >= 1));
}

static bool beats(const struct stats *a, const struct stats *b, enum metric_better better)
{
    if (!stats_differ(a, b))
        return false;
    return better == BETTER_LOWER ? a->mean < b->mean && a->median < b->median
                                  : a->mean > b->mean && a->median > b->median;
}

/* Row of the sheet that beats all others, -1 = none; fewer than two competitors have no best. */
static int64_t best_row(const struct table *t, int64_t col, const int64_t *rows, int64_t n)
{
    enum metric_better better = metric_better(t->cols[col].name);
    int64_t n_in = 0, best = -1;
    for (int64_t i = 0; i < n; i++) {
        const struct cell *a = table_cell(t, rows[i], col);
        bool wins = competes(t, rows[i]) && a->set && a->stats.n;
        n_in += wins;
        for (int64_t k = 0; k < n && wins; k++) {
            const struct cell *b = table_cell(t, rows[k], col);
            if (k != i && competes(t, rows[k]) && b->set && b->stats.n)
                wins = beats(&a->stats, &b->stats, better);
        }
        best = wins ? i : best;
    }
    return n_in > 1 ? best : -1;
}

bool sheet_mark_best(const struct table *t, const int64_t *cols, const int64_t *rows,
                     struct sheet *s)
{
    bool any = false;
    for (int64_t c = 0; t->verdict && c < s->n_cols; c++) {
        const struct column *col = &t->cols[cols[c]];
        if (col->type != COL_STATS || !metric_def_find(col->name) ||
            metric_better(col->name) == BETTER_NEITHER)
            continue;
        int64_t r = best_row(t, cols[c], rows, s->n_rows);
        if (r >= 0)
            sheet_cell(s, r, c)->best = any = true;
    }
    return any;
}
