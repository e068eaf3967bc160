/*
 * chart.c - points and panels of a figure of records, names and axes of metrics.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void chart_init(struct chart *c, const struct figure *f, const struct figure_args *a)
{
    *c = (struct chart){.f = f, .a = a, .metric = a->metrics ? a->metrics : f->metric};
}

void chart_free(struct chart *c)
{
    chart_groups_free(&c->g);
    series_free(&c->l);
    chart_facets_free(&c->facets);
    free(c->p);
    str_list_free(&c->metrics);
    str_list_free(&c->places);
    free(c->grid.v);
    free(c->grid.of);
    str_list_free(&c->grid.titles);
    str_list_free(&c->grid.names);
    str_list_free(&c->grid.x_names);
    str_list_free(&c->grid.y_names);
    marks_free(&c->marks);
    buf_free(&c->title);
    buf_free(&c->says);
    buf_free(&c->caption);
    buf_free(&c->data);
    canvas_free(&c->canvas);
}

int chart_regroup(struct chart *c, const char *keys, const char *metric, enum group_key without,
                  unsigned flags, struct err *err)
{
    enum group_key list[KEYS_MAX];
    int n = 0, rc = keys[0] ? keys_parse(keys, "figure", list, &n, err) : 0;
    chart_groups_free(&c->g);
    if (!rc)
        rc = chart_group(c->a, list, n,
                         (flags & FIGURE_ALL_CALLS ? 0 : GROUP_SPLIT_STEPS) |
                             (flags & FIGURE_PER_HEAD ? GROUP_PER_HEAD : 0),
                         metric, without, &c->g, err);
    return rc;
}

int chart_add(struct chart *c, const struct chart_point *p, struct err *err)
{
    int rc = mem_grow(&c->p, &c->cap, c->n + 1, sizeof *c->p, "points", err);
    if (rc)
        return rc;
    c->p[c->n] = *p;
    c->p[c->n++].panel = c->panels - 1;
    return 0;
}

int chart_add_stats(struct chart *c, int series, double x, const struct stats *s, double scale,
                    struct err *err)
{
    bool median = c->f->flags & FIGURE_QUARTILES;
    struct chart_point p = {.series = series,
                            .x = x,
                            .y = (median ? s->median : s->mean) * scale,
                            .lo = (median         ? s->q1
                                   : isnan(s->sd) ? 0
                                                  : s->sd) *
                                  scale,
                            .hi = s->q3 * scale};
    return series < 0 ? err->code : chart_add(c, &p, err);
}

static int by_place(const void *a, const void *b)
{
    const struct chart_point *p = a, *q = b;
    if (p->panel != q->panel)
        return p->panel - q->panel;
    if (p->series != q->series)
        return p->series - q->series;
    return p->x != q->x ? (p->x > q->x) - (p->x < q->x) : (p->y > q->y) - (p->y < q->y);
}

void chart_sort(struct chart *c)
{
    if (c->n)
        qsort(c->p, (size_t)c->n, sizeof *c->p, by_place);
}

void chart_y_name(const struct chart_panel *p, struct buf *b)
{
    double scale;
    if (p->y_name[0])
        buf_puts(b, p->y_name);
    else
        chart_metric_label(p->metric, b, &scale);
}

struct chart_panel *chart_panel(struct chart *c, const char *metric, const char *x_name,
                                enum figure_axis axis)
{
    struct chart_panel *p = &c->panel[c->panels++];
    *p = (struct chart_panel){.metric = metric, .axis = axis};
    snprintf(p->x_name, sizeof p->x_name, "%s", x_name);
    return p;
}

int chart_series_done(struct chart *c, enum series_tell tell, struct err *err)
{
    int rc = 0;
    TRY(series_labels(&c->l, LEGEND_CHARS, err));
    if (c->l.n && c->l.s[0].method[0])
        series_shade(&c->l, tell);
    int most = c->split ? 0 : c->facets_from ? c->facets_from : FACET_SERIES;
    TRY(chart_facets_make(&c->l, most, &c->facets, err));
    chart_facets_note(&c->facets, &c->l, (c->f->flags & FIGURE_GREY) && !c->split, &c->caption);
out:
    return rc;
}

/* ---- title ----------------------------------------------------------------------------------- */

static void put_metrics(const struct chart *c, struct buf *b)
{
    int n = (int)c->metrics.n;
    for (int i = 0; i < n; i++) {
        buf_puts(b, i == 0 ? "" : i + 1 < n ? "; " : " and ");
        chart_metric_name(c->metrics.items[i], b);
    }
    if (n == 0)
        chart_metric_name(c->metric, b);
}

/* What stands for a word with a dollar in the title of a figure; its length. */
static size_t put_word(struct chart *c, const char *word, struct buf *b)
{
    if (strncmp(word, "$over", 5) == 0) {
        chart_over(&c->g, c->metrics.n ? &c->metrics : NULL, b);
        return 5;
    }
    if (word[1] == 'y')
        put_metrics(c, b);
    else if (word[1] == 's')
        buf_puts(b, buf_str(&c->says));
    else
        for (int i = 0; i < c->panels; i++)
            if (i == 0 || strcmp(c->panel[i].x_name, c->panel[i - 1].x_name) != 0)
                buf_printf(b, "%s%s", i ? ", " : "", c->panel[i].x_name);
    return 2;
}

int chart_title(struct chart *c, struct err *err)
{
    for (const char *t = c->f->title; *t;) {
        size_t plain = strcspn(t, "$");
        buf_put(&c->title, t, plain);
        t += plain;
        t += *t ? put_word(c, t, &c->title) : 0;
    }
    if (c->f->caption)
        buf_printf(&c->caption, " %s", c->f->caption);
    int rc = buf_check(&c->title, "title", err);
    return rc ? rc : buf_check(&c->caption, "caption", err);
}

/* ---- axes ------------------------------------------------------------------------------------ */

/* Lengths are told apart by what they are times another: "8K 16K 32K", all at one distance. */
static void token_axis(double low, double high, struct buf *s)
{
    int first = (int)ceil(log2(low) - 0.01), last = (int)floor(log2(high) + 0.01);
    int every = (last - first) / 8 + 1;
    buf_printf(s, "set logscale x 2\nset xrange [%.6g:%.6g]\nset xtics (", low / 1.15, high * 1.15);
    for (int k = first; k <= last; k += every)
        buf_printf(s, "%s'%.0f%s' %.0f", k > first ? ", " : "", ldexp(1, k % 10),
                   k < 10   ? ""
                   : k < 20 ? "K"
                   : k < 30 ? "M"
                            : "G",
                   ldexp(1, k));
    buf_puts(s, ")\n");
}

/* An axis of few decades has too few numbers of its own. */
void chart_log_x(double low, double high, int width, struct buf *s)
{
    int first = (int)floor(log10(low)), last = (int)ceil(log10(high));
    buf_puts(s, "set logscale x\nset format x '%g'\n");
    if (last - first > width / 150.0)
        return;
    buf_puts(s, "set xtics add (");
    for (int k = first; k < last; k++)
        buf_printf(s, "%s%g, %g", k > first ? ", " : "", 2 * pow(10, k), 5 * pow(10, k));
    buf_puts(s, ")\n");
}

/* A sweep over more than a decade of positive values reads better on a logarithmic axis; layers,
 * steps and the like are counted: no tics between them. */
static void x_axis(enum figure_axis axis, double low, double high, int width, struct buf *s)
{
    double pad = fmax(0.5, 0.04 * (high - low));
    if (axis == AXIS_TOKENS && low >= 1 && high >= 2 * low)
        token_axis(low, high, s);
    else if (axis == AXIS_PARAM && low > 0 && high >= 10 * low)
        chart_log_x(low, high, width, s);
    else if (axis == AXIS_COUNT || axis == AXIS_TOKENS)
        buf_printf(s, "set xrange [%g:%g]\nset xtics %g nomirror\n", low - pad, high + pad,
                   gp_count_step(high - low + 1, width > 300   ? 12
                                                 : width > 200 ? 8
                                                               : 5));
}

static void y_axis(const struct chart *c, struct chart_panel *p, double least, bool positive,
                   double least_median, struct buf *s)
{
    bool log = positive && ((c->f->flags & FIGURE_LOG) || metric_axis(p->metric) == AXIS_LOG);
    if (log)
        buf_printf(s, "set logscale y\nset format y '%s'\n", figure_powers(c->a->output));
    if (log && p->rounding && (c->f->flags & FIGURE_LOG))
        buf_printf(s, "set yrange [%.6g:*]\n", chart_log_floor(least));
    else if (!log && (c->f->flags & FIGURE_NARROW) && least_median < 1) {
        double step = gp_step(1 - least_median, 4); /* low panels of one metric, to be compared */
        buf_printf(s, "set ytics %g nomirror\nset yrange [%.8g:1]\n", step,
                   1 - step * ceil((1 - least_median) / step));
    } else if (!log)
        buf_printf(s, "set yrange [%s]\n", chart_range(p->metric));
}

void chart_axes(const struct chart *c, int panel, struct buf *s)
{
    struct chart_panel *p = (struct chart_panel *)&c->panel[panel];
    double low = INFINITY, high = -INFINITY, least = INFINITY, least_y = INFINITY;
    bool positive = true;
    for (int64_t i = 0; i < c->n; i++) {
        const struct chart_point *q = &c->p[i];
        if (q->panel != panel)
            continue;
        low = fmin(low, q->x);
        high = fmax(high, q->x);
        positive = positive && q->y > 0;
        least_y = fmin(least_y, q->y);
        if (!q->rounding)
            least = fmin(least, q->y);
    }
    for (int i = 0; i < c->marks.n; i++) {
        low = fmin(low, c->marks.m[i].x);
        high = fmax(high, c->marks.m[i].x);
    }
    buf_puts(s, "unset logscale\nset xrange [*:*]\nset yrange [*:*]\n");
    if (c->f->flags & FIGURE_STEPS) { /* lines at the ends of the axes stand clear of the frame */
        double pad = high > low ? 0.03 * (high - low) : 0.05 * fmax(fabs(high), 1);
        buf_printf(s, "set xrange [%.8g:%.8g]\nset yrange [-0.03:1.03]\n", low - pad, high + pad);
        return;
    }
    x_axis(p->axis, low, high, c->canvas.width, s);
    y_axis(c, p, least, positive, least_y, s);
}

/* ---- metrics ------------------------------------------------------------------------------- */

void chart_metric_name(const char *metric, struct buf *b)
{
    const char *label = metric_label(metric);
    if (strcmp(label, metric) != 0)
        buf_puts(b, label);
    else
        metric_title(metric, b);
}

/* A recall's name says what it is a share of; that of a density does not. */
void chart_metric_label(const char *metric, struct buf *b, double *scale)
{
    const char *unit;
    *scale = metric_scale(metric, &unit);
    const struct metric_def *def = metric_def_find(metric);
    bool told = def && def->label && def->section && strcmp(def->section, "recall") == 0;
    chart_metric_name(metric, b);
    if (unit[0] && !told)
        buf_printf(b, " [%s]", unit);
}

const char *chart_range(const char *metric)
{
    const struct metric_def *def = metric_def_find(metric);
    enum metric_axis axis = metric_axis(metric);
    if (axis == AXIS_SHARE)
        return metric_better(metric) == BETTER_HIGHER ? "*<0.99:1" : "0:1";
    return axis == AXIS_LOG || !def ? "*:*" : "0<*:*";
}

double chart_rounding(const char *metric, const struct record *r)
{
    if (metric_noise(metric) != NOISE_ROUNDING)
        return 0;
    return strcmp(r->precision, "f64") == 0 ? 1e-12 : 1e-6;
}

double chart_log_floor(double least)
{
    return isinf(least) ? 1e-3 : pow(10, floor(log10(least) - 0.3));
}

int metric_list(const char *text, struct str_list *out, struct err *err)
{
    for (const char *p = text; *p;) {
        size_t len = strcspn(p, ",");
        char one[96];
        if (len >= sizeof one)
            return err_set(err, ERR_USAGE, "--metrics: '%.*s' is too long", (int)len, p);
        snprintf(one, sizeof one, "%.*s", (int)len, p);
        if (len)
            str_list_add(out, one);
        p += len + (p[len] == ',');
    }
    return out->n ? 0 : err_set(err, ERR_USAGE, "--metrics: no metric given");
}
