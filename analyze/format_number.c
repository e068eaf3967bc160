/*
 * format_number.c - numbers for people: four significant digits of the largest value of a column,
 * the same number of decimals in its rows, but what is too small for them with four digits of its
 * own (a deviation with two), and never 1 for less than 1. A deviation that is rounding of the
 * values is 0. A column in which some mean with its deviation leaves the values that the metric can
 * take shows medians and quartiles.
 */
#include "analyze/format.h"

#include "analyze/metricfacts.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double shown_value(const struct column *c, const struct cell *cell)
{
    return (c->type == COL_STATS ? cell->stats.mean : cell->num) * c->scale;
}

/* Values that differ in their last bits, such as sums in another order, agree: a deviation of 1e-16
 * beside 0.3 says nothing. It is judged by the values, so that the deviation of values that are
 * small themselves stays. */
static double shown_sd(const struct stats *s)
{
    double largest = fmax(fabs(s->min), fabs(s->max));
    return s->sd <= 64 * DBL_EPSILON * largest ? 0 : s->sd;
}

/* Would "mean +- deviation" claim values that the metric cannot take? */
static bool leaves_range(const struct column *c, const struct stats *s)
{
    if (s->n < 2 || c->axis == AXIS_PLAIN || shown_sd(s) == 0 || metric_of_model(c->name))
        return false;
    return s->mean - s->sd < 0 || (c->axis == AXIS_SHARE && s->mean + s->sd > 1);
}

static bool has_quartiles(const struct table *t, int64_t col)
{
    for (int64_t i = 0; i < t->n_rows && t->cols[col].type == COL_STATS; i++)
        if (table_cell(t, i, col)->set &&
            leaves_range(&t->cols[col], &table_cell(t, i, col)->stats))
            return true;
    return false;
}

static struct digits format_digits(const struct table *t, int64_t col, int digits)
{
    const struct column *c = &t->cols[col];
    double largest = 0;
    bool quartiles = has_quartiles(t, col);
    if (c->mixed && c->type != COL_INT)
        return (struct digits){true, false, 0, quartiles};
    for (int64_t i = 0; i < t->n_rows; i++) {
        const struct cell *cell = table_cell(t, i, col);
        double x = fabs(shown_value(c, cell));
        if (cell->set && isfinite(x))
            largest = fmax(largest, x);
    }
    if (c->type == COL_INT || largest == 0)
        return (struct digits){false, false, c->type == COL_INT ? 0 : digits, quartiles};
    if (largest >= 1e7 || largest < 1e-3)
        return (struct digits){false, true, digits - 1, quartiles};
    int decimals = largest >= 0.1 && largest < (digits < 4 ? 1.0005 : 10)
                       ? digits
                       : digits - 1 - (int)floor(log10(largest));
    return (struct digits){false, false, decimals < 0 ? 0 : decimals, quartiles};
}

struct digits *format_all_digits(const struct table *t, int digits, struct buf *b)
{
    struct digits *d = calloc((size_t)t->n_cols + 1, sizeof *d);
    if (!d)
        b->failed = true;
    for (int64_t c = 0; d && c < t->n_cols; c++)
        d[c] = format_digits(t, c, digits);
    return d;
}

/* A share just below 1 must not read as 1, unless it is the rounding of a sum. */
static int decimals_below_one(double x, int decimals)
{
    double rest = 1 - fabs(x);
    if (rest < 1e-9 || rest > 0.5 * pow(10, -decimals))
        return decimals;
    return (int)ceil(-log10(rest));
}

/* digits: of what is too small for the column's decimals. */
static void put_finite(double x, struct digits d, int digits, struct buf *b)
{
    int usual = d.mixed ? 4 : d.decimals, decimals = decimals_below_one(x, usual);
    bool small = fabs(x) < pow(10, 1 - usual); /* two digits would not be left of it */
    if (x == 0)
        buf_printf(b, "%.*f", d.mixed || d.scientific ? 0 : d.decimals, 0.0);
    else if (d.scientific)
        buf_printf(b, "%.*e", d.decimals, x);
    else if (decimals == usual && (d.mixed || small))
        buf_printf(b, "%.*g", d.mixed ? 4 : digits, x);
    else
        buf_printf(b, "%.*f", decimals, x);
}

void format_number(double x, struct digits d, int digits, struct buf *b)
{
    if (isnan(x))
        buf_puts(b, "nan");
    else if (isinf(x))
        buf_puts(b, x < 0 ? "-inf" : "inf");
    else
        put_finite(x, d, digits, b);
}

void format_interval(const struct column *c, const struct stats *s, struct buf *b)
{
    double low, high;
    if (!s->zero_one || !metric_yes_no(c->name))
        return;
    stats_wilson(s, &low, &high);
    buf_printf(b, " [%.2f, %.2f]", low, high);
}

static void put_stats(const struct table *t, int64_t row, int64_t col, struct digits d,
                      const char *pm, struct buf *b)
{
    const struct stats *s = &table_cell(t, row, col)->stats;
    double scale = t->cols[col].scale;
    int64_t n_col = table_find(t, "n");
    if (s->all_inf) {
        buf_puts(b, "inf");
        return;
    }
    if (s->n == 0) {
        buf_printf(b, "no finite value (%lld)", (long long)s->n_bad);
        return;
    }
    format_number((d.quartiles ? s->median : s->mean) * scale, d, 4, b);
    if (d.quartiles && s->n > 1) {
        buf_puts(b, " (");
        format_number(s->q1 * scale, d, 4, b);
        buf_puts(b, " to ");
        format_number(s->q3 * scale, d, 4, b);
        buf_puts(b, ")");
    } else if (s->zero_one && metric_yes_no(t->cols[col].name)) {
        format_interval(t->cols + col, s, b);
    } else if (!isnan(s->sd)) {
        buf_puts(b, pm);
        format_number(shown_sd(s) * scale, d, 2, b);
    }
    if (n_col >= 0 && table_cell(t, row, n_col)->num != (double)s->n)
        buf_printf(b, " (n=%lld)", (long long)s->n);
}

void format_cell(const struct table *t, int64_t row, int64_t col, struct digits d, const char *pm,
                 struct buf *b)
{
    const struct cell *cell = table_cell(t, row, col);
    if (!cell->set)
        buf_puts(b, "-");
    else if (t->cols[col].type == COL_TEXT)
        buf_puts(b, !cell->text[0] && table_has_params(t, col) ? "(defaults)" : cell->text);
    else if (t->cols[col].type == COL_STATS)
        put_stats(t, row, col, d, pm, b);
    else
        format_number(shown_value(&t->cols[col], cell), d, 4, b);
}
