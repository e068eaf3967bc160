/*
 * pareto.c - density against what it costs: error or recall.
 *
 * One point per method and parameters (mean over the chosen heads), one line per method through its
 * parameter sweep. A point is dominated, and drawn hollow, when another point of the same scope is
 * no worse in both coordinates and better in one. A bound (METHOD_BOUND) dominates nobody.
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "analyze/params.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct point {
    double x, y; /* an error that is rounding only is 0 */
    double mean, x_sd, y_sd, tolerance;
    int series, scope;
    bool dominated;
    const char *params;
};

struct pareto {
    struct chart_groups g;
    struct series_list series;
    struct point *p; /* of one panel */
    int64_t n;
};

static const char *const x_metric = "density_elem";

/* Densities are quotients of counts; only their mean rounds. */
#define X_ROUNDING 1e-12

static bool same_scope(const struct chart_groups *g, const struct record *a, const struct record *b)
{
    for (int i = 0; i < g->n_scope; i++)
        if (key_compare(a, b, g->scope[i]) != 0)
            return false;
    return true;
}

/* The line of a setting: of its method, or of the settings with targets on one metric that have all
 * other parameters in common. A parameter per head and one for all heads are not points of one
 * curve. */
static int line_of(struct pareto *q, const struct record *r, struct err *err)
{
    const char *target = params_target(r->params), *per = strchr(target, ':');
    struct buf name = {0};
    int line = -1;
    if (*target)
        buf_printf(&name, "%.*s%.*s%s", (int)(target - r->params), r->params,
                   (int)strcspn(target, "<>="), target, per ? per : "");
    if (!buf_check(&name, "series", err))
        line = chart_series(&q->g, r, *target ? buf_str(&name) : NULL, &q->series, err);
    buf_free(&name);
    return line;
}

static int make_series(struct pareto *q, struct err *err)
{
    for (int64_t i = 0; i < q->g.gs.n; i++)
        if (line_of(q, q->g.gs.g[i].first, err) < 0)
            return err->code;
    return series_labels(&q->series, LEGEND_CHARS, err);
}

/* Points of one panel, sorted by series and density. */
static int by_series(const void *a, const void *b)
{
    const struct point *x = a, *y = b;
    if (x->series != y->series)
        return x->series - y->series;
    return x->x != y->x ? (x->x > y->x) - (x->x < y->x) : (x->y > y->y) - (x->y < y->y);
}

/* Is b no worse than a in both coordinates and better in one, by more than rounding? */
static bool dominates(const struct point *b, const struct point *a, bool larger)
{
    double x = b->x - a->x, y = larger ? a->y - b->y : b->y - a->y;
    double eps = fmax(a->tolerance, b->tolerance);
    return x <= X_ROUNDING && y <= eps && (x < -X_ROUNDING || y < -eps);
}

static bool is_bound(const struct figure_args *a, const char *method)
{
    for (int i = 0; a->methods && a->methods[i]; i++)
        if (strcmp(a->methods[i]->name, method) == 0)
            return a->methods[i]->flags & METHOD_BOUND;
    return false;
}

static void mark_dominated(struct pareto *q, bool larger)
{
    for (int64_t i = 0; i < q->n; i++)
        for (int64_t k = 0; k < q->n; k++) {
            const struct point *a = &q->p[i], *b = &q->p[k];
            if (is_bound(q->g.args, q->series.s[b->series].method))
                continue;
            q->p[i].dominated |= a->scope == b->scope && dominates(b, a, larger);
        }
}

static int collect(struct pareto *q, const char *metric, struct err *err)
{
    struct stats x, y;
    const char *unit;
    double scale = metric_scale(metric, &unit);
    int scope = 0, rc = 0;
    q->n = 0;
    for (int64_t i = 0; i < q->g.gs.n; i++) {
        const struct group *g = &q->g.gs.g[i];
        double eps = chart_rounding(metric, g->first);
        TRY(group_stats(&q->g.gs, g, x_metric, &x, NULL, err));
        TRY(group_stats(&q->g.gs, g, metric, &y, NULL, err));
        scope += i > 0 && !same_scope(&q->g, q->g.gs.g[i - 1].first, g->first);
        if (x.n == 0 || y.n == 0 || !(x.mean > 0))
            continue;
        int s = line_of(q, g->first, err);
        double drawn = metric_axis(metric) == AXIS_LOG && fabs(y.mean) < eps ? 0 : y.mean;
        q->p[q->n++] =
            (struct point){x.mean, drawn * scale, y.mean * scale,  x.sd, y.sd * scale, eps, s,
                           scope,  false,         g->first->params};
    }
    qsort(q->p, (size_t)q->n, sizeof *q->p, by_series);
    if (metric_better(metric) != BETTER_NEITHER)
        mark_dominated(q, metric_better(metric) == BETTER_HIGHER);
out:
    return rc;
}

/* Zeros are drawn on the lower edge. */
static double log_floor(const struct pareto *q)
{
    double least = INFINITY;
    for (int64_t i = 0; i < q->n; i++)
        if (q->p[i].y > 0)
            least = fmin(least, q->p[i].y);
    return chart_log_floor(least);
}

/* A block per series (empty ones too, so that the index is the series). */
static void write_points(const struct pareto *q, const char *metric, double floor_y, struct buf *b)
{
    buf_printf(b,
               "# %s: density_elem, value drawn, dominated, value, sd of density, sd of value, "
               "parameters\n",
               metric);
    for (int s = 0; s < q->series.n; s++) {
        buf_printf(b, "# %s\nnan nan 0\n", q->series.s[s].name);
        for (int64_t i = 0; i < q->n; i++) {
            const struct point *p = &q->p[i];
            if (p->series == s)
                buf_printf(b, "%.10g %.10g %d %.10g %.4g %.4g \"%s\"\n", p->x, fmax(p->y, floor_y),
                           p->dominated, p->mean, p->x_sd, p->y_sd, p->params ? p->params : "");
        }
        buf_puts(b, "\n\n");
    }
}

static void ideal_corner(struct chart *c, bool larger)
{
    double y = larger ? 0.955 : 0.045;
    buf_printf(
        &c->gp.script,
        "set arrow 1 from graph 0.075, graph %.3f to graph 0.012, graph %.3f head filled size "
        "graph 0.02,20 lc rgb '#009e73' front\n"
        "set label 9 'ideal' at graph 0.085, graph %.3f left font font_small tc rgb '#009e73' "
        "front\n",
        y, larger ? 0.99 : 0.012, y);
}

/* A grey band where settings were to have a density (@density_elem=0.3): within 2 % they have. */
static void target_bands(const struct pareto *q, struct buf *s)
{
    double drawn[64];
    int n = 0;
    for (int64_t i = 0; i < q->g.gs.n && n < 64; i++) {
        const char *v = params_value(q->g.gs.g[i].first->params, "@density_elem");
        double x = v ? strtod(v, NULL) : 0;
        bool seen = x <= 0;
        for (int k = 0; k < n; k++)
            seen |= drawn[k] == x;
        if (seen)
            continue;
        drawn[n++] = x;
        buf_printf(
            s,
            "set object %d rectangle from first %.8g, graph 0 to first %.8g, graph 1 fs solid "
            "0.5 noborder fc rgb '#cccccc' behind\n",
            100 + n, 0.98 * x, 1.02 * x);
    }
}

static bool any_dominated(const struct pareto *q)
{
    for (int64_t i = 0; i < q->n; i++)
        if (q->p[i].dominated)
            return true;
    return false;
}

static void plot_series(struct pareto *q, struct chart *c, int panel)
{
    struct buf *s = &c->gp.script;
    for (int i = 0; i < q->series.n; i++) {
        const struct series *k = &q->series.s[i];
        int index = panel * q->series.n + i;
        buf_puts(s, i ? ", " : "plot ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s, " index %d using 1:2 with lines lw 1.4 dt %d lc rgb '%s' notitle, ", index,
                   k->dash, k->color);
        gp_data_name(&c->gp, "dat");
        buf_printf(s,
                   " index %d using ($3==0?$1:NaN):2 with points pt %d ps 1.1*point_scale lc rgb "
                   "'%s' notitle, ",
                   index, k->point, k->color);
        gp_data_name(&c->gp, "dat");
        buf_printf(s,
                   " index %d using ($3==1?$1:NaN):2 with points pt %d ps 1.1*point_scale lw 1.2 "
                   "lc rgb '%s' "
                   "notitle",
                   index, k->point - 1, k->color);
    }
    if (panel == c->panels - 1) {
        chart_legend(c, &q->series);
        if (any_dominated(q))
            chart_entry_as(c, "points pt 6 ps 1*point_scale lw 1.2 lc rgb '#555555'",
                           "hollow: dominated");
    }
    chart_end(c);
}

/* An axis of one decade has too few numbers of its own. */
static void x_axis(const struct pareto *q, struct buf *s)
{
    double least = 1;
    for (int64_t i = 0; i < q->n; i++)
        least = fmin(least, q->p[i].x);
    buf_puts(s, "set logscale x\nset xrange [*:1]\nset format x '%g'\n");
    if (least >= 0.1)
        buf_puts(s, "set xtics add (0.2, 0.5)\n");
}

static void y_axis(const struct pareto *q, const char *metric, bool log, double floor_y,
                   struct buf *s)
{
    const char *powers = figure_powers(q->g.args->output);
    double top = 0;
    for (int64_t i = 0; i < q->n; i++)
        top = fmax(top, q->p[i].y);
    if (log)
        buf_printf(s, "set logscale y\nset format y '%s'\nset yrange [%.6g:%.6g]\n", powers,
                   floor_y, fmax(pow(10, ceil(log10(fmax(top, floor_y) * 1.05))), floor_y * 10));
    else
        buf_printf(s, "unset logscale y\nset format y '%%g'\nset yrange [%s]\n",
                   metric_axis(metric) == AXIS_SHARE ? "*<0.99:1" : "*:*");
}

static int draw_panel(struct pareto *q, struct chart *c, int i, const char *metric,
                      struct buf *data, struct err *err)
{
    struct buf label = {0}, x_label = {0};
    double scale;
    int rc = 0;

    TRY(collect(q, metric, err));
    bool log = metric_axis(metric) == AXIS_LOG;
    double floor_y = log ? log_floor(q) : -INFINITY;
    write_points(q, metric, floor_y, data);
    chart_metric_label(x_metric, &x_label, &scale);
    chart_metric_label(metric, &label, &scale);
    chart_panel(c, i, buf_str(&x_label), buf_str(&label));
    x_axis(q, &c->gp.script);
    y_axis(q, metric, log, floor_y, &c->gp.script);
    if (metric_better(metric) != BETTER_NEITHER)
        ideal_corner(c, metric_better(metric) == BETTER_HIGHER);
    target_bands(q, &c->gp.script);
    plot_series(q, c, i);
out:
    buf_free(&label);
    buf_free(&x_label);
    return rc;
}

static bool any_target(const struct pareto *q)
{
    for (int64_t i = 0; i < q->g.gs.n; i++)
        if (*params_target(q->g.gs.g[i].first->params))
            return true;
    return false;
}

static int open_chart(const struct figure_args *a, const struct pareto *q,
                      const struct str_list *metrics, struct chart *c, struct err *err)
{
    struct buf title = {0}, caption = {0};
    int panels = (int)metrics->n, rc = 0;
    bool zero = false;
    struct chart_layout layout = {
        .panels = panels, .width = panels == 1 ? 560 : 330, .height = 330};
    buf_puts(&title, "Pairs kept against ");
    for (int i = 0; i < panels; i++) {
        buf_puts(&title, i == 0 ? "" : i + 1 < panels ? "; " : " and ");
        chart_metric_name(metrics->items[i], &title);
    }
    buf_puts(&title, "; mean over ");
    chart_over(&q->g, metrics, &title);
    TRY(buf_check(&title, "title", err));
    layout.title = buf_str(&title);
    buf_puts(&caption,
             "A line joins the settings of a method. Hollow: dominated, another setting is "
             "better in both.");
    if (any_target(q))
        buf_puts(&caption, " Grey bands: densities that settings were to have, within 2 %.");
    for (int i = 0; i < panels && !zero; i++)
        zero = metric_axis(metrics->items[i]) == AXIS_LOG;
    if (zero)
        buf_puts(&caption, " What is 0 stands on the lower edge of a logarithmic axis.");
    TRY(buf_check(&caption, "caption", err));
    layout.caption = buf_str(&caption);
    chart_legend_room(&q->series, &layout);
    layout.lines++; /* what hollow means */
    layout.legend = layout.legend < 200 ? 200 : layout.legend;
    TRY(chart_open(a, &layout, c, err));
out:
    buf_free(&caption);
    buf_free(&title);
    return rc;
}

/* Panels: those of --metric, which must have data, or those of the usual ones that have. */
static int choose_metrics(const struct figure_args *a, const struct pareto *q,
                          struct str_list *metrics, struct err *err)
{
    struct str_list all = {0};
    struct stats s;
    int rc = 0;
    TRY(metric_list(a->metric ? a->metric : "err_l1_rel,cra_mean,cra_p1", &all, err));
    if (all.n > 4)
        FAIL(err, ERR_USAGE, "--metric: a pareto figure has up to 4 panels");
    for (int64_t m = 0; m < all.n; m++) {
        int64_t n = 0;
        for (int64_t i = 0; i < q->g.gs.n; i++) {
            TRY(group_stats(&q->g.gs, &q->g.gs.g[i], all.items[m], &s, NULL, err));
            n += s.n;
        }
        if (n)
            str_list_add(metrics, all.items[m]);
        else if (a->metric || (m + 1 == all.n && metrics->n == 0))
            TRY(chart_nothing(a, all.items[m], err));
    }
    if (metrics->failed)
        FAIL(err, ERR_NOMEM, "metrics: out of memory");
out:
    str_list_free(&all);
    return rc;
}

static int draw(const struct figure_args *a, struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS};
    struct pareto q = {0};
    struct chart c = {0};
    struct str_list metrics = {0};
    struct buf data = {0};
    int rc = 0;

    TRY(chart_group(a, keys, 2, GROUP_SPLIT_STEPS, x_metric, KEY_COUNT, &q.g, err));
    TRY(choose_metrics(a, &q, &metrics, err));
    TRY(mem_alloc(&q.p, q.g.gs.n, sizeof *q.p, "points", err));
    TRY(make_series(&q, err));
    series_shade(&q.series, TELL_DASH);
    TRY(open_chart(a, &q, &metrics, &c, err));
    for (int i = 0; i < metrics.n; i++)
        TRY(draw_panel(&q, &c, i, metrics.items[i], &data, err));
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    chart_groups_free(&q.g);
    series_free(&q.series);
    str_list_free(&metrics);
    buf_free(&data);
    free(q.p);
    return rc;
}

const struct figure figure_pareto = {
    .listed = {"pareto", "density against error and recall, dominated settings hollow",
               "input: records; --metric LIST gives the panels (err_l1_rel,cra_mean,cra_p1)"},
    .uses = "layer,head,step,branch,method,params,metric",
    .input = FIGURE_RECORDS,
    .draw = draw,
};
