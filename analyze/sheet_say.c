/*
 * sheet_say.c - sentences that the rows of a table carry.
 *
 * One compares the pairs that settings keep at a like recall: of the settings whose median recall
 * p1 reaches a level, the one that keeps the fewest pairs, and how many times more the others keep.
 * The level is the highest of a fixed list that two methods reach. A difference that the spread
 * over heads explains is called none. A setting that keeps every pair of every head did not choose
 * anything: it is dense attention at this length, takes no part, and gets a warning.
 */
#include "analyze/sheet.h"

#include <stdlib.h>
#include <string.h>

struct setting {
    const char *method, *params;
    const struct stats *kept, *recall;
};

static const double levels[] = {0.99, 0.95, 0.9, 0.8, 0.7, 0.5};

void sheet_setting_name(const char *method, const char *params, struct buf *b)
{
    buf_puts(b, method);
    if (params[0])
        buf_printf(b, " (%s)", params);
}

static void put_name(const struct setting *x, struct buf *b)
{
    sheet_setting_name(x->method, x->params, b);
}

const char *sheet_reason(const struct str_list *full, const char *name)
{
    for (int64_t i = 0; i + 1 < full->n; i += 2)
        if (strcmp(full->items[i], name) == 0)
            return full->items[i + 1];
    return NULL;
}

static bool in_list(const struct str_list *l, const char *name)
{
    for (int64_t i = 0; i < l->n; i++)
        if (strcmp(l->items[i], name) == 0)
            return true;
    return false;
}

bool sheet_is_bound(const struct table *t, const char *method)
{
    for (int64_t i = t->methods.n - t->n_bounds; i < t->methods.n; i++)
        if (strcmp(t->methods.items[i], method) == 0)
            return true;
    return false;
}

bool sheet_keeps_all(const struct stats *density_elem)
{
    return density_elem->n > 0 && density_elem->min == 1;
}

static void warn_full(const struct buf *names, int64_t n, int64_t cells, struct sheet *s)
{
    struct buf b = {0};
    buf_printf(&b, "! %s %s 100 %% ", buf_str(names), n == 1 ? "keeps" : "keep");
    if (cells == 1)
        buf_puts(&b, n == 1 ? "of its only cell" : "of their only cell");
    else if (cells)
        buf_printf(&b, "in all %lld cells", (long long)cells);
    else
        buf_puts(&b, "in all their cells");
    buf_printf(&b, ": at this length %s dense attention, so %s nothing about the method%s.",
               n == 1 ? "its setting is" : "their settings are", n == 1 ? "it says" : "they say",
               n == 1 ? "" : "s");
    str_list_add(&s->notes, buf_str(&b));
    s->failed |= b.failed;
    buf_free(&b);
}

/* Settings that keep everything for one reason; NULL: their method does not say why. */
struct full {
    const char *why;
    struct buf names;
    int64_t n, cells; /* settings; cells of each, 0: they differ */
};

/* Adds a setting to those of its reason. */
static void add_full(const struct table *t, const struct setting *x, struct full *all, int64_t *n,
                     struct sheet *s)
{
    struct buf name = {0};
    int64_t i = 0;
    put_name(x, &name);
    const char *why = sheet_reason(&t->full, buf_str(&name));
    while (i < *n && strcmp(all[i].why ? all[i].why : "", why ? why : "") != 0)
        i++;
    if (i == *n)
        all[(*n)++] = (struct full){.why = why, .cells = x->kept->n};
    buf_printf(&all[i].names, "%s%s", all[i].n++ ? ", " : "", buf_str(&name));
    all[i].cells = all[i].cells == x->kept->n ? all[i].cells : 0;
    s->failed |= name.failed;
    buf_free(&name);
}

/* "! minference keeps 100 %: its budget of ..." */
static void warn_all(struct full *all, int64_t n, struct sheet *s)
{
    for (int64_t i = 0; i < n; i++) {
        struct buf b = {0};
        if (all[i].why) {
            buf_printf(&b, "! %s keep%s 100 %%: %s.", buf_str(&all[i].names),
                       all[i].n == 1 ? "s" : "", all[i].why);
            str_list_add(&s->notes, buf_str(&b));
        } else {
            warn_full(&all[i].names, all[i].n, all[i].cells, s);
        }
        s->failed |= b.failed || all[i].names.failed;
        buf_free(&b);
        buf_free(&all[i].names);
    }
}

/* Settings that may be compared; the others that keep everything are warned of. `full` has room for
 * every row. */
static int64_t collect(const struct table *t, struct setting *out, struct full *full,
                       struct sheet *s)
{
    int64_t m = table_find(t, "method"), p = table_find(t, "params"), n = 0, n_full = 0;
    int64_t kept = table_find(t, "density_elem"), recall = table_find(t, "cra_p1");
    int64_t steps = table_find(t, "steps"), error = table_find(t, "err_l1_rel");
    for (int64_t r = 0; r < t->n_rows && m >= 0 && p >= 0 && kept >= 0; r++) {
        const struct cell *c = table_cell(t, r, kept);
        struct setting x = {table_cell(t, r, m)->text, table_cell(t, r, p)->text, &c->stats,
                            recall < 0 ? NULL : &table_cell(t, r, recall)->stats};
        bool part = steps >= 0 && strcmp(table_cell(t, r, steps)->text, "sparse") == 0;
        if (!c->set || part || strcmp(x.method, "dense") == 0 || sheet_is_bound(t, x.method))
            continue;
        if (in_list(&t->keep_all, x.method))
            continue;
        if (!sheet_keeps_all(x.kept)) {
            if (recall >= 0 && table_cell(t, r, recall)->set)
                out[n++] = x;
            continue;
        }
        /* With a larger error its arithmetic is another: nothing that pairs tell. */
        if (error < 0 || !table_cell(t, r, error)->set ||
            !(table_cell(t, r, error)->stats.max > DENSE_ERROR))
            add_full(t, &x, full, &n_full, s);
    }
    warn_all(full, n_full, s);
    return n;
}

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

/* "2.50 times fewer than xattention, recall p1 0.970", one each. */
static void say_fewer(const struct setting *best, const struct setting *other, struct sheet *s)
{
    double times = other->kept->median / best->kept->median;
    struct buf b = {0};
    buf_printf(&b, "  %.*f times fewer than ", times < 10 ? 2 : 0, times);
    put_name(other, &b);
    buf_printf(&b, ", recall p1 %.3f", other->recall->median);
    str_list_add(&s->sentences, buf_str(&b));
    s->failed |= b.failed;
    buf_free(&b);
}

/* Those that the spread over heads does not tell from the best, in one sentence. */
static void say_equal(const struct setting *x, int64_t m, struct sheet *s)
{
    double least = 1, most = 0;
    int64_t n = 0;
    struct buf b = {0};
    for (int64_t i = 1; i < m; i++) {
        double recall = x[i].recall->median;
        if (stats_differ(x[0].kept, x[i].kept))
            continue;
        buf_puts(&b, n++ ? ", " : "  but no fewer, within the spread over heads, than ");
        put_name(&x[i], &b);
        least = recall < least ? recall : least;
        most = recall > most ? recall : most;
    }
    if (n == 1)
        buf_printf(&b, ", recall p1 %.3f", most);
    else
        buf_printf(&b, "; recall p1 %.3f to %.3f", least, most);
    if (n)
        str_list_add(&s->sentences, buf_str(&b));
    s->failed |= b.failed;
    buf_free(&b);
}

void sheet_say(const struct table *t, struct sheet *s)
{
    struct setting *x = calloc((size_t)t->n_rows + 1, sizeof *x);
    struct full *full = calloc((size_t)t->n_rows + 1, sizeof *full);
    struct buf b = {0};
    int64_t n = 0, m = 0;
    size_t l = 0;
    if (!x || !full) {
        s->failed = true;
        goto out;
    }
    n = collect(t, x, full, s);
    while (l < sizeof levels / sizeof *levels && (m = at_level(x, n, levels[l])) < 2)
        l++;
    if (m >= 2 && x[0].kept->median > 0 && x[0].kept->median < 1) {
        put_name(&x[0], &b);
        buf_printf(&b,
                   " keeps the fewest pairs of the settings with recall p1 of at least %g (medians "
                   "of %lld cells; recall p1 %.3f):",
                   levels[l], (long long)x[0].kept->n, x[0].recall->median);
        str_list_add(&s->sentences, buf_str(&b));
        for (int64_t i = 1; i < m; i++)
            if (stats_differ(x[0].kept, x[i].kept))
                say_fewer(&x[0], &x[i], s);
        say_equal(x, m, s);
    }
out:
    s->failed |= b.failed;
    buf_free(&b);
    free(full);
    free(x);
}
