/*
 * findings.c - what the rows of a table say: the best cell of a column, sentences, warnings.
 *
 * A row is the best of a metric when its mean differs from every other row's by more than two
 * standard errors of the difference and its median is better too. Cells of deterministic metrics
 * have no noise of their own, so the spread over heads stands for it: what is marked would be the
 * best on other heads of the same kind as well.
 *
 * The sentences compare the pairs that settings keep at a like recall: of the settings whose median
 * recall p1 reaches a level, the one that keeps the fewest pairs, and how many times more the
 * others keep. The level is the highest of a fixed list that two methods reach. With every recall
 * and error stands that of the worst cell: a method that loses one head in ten has a perfect
 * median. Settings that keep every pair of every head did not choose anything, take no part, and
 * get a warning.
 */
#include "analyze/sheet.h"

#include "analyze/metricfacts.h"

#include <stdlib.h>
#include <string.h>

bool table_is_bound(const struct table *t, const char *method)
{
    for (int64_t i = t->methods.n - t->n_bounds; i < t->methods.n; i++)
        if (strcmp(t->methods.items[i], method) == 0)
            return true;
    return false;
}

void put_setting_name(const char *method, const char *params, struct buf *b)
{
    buf_puts(b, method);
    if (params[0])
        buf_printf(b, " (%s)", params);
}

const char *find_reason(const struct str_list *full, const char *name)
{
    for (int64_t i = 0; i + 1 < full->n; i += 2)
        if (strcmp(full->items[i], name) == 0)
            return full->items[i + 1];
    return NULL;
}

/* ---- best cells ------------------------------------------------------------------------------ */

static const struct stats *stats_at(const struct table *t, int64_t row, int64_t col)
{
    const struct cell *c = col < 0 ? NULL : table_cell(t, row, col);
    return c && c->set && c->stats.n ? &c->stats : NULL;
}

/* A row that shows 100 % is as good as dense, whatever one head in fifty has dropped. */
static bool competes(const struct table *t, int64_t row)
{
    int64_t col = table_find(t, "method");
    const struct cell *cell = col < 0 ? NULL : table_cell(t, row, col);
    const struct stats *kept = stats_at(t, row, table_find(t, "density_elem"));
    return cell && cell->set && strcmp(cell->text, "dense") != 0 &&
           !table_is_bound(t, cell->text) && !(kept && kept->median >= 1);
}

static bool beats(const struct stats *a, const struct stats *b, enum metric_better better)
{
    if (!stats_differ(a, b))
        return false;
    return better == BETTER_LOWER ? a->mean < b->mean && a->median < b->median
                                  : a->mean > b->mean && a->median > b->median;
}

/* The only row that may be the best has the best mean; fewer than two competitors have no best. */
int64_t find_best(const struct table *t, int64_t col, const int64_t *rows, int64_t n)
{
    enum metric_better better = metric_better(t->cols[col].name);
    const struct stats *a = NULL, *b;
    int64_t best = -1, n_in = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!(b = stats_at(t, rows[i], col)) || !competes(t, rows[i]))
            continue;
        n_in++;
        if (!a || (better == BETTER_LOWER ? b->mean < a->mean : b->mean > a->mean)) {
            a = b;
            best = rows[i];
        }
    }
    for (int64_t i = 0; i < n && best >= 0; i++)
        if (rows[i] != best && (b = stats_at(t, rows[i], col)) && competes(t, rows[i]) &&
            !beats(a, b, better))
            best = -1;
    return n_in > 1 ? best : -1;
}

/* ---- settings -------------------------------------------------------------------------------- */

struct setting {
    const char *method, *params;
    const struct stats *kept, *recall, *error; /* error: NULL = not measured */
};

/* What the sentences are made from: settings to compare, and those that keep everything. */
struct settings {
    struct setting *compared, *full; /* owned */
    int64_t n, n_full;
};

static bool keeps_all(const struct setting *x)
{
    return x->kept->min == 1;
}

/* Dense attention, bounds and methods that keep every pair by design are no settings; of a method
 * with steps that it runs dense the row of all steps stands. */
static void collect(const struct table *t, struct settings *all)
{
    int64_t m = table_find(t, "method"), p = table_find(t, "params");
    int64_t steps = table_find(t, "steps");
    for (int64_t r = 0; r < t->n_rows && m >= 0 && p >= 0; r++) {
        struct setting x = {table_cell(t, r, m)->text, table_cell(t, r, p)->text,
                            stats_at(t, r, table_find(t, "density_elem")),
                            stats_at(t, r, table_find(t, "cra_p1")),
                            stats_at(t, r, table_find(t, "err_l1_rel"))};
        if (!x.kept || strcmp(x.method, "dense") == 0 || table_is_bound(t, x.method) ||
            str_list_has(&t->keep_all, x.method) ||
            (steps >= 0 && strcmp(table_cell(t, r, steps)->text, "sparse") == 0))
            continue;
        if (!keeps_all(&x) && x.recall)
            all->compared[all->n++] = x;
        /* With a larger error its arithmetic is another: nothing that pairs tell. */
        if (keeps_all(&x) && !(x.error && x.error->max > DENSE_ERROR))
            all->full[all->n_full++] = x;
    }
}

/* ---- warnings -------------------------------------------------------------------------------- */

static const char *reason_of(const struct table *t, const struct setting *x)
{
    struct buf name = {0};
    put_setting_name(x->method, x->params, &name);
    const char *why = find_reason(&t->full, buf_str(&name));
    buf_free(&name);
    return why ? why : "at this length that is dense attention, which says nothing about a method";
}

/* One for each reason: "! 100 % kept by minference: its budget of ..." */
static void warn_full(const struct table *t, const struct settings *all, struct sheet *s)
{
    for (int64_t i = 0; i < all->n_full; i++) {
        struct buf b = {0};
        const char *why = reason_of(t, &all->full[i]);
        bool said = false;
        for (int64_t k = 0; k < i && !said; k++)
            said = strcmp(reason_of(t, &all->full[k]), why) == 0;
        for (int64_t k = i; k < all->n_full && !said; k++)
            if (strcmp(reason_of(t, &all->full[k]), why) == 0) {
                buf_puts(&b, b.len ? ", " : "! 100 % kept by ");
                put_setting_name(all->full[k].method, all->full[k].params, &b);
            }
        if (!said) {
            buf_printf(&b, ": %s.", why);
            str_list_add(&s->notes, buf_str(&b));
        }
        s->failed |= b.failed;
        buf_free(&b);
    }
}

/* ---- the fewest pairs at a like recall ------------------------------------------------------- */

static const double levels[] = {0.99, 0.95, 0.9, 0.8, 0.7, 0.5};

static int by_kept(const void *x, const void *y)
{
    const struct setting *a = x, *b = y;
    if (a->kept->median != b->kept->median)
        return a->kept->median < b->kept->median ? -1 : 1;
    return strcmp(a->method, b->method);
}

/* Moves the settings that reach the level to the front, the best of each method only, by kept
 * pairs; returns their number. */
static int64_t at_level(struct setting *x, int64_t n, double level)
{
    int64_t m = 0;
    qsort(x, (size_t)n, sizeof *x, by_kept);
    for (int64_t i = 0; i < n; i++) {
        bool seen = x[i].recall->median < level;
        for (int64_t k = 0; k < m && !seen; k++)
            seen = strcmp(x[k].method, x[i].method) == 0;
        if (!seen) {
            struct setting swap = x[m];
            x[m++] = x[i];
            x[i] = swap;
        }
    }
    return m;
}

/* ": recall p1 0.970, worst 0.410; error L1 1.2 %, worst 14 %". */
static void add_sentence(struct sheet *s, const struct setting *x, struct buf *b)
{
    buf_printf(b, ": recall p1 %.3f, worst %.3f", x->recall->median, x->recall->min);
    if (x->error)
        buf_printf(b, "; error L1 %.2g %%, worst %.2g %%", 100 * x->error->median,
                   100 * x->error->max);
    str_list_add(&s->sentences, buf_str(b));
    s->failed |= b->failed;
    buf_free(b);
}

static void say_fewest(const struct setting *x, int64_t m, double level, struct sheet *s)
{
    struct buf b = {0};
    put_setting_name(x[0].method, x[0].params, &b);
    buf_printf(&b,
               " keeps the fewest pairs of the settings with recall p1 of at least %g (medians and "
               "the worst of %lld cells)",
               level, (long long)x[0].kept->n);
    add_sentence(s, &x[0], &b);
    for (int64_t i = 1; i < m; i++) {
        double times = x[i].kept->median / x[0].kept->median;
        if (stats_differ(x[0].kept, x[i].kept))
            buf_printf(&b, "  %.*f times fewer than ", times < 10 ? 2 : 0, times);
        else
            buf_puts(&b, "  no fewer, within the spread over heads, than ");
        put_setting_name(x[i].method, x[i].params, &b);
        add_sentence(s, &x[i], &b);
    }
}

void find_sentences(const struct table *t, struct sheet *s)
{
    struct settings all = {calloc((size_t)t->n_rows + 1, sizeof(struct setting)),
                           calloc((size_t)t->n_rows + 1, sizeof(struct setting)), 0, 0};
    int64_t m = 0;
    size_t l = 0;
    s->failed |= !all.compared || !all.full;
    if (all.compared && all.full) {
        collect(t, &all);
        warn_full(t, &all, s);
        while (l < sizeof levels / sizeof *levels &&
               (m = at_level(all.compared, all.n, levels[l])) < 2)
            l++;
        const struct stats *kept = all.compared[0].kept;
        if (m >= 2 && kept->median > 0 && kept->median < 1)
            say_fewest(all.compared, m, levels[l], s);
    }
    free(all.compared);
    free(all.full);
}
