/*
 * profile.c - figures that set one metric against several keys side by side: profile (layer, step,
 * sample and head; figures 14-17 of SpargeAttn, arXiv 2502.18137) and stability (reused masks by
 * age, figure 10 of FG-Attn, arXiv 2509.16518).
 */
#include "plots/chart.h"

#include "analyze/metricfacts.h"
#include "core/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One panel: a metric against a key. */
struct panel {
    enum group_key key;
    const char *metric;
    char label[96];   /* of the x axis */
    struct buf rows;  /* a block per series: x, mean, smallest, largest */
    double low, high; /* of x */
};

/* ---- profile --------------------------------------------------------------------------------- */

/* x of a sample: its place among the traces of the set in the order of their ids. */
static double sample_number(const struct grouping *traces, const struct record *r)
{
    for (int64_t i = 0; i < traces->n; i++)
        if (key_compare(traces->g[i].first, r, KEY_TRACE) == 0)
            return (double)i;
    return NAN;
}

struct point {
    int series;
    double x, mean, min, max;
};

static int by_series(const void *a, const void *b)
{
    const struct point *p = a, *q = b;
    if (p->series != q->series)
        return p->series - q->series;
    return (p->x > q->x) - (p->x < q->x);
}

static void write_points(struct panel *p, struct point *pt, int64_t n, int series)
{
    qsort(pt, (size_t)n, sizeof *pt, by_series);
    p->low = INFINITY;
    p->high = -INFINITY;
    for (int s = 0; s < series; s++) {
        buf_puts(&p->rows, "nan nan nan nan\n");
        for (int64_t i = 0; i < n; i++)
            if (pt[i].series == s) {
                buf_printf(&p->rows, "%.10g %.10g %.10g %.10g\n", pt[i].x, pt[i].mean, pt[i].min,
                           pt[i].max);
                p->low = fmin(p->low, pt[i].x);
                p->high = fmax(p->high, pt[i].x);
            }
        buf_puts(&p->rows, "\n\n");
    }
}

/* Means over all cells of one value of the key; `names` was filled by the first panel. */
static int fill_profile(const struct figure_args *a, struct panel *p, struct series_list *l,
                        struct err *err)
{
    static const enum group_key trace = KEY_TRACE;
    enum group_key keys[3] = {KEY_METHOD, KEY_PARAMS, p->key};
    struct chart_groups g = {0};
    struct grouping traces = {0};
    struct point *pt = NULL;
    struct stats s;
    const char *unit;
    double scale = metric_scale(p->metric, &unit);
    int rc = 0;

    TRY(chart_group(a, keys, 3, 0, p->metric, KEY_COUNT, &g, err));
    TRY(grouping_make(a->set, &trace, 1, 0, NULL, NULL, &traces, err));
    TRY(mem_alloc(&pt, g.gs.n, sizeof *pt, "points", err));
    for (int64_t i = 0; i < g.gs.n; i++) {
        const struct record *r = g.gs.g[i].first;
        TRY(group_stats(&g.gs, &g.gs.g[i], p->metric, &s, NULL, err));
        int k = chart_series(&g, r, r->params, l, err);
        if (k < 0) {
            rc = err->code;
            goto out;
        }
        double x = p->key == KEY_TRACE ? sample_number(&traces, r) : key_number(r, p->key);
        pt[i] = (struct point){k, x, s.mean * scale, s.min * scale, s.max * scale};
    }
    write_points(p, pt, g.gs.n, l->n);
out:
    free(pt);
    grouping_free(&traces);
    chart_groups_free(&g);
    return rc;
}

/* ---- drawing ----------------------------------------------------------------------------------
 */

/* The panels' blocks follow one another in the data file: panel i starts at block i * series. */
static void plot_panel(struct chart *c, const struct panel *p, int i, const struct series_list *l,
                       bool spread, bool last)
{
    struct buf *s = &c->gp.script;
    double pad = fmax(0.5, 0.04 * (p->high - p->low));
    buf_printf(s, "set xrange [%g:%g]\nset xtics %g\n", p->low - pad, p->high + pad,
               gp_count_step(p->high - p->low + 1, 8));
    for (int k = 0; k < l->n; k++) {
        int at = i * l->n + k;
        if (spread) {
            buf_puts(s, k ? ", " : "plot ");
            gp_data_name(&c->gp, "dat");
            buf_printf(s,
                       " index %d using 1:3:(0):($4-$3) with vectors nohead lw 0.8 lc rgb '%s' "
                       "notitle",
                       at, l->s[k].color);
        }
        buf_puts(s, k || spread ? ", " : "plot ");
        gp_data_name(&c->gp, "dat");
        buf_printf(s,
                   " index %d using 1:2 with linespoints lw 1.4 dt %d pt %d ps 0.8*point_scale "
                   "lc rgb '%s' notitle",
                   at, l->s[k].dash, l->s[k].point, l->s[k].color);
    }
    if (last)
        chart_legend(c, l, MARK_LINE_POINT);
    buf_puts(s, "\n");
}

static int draw_panels(const struct figure_args *a, struct panel *p, int n,
                       const struct series_list *l, const char *title, bool spread,
                       const char *range, struct err *err)
{
    struct chart c = {0};
    struct buf data = {0}, label = {0};
    double scale;
    int rc = 0;

    struct chart_layout layout = {
        .title = title, .panels = n, .width = n > 2 ? 230 : 360, .height = 290};
    chart_legend_room(l, &layout);
    TRY(chart_open(a, &layout, &c, err));
    for (int i = 0; i < n; i++) {
        buf_printf(&data,
                   "# panel %d: %s against %s; a block per line: x, mean, smallest, largest\n", i,
                   p[i].metric, p[i].label);
        buf_puts(&data, buf_str(&p[i].rows));
        buf_reset(&label);
        chart_metric_label(p[i].metric, &label, &scale);
        chart_panel(&c, i, p[i].label,
                    i && strcmp(p[i].metric, p[0].metric) == 0 ? "" : buf_str(&label));
        buf_printf(&c.gp.script, "set yrange [%s]\n", range);
        plot_panel(&c, &p[i], i, l, spread, i == n - 1);
        buf_puts(&c.gp.script, "unset label\n"); /* the title is drawn once */
    }
    TRY(chart_finish(&c, &data, err));
out:
    chart_free(&c);
    buf_free(&data);
    buf_free(&label);
    return rc;
}

static void free_panels(struct panel *p, int n)
{
    for (int i = 0; i < n; i++)
        buf_free(&p[i].rows);
}

/* Only keys that vary get a panel. */
static int profile_panels(const struct figure_args *a, const char *metric, struct panel p[4])
{
    static const struct {
        enum group_key key;
        const char *label;
    } all[] = {{KEY_LAYER, "layer"},
               {KEY_STEP, "denoising step"},
               {KEY_TRACE, "sample"},
               {KEY_HEAD, "head"}};
    int n = 0;
    for (int i = 0; i < 4; i++) {
        if (!recset_varies(a->set, all[i].key))
            continue;
        p[n] = (struct panel){.key = all[i].key, .metric = metric};
        snprintf(p[n++].label, sizeof p->label, "%s", all[i].label);
    }
    return n;
}

static int draw_profile(const struct figure_args *a, struct err *err)
{
    const char *metric = a->metric ? a->metric : "sparsity_total";
    struct panel p[4] = {{0}};
    struct series_list l = {0};
    struct buf title = {0};
    int n = profile_panels(a, metric, p), rc = 0;

    if (n == 0)
        FAIL(err, ERR_INPUT,
             "the records hold one layer, step, sample and head: nothing to compare");
    for (int i = 0; i < n; i++)
        TRY(fill_profile(a, &p[i], &l, err));
    TRY(series_labels(&l, LEGEND_CHARS, err));
    series_shade(&l, TELL_DASH_POINT);
    metric_title(metric, &title);
    buf_printf(&title, ": mean, and range of the cells, by %s", p[0].label);
    for (int i = 1; i < n; i++)
        buf_printf(&title, ", %s", p[i].label);
    TRY(draw_panels(a, p, n, &l, buf_str(&title), true,
                    metric_axis(metric) == AXIS_LOG ? "*:*" : "0:*", err));
out:
    free_panels(p, n);
    series_free(&l);
    buf_free(&title);
    return rc;
}

/* ---- stability ---------------------------------------------------------------------------------
 */

/* One line per layer, the mean over heads and refresh periods. */
static int fill_stability(const struct figure_args *a, struct panel *p, struct series_list *l,
                          struct err *err)
{
    static const enum group_key keys[] = {KEY_METHOD, KEY_PARAMS, KEY_LAYER, KEY_MASK_AGE};
    struct chart_groups g = {0};
    struct buf name = {0};
    struct point *pt = NULL;
    struct stats s;
    int rc = 0;

    TRY(chart_group(a, keys, 4, 0, p->metric, KEY_COUNT, &g, err));
    TRY(mem_alloc(&pt, g.gs.n, sizeof *pt, "points", err));
    bool several = g.gs.n && (g.n_scope || recset_varies(a->set, KEY_PARAMS));
    for (int64_t i = 0; i < g.gs.n; i++) {
        const struct record *r = g.gs.g[i].first;
        TRY(group_stats(&g.gs, &g.gs.g[i], p->metric, &s, NULL, err));
        buf_reset(&name);
        if (several) {
            chart_name(&g, r, r->params, &name);
            buf_puts(&name, " ");
        }
        buf_printf(&name, "layer %d", r->layer);
        int k = series_of(l, buf_str(&name), "", err);
        if (k < 0) {
            rc = err->code;
            goto out;
        }
        pt[i] = (struct point){k, key_number(r, KEY_MASK_AGE), s.mean, s.min, s.max};
    }
    write_points(p, pt, g.gs.n, l->n);
out:
    free(pt);
    buf_free(&name);
    chart_groups_free(&g);
    return rc;
}

static void color_layers(struct series_list *l)
{
    static const char *const colors[] = {"#440154", "#3b528b", "#21918c", "#5ec962", "#d8b400",
                                         "#d62728", "#9467bd", "#8c564b", "#7f7f7f", "#1f77b4"};
    for (int i = 0; i < l->n; i++) {
        snprintf(l->s[i].color, sizeof l->s[i].color, "%s", colors[i % 10]);
        l->s[i].point = 5 + i % 9;
        l->s[i].dash = 1 + i / 10;
    }
}

static int draw_stability(const struct figure_args *a, struct err *err)
{
    struct panel p[2] = {{.key = KEY_MASK_AGE, .metric = "mask_iou"},
                         {.key = KEY_MASK_AGE, .metric = "mask_recall"}};
    struct series_list l = {0};
    int rc = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(p[i].label, sizeof p->label, "age of the mask [step]");
        TRY(fill_stability(a, &p[i], &l, err));
    }
    TRY(series_labels(&l, LEGEND_CHARS, err));
    color_layers(&l);
    TRY(draw_panels(a, p, 2, &l, "reused mask against the step's own, mean over heads of calls",
                    false, "*:1", err));
out:
    free_panels(p, 2);
    series_free(&l);
    return rc;
}

const struct figure figure_profile = {
    .listed = {"profile", "a metric by layer, denoising step, sample and head, side by side",
               "input: records; --metric (sparsity_total); a key that does not vary has no panel"},
    .input = FIGURE_RECORDS,
    .draw = draw_profile,
};

const struct figure figure_stability = {
    .listed = {"stability", "reused masks against each step's own, by age and layer",
               "input: records of fg-attn with compare=1"},
    .input = FIGURE_RECORDS,
    .draw = draw_stability,
};
