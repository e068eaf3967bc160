/*
 * cdf.c - cdf: the distribution of a metric over heads, a line of steps per setting.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>

struct cdf {
    struct chart_groups g;
    struct series_list l;
    int64_t *rows; /* of each series in the data file; owned */
    double low, high;
};

/* A block per series: value, share of cells at or below it; starts at share 0. */
static int write_cdf(struct cdf *f, const char *metric, struct buf *b, struct err *err)
{
    const char *unit;
    double scale = metric_scale(metric, &unit);
    f->low = INFINITY;
    f->high = -INFINITY;
    for (int64_t i = 0; i < f->g.gs.n; i++) {
        const struct record *r = f->g.gs.g[i].first;
        struct stats s;
        double *x = NULL;
        int rc = group_stats(&f->g.gs, &f->g.gs.g[i], metric, &s, &x, err);
        int k = rc ? -1 : chart_series(&f->g, r, r->params, &f->l, err);
        if (k < 0) {
            free(x);
            return err->code;
        }
        buf_printf(b, "# %s: value, share of cells at or below it\n%.10g 0\n", f->l.s[k].name,
                   x[0] * scale);
        f->rows[k] = 1;
        for (int64_t m = 0; m < s.n; m++)
            if (m + 1 == s.n || x[m + 1] != x[m]) {
                buf_printf(b, "%.10g %.10g\n", x[m] * scale, (double)(m + 1) / (double)s.n);
                f->rows[k]++;
            }
        buf_puts(b, "\n\n");
        f->low = fmin(f->low, s.min * scale);
        f->high = fmax(f->high, s.max * scale);
        free(x);
    }
    return 0;
}

/* Lines at the ends of the axis stand clear of the frame. */
static void axes(const struct cdf *f, struct buf *b)
{
    double pad = f->high > f->low ? 0.03 * (f->high - f->low) : 0.05 * fmax(fabs(f->high), 1);
    buf_printf(b, "set xrange [%.8g:%.8g]\nset yrange [-0.03:1.03]\n", f->low - pad, f->high + pad);
}

static int draw_steps(const struct figure_args *a, const struct cdf *f, const char *metric,
                      const struct buf *data, struct err *err)
{
    struct buf label = {0}, title = {0}, before = {0};
    double scale;
    int rc = 0;

    chart_metric_name(metric, &title);
    buf_puts(&title, ": share of ");
    chart_over(&f->g, NULL, &title);
    buf_puts(&title, " at or below a value");
    chart_metric_label(metric, &label, &scale);
    axes(f, &before);
    TRY(buf_check(&title, "title", err));
    TRY(buf_check(&before, "axes", err));
    struct chart_layout layout = {.title = buf_str(&title), .width = 560, .height = 340};
    const struct chart_lines lines = {.l = &f->l,
                                      .x_label = buf_str(&label),
                                      .y_label = "share of heads of calls",
                                      .with = "steps",
                                      .axes = buf_str(&before),
                                      .rows = f->rows};
    TRY(chart_draw_lines(a, &layout, &lines, data, err));
out:
    buf_free(&label);
    buf_free(&title);
    buf_free(&before);
    return rc;
}

static int draw_cdf(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    const char *metric = a->metric ? a->metric : "cra_min";
    struct cdf f = {0};
    struct buf data = {0};
    int rc = 0;

    TRY(chart_group(a, keys, 2, GROUP_SPLIT_STEPS, metric, KEY_COUNT, &f.g, err));
    TRY(mem_alloc(&f.rows, f.g.gs.n, sizeof *f.rows, "rows", err));
    TRY(write_cdf(&f, metric, &data, err));
    TRY(series_labels(&f.l, LEGEND_CHARS, err));
    series_shade(&f.l, TELL_DASH_POINT);
    TRY(draw_steps(a, &f, metric, &data, err));
out:
    chart_groups_free(&f.g);
    series_free(&f.l);
    free(f.rows);
    buf_free(&data);
    return rc;
}

const struct figure figure_cdf = {
    .listed = {"cdf", "distribution of a metric over heads", "input: records; --metric (cra_min)"},
    .uses = "layer,head,step,branch,method,params,metric",
    .input = FIGURE_RECORDS,
    .draw = draw_cdf,
};
