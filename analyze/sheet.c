/*
 * sheet.c - see sheet.h. A row shows the median of its cells, of `eval` records their mean; --wide
 * shows means and deviations. Beside a median may stand the worst cell: a method that is exact on
 * nine heads of ten has a perfect median.
 */
#include "analyze/sheet.h"
#include "core/mem.h"

#include "analyze/format.h"
#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "analyze/query.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A column that is shown: of the table, and of its statistics the worst in place of the median. */
struct shown {
    int64_t col;
    bool worst;
};

struct view {
    const struct table *t;
    bool wide;
    int64_t *rows;
    struct shown *cols; /* room for two of each column */
    int64_t n_rows, n_cols;
    struct digits *digits;
    struct buf dropped; /* names of columns that are not in brief */
    struct buf same;    /* "name value" of constant columns */
    struct sheet *s;
};

static char *copy(struct sheet *s, const char *text)
{
    char *p = strdup(text);
    s->failed |= !p;
    return p;
}

static void add_note(struct sheet *s, struct str_list *to, struct buf *b)
{
    if (b->len)
        str_list_add(to, buf_str(b));
    s->failed |= b->failed || to->failed;
    buf_free(b);
}

/* n, skip, error, calls or cells. */
static bool is_count(const struct column *c)
{
    static const char *const names[] = {"n", "skip", "error", "calls", "cells"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (c->type == COL_INT && strcmp(c->name, names[i]) == 0)
            return true;
    return false;
}

/* What says what a row is. */
static bool is_key(const struct column *c)
{
    return c->type == COL_TEXT || (c->type != COL_STATS && !is_count(c));
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

static void put_value(const struct column *c, double x, struct digits d, struct buf *b)
{
    if (metric_percent(c->name))
        put_percent(x, b);
    else if (c->axis == AXIS_SHARE && x > 0.9995 && x < 1 - 1e-9)
        buf_puts(b, "> 0.999");
    else
        format_number(x * c->scale, d, 3, b);
}

/* Means in place of medians: beside printed means, and of numbers of a model. */
static bool shows_mean(const struct column *c)
{
    return c->mixed || metric_of_model(c->name);
}

static void put_stats(const struct view *v, int64_t row, struct shown at, struct buf *b)
{
    const struct stats *s = &table_cell(v->t, row, at.col)->stats;
    const struct column *c = &v->t->cols[at.col];
    int64_t n_col = table_find(v->t, "n");
    if (s->n == 0)
        buf_puts(b, s->all_inf ? "inf" : "not finite");
    else if (at.worst)
        put_value(c, metric_worst(c->name, s), v->digits[at.col], b);
    else
        put_value(c, shows_mean(c) ? s->mean : s->median, v->digits[at.col], b);
    if (s->n == 0 || at.worst)
        return;
    format_interval(c, s, b);
    if (n_col >= 0 && table_cell(v->t, row, n_col)->num != (double)s->n)
        buf_printf(b, " (n=%lld)", (long long)s->n);
}

/* Dense attention has no setting, a bound says so. */
static void put_text(const struct table *t, int64_t row, int64_t col, struct buf *b)
{
    const char *text = table_cell(t, row, col)->text;
    int64_t m = table_find(t, "method");
    const char *method = m < 0 || !table_cell(t, row, m)->set ? "" : table_cell(t, row, m)->text;
    if (table_has_params(t, col) && !text[0])
        buf_puts(b, strcmp(method, "dense") == 0 ? "" : "defaults");
    else
        buf_puts(b, text);
    if (col == m && method_flags(method) & METHOD_BOUND)
        buf_puts(b, " (bound)");
}

static void put_cell(const struct view *v, int64_t row, struct shown at, struct buf *b)
{
    const struct cell *cell = table_cell(v->t, row, at.col);
    enum column_type type = v->t->cols[at.col].type;
    if (v->wide)
        format_cell(v->t, row, at.col, v->digits[at.col], " \u00b1 ", b);
    else if (!cell->set)
        buf_puts(b, "-");
    else if (type == COL_STATS)
        put_stats(v, row, at, b);
    else if (type == COL_TEXT)
        put_text(v->t, row, at.col, b);
    else
        format_cell(v->t, row, at.col, v->digits[at.col], "", b);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static bool same_before(const struct table *t, int64_t a, int64_t b, int64_t col)
{
    for (int64_t c = 0; c < col; c++) {
        const struct cell *x = table_cell(t, a, c), *y = table_cell(t, b, c);
        if (strcmp(x->text ? x->text : "", y->text ? y->text : "") != 0 || x->num != y->num)
            return false;
    }
    return true;
}

/* The place of a row's method in the user's order. */
static int64_t method_of(const struct table *t, int64_t row, int64_t col)
{
    const struct cell *cell = table_cell(t, row, col);
    int64_t m = 0;
    while (cell->set && m < t->methods.n && strcmp(t->methods.items[m], cell->text) != 0)
        m++;
    return m;
}

/* Rows that agree in the columns before "method" are in the user's order. */
static void order_by_method(struct view *v)
{
    int64_t col = table_find(v->t, "method"), n = 0;
    OWN(free_at) int64_t *rows = calloc((size_t)v->n_rows + 1, sizeof *rows);
    v->s->failed |= !rows;
    for (int64_t a = 0, b; rows && col >= 0 && a < v->n_rows; a = b) {
        for (b = a + 1; b < v->n_rows && same_before(v->t, v->rows[b - 1], v->rows[b], col); b++)
            ;
        for (int64_t m = 0; m <= v->t->methods.n; m++)
            for (int64_t i = a; i < b; i++)
                if (method_of(v->t, v->rows[i], col) == m)
                    rows[n++] = v->rows[i];
    }
    for (int64_t i = 0; i < n; i++)
        v->rows[i] = rows[i];
}

static bool has_number(const struct table *t, int64_t row, bool *any_stats)
{
    bool has = false;
    for (int64_t c = 0; c < t->n_cols; c++) {
        *any_stats |= t->cols[c].type == COL_STATS;
        has |= t->cols[c].type == COL_STATS && table_cell(t, row, c)->set;
    }
    return has;
}

static void put_row_name(const struct view *v, int64_t row, struct buf *b)
{
    for (int64_t c = 0, n = 0; c < v->t->n_cols; c++) {
        const struct cell *cell = table_cell(v->t, row, c);
        if (is_key(&v->t->cols[c]) && cell->set && !(cell->text && !cell->text[0])) {
            buf_puts(b, n++ ? " " : "");
            format_cell(v->t, row, c, v->digits[c], "", b);
        }
    }
}

/* Rows without any number say one thing together. */
static void choose_rows(struct view *v)
{
    struct buf note = {0};
    bool any_stats = false;
    int64_t n_without = 0;
    for (int64_t r = 0; r < v->t->n_rows; r++)
        if (has_number(v->t, r, &any_stats) || !any_stats || table_find(v->t, "n") < 0)
            v->rows[v->n_rows++] = r;
        else if (n_without++ < 8) {
            buf_puts(&note, note.len ? "; " : "Without a number: ");
            put_row_name(v, r, &note);
        }
    if (n_without > 8)
        buf_printf(&note, "; %lld more", (long long)n_without - 8);
    if (v->n_rows == 0) {
        buf_reset(&note);
        for (int64_t r = 0; r < v->t->n_rows; r++)
            v->rows[v->n_rows++] = r;
    }
    if (note.len)
        buf_puts(&note, " (table status has the reasons).");
    add_note(v->s, &v->s->notes, &note);
    if (!v->t->sorted)
        order_by_method(v);
}

/* ---- columns -------------------------------------------------------------------------------- */

/* Is the name in the list of patterns? *worst: with a "!" behind it. */
static bool in_brief(const char *brief, const char *name, bool *worst)
{
    for (const char *p = brief; p && *p;) {
        size_t len = strcspn(p, ",");
        char one[64];
        bool mark = len && p[len - 1] == '!';
        snprintf(one, sizeof one, "%.*s", (int)(len - mark), p);
        if (name_matches(one, name)) {
            *worst = mark;
            return true;
        }
        p += len + (p[len] == ',');
    }
    return false;
}

/* A list that finds one column or none is of no use. One that names a key names all keys that are
 * shown. */
static void judge_brief(const struct table *t, bool *applies, bool *names_keys)
{
    int n = 0;
    bool worst;
    *names_keys = false;
    for (int64_t c = 0; c < t->n_cols; c++) {
        bool named = !is_count(&t->cols[c]) && in_brief(t->brief, t->cols[c].name, &worst);
        n += named;
        *names_keys |= named && is_key(&t->cols[c]);
    }
    *applies = n > 1;
}

static void put_column_name(const struct column *c, struct buf *b)
{
    buf_printf(b, "%s%s", b->len ? ", " : "", c->type == COL_STATS ? c->name : c->title);
}

static bool is_zero_count(const struct view *v, int64_t col)
{
    bool zero = is_count(&v->t->cols[col]);
    for (int64_t i = 0; i < v->n_rows && zero; i++)
        zero = table_cell(v->t, v->rows[i], col)->num == 0;
    return zero;
}

/* Does every shown row have the same text in the column? Its text is left in b. */
static bool is_constant(const struct view *v, struct shown at, struct buf *b)
{
    OWN(buf_free) struct buf other = {0};
    bool same = v->n_rows > 1;
    buf_reset(b);
    put_cell(v, v->rows[0], at, b);
    for (int64_t i = 1; i < v->n_rows && same; i++) {
        buf_reset(&other);
        put_cell(v, v->rows[i], at, &other);
        same = strcmp(buf_str(b), buf_str(&other)) == 0;
    }
    return same;
}

/* What a column says in every row; the name has the unit of the records, the text another. */
static void put_same(const struct column *c, bool worst, const char *text, struct buf *b)
{
    const char *unit = "";
    bool scaled = c->type == COL_STATS && metric_scale(c->name, &unit) != 1;
    put_column_name(c, b);
    buf_printf(b, "%s %s%s%s", worst ? " (worst)" : "",
               strcmp(text, "-") == 0 ? "(empty)"
               : *text                ? text
                                      : "(none)",
               scaled ? " " : "", scaled ? unit : "");
}

/* A column that is in brief: shown, or named below if it is constant. What the user chose (no
 * brief) is shown. */
static void show_column(struct view *v, struct shown at)
{
    OWN(buf_free) struct buf text = {0};
    const struct column *c = &v->t->cols[at.col];
    if (!v->t->brief || !is_constant(v, at, &text))
        v->cols[v->n_cols++] = at;
    else if (strcmp(c->name, "n") != 0)
        put_same(c, at.worst, buf_str(&text), &v->same);
    v->s->failed |= text.failed;
}

/* Keys first, then metrics, then counts that vary; with --wide all as they stand. */
static void choose_columns(struct view *v)
{
    const struct table *t = v->t;
    OWN(buf_free) struct buf text = {0};
    bool applies, names_keys;
    for (int64_t c = 0; c < t->n_cols && v->wide; c++)
        v->cols[v->n_cols++] = (struct shown){c, false};
    if (v->wide)
        return;
    judge_brief(t, &applies, &names_keys);
    for (int pass = 0; pass < 3; pass++)
        for (int64_t c = 0; c < t->n_cols; c++) {
            const struct column *col = &t->cols[c];
            bool key = is_key(col), count = is_count(col), worst = false;
            if ((key ? 0 : count ? 2 : 1) != pass || is_zero_count(v, c))
                continue;
            bool named = in_brief(t->brief, col->name, &worst);
            if (!applies || count || (key && !names_keys) || named)
                show_column(v, (struct shown){c, false});
            else if (!is_constant(v, (struct shown){c, false}, &text))
                put_column_name(col, &v->dropped);
            if (worst && col->type == COL_STATS)
                show_column(v, (struct shown){c, true});
        }
}

static const char *head_of(const struct view *v, int64_t col)
{
    const struct column *c = &v->t->cols[col];
    if (v->wide)
        return c->title;
    if (table_has_params(v->t, col))
        return "setting";
    if (strcmp(c->name, "setting") == 0 && table_find(v->t, "params") >= 0)
        return "in the model"; /* evals: dense_layers, decode and the like, beside the parameters */
    return c->type == COL_STATS &&
                   (metric_head(c->name) != c->name || strcmp(c->title, c->name) == 0)
               ? metric_head(c->name)
               : c->title;
}

/* Units that are no denominators stand below the head. */
static const char *unit_of(const struct view *v, int64_t col)
{
    const struct column *c = &v->t->cols[col];
    const struct metric_def *def = c->type == COL_STATS ? metric_def_find(c->name) : NULL;
    return !v->wide && ((def && def->denominator) || strlen(c->unit) > 10) ? "" : c->unit;
}

/* ---- what the rows say ---------------------------------------------------------------------- */

/* A row is the best of a metric when its mean differs from every other row's by more than two
 * standard errors of the difference and its median is better too. Cells of deterministic metrics
 * have no noise of their own, so the spread over heads stands for it: what is marked would be the
 * best on other heads of the same kind as well.
 *
 * The sentences compare the pairs that settings keep at a like recall: of the settings whose median
 * recall p1 reaches a level, the one that keeps the fewest pairs, and how many times more the
 * others keep. The level is the highest of a fixed list that two methods reach. With every recall
 * and error stands that of the worst cell: a method that loses one head in ten has a perfect
 * median. Settings that keep every pair of every head did not choose anything, take no part, and
 * get a warning. */

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
           !(method_flags(cell->text) & METHOD_BOUND) && !(kept && kept->median >= 1);
}

static bool beats(const struct stats *a, const struct stats *b, enum metric_better better)
{
    if (!stats_differ(a, b))
        return false;
    return better == BETTER_LOWER ? a->mean < b->mean && a->median < b->median
                                  : a->mean > b->mean && a->median > b->median;
}

/* The only row that may be the best has the best mean; fewer than two competitors have no best. */
static int64_t find_best(const struct table *t, int64_t col, const int64_t *rows, int64_t n)
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
        if (!x.kept || strcmp(x.method, "dense") == 0 ||
            method_flags(x.method) & (METHOD_BOUND | METHOD_KEEPS_ALL) ||
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
    OWN(buf_free) struct buf name = {0};
    put_setting_name(x->method, x->params, &name);
    const char *why = find_reason(&t->full, buf_str(&name));
    return why ? why : "at this length that is dense attention, which says nothing about a method";
}

/* One for each reason: "! 100 % kept by minference: its budget of ..." */
static void warn_full(const struct table *t, const struct settings *all, struct sheet *s)
{
    for (int64_t i = 0; i < all->n_full; i++) {
        OWN(buf_free) struct buf b = {0};
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

static void find_sentences(const struct table *t, struct sheet *s)
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

/* ---- the grid -------------------------------------------------------------------------------- */

static void fill_heads(struct view *v)
{
    for (int64_t i = 0; i < v->n_cols; i++) {
        const struct shown at = v->cols[i];
        const struct column *c = &v->t->cols[at.col];
        const struct metric_def *def = c->type == COL_STATS ? metric_def_find(c->name) : NULL;
        OWN(buf_free) struct buf head = {0};
        buf_printf(&head, "%s%s", head_of(v, at.col),
                   v->wide && v->digits[at.col].quartiles ? ", median (quartiles)" : "");
        v->s->cols[i] =
            (struct sheet_column){.head = copy(v->s, buf_str(&head)),
                                  .unit = copy(v->s, at.worst ? "worst" : unit_of(v, at.col)),
                                  .right = c->type != COL_TEXT,
                                  .key = is_key(c),
                                  .definition = def ? def->definition : NULL};
        v->s->failed |= head.failed;
    }
}

static bool is_ranked(const struct view *v, struct shown at)
{
    const struct column *c = &v->t->cols[at.col];
    return v->t->verdict && !at.worst && c->type == COL_STATS && metric_def_find(c->name) &&
           metric_better(c->name) != BETTER_NEITHER;
}

/* Returns whether a cell is the best of its column. */
static bool fill_cells(struct view *v)
{
    OWN(buf_free) struct buf text = {0};
    bool any = false;
    for (int64_t i = 0; i < v->n_cols; i++) {
        int64_t best =
            is_ranked(v, v->cols[i]) ? find_best(v->t, v->cols[i].col, v->rows, v->n_rows) : -1;
        any |= best >= 0;
        for (int64_t r = 0; r < v->n_rows; r++) {
            buf_reset(&text);
            put_cell(v, v->rows[r], v->cols[i], &text);
            *sheet_cell(v->s, r, i) =
                (struct sheet_cell){copy(v->s, buf_str(&text)), v->rows[r] == best};
        }
    }
    v->s->failed |= text.failed;
    return any;
}

static bool fill(struct view *v)
{
    struct sheet *s = v->s;
    s->cols = calloc((size_t)v->n_cols + 1, sizeof *s->cols);
    s->cells = calloc((size_t)(v->n_rows * v->n_cols) + 1, sizeof *s->cells);
    s->failed |= !s->cols || !s->cells;
    if (s->failed)
        return false;
    s->n_cols = v->n_cols;
    s->n_rows = v->n_rows;
    fill_heads(v);
    return fill_cells(v);
}

/* ---- notes ---------------------------------------------------------------------------------- */

/* "kept: density_elem, kept/allowed pairs." for each metric with a head of its own, "c=1: share of
 * units." for what is no metric itself and has a long unit, once for neighbours. */
static void note_heads(struct view *v)
{
    struct buf b = {0};
    const char *before = "";
    bool shares = false, worst = false;
    for (int64_t i = 0; i < v->n_cols; i++) {
        const struct column *c = &v->t->cols[v->cols[i].col];
        const char *head = head_of(v, v->cols[i].col);
        const struct metric_def *def = c->type == COL_STATS ? metric_def_find(c->name) : NULL;
        bool share = def && def->denominator, renamed = strcmp(head, c->title) != 0;
        bool hidden = c->unit[0] && !unit_of(v, v->cols[i].col)[0];
        worst |= v->cols[i].worst;
        if (v->cols[i].worst || c->type != COL_STATS)
            continue;
        if (def && (share || renamed || hidden)) {
            buf_printf(&b, "%s%s:%s%s", b.len ? " " : "", head, renamed ? " " : "",
                       renamed ? c->name : "");
            if (share)
                buf_printf(&b, "%s %s", renamed ? "," : "", metric_unit(c->name));
            buf_puts(&b, ".");
            shares = shares || def->yes_no;
        } else if (!def && hidden && strcmp(before, c->unit) != 0) {
            buf_printf(&b, "%s%s: %s.", b.len ? " " : "", head, c->unit);
            before = c->unit;
        }
    }
    if (worst)
        buf_printf(&b, "%sworst: the worst of the cells.", b.len ? " " : "");
    if (shares)
        buf_puts(&b, " In brackets: Wilson's 95 % interval of a share of prompts.");
    add_note(v->s, &v->s->notes, &b);
}

/* n of every row, -1 where they differ or where the table has none. */
static int64_t common_n(const struct view *v)
{
    int64_t col = table_find(v->t, "n"), n = -1;
    for (int64_t i = 0; col >= 0 && i < v->n_rows; i++) {
        int64_t x = (int64_t)table_cell(v->t, v->rows[i], col)->num;
        if (i && x != n)
            return -1;
        n = x;
    }
    return n;
}

/* "Medians over n = 48 cells", and which columns are means. False: nothing to say, since every row
 * has one cell or every number its spread beside it. */
static bool note_statistic(const struct view *v, struct buf *b)
{
    OWN(buf_free) struct buf means = {0};
    int64_t n = common_n(v), n_medians = 0, n_means = 0;
    for (int64_t i = 0; i < v->n_cols && !v->wide && n != 1; i++) {
        const struct column *c = &v->t->cols[v->cols[i].col];
        if (c->type != COL_STATS || c->mixed || v->cols[i].worst)
            continue;
        bool mean = shows_mean(c);
        n_means += mean;
        n_medians += !mean;
        if (mean)
            buf_printf(&means, "%s%s", n_means > 1 ? ", " : "", head_of(v, v->cols[i].col));
    }
    if (n_medians + n_means) {
        buf_puts(b, n_medians ? "Medians" : "Means");
        if (n > 1)
            buf_printf(b, " over n = %lld cells", (long long)n);
        else if (table_find(v->t, "n") >= 0)
            buf_puts(b, " over n cells");
        if (n_medians && n_means)
            buf_printf(b, "; means of %s", buf_str(&means));
        buf_puts(b, ".");
    }
    b->failed |= means.failed;
    return n_medians + n_means > 0;
}

static void note_omitted(struct view *v)
{
    struct buf b = {0}, hint = {0};
    bool spread = note_statistic(v, &b);
    if (v->same.len)
        buf_printf(&b, "%sThe same in every row: %s.", b.len ? " " : "", buf_str(&v->same));
    if (spread || v->dropped.len)
        buf_printf(&hint, "With --wide: %s%s%s.", spread ? "means and deviations" : "",
                   spread && v->dropped.len ? "; " : "", buf_str(&v->dropped));
    v->s->failed |= v->same.failed || v->dropped.failed;
    add_note(v->s, &v->s->notes, &b);
    add_note(v->s, &v->s->hints, &hint);
}

/* ---- make ----------------------------------------------------------------------------------- */

static void build(struct view *v)
{
    struct sheet *s = v->s;
    choose_rows(v);
    if (v->n_rows) {
        choose_columns(v);
        bool best = fill(v);
        note_heads(v);
        if (best)
            str_list_add(&s->notes,
                         "*: best of its column in mean and median, by more than two standard "
                         "errors; dense attention, what keeps everything and bounds do not "
                         "compete.");
        note_omitted(v);
    }
    s->n_own = s->notes.n;
    for (int64_t i = 0; i < v->t->notes.n; i++)
        str_list_add(&s->notes, v->t->notes.items[i]);
    if (v->t->verdict)
        find_sentences(v->t, s);
}

void sheet_make(const struct table *t, const struct sheet_opts *o, struct sheet *out)
{
    struct buf failed = {0};
    struct view v = {.t = t, .wide = o->wide, .s = out};
    *out = (struct sheet){.width = o->width ? o->width : SHEET_WIDTH};
    snprintf(out->name, sizeof out->name, "%s", t->name);
    out->title = copy(out, t->title);
    out->caption = copy(out, t->caption);
    v.rows = calloc((size_t)t->n_rows + 1, sizeof *v.rows);
    v.cols = calloc(2 * (size_t)t->n_cols + 1, sizeof *v.cols);
    v.digits = format_all_digits(t, o->wide ? 4 : 3, &failed);
    out->failed |= !v.rows || !v.cols || !v.digits;
    if (!out->failed)
        build(&v);
    out->failed |= out->notes.failed || out->hints.failed || out->sentences.failed;
    free(v.rows);
    free(v.cols);
    free(v.digits);
    buf_free(&v.same);
    buf_free(&v.dropped);
}

void sheet_free(struct sheet *s)
{
    for (int64_t i = 0; i < s->n_rows * s->n_cols; i++)
        free(s->cells[i].text);
    for (int64_t c = 0; c < s->n_cols; c++) {
        free(s->cols[c].head);
        free(s->cols[c].unit);
    }
    free(s->cells);
    free(s->cols);
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
