/*
 * bars.c - bars: a metric by layer, one bar per method, with the standard deviation over heads.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct bar {
    int series, layer;
    double mean, sd;
};

static int collect(const struct chart_groups *g, const char *metric, struct series_list *l,
                   struct bar *bars, struct err *err)
{
    const char *unit;
    double scale = metric_scale(metric, &unit);
    struct stats s;
    for (int64_t i = 0; i < g->gs.n; i++) {
        const struct group *grp = &g->gs.g[i];
        int rc = group_stats(&g->gs, grp, metric, &s, NULL, err);
        int k = rc ? -1 : chart_series(g, grp->first, grp->first->params, l, err);
        if (k < 0)
            return err->code;
        bars[i] = (struct bar){k, grp->first->layer, s.mean * scale, s.sd * scale};
    }
    return 0;
}

/* A block per series: x, value, standard deviation. */
static void write_bars(const struct bar *bars, int64_t n, const struct series_list *l, double width,
                       struct buf *b)
{
    for (int s = 0; s < l->n; s++) {
        buf_printf(b, "# %s: x, layer, mean, sd\nnan nan nan nan\n", l->s[s].name);
        for (int64_t i = 0; i < n; i++)
            if (bars[i].series == s)
                buf_printf(b, "%.6f %d %.10g %.10g\n",
                           bars[i].layer + (s - (l->n - 1) / 2.0) * width, bars[i].layer,
                           bars[i].mean, isnan(bars[i].sd) ? 0 : bars[i].sd);
        buf_puts(b, "\n\n");
    }
}

static void layer_range(const struct bar *bars, int64_t n, int *low, int *high)
{
    *low = INT32_MAX;
    *high = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        *low = bars[i].layer < *low ? bars[i].layer : *low;
        *high = bars[i].layer > *high ? bars[i].layer : *high;
    }
}

/* Is a bar wide enough for the line of its standard deviation, and is there any? */
static bool draws_sd(int panel, const struct bar *bars, int64_t n, double width, int layers)
{
    for (int64_t i = 0; i < n; i++)
        if (!isnan(bars[i].sd))
            return panel * width / (layers + 0.2) >= 5;
    return false;
}

static void plot_sd(struct chart *c, int i)
{
    for (int side = 0; side < 2; side++) {
        buf_puts(&c->gp.script, ", ");
        gp_data_name(&c->gp, "dat");
        buf_printf(&c->gp.script,
                   " index %d using 1:3:(0):(%s$4) with vectors nohead lc rgb '#555555' lw 0.8 "
                   "notitle",
                   i, side ? "-" : "");
    }
}

static void plot_bars(struct chart *c, const struct series_list *l, double width, int low, int high,
                      bool sd)
{
    struct buf *s = &c->gp.script;
    buf_printf(s,
               "set boxwidth %.6f absolute\nset style fill solid 1.0 noborder\n"
               "set xrange [%g:%g]\nset xtics %g\nset grid noxtics\nset yrange [0:*]\n",
               width * 0.92, low - 0.6, high + 0.6, gp_count_step(high - low + 1, 16));
    for (int i = 0; i < l->n; i++) {
        buf_puts(s, i ? ", " : "plot ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s, " index %d using 1:3 with boxes lc rgb '%s' notitle", i, l->s[i].color);
        if (sd)
            plot_sd(c, i);
    }
    chart_legend(c, l, MARK_BOX);
    buf_puts(s, "\n");
}

static void make_title(const struct chart_groups *g, const char *metric, bool sd, struct buf *b)
{
    buf_reset(b);
    metric_title(metric, b);
    buf_printf(b, " by layer, mean%s over ", sd ? " and standard deviation" : "");
    chart_over(g, b);
}

static int draw(const struct figure_args *a, const struct chart_groups *g, const char *metric,
                const struct bar *bars, const struct series_list *l, struct err *err)
{
    struct chart c = {0};
    struct buf data = {0}, label = {0}, title = {0};
    double scale, width = 0.84 / l->n;
    int low, high, rc = 0;

    layer_range(bars, g->gs.n, &low, &high);
    int want = (high - low + 1) * (12 * l->n + 14);
    make_title(g, metric, true, &title);
    struct chart_layout layout = {.title = buf_str(&title),
                                  .panels = 1,
                                  .width = want < 460    ? 460
                                           : want > 1400 ? 1400
                                                         : want,
                                  .height = 340};
    chart_legend_room(l, &layout);
    bool sd = draws_sd(chart_panel_width(a, &layout), bars, g->gs.n, width, high - low + 1);
    make_title(g, metric, sd, &title);
    TRY(buf_check(&title, "title", err));
    layout.title = buf_str(&title);
    TRY(chart_open(a, &layout, &c, err));
    write_bars(bars, g->gs.n, l, width, &data);
    chart_metric_label(metric, &label, &scale);
    chart_panel(&c, 0, "layer", buf_str(&label));
    plot_bars(&c, l, width, low, high, sd);
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    buf_free(&data);
    buf_free(&label);
    buf_free(&title);
    return rc;
}

static int draw_bars(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS, KEY_LAYER};
    const char *metric = a->metric ? a->metric : "density_elem";
    struct chart_groups g = {0};
    struct series_list l = {0};
    struct bar *bars = NULL;
    int rc = 0;

    TRY(chart_group(a, keys, 3, GROUP_SPLIT_STEPS, metric, KEY_COUNT, &g, err));
    TRY(mem_alloc(&bars, g.gs.n, sizeof *bars, "bars", err));
    TRY(collect(&g, metric, &l, bars, err));
    TRY(series_labels(&l, LEGEND_CHARS, err));
    series_shade(&l, TELL_SHADE);
    TRY(draw(a, &g, metric, bars, &l, err));
out:
    chart_groups_free(&g);
    series_free(&l);
    free(bars);
    return rc;
}

const struct figure figure_bars = {
    .listed = {"bars", "a metric by layer, one bar per method",
               "input: records; --metric (density_elem)"},
    .input = FIGURE_RECORDS,
    .draw = draw_bars,
};
